//! The handle to the database that the verbs hold.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{PgConnection, PgPool, Postgres, Transaction};

use super::error::{Error, Result};
use super::gate::{Gate, Pass};
use super::health::Health;
use super::pool;

/// A connection that waited for its turn, and gives it back when dropped.
#[derive(Debug)]
pub struct Turn<C> {
    // Dropped in this order: whoever has the next turn finds the connection back, or on its way.
    connection: C,
    _pass: Pass,
}

/// A transaction: rolled back unless committed.
pub type Tx = Turn<Transaction<'static, Postgres>>;

impl<C: Deref<Target = PgConnection>> Deref for Turn<C> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl<C: DerefMut<Target = PgConnection>> DerefMut for Turn<C> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

/// A pool of connections, shared out by [`super::Class`], that nobody waits for while the database is away.
#[derive(Debug, Clone)]
pub struct Db {
    pool: PgPool,
    options: PgConnectOptions,
    gate: Arc<Gate>,
    health: Arc<Health>,
}

impl Db {
    /// The database of this URL, with so many connections at the most. Nothing connects before the first use.
    ///
    /// # Errors
    /// When the URL cannot be read.
    pub fn open(url: &str, connections: u32) -> Result<Self> {
        let (options, health) = (pool::options(url)?, Arc::new(Health::new()));
        let pool = pool::of(options.clone(), connections, Arc::clone(&health));
        Ok(Self { pool, options, gate: Arc::new(Gate::new(connections)), health })
    }

    /// The pool itself, for migrations.
    #[must_use]
    pub const fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Begins a transaction. To be called from a task that nothing cancels: a transaction that is dropped half-way is
    /// rolled back, but its caller would not know what became of it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when no connection can be had in time, [`Error::Away`] at once while the database is
    /// away, [`Error::Full`] when too many wait.
    pub async fn begin(&self) -> Result<Tx> {
        Box::pin(self.turn(self.pool.begin())).await
    }

    /// A connection for single statements.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub async fn conn(&self) -> Result<Turn<PoolConnection<Postgres>>> {
        Box::pin(self.turn(self.pool.acquire())).await
    }

    /// Boxed by its callers: it is most of the size of every verb that waits in it.
    async fn turn<C>(&self, connect: impl Future<Output = sqlx::Result<C>>) -> Result<Turn<C>> {
        let turn = async {
            let pass = self.gate.pass().await?;
            let connection = connect.await.map_err(Error::from).inspect_err(|_| self.health.doubt())?;
            Ok(Turn { connection, _pass: pass })
        };
        tokio::select! {
            biased;
            () = self.health.away() => Err(Error::Away),
            turn = turn => turn,
        }
    }

    /// Watches whether the database is there. To run beside everything else, for ever.
    pub async fn watch(&self) {
        self.health.watch(&self.options).await;
    }

    /// Something waited for an answer longer than a server that is there would have taken: no connection that was opened
    /// before is used again.
    pub fn distrust(&self) {
        self.health.distrust();
    }

    /// Commits.
    ///
    /// # Errors
    /// Of the database; whether it was committed is not known then.
    pub async fn commit(tx: Tx) -> Result<()> {
        Ok(tx.connection.commit().await?)
    }

    /// Rolls back, and has done so when it returns: dropping a transaction leaves that to the connection's next user.
    ///
    /// # Errors
    /// Of the database; the transaction is gone in any case.
    pub async fn roll_back(tx: Tx) -> Result<()> {
        Ok(tx.connection.rollback().await?)
    }

    /// Waits for connections to come back and closes them.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}
