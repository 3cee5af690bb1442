//! The handle to the database that the verbs hold.

use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres, Transaction};

use super::error::Result;

/// A transaction: rolled back unless committed.
pub type Tx = Transaction<'static, Postgres>;

/// A pool of connections.
#[derive(Debug, Clone)]
pub struct Db(PgPool);

impl Db {
    /// Speaks through this pool.
    #[must_use]
    pub const fn new(pool: PgPool) -> Self {
        Self(pool)
    }

    /// Begins a transaction. To be called from a task that nothing cancels: a transaction that is dropped half-way is
    /// rolled back, but its caller would not know what became of it.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`] when no connection can be had in time.
    pub async fn begin(&self) -> Result<Tx> {
        Ok(self.0.begin().await?)
    }

    /// A connection for single statements.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`] when none can be had in time.
    pub async fn conn(&self) -> Result<PoolConnection<Postgres>> {
        Ok(self.0.acquire().await?)
    }

    /// Commits.
    ///
    /// # Errors
    /// Of the database; whether it was committed is not known then.
    pub async fn commit(tx: Tx) -> Result<()> {
        Ok(tx.commit().await?)
    }

    /// Rolls back, and has done so when it returns: dropping a transaction leaves that to the connection's next user.
    ///
    /// # Errors
    /// Of the database; the transaction is gone in any case.
    pub async fn roll_back(tx: Tx) -> Result<()> {
        Ok(tx.rollback().await?)
    }

    /// Waits for connections to come back and closes them.
    pub async fn close(&self) {
        self.0.close().await;
    }
}
