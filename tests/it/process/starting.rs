//! How it starts: on which database, with which settings, beside which others; and what the other commands say.

use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::task::JoinSet;

use crate::harness::program::run;
use crate::harness::{Folder, Program, Worker, database, until, with, with_process};

#[tokio::test(flavor = "multi_thread")]
async fn a_second_service_on_a_data_folder_is_refused_by_name_and_harms_nobody() {
    let folder = Folder::new();
    let data_dir = folder.join("data");
    let mut service = Program::serve(&["--data-dir", &data_dir]);
    let client = service.client().await;
    let log = service.log();
    let said: Vec<&str> = log.lines().filter(|line| line.starts_with("roadstead: embedded PostgreSQL")).collect();
    assert_eq!(said.len(), 1, "that no database was configured is told once: {log}");
    assert!(said[0].contains(&data_dir) && said[0].contains("set DATABASE_URL"), "{}", said[0]);

    let refused = run(&["serve", "--listen", "127.0.0.1:0", "--data-dir", &data_dir], &[]).await;
    assert_eq!(refused.code, Some(75));
    assert!(
        refused.stderr.contains(&format!("another server is running on the data folder {data_dir}")),
        "{refused:?}"
    );
    client.dispatch("r", json!({})).await.ok();
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configured_database_is_used_by_flag_and_by_variable() {
    with_process(async |t, _| {
        t.client.dispatch("by-flag", json!({})).await.ok();
        let variable = [("DATABASE_URL", t.database_url.as_str())];
        let mut other = Program::start_with(&["serve", "--listen", "127.0.0.1:0"], &variable);
        let client = other.client().await;
        assert_eq!(client.run("by-flag").await["status"], "queued");
        assert!(!other.log().contains("embedded"), "{}", other.log());
        other.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_told_and_nothing_is_left_behind() {
    with_process(async |t, _| {
        let listen = t.client.url().strip_prefix("http://").unwrap();
        let refused = run(&["serve", "--listen", listen, "--database-url", &t.database_url], &[]).await;
        assert_eq!(refused.code, Some(1));
        assert!(refused.stderr.contains(&format!("cannot listen on {listen}")), "{refused:?}");
        let folder = Folder::new();
        let data_dir = folder.join("data");
        let refused = run(&["serve", "--listen", listen, "--data-dir", &data_dir], &[]).await;
        assert!(refused.stderr.contains(&format!("cannot listen on {listen}")), "{refused:?}");
        assert!(!std::path::Path::new(&data_dir).exists(), "no cluster is made for a service that cannot be reached");
    })
    .await;
}

/// What waiting does not mend is told at once, and what it might in the words of whoever refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_not_there_is_told_by_its_reason() {
    with_process(async |t, _| {
        let nowhere = t.database_url.replacen("/test_", "/no_", 1);
        assert_ne!(nowhere, t.database_url);
        let refused = run(&["serve", "--listen", "127.0.0.1:0", "--database-url", &nowhere], &[]).await;
        assert_eq!(refused.code, Some(1));
        assert!(refused.stderr.contains("does not exist") && !refused.stderr.contains("waiting"), "{refused:?}");
    })
    .await;
    let closed = roadstead::store::pool::open("postgres://somebody@127.0.0.1:1/nowhere").unwrap();
    let error = roadstead::store::migrate::run(&closed).await.unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}

/// B101: what a shell or a process manager allows by default is not the number of workers.
#[tokio::test(flavor = "multi_thread")]
async fn more_polls_can_be_parked_than_files_may_be_open_by_default() {
    let database = database::create().await;
    let args = ["serve", "--listen", "127.0.0.1:0", "--database-url", &database.url];
    let mut service = Program::start_after("ulimit -Sn 64", &args);
    let client = service.client().await;
    let worker = Worker::register(&client, "w", json!({"zone": "b"})).await;
    let mut polls = JoinSet::new();
    for _ in 0..100 {
        let worker = worker.clone();
        polls.spawn(async move { worker.poll_reply(50.0).await });
    }
    let connected = format!("/proc/{}/fd", service.pid());
    until("all are connected", async || std::fs::read_dir(&connected).unwrap().count() > 100).await;
    client.dispatch("r", json!({"worker_selector": {"zone": "b"}})).await.ok();
    assert_eq!(polls.join_next().await.unwrap().unwrap().ok()["tasks"][0]["run_id"], "r");
    service.stop().await;
    database.drop().await;
}

/// B103: five at once on an empty database, and killing one that migrates leaves no lock.
#[tokio::test(flavor = "multi_thread")]
async fn five_services_start_at_once_on_an_empty_database() {
    let database = database::create_empty().await;
    let mut killed = Program::serve(&["--database-url", &database.url]);
    let mut services: Vec<Program> = (0..5).map(|_| Program::serve(&["--database-url", &database.url])).collect();
    killed.kill_hard().await;
    let mut clients = Vec::new();
    for service in &mut services {
        clients.push(service.client().await);
    }
    for (number, client) in clients.iter().enumerate() {
        client.dispatch(&format!("r{number}"), json!({})).await.ok();
    }
    let worker = Worker::register(&clients[0], "w", json!({})).await;
    for _ in &clients {
        worker.work_one().await;
    }
    for service in &mut services {
        service.stop().await;
    }
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_can_be_repeated_and_a_newer_schema_is_refused() {
    let database = database::create_empty().await;
    let env = [("DATABASE_URL", database.url.as_str())];
    for _ in 0..2 {
        let migrated = run(&["migrate"], &env).await;
        assert_eq!((migrated.code, migrated.stdout.as_str()), (Some(0), "the schema is up to date\n"), "{migrated:?}");
    }
    let pool = PgPool::connect(&database.url).await.unwrap();
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (9999, 'of a later version', true, '', 0)",
    )
    .execute(&pool)
    .await
    .unwrap();
    pool.close().await;
    for args in [&["migrate"][..], &["serve", "--listen", "127.0.0.1:0"]] {
        let refused = run(args, &env).await;
        assert_eq!(refused.code, Some(1));
        for word in ["schema", "newer", "9999"] {
            assert!(refused.stderr.contains(word), "{word} is missing in {}", refused.stderr);
        }
    }
    database.drop().await;
}

/// B103: what went wrong once must not stand in the way of the next try, nor of another replica's.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_fails_keeps_no_lock() {
    let database = database::create_empty().await;
    let pool = PgPool::connect(&database.url).await.unwrap();
    sqlx::raw_sql("CREATE TABLE task (in_the_way int)").execute(&pool).await.unwrap();
    let product = roadstead::store::pool::open(&database.url).unwrap();
    roadstead::store::migrate::run(&product).await.unwrap_err();
    let locks = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
         WHERE locktype = 'advisory' AND datname = current_database()";
    until("the lock is given back", async || sqlx::query_scalar::<_, i64>(locks).fetch_one(&pool).await.unwrap() == 0)
        .await;
    sqlx::raw_sql("DROP TABLE task").execute(&pool).await.unwrap();
    roadstead::store::migrate::run(&product).await.unwrap();
    product.close().await;
    pool.close().await;
    database.drop().await;
}

/// B103: whoever comes while another migrates waits for it, longer than a statement may take otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_waits_for_the_one_that_migrates() {
    let database = database::create_empty().await;
    let pool = PgPool::connect(&database.url).await.unwrap();
    let mut migrating = pool.begin().await.unwrap();
    // Whoever creates a table of that name waits for this transaction.
    sqlx::raw_sql("CREATE TABLE task (in_the_way int)").execute(&mut *migrating).await.unwrap();
    let mut services: Vec<Program> = (0..2).map(|_| Program::serve(&["--database-url", &database.url])).collect();
    // Longer than any lock is waited for in the service's ordinary work.
    tokio::time::sleep(std::time::Duration::from_millis(3_500)).await;
    migrating.rollback().await.unwrap();
    for service in &mut services {
        service.client().await;
        service.stop().await;
    }
    pool.close().await;
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_can_be_checked_and_printed_without_its_password() {
    let env = [("DATABASE_URL", "postgres://me:swordfish@db/roadstead")];
    let checked = run(&["config", "check"], &env).await;
    assert_eq!((checked.code, checked.stdout.as_str()), (Some(0), "valid\n"), "{checked:?}");
    let printed = run(&["config", "print", "--worker-wait-timeout", "90s"], &env).await;
    assert_eq!(printed.code, Some(0), "{printed:?}");
    assert!(printed.stdout.contains("worker_wait_timeout = \"1m30s\""), "{}", printed.stdout);
    assert!(printed.stdout.contains("postgres://me:***@db/roadstead"), "{}", printed.stdout);
    assert!(!format!("{printed:?}").contains("swordfish"));

    // What was printed can be read again, but for the password.
    let folder = Folder::new();
    let file = folder.join("roadstead.toml");
    std::fs::write(&file, &printed.stdout).unwrap();
    let again = run(&["config", "print", "--config", &file], &[]).await;
    assert_eq!(again.stdout, printed.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_configuration_is_refused_at_the_start_naming_key_and_what_was_read() {
    let folder = Folder::new();
    let file = folder.join("roadstead.toml");
    std::fs::write(&file, "[coordinator]\nlease_ttl = \"soon\"\nlease_tll = \"60s\"\n").unwrap();
    let env = [("ROADSTEAD_COORDINATOR__SWEEP_INTERVAL", "-1s")];
    for args in [&["serve"][..], &["migrate"], &["config", "check"], &["config", "print"]] {
        let refused = run(&[args, &["--config", &file, "--worker-wait-timeout", "2 moons"]].concat(), &env).await;
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(78), ""), "{refused:?}");
        for said in [
            format!("coordinator.lease_ttl (from {file}) was read as `soon`"),
            format!("coordinator.lease_tll (from {file}) is not the name of a setting"),
            "coordinator.sweep_interval (from ROADSTEAD_COORDINATOR__SWEEP_INTERVAL) was read as `-1s`".to_owned(),
            "coordinator.worker_wait_timeout (from --worker-wait-timeout) was read as `2 moons`".to_owned(),
        ] {
            assert!(refused.stderr.contains(&said), "{said} is missing in {}", refused.stderr);
        }
    }
    let missing = run(&["serve", "--config", &folder.join("nowhere.toml")], &[]).await;
    assert_eq!(missing.code, Some(78));
    assert!(missing.stderr.contains("nowhere.toml") && missing.stderr.contains("No such file"), "{missing:?}");
}

/// One document, wherever it is read: from the program, from the service, and from the repository.
#[tokio::test(flavor = "multi_thread")]
async fn the_document_is_the_same_everywhere() {
    let printed = run(&["openapi"], &[]).await;
    assert_eq!(printed.code, Some(0));
    let printed: Value = serde_json::from_str(&printed.stdout).unwrap();
    let checked_in = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/openapi.json")).unwrap();
    let checked_in: Value = serde_json::from_slice(&checked_in).unwrap();
    assert!(printed == checked_in, "openapi/openapi.json is stale: roadstead openapi > openapi/openapi.json");
    with(async |t| assert!(t.client.get("/openapi.json").await.ok() == printed)).await;
}
