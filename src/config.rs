//! Every setting: its unit, default, and names in the file, the environment and on the command line.
//!
//! A key such as `coordinator.lease_ttl` stands under `[coordinator]` in the TOML file and is called
//! `ROADSTEAD_COORDINATOR__LEASE_TTL` in the environment. Weakest first: default, file, environment, flag. All problems
//! are reported together, each with the name of its key, where it was read and what was read.

mod auth;
mod http;
mod source;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::duration;
pub use auth::Auth;
pub use http::Http;
use source::Given;

/// The largest value of `coordinator.worker_wait_timeout_max` and `coordinator.start_timeout`.
const LONGEST_WAIT: Duration = Duration::from_hours(365 * 24);
const LISTEN: &str = "http.listen";
const INSECURE: &str = "http.insecure";
/// Bounds of the clocks between coordinator and worker: below, the database would be asked without end; above, a lost
/// worker would be noticed too late to matter.
const PULSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_hours(24));
/// Bounds of the pauses between two passes of a background loop.
const PASS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_hours(1));

/// All settings, valid as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Config {
    /// What the HTTP server needs.
    pub http: Http,
    /// Where the state is kept.
    pub database: Database,
    /// The clocks of dispatching.
    pub coordinator: Coordinator,
    /// Who is let in.
    #[serde(skip_serializing_if = "Auth::is_default")]
    pub auth: Auth,
}

/// Settings under `database`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Database {
    /// `database.url`, in the environment also `DATABASE_URL`: an existing Postgres. Default: none, which means the
    /// embedded one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<DatabaseUrl>,
    /// `database.data_dir`: the folder of the embedded Postgres. Default: as root `/var/lib/roadstead`, else
    /// `$XDG_DATA_HOME/roadstead`, else `~/.local/share/roadstead`.
    pub data_dir: PathBuf,
    /// `database.pg_bin_dir`: the folder with `postgres` and `initdb` for the embedded Postgres. Default: searched for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pg_bin_dir: Option<PathBuf>,
    /// `database.max_connections`: how many connections a replica holds at the most. Parked polls hold none. Default 8
    /// (docs/adr/0021).
    pub max_connections: u32,
}

/// Settings under `coordinator`; all are durations, cut to microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Coordinator {
    /// How long a run without a matching worker is held when its dispatch does not say; 0 turns holding off. Default
    /// `2m`, at most `worker_wait_timeout_max`. In the environment also `COORDINATOR_WORKER_WAIT_TIMEOUT` and
    /// `DAGU_COORDINATOR_WORKER_WAIT_TIMEOUT`, the names by which DAG tools know it.
    #[serde(serialize_with = "as_text")]
    pub worker_wait_timeout: Duration,
    /// The longest hold that a dispatch may ask for. Default `7d`, at most 365 days.
    #[serde(serialize_with = "as_text")]
    pub worker_wait_timeout_max: Duration,
    /// How long a run may stay queued, matching worker or not; 0 is without bound. Default `0`, at most 365 days.
    #[serde(serialize_with = "as_text")]
    pub start_timeout: Duration,
    /// How long a claim waits for its acknowledgement before it falls back into the queue. Default `15s`.
    #[serde(serialize_with = "as_text")]
    pub ack_timeout: Duration,
    /// How long an attempt outlives the last sign of life for it. Default `60s`, more than `heartbeat_interval`.
    #[serde(serialize_with = "as_text")]
    pub lease_ttl: Duration,
    /// How often workers are asked to give a sign of life. Default `10s`.
    #[serde(serialize_with = "as_text")]
    pub heartbeat_interval: Duration,
    /// Silence after which a session no longer counts as a match. Default `30s`, more than `heartbeat_interval`.
    #[serde(serialize_with = "as_text")]
    pub stale_after: Duration,
    /// Pause between two passes over what time has moved. Default `1s`.
    #[serde(serialize_with = "as_text")]
    pub sweep_interval: Duration,
    /// Pause between two looks for what nobody was told of: what parked polls could take, what waiting reads wait for.
    /// Default `1s`.
    #[serde(serialize_with = "as_text")]
    pub fallback_interval: Duration,
}

/// Settings as options of the command line; they win over all other sources.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct Flags {
    /// Read settings from this TOML file
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Serve on this address and port [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// Let everyone in without a token, also on an address that others can reach
    #[arg(long)]
    pub insecure: bool,
    /// Use this Postgres in place of the embedded one; other users of the machine can read it here, so prefer the
    /// variable `DATABASE_URL` when it holds a password
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
    /// Keep the embedded Postgres in this folder
    #[arg(long, value_name = "FOLDER")]
    pub data_dir: Option<String>,
    /// Run the embedded Postgres with `postgres` and `initdb` of this folder
    #[arg(long, value_name = "FOLDER")]
    pub pg_bin_dir: Option<String>,
    /// Hold a run without a matching worker this long; 0 turns holding off [default: 2m]
    // A negative value is for us to refuse, with a reason, not to be taken for an option.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub worker_wait_timeout: Option<String>,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file named by `--config` cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("the configuration file {} is not valid TOML: {message}", path.display())]
    NotToml {
        /// The file.
        path: PathBuf,
        /// Place and reason.
        message: String,
    },
    /// Unknown names or refused values, one line each.
    #[error("the configuration has {}:\n  {}", count(problems.len()), problems.join("\n  "))]
    Invalid {
        /// Each names the key, the source and what was read.
        problems: Vec<String>,
    },
}

impl Config {
    /// Reads and checks all sources. `env` is the process environment, handed in so that tests need not change theirs.
    ///
    /// `flags.config` is not looked at: the caller passes it as `file`. Unset means absent; an empty value is a value,
    /// and refused, because a deployment whose `DATABASE_URL` came out empty must not start on a database of its own.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, a name is unknown, or a value is refused; the last two all together.
    pub fn load(
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        flags: &Flags,
    ) -> Result<Self, ConfigError> {
        let env: Vec<_> = env.collect();
        let mut given = source::merge(file, &env, flags)?;
        let as_root = nix::unistd::geteuid().is_root();
        let config = Self {
            http: Http::take(&mut given),
            database: Database {
                url: given.take("database.url", None, |url| DatabaseUrl::parse(url).map(Some)),
                data_dir: given.take("database.data_dir", default_data_dir(as_root, &env), folder),
                pg_bin_dir: given.take("database.pg_bin_dir", None, |text| folder(text).map(Some)),
                max_connections: given.take("database.max_connections", 8, |text| http::number(text, 4, 1_000)),
            },
            coordinator: Coordinator::take(&mut given),
            auth: Auth::take(&mut given),
        };
        config.check_door(&mut given);
        config.http.check(&mut given);
        config.coordinator.check(&mut given);
        given.finish()?;
        Ok(config)
    }

    /// Nobody is to find their service open to others because they said where to listen and no more.
    fn check_door(&self, given: &mut Given) {
        let listen = self.http.listen;
        let open = self.auth.tokens.is_empty() && !listen.ip().to_canonical().is_loopback() && !self.http.insecure;
        let judged = [LISTEN, INSECURE].iter().any(|key| given.was_refused(key)) || Auth::was_refused(given);
        if open && !judged {
            let problem = format!(
                "{LISTEN} is {listen}, which others can reach, and there are no auth.tokens: everyone there could \
                 dispatch, cancel and read. Configure tokens (`roadstead token new` makes one), or listen on \
                 127.0.0.1:{}, or say --insecure ({INSECURE} = true) if something before it lets in only whom it should",
                listen.port()
            );
            given.refuse(LISTEN, problem);
        }
    }

    /// All settings as a TOML file that `--config` reads, with the password of `database.url` replaced by `***`, and the
    /// hash of each token by `set`, which is refused when it is read again.
    ///
    /// # Panics
    ///
    /// Never for a loaded configuration: a folder that is not UTF-8 cannot have been read from any source.
    #[must_use]
    pub fn to_toml_masked(&self) -> String {
        toml::to_string(self).expect("tables of texts are TOML")
    }
}

impl Coordinator {
    /// How much time a session with this lease is asked to leave between two of its heartbeats.
    #[must_use]
    pub fn heartbeat_between(&self, lease_ttl: Duration) -> Duration {
        self.heartbeat_interval.min(lease_ttl / 3)
    }

    fn take(given: &mut Given) -> Self {
        let off_or = (Duration::ZERO, LONGEST_WAIT);
        let mut take =
            |key, default: u64, bounds| given.take(key, Duration::from_secs(default), |text| within(text, bounds));
        Self {
            worker_wait_timeout: take("coordinator.worker_wait_timeout", 120, off_or),
            worker_wait_timeout_max: take("coordinator.worker_wait_timeout_max", 7 * 86_400, off_or),
            start_timeout: take("coordinator.start_timeout", 0, off_or),
            ack_timeout: take("coordinator.ack_timeout", 15, PULSE),
            lease_ttl: take("coordinator.lease_ttl", 60, PULSE),
            heartbeat_interval: take("coordinator.heartbeat_interval", 10, PULSE),
            stale_after: take("coordinator.stale_after", 30, PULSE),
            sweep_interval: take("coordinator.sweep_interval", 1, PASS),
            fallback_interval: take("coordinator.fallback_interval", 1, PASS),
        }
    }

    /// What must hold between two settings.
    fn check(&self, given: &mut Given) {
        let wait = ("coordinator.worker_wait_timeout", self.worker_wait_timeout);
        let longest = ("coordinator.worker_wait_timeout_max", self.worker_wait_timeout_max);
        let heartbeat = ("coordinator.heartbeat_interval", self.heartbeat_interval);
        let stale = ("coordinator.stale_after", self.stale_after);
        let lease = ("coordinator.lease_ttl", self.lease_ttl);
        given.require(wait.1 <= longest.1, wait, "must not be more than", longest);
        // Else every worker would be taken for lost between two of its signs of life.
        given.require(stale.1 > heartbeat.1, stale, "must be more than", heartbeat);
        given.require(lease.1 > heartbeat.1, lease, "must be more than", heartbeat);
    }
}

/// A Postgres URL. Shown, printed and serialised with its password replaced by `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            Ok(Self(text.to_owned()))
        } else {
            Err("is not a Postgres URL; write postgres://user:password@host/database".to_owned())
        }
    }

    /// The whole URL, password included: for connecting only.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mask(&self.0))
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

impl Serialize for DatabaseUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Hides the password before the host and in the query. Works on texts that are no URL as well, rather hiding too much.
fn mask(url: &str) -> String {
    let (base, query) = match url.split_once('?') {
        // A bare `?` in a password: then the host, and the end of the password, stand behind it.
        Some((base, query)) if base.contains('@') || !query.contains('@') => (base, Some(query)),
        _ => (url, None),
    };
    let start = base.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = base.split_at(start);
    // The last `@` ends the password: one that was not percent-encoded may hold others.
    let mut masked = match rest.rsplit_once('@') {
        Some((user, host)) if user.contains(':') => {
            format!("{scheme}{}:***@{host}", user.split(':').next().unwrap_or_default())
        }
        _ => base.to_owned(),
    };
    for (position, pair) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
        masked.push(if position == 0 { '?' } else { '&' });
        match pair.split_once('=') {
            Some((name, _)) if name.to_ascii_lowercase().contains("password") => {
                masked.push_str(name);
                masked.push_str("=***");
            }
            _ => masked.push_str(pair),
        }
    }
    masked
}

fn within(text: &str, (least, most): (Duration, Duration)) -> Result<Duration, String> {
    let read = duration::parse(text).map_err(|error| error.to_string())?;
    if read < least {
        return Err(format!("is too short; the least is {}", duration::text(least)));
    }
    if read > most {
        return Err(format!("is too long; the most is {}", duration::text(most)));
    }
    Ok(read)
}

fn folder(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("is empty; write the path of a folder".to_owned()),
        // Only a shell expands it; taken literally it would make a folder of that name.
        _ if text.starts_with('~') => Err("begins with `~`; write the path in full".to_owned()),
        _ => Ok(PathBuf::from(text)),
    }
}

/// Not under root's home as root: that is closed to the user the embedded Postgres then runs as.
fn default_data_dir(as_root: bool, env: &[(String, String)]) -> PathBuf {
    let absolute = |name: &str| {
        let (_, value) = env.iter().find(|(key, _)| key == name)?;
        Some(PathBuf::from(value)).filter(|path| path.is_absolute())
    };
    let home = || absolute("HOME").map(|home| home.join(".local/share"));
    let of_user = if as_root { None } else { absolute("XDG_DATA_HOME").or_else(home) };
    of_user.unwrap_or_else(|| PathBuf::from("/var/lib")).join("roadstead")
}

fn as_text<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&duration::text(*duration))
}

fn count(problems: usize) -> String {
    if problems == 1 { "a problem".to_owned() } else { format!("{problems} problems") }
}

#[cfg(test)]
mod tests;
