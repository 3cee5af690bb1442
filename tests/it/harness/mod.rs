//! What every test stands on: a service of its own on a database of its own, and an autopsy at the end.

mod autopsy;
pub mod client;
mod clock;
pub mod database;
mod document;
mod folder;
pub mod pooler;
pub mod program;
pub mod raw;
mod stoppable;
mod tap;
pub mod worker;

use std::time::Duration;

use roadstead::config::{Config, Flags};
use roadstead::server::Server;
use sqlx::PgPool;

pub use client::{Client, Reply};
pub use clock::seconds;
pub use folder::Folder;
pub use program::Program;
pub use raw::{Dice, Raw};
pub use stoppable::Stoppable;
pub use tap::Tap;
pub use worker::Worker;

/// Settings of a test's service: those of the product, but with a quick sweep.
pub fn settings() -> Config {
    let flags = Flags { listen: Some("127.0.0.1:0".into()), ..Flags::default() };
    let mut config = Config::load(None, std::iter::empty(), &flags).expect("the defaults are valid");
    config.coordinator.sweep_interval = Duration::from_millis(50);
    config.coordinator.fallback_interval = Duration::from_millis(500);
    config
}

/// The usual settings, with parked polls that are looked for by themselves no sooner than this.
pub fn settings_with_fallback(interval: Duration) -> Config {
    let mut config = settings();
    config.coordinator.fallback_interval = interval;
    config
}

/// A test's service and database.
pub struct Test {
    /// Speaks to the service.
    pub client: Client,
    /// Looks into the database behind the service's back.
    pub pool: PgPool,
    /// The database's URL, for a second service on it.
    pub database_url: String,
    /// The settings the service was started with.
    pub config: Config,
}

/// Runs a test on a fresh service with the usual settings, and an autopsy after it.
pub async fn with<F: AsyncFnOnce(&Test)>(body: F) {
    with_settings(settings(), body).await;
}

/// Runs a test on a fresh service with these settings, and an autopsy after it.
pub async fn with_settings<F: AsyncFnOnce(&Test)>(config: Config, body: F) {
    let database = database::create().await;
    let pool = PgPool::connect(&database.url).await.expect("the test's database answers");
    let server = Server::start(&config, &database.url).await.expect("the service starts");
    let client = Client::new(&format!("http://{}", server.address()));
    let test = Test { client, pool, database_url: database.url.clone(), config };
    body(&test).await;
    server.stop().await;
    autopsy::check(&test).await;
    test.pool.close().await;
    database.drop().await;
}

/// Runs a test on the program as a process, with a migrated database on the shared server, and an autopsy after it.
///
/// The process is asked to stop before the autopsy if the test has left it running.
pub async fn with_process<F: AsyncFnOnce(&Test, &mut Program)>(body: F) {
    let database = database::create().await;
    let pool = PgPool::connect(&database.url).await.expect("the test's database answers");
    let mut service = Program::serve(&["--database-url", &database.url]);
    let client = service.client().await;
    let mut config = settings();
    // It runs with the product's own settings.
    config.coordinator.sweep_interval = Duration::from_secs(1);
    let test = Test { client, pool, database_url: database.url.clone(), config };
    body(&test, &mut service).await;
    if service.runs() {
        service.stop().await;
    }
    autopsy::check(&test).await;
    test.pool.close().await;
    database.drop().await;
}

/// An autopsy of a service that a test has started by itself, on a database of its own.
pub async fn autopsy_of(client: &Client, database_url: &str) {
    let pool = PgPool::connect(database_url).await.expect("the test's database answers");
    let mut config = settings();
    config.coordinator.sweep_interval = Duration::from_secs(1);
    let test = Test { client: client.clone(), pool, database_url: database_url.to_owned(), config };
    autopsy::check(&test).await;
    test.pool.close().await;
}

impl Test {
    /// Another service on the same database.
    pub async fn replica(&self) -> (Server, Client) {
        let server = Server::start(&self.config, &self.database_url).await.expect("the replica starts");
        let client = Client::new(&format!("http://{}", server.address()));
        (server, client)
    }

    /// Another service on the same database, which speaks to it through a tap.
    pub async fn tapped(&self) -> (Tap, Server, Client) {
        let tap = Tap::on(&self.database_url).await;
        let server = Server::start(&self.config, &tap.url).await.expect("the replica starts");
        let client = Client::new(&server.url());
        (tap, server, client)
    }

    /// Moves the database's clock forward, and the sweep's stamp with it: time passes, nobody was away.
    ///
    /// Every session goes on giving signs of life unless `forgotten` names its worker.
    pub async fn advance(&self, by: Duration) {
        self.advance_forgetting(by, None).await;
    }

    /// As [`Self::advance`], with all workers whose names begin so giving no sign of life meanwhile; `Some("")` is all.
    pub async fn advance_forgetting(&self, by: Duration, forgotten: Option<&str>) {
        self.shift(i64::try_from(by.as_micros()).unwrap(), forgotten).await;
    }

    /// Sets the database's clock apart from that of the process by so many seconds, either way, as if it had always
    /// been: to be called before anything has happened.
    pub async fn skew(&self, seconds: i64) {
        self.shift(seconds * 1_000_000, None).await;
    }

    async fn shift(&self, micros: i64, forgotten: Option<&str>) {
        let mut tx = clock::locked(&self.pool).await;
        // A stopped clock stays stopped, at the later moment.
        let (stopped, offset, later): (bool, i64, String) = sqlx::query_as(
            "SELECT prosrc NOT LIKE '%clock_timestamp%',
                    (extract(epoch FROM roadstead_now() - clock_timestamp()) * 1000000)::bigint,
                    (roadstead_now() + $1 * interval '1 microsecond')::text
             FROM pg_proc WHERE proname = 'roadstead_now'",
        )
        .bind(micros)
        .fetch_one(&mut *tx)
        .await
        .unwrap();
        // The function's own rounding must not add up over many moves.
        let offset = (offset + 500).div_euclid(1_000) * 1_000 + micros;
        let now = if stopped {
            format!("timestamptz '{later}'")
        } else {
            format!("clock_timestamp() + interval '{offset} microseconds'")
        };
        let function = format!(
            "CREATE OR REPLACE FUNCTION roadstead_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
             AS $$ SELECT {now} $$"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(function)).execute(&mut *tx).await.unwrap();
        sqlx::query("UPDATE sweep_stamp SET stamped_at = stamped_at + $1 * interval '1 microsecond'")
            .bind(micros)
            .execute(&mut *tx)
            .await
            .unwrap();
        sqlx::query(
            "UPDATE worker_session SET last_seen = last_seen + $1 * interval '1 microsecond'
             WHERE ended_at IS NULL AND NOT (worker_id LIKE coalesce($2 || '%', ''))",
        )
        .bind(micros)
        .bind(forgotten)
        .execute(&mut *tx)
        .await
        .unwrap();
        tx.commit().await.unwrap();
    }

    /// One JSON value from the database.
    pub async fn json(&self, query: &'static str) -> serde_json::Value {
        sqlx::query_scalar(query).fetch_one(&self.pool).await.unwrap()
    }

    /// Every row that a word about an attempt could change, its session's last sign of life included.
    pub async fn state(&self) -> serde_json::Value {
        self.json(
            "SELECT jsonb_build_object(
                'runs', (SELECT jsonb_agg(to_jsonb(r) ORDER BY r.dag_name, r.run_id) FROM run r),
                'attempts', (SELECT jsonb_agg(to_jsonb(a) ORDER BY a.attempt_id) FROM attempt a),
                'tasks', (SELECT jsonb_agg(to_jsonb(t) ORDER BY t.attempt_id) FROM task t),
                'payloads', (SELECT jsonb_agg(to_jsonb(p) ORDER BY p.dag_name, p.run_id) FROM payload p),
                'sessions', (SELECT jsonb_agg(to_jsonb(s) ORDER BY s.worker_id, s.session_id) FROM worker_session s))",
        )
        .await
    }

    /// What a claim that returns must leave alone: the attempt, its place and its clocks.
    pub async fn clocks(&self, run_id: &str) -> serde_json::Value {
        sqlx::query_scalar(
            "SELECT jsonb_build_object('attempt', t.attempt_id, 'number', r.attempt_number, 'place', t.place,
                'priority', t.priority, 'hold_from', t.hold_from, 'wait', t.wait, 'hold_until', t.hold_until,
                'start_until', t.start_until)
             FROM task t JOIN run r USING (namespace_id, dag_name, run_id) WHERE t.run_id = $1",
        )
        .bind(run_id)
        .fetch_one(&self.pool)
        .await
        .unwrap()
    }

    /// One number from the database.
    pub async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(&self.pool).await.unwrap()
    }
}

/// Does something beside the test, which waits for it.
#[expect(clippy::disallowed_methods, reason = "what a test starts ends with its runtime")]
pub fn spawn<F>(work: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(work)
}

/// Waits until the condition holds; fails the test after 20 seconds.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}
