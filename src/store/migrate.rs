//! Brings the schema up to date.

use sqlx::PgPool;
use sqlx::migrate::{MigrateError, Migrator};

/// The migrations, in the binary.
pub static MIGRATOR: Migrator = sqlx::migrate!("./migrations");

/// Applies what is missing. Several replicas may call it at once: one works, the others wait for its lock.
///
/// # Errors
/// When the database is newer than this program, was changed by hand, or cannot be reached.
pub async fn run(pool: &PgPool) -> Result<(), MigrateError> {
    MIGRATOR.run(pool).await
}
