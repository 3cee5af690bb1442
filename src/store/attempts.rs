//! Reads of attempts, for answers and for repeats.

use sqlx::PgConnection;

use super::error::Result;
use super::rows;
use crate::domain::Timestamp;
use crate::domain::attempt::AttemptStatus;
use crate::domain::run::Operation;
use crate::ids::{AttemptId, Digest, NamespaceId, RunKey, WorkerId};

/// An attempt as people read it.
#[derive(Debug, Clone)]
pub struct AttemptView {
    /// Its id.
    pub attempt_id: AttemptId,
    /// Counted from 1 within its run.
    pub number: i32,
    /// What was asked for.
    pub operation: Operation,
    /// Where it stands.
    pub status: AttemptStatus,
    /// The attempt it follows.
    pub after: Option<AttemptId>,
    /// The worker that acknowledged it.
    pub worker_id: Option<WorkerId>,
    /// When it was queued.
    pub queued_at: Timestamp,
    /// When the acknowledged claim was made.
    pub claimed_at: Option<Timestamp>,
    /// When it was acknowledged.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// What went wrong, for people.
    pub error: Option<String>,
    /// Where its log is, once it has ended.
    pub log_url: Option<String>,
}

/// A run's attempts after this number, in their order.
///
/// # Errors
/// Of the database; [`super::Error::Unreadable`] when a row cannot be read.
pub async fn of_run(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    key: &RunKey,
    after: i32,
    limit: i64,
) -> Result<Vec<AttemptView>> {
    let rows = sqlx::query!(
        r#"/* store::attempts::of_run */
        SELECT attempt_id, number, operation, status, after_attempt_id, worker_id, queued_at, claimed_at, started_at,
               ended_at, error, log_url
        FROM attempt WHERE namespace_id = $1 AND dag_name = $2 AND run_id = $3 AND number > $4
        ORDER BY number LIMIT $5"#,
        namespace.0,
        key.dag_name.as_str(),
        key.run_id.as_str(),
        after,
        limit,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(AttemptView {
                attempt_id: AttemptId(row.attempt_id),
                number: row.number,
                operation: rows::word("attempt.operation", &row.operation, Operation::from_word)?,
                status: rows::word("attempt.status", &row.status, AttemptStatus::from_word)?,
                after: row.after_attempt_id.map(AttemptId),
                worker_id: row.worker_id.map(rows::worker_id).transpose()?,
                queued_at: row.queued_at,
                claimed_at: row.claimed_at,
                started_at: row.started_at,
                ended_at: row.ended_at,
                error: row.error,
                log_url: row.log_url,
            })
        })
        .collect()
}

/// What follows an attempt of a run that has gone on from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follower {
    /// The attempt that this very request made.
    Same,
    /// Another.
    Other,
    /// The run never had such an attempt.
    NoSuchAttempt,
}

/// Whether a request to follow this attempt has been carried out before.
///
/// # Errors
/// Of the database.
pub async fn follower(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    key: &RunKey,
    after: AttemptId,
    request: Digest,
) -> Result<Follower> {
    let found = sqlx::query!(
        r#"/* store::attempts::follower */
        SELECT coalesce(bool_or(attempt_id = $4), false) AS "known!",
               coalesce(bool_or(after_attempt_id = $4 AND request_digest = $5), false) AS "same!"
        FROM attempt WHERE namespace_id = $1 AND dag_name = $2 AND run_id = $3"#,
        namespace.0,
        key.dag_name.as_str(),
        key.run_id.as_str(),
        after.0,
        &request.0[..],
    )
    .fetch_one(conn)
    .await?;
    Ok(match (found.same, found.known) {
        (true, _) => Follower::Same,
        (false, true) => Follower::Other,
        (false, false) => Follower::NoSuchAttempt,
    })
}
