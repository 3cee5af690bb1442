//! The connection pool.

use std::str::FromStr as _;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Executor as _, PgPool};

use super::error::Result;

/// Connections a replica holds at the most. Parked polls hold none.
pub const MAX_CONNECTIONS: u32 = 16;

/// Opens the pool. Nothing connects before the first use.
///
/// A connection is not pinged before use, which would cost a round trip a statement; it is checked when it comes
/// back. sqlx up to 0.9.0 returns a connection whose `begin()` was cancelled half-way inside the transaction it
/// opened (transact-rs/sqlx#4393), so one that is still in a transaction is closed.
///
/// # Errors
/// When the URL cannot be read.
pub fn open(url: &str) -> Result<PgPool> {
    let options = PgConnectOptions::from_str(url)?.application_name("roadstead").options([
        ("statement_timeout", "10s"),
        ("lock_timeout", "3s"),
        ("idle_in_transaction_session_timeout", "10s"),
        // Durability is what is promised: a server configured otherwise does not take it away.
        ("synchronous_commit", "on"),
    ]);
    Ok(PgPoolOptions::new()
        .max_connections(MAX_CONNECTIONS)
        .acquire_timeout(Duration::from_secs(2))
        .test_before_acquire(false)
        .after_release(|connection, _| {
            Box::pin(async move {
                // One simple-protocol message: outside a transaction both functions give its own start.
                let idle = connection.fetch_one("SELECT now() = statement_timestamp()").await;
                Ok(idle.is_ok_and(|row| sqlx::Row::try_get(&row, 0).unwrap_or(false)))
            })
        })
        .connect_lazy_with(options))
}
