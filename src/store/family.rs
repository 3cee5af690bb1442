//! Families: who dispatched whom, for a dispatch that needs a living parent and a cancel that covers descendants.

use std::collections::HashSet;

use sqlx::PgConnection;

use super::error::{Result, expect_rows};
use super::rows;
use crate::domain::Timestamp;
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

/// A child of a run that is being cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    /// Which.
    pub key: RunKey,
    /// Whether it has ended.
    pub ended: bool,
    /// Whether its cancel was asked for.
    pub asked: bool,
}

/// The children of a run, in the order of their names after `after`; at most 500.
///
/// # Errors
/// Of the database; [`super::Error::Unreadable`].
pub async fn children(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    parent: &RunKey,
    after: Option<&RunKey>,
) -> Result<Vec<Child>> {
    let rows = sqlx::query!(
        r#"/* store::family::children */
        SELECT dag_name, run_id, finished_at IS NOT NULL AS "ended!", cancel_requested_at IS NOT NULL AS "asked!"
        FROM run
        WHERE namespace_id = $1 AND parent_dag_name = $2 AND parent_run_id = $3 AND parent_run_id IS NOT NULL
          AND (dag_name, run_id) > ($4, $5)
        ORDER BY dag_name, run_id LIMIT 500"#,
        namespace.0,
        parent.dag_name.as_str(),
        parent.run_id.as_str(),
        after.map_or("", |key| key.dag_name.as_str()),
        after.map_or("", |key| key.run_id.as_str()),
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| Ok(Child { key: rows::key(row.dag_name, row.run_id)?, ended: row.ended, asked: row.asked }))
        .collect()
}

/// Those of these runs that have children, ended or not: what descends from an ended run may live.
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
              AND parent_run_id IS NOT NULL LIMIT 1) c"#,
        namespace.0,
        &dags,
        &ids,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(|row| rows::key(row.dag_name, row.run_id)).collect()
}

/// A cancel that its run's descendants have not all been told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cascade {
    /// Whose descendants.
    pub of: RunKey,
    /// Since when; tells it from a later one of the same run.
    pub since: Timestamp,
    /// Why.
    pub reason: Option<String>,
    /// Whether what runs ends at once.
    pub force: bool,
}

/// Notes that the descendants of a locked run have to be told of its cancel, in the transaction of that.
///
/// # Errors
/// Of the database.
pub async fn mark(conn: &mut PgConnection, namespace: NamespaceId, cascade: &Cascade) -> Result<()> {
    let wrote = sqlx::query!(
        r#"/* store::family::mark */
        UPDATE run SET cascade_since = $4, cascade_force = $5, cascade_reason = $6
        WHERE namespace_id = $1 AND dag_name = $2 AND run_id = $3"#,
        namespace.0,
        cascade.of.dag_name.as_str(),
        cascade.of.run_id.as_str(),
        cascade.since,
        cascade.force,
        cascade.reason,
    )
    .execute(conn)
    .await?
    .rows_affected();
    expect_rows("store::family::mark", 1, wrote.cast_signed())
}

/// Whether this cancel is still to be told, and keeps it so until the transaction ends: once its run has another
/// attempt, it is not.
///
/// # Errors
/// Of the database.
pub async fn stands(conn: &mut PgConnection, namespace: NamespaceId, cascade: &Cascade) -> Result<bool> {
    let found = sqlx::query_scalar!(
        r#"/* store::family::stands */
        SELECT cascade_since = $4 FROM run
        WHERE namespace_id = $1 AND dag_name = $2 AND run_id = $3 AND cascade_since IS NOT NULL
        FOR SHARE"#,
        namespace.0,
        cascade.of.dag_name.as_str(),
        cascade.of.run_id.as_str(),
        cascade.since,
    )
    .fetch_optional(conn)
    .await?;
    Ok(found.flatten().unwrap_or(false))
}

/// Whether a locked run's cancel is still to be told to some of its descendants.
///
/// # Errors
/// Of the database.
pub async fn is_cascading(conn: &mut PgConnection, namespace: NamespaceId, key: &RunKey) -> Result<bool> {
    let found = sqlx::query_scalar!(
        r#"/* store::family::is_cascading */
        SELECT cascade_since IS NOT NULL AS "cascading!" FROM run
        WHERE namespace_id = $1 AND dag_name = $2 AND run_id = $3"#,
        namespace.0,
        key.dag_name.as_str(),
        key.run_id.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(found.unwrap_or(false))
}

/// Cancels that have not been told to all descendants, the oldest first: of this run, or of all.
///
/// # Errors
/// Of the database; [`super::Error::Unreadable`].
pub async fn cascading(conn: &mut PgConnection, namespace: NamespaceId, of: Option<&RunKey>) -> Result<Vec<Cascade>> {
    let rows = sqlx::query!(
        r#"/* store::family::cascading */
        SELECT dag_name, run_id, cascade_since AS "since!", cascade_force AS "force!", cascade_reason FROM run
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
            Ok(Cascade {
                of: rows::key(row.dag_name, row.run_id)?,
                since: row.since,
                reason: row.cascade_reason,
                force: row.force,
            })
        })
        .collect()
}

/// Notes that all descendants have been told of this cancel; not if there is a later one.
///
/// # Errors
/// Of the database.
pub async fn told(conn: &mut PgConnection, namespace: NamespaceId, cascade: &Cascade) -> Result<()> {
    sqlx::query!(
        r#"/* store::family::told */
        UPDATE run SET cascade_since = NULL, cascade_force = NULL, cascade_reason = NULL
        WHERE namespace_id = $1 AND dag_name = $2 AND run_id = $3 AND cascade_since = $4"#,
        namespace.0,
        cascade.of.dag_name.as_str(),
        cascade.of.run_id.as_str(),
        cascade.since,
    )
    .execute(conn)
    .await?;
    Ok(())
}
