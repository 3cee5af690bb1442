//! Brings the schema up to date.

use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::{Connection as _, Executor as _, PgConnection, PgPool, Row as _};

use super::pool;

/// How long one connection may take.
const CONNECT: Duration = Duration::from_secs(5);

/// The migrations, in the binary.
pub static MIGRATOR: Migrator = sqlx::migrate!("./migrations");

/// Why the schema is not up to date.
#[derive(Debug, thiserror::Error)]
pub enum NotMigrated {
    /// The database cannot be reached, or gave up; the same may work later.
    #[error("{0}")]
    Unavailable(#[source] sqlx::Error),
    /// The server refuses us, or has no such database: the same will not work later.
    #[error("{0}")]
    Refused(#[source] sqlx::Error),
    /// Somebody else migrates, or keeps a table locked; the same may work later.
    #[error("another session migrates, or keeps a table locked: {0}")]
    Locked(#[source] sqlx::Error),
    /// Connections are not what they seem: something between us and the database lends its own by the transaction.
    #[error(
        "it is reached through a pooler in transaction mode, in which what a connection is told, locks of sessions and \
         prepared statements end up with others; use the server's own address, or a pool in session mode \
         (pool_mode = session)"
    )]
    Pooled,
    /// A later version of this program has been here.
    #[error(
        "its schema is newer than this program: it has migration {0}, which is unknown here; run the version that \
         migrated it, or a later one"
    )]
    Newer(i64),
    /// A migration failed or was changed after it had been applied.
    #[error("{0}")]
    Failed(#[source] MigrateError),
}

impl From<MigrateError> for NotMigrated {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) if is_lock_timeout(&source) => {
                Self::Locked(source)
            }
            MigrateError::Execute(source) => Self::Unavailable(source),
            MigrateError::VersionMissing(version) => Self::Newer(version),
            other => Self::Failed(other),
        }
    }
}

impl From<sqlx::Error> for NotMigrated {
    fn from(error: sqlx::Error) -> Self {
        match error.as_database_error().and_then(sqlx::error::DatabaseError::code).as_deref() {
            // invalid_authorization_specification, invalid_password, invalid_catalog_name, insufficient_privilege
            Some("28000" | "28P01" | "3D000" | "42501") => Self::Refused(error),
            Some(_) | None => Self::Unavailable(error),
        }
    }
}

fn is_lock_timeout(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(|code| code == "55P03")
}

/// Applies what is missing. Several replicas may call it at once: one works, the others wait for its lock, or are told
/// [`NotMigrated::Locked`] after the time that any lock is waited for.
///
/// It has connections of its own, which are closed whatever comes: the lock belongs to the session, and one that went
/// back to the pool after a failure would keep every replica out. Cancellation safe for the same reason. And a pool does
/// not say why it could not connect.
///
/// # Errors
/// [`NotMigrated`].
pub async fn run(pool: &PgPool) -> Result<(), NotMigrated> {
    let (mut connection, mut other) = (connect(pool).await?, connect(pool).await?);
    let pooled = is_pooled(&mut connection, &mut other).await;
    // They may be broken, which is no news then.
    let _ = other.close().await;
    let migrated = if pooled? { Err(NotMigrated::Pooled) } else { migrate(&mut connection).await };
    let _ = connection.close().await;
    migrated
}

async fn connect(pool: &PgPool) -> Result<PgConnection, NotMigrated> {
    let options = pool.connect_options();
    let connecting = async {
        let mut connection = PgConnection::connect_with(&options).await?;
        pool::prepare(&mut connection).await?;
        Ok::<_, sqlx::Error>(connection)
    };
    let late = |_| sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "it did not answer in time"));
    Ok(tokio::time::timeout(CONNECT, connecting).await.map_err(late)??)
}

/// Whether two open connections are served by one process of the server, as those of a pooler are that lends its own by
/// the transaction or the statement.
async fn is_pooled(one: &mut PgConnection, other: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let mut pids = [0_i32; 2];
    for (connection, pid) in [one, other].into_iter().zip(&mut pids) {
        // By the simple protocol: a prepared statement would not get as far as an answer.
        let row = connection.fetch_one(sqlx::raw_sql("/* store::migrate */ SELECT pg_backend_pid()")).await?;
        *pid = row.try_get(0)?;
    }
    Ok(pids[0] == pids[1])
}

async fn migrate(connection: &mut PgConnection) -> Result<(), NotMigrated> {
    // A migration may take long; that it waits for a lock must not, for whoever comes after it waits as well.
    sqlx::raw_sql("/* store::migrate */ SET statement_timeout = 0").execute(&mut *connection).await?;
    Ok(MIGRATOR.run(connection).await?)
}
