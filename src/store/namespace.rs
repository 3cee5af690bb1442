//! Namespaces: the tenants there are.

use sqlx::PgConnection;

use super::Result;
use crate::ids::NamespaceId;

/// The namespace of this name.
///
/// # Errors
/// Of the database.
pub async fn find(conn: &mut PgConnection, name: &str) -> Result<Option<NamespaceId>> {
    let id =
        sqlx::query_scalar!("/* store::namespace::find */ SELECT namespace_id FROM namespace WHERE name = $1", name)
            .fetch_optional(conn)
            .await?;
    Ok(id.map(NamespaceId))
}

/// Creates a namespace with what hangs on it: its feed. Zero or one row of each: none when it is there, or when another
/// replica took the number for one of its own at the same moment.
///
/// # Errors
/// Of the database.
pub async fn create(conn: &mut PgConnection, name: &str) -> Result<()> {
    sqlx::query!(
        r#"/* store::namespace::create */
        WITH made AS (
            INSERT INTO namespace (namespace_id, name) SELECT max(namespace_id) + 1, $1 FROM namespace
            ON CONFLICT DO NOTHING
            RETURNING namespace_id
        )
        INSERT INTO feed (namespace_id) SELECT namespace_id FROM made"#,
        name,
    )
    .execute(conn)
    .await?;
    Ok(())
}
