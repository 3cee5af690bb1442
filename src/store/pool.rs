//! The connection pool.

use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection as _, Executor as _, PgConnection, PgPool};

use super::error::Result;
use super::health::Health;

/// Connections for a command that is no service.
const FEW: u32 = 4;

/// How long a connection that comes back may take to say that it is well: a little longer than a statement may run, for
/// one that nobody waits for any more may be running still.
const RETURN: Duration = Duration::from_secs(11);

/// What every connection is told once. Not as start-up parameters: `PgBouncer` refuses those.
const SETTINGS: &str = "SET statement_timeout = '10s';
    SET lock_timeout = '3s';
    SET idle_in_transaction_session_timeout = '10s';
    -- Durability is what is promised: a server configured otherwise does not take it away.
    SET synchronous_commit = 'on'";

/// How to connect to the database of this URL.
///
/// # Errors
/// When it cannot be read.
pub(super) fn options(url: &str) -> Result<PgConnectOptions> {
    // The digits are for old servers, and `PgBouncer` refuses that parameter, too.
    Ok(PgConnectOptions::from_str(url)?.application_name("roadstead").extra_float_digits(None))
}

/// Opens a pool for a few statements, such as migrations. Nothing connects before the first use.
///
/// # Errors
/// When the URL cannot be read.
pub fn open(url: &str) -> Result<PgPool> {
    Ok(of(options(url)?, FEW, Arc::new(Health::new())))
}

/// The pool of a service.
///
/// A connection is not pinged before use, which would cost a round trip a statement; it is when it comes back. sqlx up
/// to 0.9.0 returns a connection whose `begin()` was cancelled half-way inside the transaction it opened
/// (transact-rs/sqlx#4393): nothing here cancels one but the word that the database is away or does not answer, and no
/// connection that was opened before that is used again.
pub(super) fn of(options: PgConnectOptions, most: u32, health: Arc<Health>) -> PgPool {
    let at_return = Arc::clone(&health);
    PgPoolOptions::new()
        .max_connections(most)
        .acquire_timeout(Duration::from_secs(2))
        .test_before_acquire(false)
        .after_connect(|connection, _| Box::pin(prepare(connection)))
        .before_acquire(move |_, meta| {
            let fresh = !health.outlived(meta.age);
            Box::pin(async move { Ok(fresh) })
        })
        .after_release(move |connection, _| {
            let health = Arc::clone(&at_return);
            Box::pin(async move {
                // It takes a roll-back that was left to it with it, and asks nothing that must be planned.
                let answered = tokio::time::timeout(RETURN, connection.ping()).await;
                if !matches!(answered, Ok(Ok(()))) {
                    health.distrust();
                }
                // Where there is no answer, by an error: it is closed without a goodbye, which might not end either.
                let alive = answered.map_err(|_| sqlx::Error::PoolTimedOut)?;
                Ok(alive.is_ok() && !connection.is_in_transaction())
            })
        })
        .connect_lazy_with(options)
}

/// Tells a new connection what every one is told.
pub(super) async fn prepare(connection: &mut PgConnection) -> sqlx::Result<()> {
    connection.execute(sqlx::raw_sql(SETTINGS)).await.map(drop)
}
