//! Starts of many at once, on a schema that has to be brought up to date: one works, the others wait, nothing is lost.

use roadstead::store::migrate::MIGRATOR;
use serde_json::{Value, json};
use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};

use crate::harness::database::Database;
use crate::harness::pooler::pooled;
use crate::harness::program::run;
use crate::harness::{Program, Test, Worker, autopsy_of, database, until, with};

/// Migrations, one at a time, wait for this lock of the database.
const MIGRATING: &str = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
     WHERE locktype = 'advisory' AND granted AND datname = current_database()";

/// How many of them want it.
const WANTING: &str = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
     WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()";

/// Who waits for a table.
const HELD_UP: &str = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
     WHERE locktype = 'relation' AND NOT granted AND datname = current_database()";

async fn count(pool: &PgPool, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(pool).await.unwrap()
}

/// A database as the first version left it, with all that is in this one.
async fn of_the_first_version(t: &Test) -> (Database, PgPool) {
    let database = database::create_empty().await;
    let pool = PgPool::connect(&database.url).await.unwrap();
    let first = MIGRATOR.iter().take(1).cloned().collect();
    Migrator::with_migrations(first).run(&pool).await.unwrap();
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
         AND relname <> '_sqlx_migrations'",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    assert!(tables.len() > 10, "{tables:?}");
    for table in tables {
        let rows = format!("SELECT coalesce(jsonb_agg(to_jsonb(x)), '[]') FROM {table} x");
        let rows: Value = sqlx::query_scalar(AssertSqlSafe(rows)).fetch_one(&t.pool).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!("DELETE FROM {table}"))).execute(&pool).await.unwrap();
        let put = format!(
            "INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM jsonb_populate_recordset(NULL::{table}, $1)"
        );
        sqlx::query(AssertSqlSafe(put)).bind(rows).execute(&pool).await.unwrap();
    }
    sqlx::raw_sql("SELECT setval(pg_get_serial_sequence('task', 'place'), (SELECT max(place) + 1 FROM task))")
        .execute(&pool)
        .await
        .unwrap();
    (database, pool)
}

/// Runs in every state, with labels and events.
async fn fill(t: &Test) {
    let worker = Worker::register_with(&t.client, "w", json!({"labels": {"zone": "b"}, "slots": 9})).await;
    for number in 0..12 {
        let zone = if number < 4 { "b" } else { "far" };
        let body = json!({"worker_selector": {"zone": zone}, "labels": {"team": "data"}, "params": {"n": number},
            "worker_wait_timeout_seconds": 3600});
        t.client.dispatch(&format!("r{number:02}"), body).await.ok();
    }
    for number in 0..3 {
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        if number < 2 {
            worker.report(&task, "failed").await.ok();
        }
    }
    t.client.cancel("r11").await.ok();
    until("all is stamped", async || t.count("SELECT count(*) FROM event_unstamped").await == 0).await;
}

/// What must be as it was: all runs but what is judged at the moment of the read, and each run's events.
async fn kept(client: &crate::harness::Client) -> Value {
    let mut runs = client.get("/v1/runs?order=oldest&label=team%3Ddata").await.ok()["runs"].take();
    for run in runs.as_array_mut().unwrap() {
        run.as_object_mut().unwrap().retain(|field, _| field != "conditions");
    }
    let mut events = client.get("/v1/events?limit=500").await.ok()["events"].take();
    for event in events.as_array_mut().unwrap() {
        event.as_object_mut().unwrap().remove("position");
    }
    events.as_array_mut().unwrap().sort_by_key(|event| (event["run_id"].to_string(), event["run_seq"].as_i64()));
    json!({"runs": runs, "events": events})
}

/// Each migration was applied, once.
async fn assert_migrated(pool: &PgPool) {
    let applied: Vec<(i64, bool)> =
        sqlx::query_as("SELECT version, success FROM _sqlx_migrations ORDER BY version").fetch_all(pool).await.unwrap();
    let expected: Vec<(i64, bool)> = MIGRATOR.iter().map(|migration| (migration.version, true)).collect();
    assert_eq!(applied, expected);
    until("no lock is left", async || count(pool, MIGRATING).await == 0).await;
}

/// B103: the next version comes in five replicas at once, on what the one before has left.
#[tokio::test(flavor = "multi_thread")]
async fn five_services_start_at_once_on_an_older_schema_and_lose_nothing() {
    with(async |t| {
        fill(t).await;
        let (database, pool) = of_the_first_version(t).await;
        let mut services: Vec<Program> = (0..5).map(|_| Program::serve(&["--database-url", &database.url])).collect();
        let mut clients = Vec::new();
        for service in &mut services {
            clients.push(service.client().await);
        }
        assert_migrated(&pool).await;
        let before = kept(&t.client).await;
        assert_eq!(before["runs"].as_array().unwrap().len(), 12);
        for client in &clients {
            until("all is stamped", async || count(&pool, "SELECT count(*) FROM event_unstamped").await == 0).await;
            assert_eq!(kept(client).await, before);
        }
        let worker = Worker::register(&clients[4], "next", json!({"zone": "b"})).await;
        let task = worker.work_one().await;
        assert_eq!((&task["run_id"], &task["params"]), (&json!("r03"), &json!({"n": 3})));
        for service in &mut services {
            service.stop().await;
        }
        autopsy_of(&clients[0], &database.url).await;
        pool.close().await;
        database.drop().await;
    })
    .await;
}

/// B103: the one that migrates is killed in the middle; another does it from the start.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_is_killed_in_the_middle_is_made_by_another() {
    with(async |t| {
        fill(t).await;
        let (database, pool) = of_the_first_version(t).await;
        let mut in_the_way = pool.begin().await.unwrap();
        // The second migration reads it, after it has made its own tables.
        sqlx::raw_sql("LOCK TABLE event IN ACCESS EXCLUSIVE MODE").execute(&mut *in_the_way).await.unwrap();
        let mut killed = Program::serve(&["--database-url", &database.url]);
        until("it is in the middle", async || count(&pool, MIGRATING).await == 1 && count(&pool, HELD_UP).await == 1)
            .await;
        let mut others: Vec<Program> = (0..2).map(|_| Program::serve(&["--database-url", &database.url])).collect();
        until("the others want to as well", async || count(&pool, WANTING).await > 0).await;
        killed.kill_hard().await;
        in_the_way.rollback().await.unwrap();
        for service in &mut others {
            let client = service.client().await;
            assert_migrated(&pool).await;
            until("all is stamped", async || count(&pool, "SELECT count(*) FROM event_unstamped").await == 0).await;
            assert_eq!(kept(&client).await, kept(&t.client).await);
        }
        for service in &mut others {
            service.stop().await;
        }
        pool.close().await;
        database.drop().await;
    })
    .await;
}

/// B105: behind a pooler in transaction mode it does not start, nor migrate, and says what it needs instead.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_in_transaction_mode_is_refused_by_name() {
    let database = database::create_empty().await;
    let url = pooled(&database.url).await;
    // What is between is a way to the database.
    let mut through = PgConnection::connect(&url).await.unwrap();
    let name: String = sqlx::query_scalar("SELECT current_database()::text").fetch_one(&mut through).await.unwrap();
    assert!(database.url.contains(&name));
    through.close().await.unwrap();
    for command in [&["migrate"][..], &["serve", "--listen", "127.0.0.1:0"]] {
        let refused = run(&[command, &["--database-url", &url]].concat(), &[]).await;
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let said = &refused.stderr;
        assert!(said.contains("a pooler in transaction mode") && said.contains("pool_mode = session"), "{said}");
    }
    let mut direct = PgConnection::connect(&database.url).await.unwrap();
    let tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace";
    assert_eq!(sqlx::query_scalar::<_, i64>(tables).fetch_one(&mut direct).await.unwrap(), 0, "nothing was migrated");
    direct.close().await.unwrap();
    database.drop().await;
}
