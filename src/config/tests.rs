mod auth;

use std::path::PathBuf;

use super::*;

fn load(file: &str, env: &[(&str, &str)], flags: &Flags) -> Result<Config, ConfigError> {
    let path = (!file.is_empty()).then(|| temporary(file));
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let loaded = Config::load(path.as_deref(), env, flags);
    if let Some(path) = path {
        std::fs::remove_file(path).unwrap();
    }
    loaded
}

fn temporary(text: &str) -> PathBuf {
    let mut name = [0; 8];
    getrandom::fill(&mut name).unwrap();
    let path = std::env::temp_dir().join(format!("roadstead-{:016x}.toml", u64::from_ne_bytes(name)));
    std::fs::write(&path, text).unwrap();
    path
}

fn from_env(env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    load("", env, &Flags::default())
}

fn problems(loaded: Result<Config, ConfigError>) -> Vec<String> {
    match loaded {
        Err(ConfigError::Invalid { problems }) => problems,
        other => panic!("expected problems, got {other:?}"),
    }
}

const SECOND: Duration = Duration::from_secs(1);
const WAIT: &str = "ROADSTEAD_COORDINATOR__WORKER_WAIT_TIMEOUT";

#[test]
fn defaults_stand_when_nothing_is_set() {
    let config = from_env(&[]).unwrap();
    assert_eq!(config.http.listen, "127.0.0.1:8080".parse().unwrap());
    assert_eq!((config.http.tls_cert, config.http.tls_key), (None, None));
    assert_eq!((config.http.max_connections, config.http.max_connections_per_address), (16_384, 4_096));
    assert_eq!((config.http.header_read_timeout, config.http.body_read_timeout), (10 * SECOND, 10 * SECOND));
    assert_eq!((config.http.write_timeout, config.http.keep_alive_timeout), (30 * SECOND, 75 * SECOND));
    assert_eq!(config.database.url, None);
    assert_eq!(config.database.pg_bin_dir, None);
    assert_eq!(config.database.max_connections, 8);
    let Coordinator {
        worker_wait_timeout,
        worker_wait_timeout_max,
        start_timeout,
        ack_timeout,
        lease_ttl,
        heartbeat_interval,
        stale_after,
        sweep_interval,
        fallback_interval,
    } = config.coordinator;
    assert_eq!(worker_wait_timeout, 120 * SECOND);
    assert_eq!(worker_wait_timeout_max, 7 * 86_400 * SECOND);
    assert_eq!(start_timeout, Duration::ZERO);
    assert_eq!((ack_timeout, lease_ttl), (15 * SECOND, 60 * SECOND));
    assert_eq!((heartbeat_interval, stale_after), (10 * SECOND, 30 * SECOND));
    assert_eq!((sweep_interval, fallback_interval), (SECOND, SECOND));
}

#[test]
fn the_data_folder_follows_the_user() {
    let env: Vec<_> = [("HOME", "/home/ada"), ("XDG_DATA_HOME", "/data/ada")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    assert_eq!(default_data_dir(true, &env), Path::new("/var/lib/roadstead"));
    assert_eq!(default_data_dir(false, &env), Path::new("/data/ada/roadstead"));
    assert_eq!(default_data_dir(false, &env[..1]), Path::new("/home/ada/.local/share/roadstead"));
    assert_eq!(default_data_dir(false, &[]), Path::new("/var/lib/roadstead"));
}

#[test]
fn a_file_sets_everything() {
    let text = r#"
        [http]
        listen = "0.0.0.0:80"
        insecure = true
        [database]
        url = "postgres://ada@db/roadstead"
        data_dir = "/srv/data"
        pg_bin_dir = "/srv/bin"
        [coordinator]
        worker_wait_timeout = "10m"
        worker_wait_timeout_max = "1d"
        start_timeout = "2h"
        ack_timeout = "5s"
        lease_ttl = "90s"
        heartbeat_interval = "1.5s"
        stale_after = "4s"
        sweep_interval = "250ms"
        fallback_interval = "2s"
    "#;
    let config = load(text, &[], &Flags::default()).unwrap();
    assert_eq!(config.http.listen, "0.0.0.0:80".parse().unwrap());
    assert!(config.http.insecure);
    assert_eq!(config.database.url.as_ref().unwrap().expose(), "postgres://ada@db/roadstead");
    assert_eq!(config.database.data_dir, Path::new("/srv/data"));
    assert_eq!(config.database.pg_bin_dir.as_deref(), Some(Path::new("/srv/bin")));
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap();
    let clocks = &config.coordinator;
    assert_eq!(millis(clocks.worker_wait_timeout), 600_000);
    assert_eq!(millis(clocks.worker_wait_timeout_max), 86_400_000);
    assert_eq!(millis(clocks.start_timeout), 7_200_000);
    assert_eq!((millis(clocks.ack_timeout), millis(clocks.lease_ttl)), (5_000, 90_000));
    assert_eq!((millis(clocks.heartbeat_interval), millis(clocks.stale_after)), (1_500, 4_000));
    assert_eq!((millis(clocks.sweep_interval), millis(clocks.fallback_interval)), (250, 2_000));
}

#[test]
fn every_setting_has_a_name_in_the_environment() {
    let printed = from_env(&[]).unwrap().to_toml_masked();
    let mut table = "";
    let mut seen = 0;
    for line in printed.lines() {
        if let Some(name) = line.strip_prefix('[') {
            table = name.trim_end_matches(']');
        } else if let Some((key, value)) = line.split_once(" = ") {
            let name = format!("ROADSTEAD_{}__{}", table.to_uppercase(), key.to_uppercase());
            from_env(&[(&name, value.trim_matches('"'))]).unwrap();
            let broken = problems(from_env(&[(&name, "~")]));
            assert!(broken[0].contains(&format!("{table}.{key}")) && broken[0].contains(&name), "{broken:?}");
            seen += 1;
        }
    }
    assert_eq!(seen, 19, "all but those of the database and of TLS that have no default");
    let config =
        from_env(&[("ROADSTEAD_DATABASE__PG_BIN_DIR", "/bin/pg"), ("DATABASE_URL", "postgres://x/y")]).unwrap();
    assert_eq!(config.database.pg_bin_dir.as_deref(), Some(Path::new("/bin/pg")));
    assert_eq!(config.database.url.unwrap().expose(), "postgres://x/y");
}

#[test]
fn zero_turns_holding_off_however_it_is_written() {
    let file = |value: &str| format!("[coordinator]\nworker_wait_timeout = {value}\n");
    for value in ["0", "\"0\"", "\"0s\""] {
        let config = load(&file(value), &[], &Flags::default()).unwrap();
        assert_eq!(config.coordinator.worker_wait_timeout, Duration::ZERO, "{value}");
    }
    assert_eq!(from_env(&[(WAIT, "0")]).unwrap().coordinator.worker_wait_timeout, Duration::ZERO);
}

#[test]
fn flags_beat_environment_beats_file() {
    let file = "[coordinator]\nworker_wait_timeout = '1m'\n[http]\nlisten = '127.0.0.1:1'";
    let wait =
        |env: &[(&str, &str)], flags: &Flags| load(file, env, flags).unwrap().coordinator.worker_wait_timeout.as_secs();
    let flags = Flags { worker_wait_timeout: Some("3m".to_owned()), ..Flags::default() };
    assert_eq!(wait(&[], &Flags::default()), 60);
    assert_eq!(wait(&[(WAIT, "2m")], &Flags::default()), 120);
    assert_eq!(wait(&[(WAIT, "2m")], &flags), 180);
    let flags = Flags {
        config: None,
        listen: Some("localhost:2".to_owned()),
        insecure: false,
        database_url: Some("postgresql://h/d".to_owned()),
        data_dir: Some("/d".to_owned()),
        pg_bin_dir: Some("/b".to_owned()),
        worker_wait_timeout: None,
    };
    let config = load(file, &[("DATABASE_URL", "postgres://other/d")], &flags).unwrap();
    assert_eq!(config.http.listen, "127.0.0.1:2".parse().unwrap());
    assert_eq!(config.database.url.unwrap().expose(), "postgresql://h/d");
    assert_eq!(config.database.data_dir, Path::new("/d"));
    assert_eq!(config.database.pg_bin_dir.as_deref(), Some(Path::new("/b")));
}

#[test]
fn the_command_line_hands_negative_values_on_to_be_refused() {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }
    let line = ["roadstead", "--worker-wait-timeout", "-5m", "--listen", "[::]:80", "--config", "/c.toml"];
    let flags = <Line as clap::Parser>::try_parse_from(line).unwrap().flags;
    assert_eq!(flags.worker_wait_timeout.as_deref(), Some("-5m"));
    assert_eq!(flags.listen.as_deref(), Some("[::]:80"));
    assert_eq!(flags.config.as_deref(), Some(Path::new("/c.toml")));
}

#[test]
fn three_names_for_the_wait_and_the_nearest_wins() {
    let dagu = ("DAGU_COORDINATOR_WORKER_WAIT_TIMEOUT", "1m");
    let plain = ("COORDINATOR_WORKER_WAIT_TIMEOUT", "2m");
    let ours = (WAIT, "3m");
    let wait = |env: &[(&str, &str)]| from_env(env).unwrap().coordinator.worker_wait_timeout.as_secs();
    assert_eq!(wait(&[dagu]), 60);
    assert_eq!(wait(&[plain]), 120);
    assert_eq!(wait(&[plain, dagu]), 120);
    assert_eq!(wait(&[ours, plain, dagu]), 180);
    assert_eq!(wait(&[dagu, plain, ours]), 180);
}

#[test]
fn a_refused_wait_is_named_with_its_source_and_what_was_read() {
    for (value, reason) in [
        ("-5m", "negative"),
        ("-1", "negative"),
        ("", "empty"),
        ("soon", "is not a duration"),
        ("NaN", "is not a duration"),
        ("120", "without a unit"),
        ("9223372036854775807", "without a unit"),
        ("1e308", "unknown unit"),
        ("1000000000000h", "too long"),
        ("366d", "too long"),
    ] {
        for name in [WAIT, "COORDINATOR_WORKER_WAIT_TIMEOUT", "DAGU_COORDINATOR_WORKER_WAIT_TIMEOUT"] {
            let said = problems(from_env(&[(name, value)]));
            let start = format!("coordinator.worker_wait_timeout (from {name}) was read as `{value}`, which ");
            assert!(said.len() == 1 && said[0].starts_with(&start) && said[0].contains(reason), "{said:?}");
        }
    }
    let said = problems(load("[coordinator]\nworker_wait_timeout = -300", &[], &Flags::default()));
    assert!(said[0].contains(".toml) was read as `-300`, which is negative"), "{said:?}");
    let flags = Flags { worker_wait_timeout: Some("-5m".to_owned()), ..Flags::default() };
    let said = problems(load("", &[], &flags));
    assert!(said[0].contains("(from --worker-wait-timeout) was read as `-5m`"), "{said:?}");
}

#[test]
fn pulses_and_pauses_have_bounds() {
    for key in ["ack_timeout", "lease_ttl", "heartbeat_interval", "stale_after", "sweep_interval", "fallback_interval"]
    {
        for value in ["0", "999us", "25h"] {
            let name = format!("ROADSTEAD_COORDINATOR__{}", key.to_uppercase());
            let said = problems(from_env(&[(&name, value)]));
            assert!(said.len() == 1 && said[0].contains(key) && said[0].contains(value), "{said:?}");
        }
    }
}

#[test]
fn settings_must_fit_together() {
    let one = |name: &str, value: &str| problems(from_env(&[(name, value)]));
    assert_eq!(
        one(WAIT, "8d"),
        ["coordinator.worker_wait_timeout is 192h0m0s and must not be more than coordinator.worker_wait_timeout_max, \
          which is 168h0m0s"]
    );
    assert!(one("ROADSTEAD_COORDINATOR__STALE_AFTER", "10s")[0].starts_with("coordinator.stale_after is 10s"));
    assert!(one("ROADSTEAD_COORDINATOR__LEASE_TTL", "10s")[0].starts_with("coordinator.lease_ttl is 10s"));
    from_env(&[(WAIT, "8d"), ("ROADSTEAD_COORDINATOR__WORKER_WAIT_TIMEOUT_MAX", "365d")]).unwrap();
}

#[test]
fn a_refused_setting_is_not_also_compared() {
    let said = problems(from_env(&[
        (WAIT, "x"),
        ("ROADSTEAD_COORDINATOR__WORKER_WAIT_TIMEOUT_MAX", "1m"),
        ("ROADSTEAD_COORDINATOR__HEARTBEAT_INTERVAL", "y"),
        ("ROADSTEAD_COORDINATOR__STALE_AFTER", "5s"),
    ]));
    assert_eq!(said.len(), 2, "{said:?}");
}

#[test]
fn all_problems_are_reported_together() {
    let file =
        "top = 1\n[coordinator]\nlease_tll = '1m'\nack_timeout = ['1s']\nstale_after = 'x'\n[extra.deep]\nkey = 1";
    let env = [("ROADSTEAD_HTTP__LISTEN", "here"), ("ROADSTEAD_LISTEN", "x"), (WAIT, "8d")];
    let loaded = load(file, &env, &Flags::default());
    let text = loaded.as_ref().unwrap_err().to_string();
    assert!(text.starts_with("the configuration has 8 problems:\n  http.listen (from "), "{text}");
    let said = problems(loaded);
    for (key, more) in [
        ("http.listen", "`here`"),
        ("coordinator.ack_timeout", "is a list"),
        ("coordinator.stale_after", "`x`"),
        ("coordinator.worker_wait_timeout ", "192h0m0s"),
        ("coordinator.lease_tll", "not the name"),
        ("extra.deep.key", "not the name"),
        ("listen (from ROADSTEAD_LISTEN)", "not the name"),
        ("top", "not the name"),
    ] {
        assert!(said.iter().any(|line| line.starts_with(key) && line.contains(more)), "{key}: {said:#?}");
    }
}

#[test]
fn names_that_are_no_settings_are_let_through() {
    from_env(&[
        ("ROADSTEAD_URL", "http://127.0.0.1:8080"),
        ("ROADSTEAD_LOG", "debug"),
        ("ROADSTEAD_RUN_ID", "r1"),
        ("ROADSTEAD_SERVICE_HOST", "10.0.0.1"),
        ("ROADSTEAD_SERVICE_PORT_HTTP", "80"),
        ("ROADSTEAD_PORT", "tcp://10.0.0.1:80"),
        ("ROADSTEAD_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("PATH", "/bin"),
    ])
    .unwrap();
}

#[test]
fn a_database_url_must_be_one_and_an_empty_one_is_not_none() {
    assert!(problems(from_env(&[("DATABASE_URL", "")]))[0].contains("not a Postgres URL"));
    let said = problems(from_env(&[("DATABASE_URL", "mysql://ada:secret@h/d")]));
    assert!(said[0].contains("mysql://ada:***@h/d") && !said[0].contains("secret"), "{said:?}");
    assert!(problems(from_env(&[("ROADSTEAD_DATABASE__DATA_DIR", "~/x")]))[0].contains("in full"));
}

#[test]
fn passwords_are_masked_wherever_they_stand() {
    for (url, masked) in [
        ("postgres://ada:secret@h:5432/d", "postgres://ada:***@h:5432/d"),
        ("postgres://ada:se:cr@e/t@h/d", "postgres://ada:***@h/d"),
        ("postgres://ada@h/d?password=secret&sslmode=require", "postgres://ada@h/d?password=***&sslmode=require"),
        ("postgres://ada@h/d?a=1&sslpassword=secret", "postgres://ada@h/d?a=1&sslpassword=***"),
        ("postgres://h/d?host=%2Frun", "postgres://h/d?host=%2Frun"),
        ("postgres://ada:se?cret@h/d", "postgres://ada:***@h/d"),
        ("ada:secret@h", "ada:***@h"),
    ] {
        assert_eq!(mask(url), masked);
    }
    let config = from_env(&[("DATABASE_URL", "postgres://ada:secret@h/d")]).unwrap();
    assert!(config.to_toml_masked().contains("url = \"postgres://ada:***@h/d\""));
    assert!(!format!("{config:?}").contains("secret"));
}

#[test]
fn what_is_printed_is_read_back() {
    let env = [(WAIT, "90s"), ("DATABASE_URL", "postgres://h/d"), ("ROADSTEAD_DATABASE__PG_BIN_DIR", "/b")];
    let config = from_env(&env).unwrap();
    assert_eq!(load(&config.to_toml_masked(), &[], &Flags::default()).unwrap(), config);
}

#[test]
fn a_missing_or_broken_file_is_an_error_that_names_it() {
    let missing = Config::load(Some(Path::new("/nowhere/at/all.toml")), std::iter::empty(), &Flags::default());
    assert!(missing.unwrap_err().to_string().contains("/nowhere/at/all.toml"));
    assert!(matches!(load("[http", &[], &Flags::default()), Err(ConfigError::NotToml { .. })));
}

#[test]
fn a_certificate_needs_its_key_and_room_is_a_number() {
    let env = [
        ("ROADSTEAD_HTTP__TLS_CERT", "/etc/cert.pem"),
        ("ROADSTEAD_HTTP__MAX_CONNECTIONS", "0"),
        ("ROADSTEAD_HTTP__MAX_CONNECTIONS_PER_ADDRESS", "many"),
    ];
    let found = problems(from_env(&env)).join("\n");
    assert!(found.contains("http.tls_cert is set and http.tls_key is not; they belong together"), "{found}");
    assert!(found.contains("which is not a whole number from 1 to 1000000"), "{found}");
    assert!(found.contains("`many`"), "{found}");
    let both = [("ROADSTEAD_HTTP__TLS_CERT", "/c.pem"), ("ROADSTEAD_HTTP__TLS_KEY", "/k.pem")];
    assert_eq!(from_env(&both).unwrap().http.tls_key, Some("/k.pem".into()));
}
