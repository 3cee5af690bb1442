//! Families: who dispatched whom, for a dispatch that needs a living parent and a cancel that covers descendants.

use std::collections::HashSet;

use sqlx::PgConnection;

use super::error::Result;
use super::rows;
use crate::domain::run::Status;
use crate::ids::{NamespaceId, RunKey};

/// How a parent stands to its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent {
    /// Where it stands.
    pub status: Status,
    /// Whether its cancel was asked for.
    pub cancel_requested: bool,
}

/// Locks a parent so that it neither ends nor is cancelled before its child is there; none if it was never seen.
///
/// # Errors
/// Of the database; [`super::Error::Unreadable`].
pub async fn lock_parent(conn: &mut PgConnection, namespace: NamespaceId, key: &RunKey) -> Result<Option<Parent>> {
    let row = sqlx::query!(
        r#"/* store::family::lock_parent */
        SELECT status, cancel_requested_at IS NOT NULL AS "cancel_requested!" FROM run
        WHERE namespace_id = $1 AND dag_name = $2 AND run_id = $3
        FOR SHARE"#,
        namespace.0,
        key.dag_name.as_str(),
        key.run_id.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        let status = rows::word("run.status", &row.status, Status::from_word)?;
        Ok(Parent { status, cancel_requested: row.cancel_requested })
    })
    .transpose()
}

/// Children of a run that a cancel has to tell, in the order of their names after `after`: those that have not ended,
/// and with `force` also those that were asked already.
///
/// # Errors
/// Of the database; [`super::Error::Unreadable`].
pub async fn untold_children(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    parent: &RunKey,
    force: bool,
    after: Option<&RunKey>,
) -> Result<Vec<RunKey>> {
    let rows = sqlx::query!(
        r#"/* store::family::untold_children */
        SELECT dag_name, run_id FROM run
        WHERE namespace_id = $1 AND parent_dag_name = $2 AND parent_run_id = $3 AND parent_run_id IS NOT NULL
          AND finished_at IS NULL AND (dag_name, run_id) > ($4, $5) AND (cancel_requested_at IS NULL OR $6)
        ORDER BY dag_name, run_id LIMIT 500"#,
        namespace.0,
        parent.dag_name.as_str(),
        parent.run_id.as_str(),
        after.map_or("", |key| key.dag_name.as_str()),
        after.map_or("", |key| key.run_id.as_str()),
        force,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(|row| rows::key(row.dag_name, row.run_id)).collect()
}

/// Those of these runs that have children which have not ended.
///
/// # Errors
/// Of the database; [`super::Error::Unreadable`].
pub async fn parents_among(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    keys: &[RunKey],
) -> Result<HashSet<RunKey>> {
    let dags: Vec<String> = keys.iter().map(|key| key.dag_name.to_string()).collect();
    let ids: Vec<String> = keys.iter().map(|key| key.run_id.to_string()).collect();
    let rows = sqlx::query!(
        r#"/* store::family::parents_among */
        SELECT k.dag_name AS "dag_name!", k.run_id AS "run_id!"
        FROM unnest($2::text[], $3::text[]) AS k(dag_name, run_id)
        CROSS JOIN LATERAL (
            SELECT FROM run
            WHERE namespace_id = $1 AND parent_dag_name = k.dag_name AND parent_run_id = k.run_id
              AND parent_run_id IS NOT NULL AND finished_at IS NULL LIMIT 1) c"#,
        namespace.0,
        &dags,
        &ids,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(|row| rows::key(row.dag_name, row.run_id)).collect()
}

/// A cancel whose children have not all been told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cascade {
    /// Who was cancelled.
    pub parent: RunKey,
    /// Why.
    pub reason: Option<String>,
    /// Whether what runs ends at once.
    pub force: bool,
}

/// Cancels whose children have not all been told, the oldest first: of this run, or of all.
///
/// # Errors
/// Of the database; [`super::Error::Unreadable`].
pub async fn cascading(conn: &mut PgConnection, namespace: NamespaceId, of: Option<&RunKey>) -> Result<Vec<Cascade>> {
    let rows = sqlx::query!(
        r#"/* store::family::cascading */
        SELECT dag_name, run_id, cancel_reason, cascade_force AS "force!" FROM run
        WHERE namespace_id = $1 AND cascade_since IS NOT NULL AND ($2::text IS NULL OR (dag_name, run_id) = ($2, $3))
        ORDER BY cascade_since LIMIT 100"#,
        namespace.0,
        of.map(|key| key.dag_name.as_str()),
        of.map_or("", |key| key.run_id.as_str()),
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(Cascade { parent: rows::key(row.dag_name, row.run_id)?, reason: row.cancel_reason, force: row.force })
        })
        .collect()
}

/// Notes that all children of a cancelled run have been told; not if it was cancelled again meanwhile, by force.
///
/// # Errors
/// Of the database.
pub async fn told(conn: &mut PgConnection, namespace: NamespaceId, key: &RunKey, force: bool) -> Result<()> {
    sqlx::query!(
        r#"/* store::family::told */
        UPDATE run SET cascade_since = NULL, cascade_force = NULL
        WHERE namespace_id = $1 AND dag_name = $2 AND run_id = $3 AND cascade_force = $4"#,
        namespace.0,
        key.dag_name.as_str(),
        key.run_id.as_str(),
        force,
    )
    .execute(conn)
    .await?;
    Ok(())
}
