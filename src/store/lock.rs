//! Locking reads: what a rule looks at, and the clock after the last lock was had.
//!
//! Each lock is a statement of its own, and what depends on it is read by the next one, which sees all that was
//! committed while the lock was waited for. The clock is read in the outer select list over the materialized locking
//! part: anywhere else it is the time before the wait.

use std::collections::{HashMap, HashSet};

use sqlx::PgConnection;
use sqlx::types::Uuid;

use super::error::{Error, Result};
use super::rows::{AttemptRow, RunRow, TaskRow};
use crate::domain::Timestamp;
use crate::domain::attempt::{Attempt, AttemptStatus, Locked, Task};
use crate::domain::run::Run;
use crate::ids::{AttemptId, Digest, NamespaceId, RunKey, SessionKey};

/// Where an attempt belongs, not locked: the way from its id to the rows to lock.
#[derive(Debug, Clone)]
pub struct Whereabouts {
    /// Its run.
    pub key: RunKey,
    /// The session that holds its lease or its claim.
    pub session: Option<SessionKey>,
    /// The digest of that session's token for it, unless the attempt has ended.
    pub token: Option<Digest>,
    /// Whether the last sign of life of that session is so old that another would be written.
    pub is_silent: bool,
}

/// Finds an attempt's run and holder.
///
/// # Errors
/// Of the database.
pub async fn whereabouts(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    attempt_id: AttemptId,
) -> Result<Option<Whereabouts>> {
    let row = sqlx::query!(
        r#"/* store::lock::whereabouts */
        SELECT a.dag_name, a.run_id, coalesce(a.worker_id, t.worker_id) AS worker_id,
               coalesce(a.session_id, t.session_id) AS session_id,
               CASE WHEN a.ended_at IS NULL THEN coalesce(a.token_digest, t.token_digest) END AS token_digest,
               coalesce(s.last_seen + least($3::bigint * interval '1 microsecond', s.stale_after / 20) <= roadstead_now(),
                        false) AS "is_silent!"
        FROM attempt a
        LEFT JOIN task t ON t.namespace_id = a.namespace_id AND t.attempt_id = a.attempt_id
        LEFT JOIN worker_session s ON s.namespace_id = a.namespace_id
            AND s.worker_id = coalesce(a.worker_id, t.worker_id) AND s.session_id = coalesce(a.session_id, t.session_id)
        WHERE a.namespace_id = $1 AND a.attempt_id = $2"#,
        namespace.0,
        attempt_id.0,
        super::rows::micros(super::signs::WRITTEN_EVERY),
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        Ok(Whereabouts {
            key: super::rows::key(row.dag_name, row.run_id)?,
            session: row
                .worker_id
                .zip(row.session_id)
                .map(|(worker, session)| super::rows::session(worker, session))
                .transpose()?,
            token: row.token_digest.map(super::rows::digest).transpose()?,
            is_silent: row.is_silent,
        })
    })
    .transpose()
}

/// Locks a run, then its attempt (the named one, else the current one) and that attempt's task.
///
/// # Errors
/// Of the database; [`Error::Unreadable`] when a row cannot be read.
pub async fn run(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    key: &RunKey,
    attempt_id: Option<AttemptId>,
) -> Result<Option<(Locked, Timestamp)>> {
    let Some(row) = sqlx::query_as!(
        RunRow,
        r#"/* store::lock::run */
        SELECT r.dag_name, r.run_id, r.status, r.version, r.attempt_id, r.attempt_number, r.operation, r.fence,
               r.selector_no, s.canonical AS selector,
               (extract(epoch FROM r.wait) * 1000000)::bigint AS "wait_micros!",
               (extract(epoch FROM r.start_timeout) * 1000000)::bigint AS "start_timeout_micros!", r.park, r.direct, r.priority,
               r.max_attempts,
               r.counted_from, r.retry, r.labels,
               r.root_dag_name, r.root_run_id, r.parent_dag_name, r.parent_run_id, r.traceparent, r.worker_id,
               r.created_at, r.updated_at, r.queued_at, r.claimed_at, r.started_at, r.finished_at,
               r.cancel_requested_at, r.cancel_reason, r.error, r.failure, r.log_url, r.output_dropped
        FROM run r JOIN selector s ON s.namespace_id = r.namespace_id AND s.selector_no = r.selector_no
        WHERE r.namespace_id = $1 AND r.dag_name = $2 AND r.run_id = $3
        FOR NO KEY UPDATE OF r"#,
        namespace.0,
        key.dag_name.as_str(),
        key.run_id.as_str(),
    )
    .fetch_optional(&mut *conn)
    .await?
    else {
        return Ok(None);
    };
    let run = Run::try_from(row)?;
    let attempt_id = attempt_id.unwrap_or(run.attempt.attempt_id);
    let (attempt, mut now) = attempt(conn, namespace, attempt_id).await?;
    let mut task = None;
    if attempt.status == AttemptStatus::Queued {
        match self::task(conn, namespace, attempt_id).await? {
            Some((locked, after)) => (task, now) = (Some(locked), after),
            None if run.park => {}
            None => return Err(no_task(attempt_id)),
        }
    }
    Ok(Some((Locked { run, attempt, task }, now)))
}

/// Reads an attempt, whose run the caller has locked; the run's lock is the attempt's.
async fn attempt(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    attempt_id: AttemptId,
) -> Result<(Attempt, Timestamp)> {
    let row = sqlx::query_as!(
        AttemptRow,
        r#"/* store::lock::attempt */
        SELECT attempt_id, number, operation, status, worker_id, session_id, token_digest, reported, ended_version,
               released, roadstead_now() AS "now!"
        FROM attempt WHERE namespace_id = $1 AND attempt_id = $2"#,
        namespace.0,
        attempt_id.0,
    )
    .fetch_optional(conn)
    .await?
    .ok_or_else(|| no_attempt(attempt_id))?;
    let now = row.now;
    Ok((Attempt::try_from(row)?, now))
}

/// Locks the task of a queued attempt, waiting for a claim in flight. A parked one has none.
async fn task(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    attempt_id: AttemptId,
) -> Result<Option<(Task, Timestamp)>> {
    let row = sqlx::query_as!(
        TaskRow,
        r#"/* store::lock::task */
        WITH locked AS MATERIALIZED (
            SELECT * FROM task WHERE namespace_id = $1 AND attempt_id = $2 FOR UPDATE
        )
        SELECT hold_from AS "hold_from!", (extract(epoch FROM wait) * 1000000)::bigint AS "wait_micros!", start_until,
               (extract(epoch FROM start_timeout) * 1000000)::bigint AS start_timeout_micros, fence AS "fence!", worker_id, session_id, token_digest, claimed_at, claim_until,
               roadstead_now() AS "now!"
        FROM locked"#,
        namespace.0,
        attempt_id.0,
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        let now = row.now;
        Ok((Task::try_from(row)?, now))
    })
    .transpose()
}

/// A run that was asked for by name, locked with its current attempt and task, or why it cannot be read.
pub type ByName = (RunKey, Result<(Locked, Timestamp)>);

/// Locks these runs with their current attempts and tasks, passing over those of which somebody else has locked the run or
/// the task: a batch must not wait for one of them.
///
/// # Errors
/// Of the database. A row that cannot be read is an error of that row only.
pub async fn runs(conn: &mut PgConnection, namespace: NamespaceId, keys: &[RunKey]) -> Result<Vec<ByName>> {
    let dags: Vec<String> = keys.iter().map(|key| key.dag_name.to_string()).collect();
    let ids: Vec<String> = keys.iter().map(|key| key.run_id.to_string()).collect();
    let rows = sqlx::query_as!(
        RunRow,
        r#"/* store::lock::runs */
        SELECT r.dag_name, r.run_id, r.status, r.version, r.attempt_id, r.attempt_number, r.operation, r.fence,
               r.selector_no, s.canonical AS selector,
               (extract(epoch FROM r.wait) * 1000000)::bigint AS "wait_micros!",
               (extract(epoch FROM r.start_timeout) * 1000000)::bigint AS "start_timeout_micros!", r.park, r.direct, r.priority,
               r.max_attempts,
               r.counted_from, r.retry, r.labels,
               r.root_dag_name, r.root_run_id, r.parent_dag_name, r.parent_run_id, r.traceparent, r.worker_id,
               r.created_at, r.updated_at, r.queued_at, r.claimed_at, r.started_at, r.finished_at,
               r.cancel_requested_at, r.cancel_reason, r.error, r.failure, r.log_url, r.output_dropped
        FROM unnest($2::text[], $3::text[]) AS k(dag_name, run_id)
        JOIN run r ON r.namespace_id = $1 AND r.dag_name = k.dag_name AND r.run_id = k.run_id
        JOIN selector s ON s.namespace_id = r.namespace_id AND s.selector_no = r.selector_no
        ORDER BY r.dag_name, r.run_id
        FOR NO KEY UPDATE OF r SKIP LOCKED"#,
        namespace.0,
        &dags,
        &ids,
    )
    .fetch_all(&mut *conn)
    .await?;
    let current: Vec<Uuid> = rows.iter().map(|row| row.attempt_id).collect();
    let (mut attempts, mut now) = attempts(conn, namespace, &current).await?;
    let queued: Vec<Uuid> = attempts
        .iter()
        .filter(|(_, attempt)| attempt.as_ref().is_ok_and(|attempt| attempt.status == AttemptStatus::Queued))
        .map(|(id, _)| *id)
        .collect();
    let mut tasks = HashMap::new();
    if !queued.is_empty() {
        let after;
        (tasks, after) = self::tasks(conn, namespace, &queued).await?;
        // Parked runs have none, and no moment with them.
        now = now.max(after);
    }
    let without: Vec<Uuid> = rows
        .iter()
        .filter(|row| row.park && queued.contains(&row.attempt_id) && !tasks.contains_key(&row.attempt_id))
        .map(|row| row.attempt_id)
        .collect();
    let parked = parked(conn, namespace, &without).await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        let (key, id) = (row.key()?, AttemptId(row.attempt_id));
        let attempt = attempts.remove(&id.0).unwrap_or_else(|| Err(no_attempt(id)));
        let is_queued = attempt.as_ref().is_ok_and(|attempt| attempt.status == AttemptStatus::Queued);
        let task = tasks.remove(&id.0);
        if is_queued && task.is_none() && !parked.contains(&id.0) {
            continue;
        }
        let read = || Ok((Locked { run: Run::try_from(row)?, attempt: attempt?, task: task.transpose()? }, now));
        found.push((key, read()));
    }
    Ok(found)
}

/// Those of these queued attempts that have no task, rather than one that somebody else has locked. Their runs are
/// locked, so that none comes or goes.
async fn parked(conn: &mut PgConnection, namespace: NamespaceId, ids: &[Uuid]) -> Result<HashSet<Uuid>> {
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    let without = sqlx::query_scalar!(
        r#"/* store::lock::parked */
        SELECT k.attempt_id AS "attempt_id!" FROM unnest($2::uuid[]) AS k(attempt_id)
        WHERE NOT EXISTS (SELECT FROM task t WHERE t.namespace_id = $1 AND t.attempt_id = k.attempt_id)"#,
        namespace.0,
        ids,
    )
    .fetch_all(conn)
    .await?;
    Ok(without.into_iter().collect())
}

/// Reads attempts, whose runs the caller has locked.
async fn attempts(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    ids: &[Uuid],
) -> Result<(HashMap<Uuid, Result<Attempt>>, Timestamp)> {
    let rows = sqlx::query_as!(
        AttemptRow,
        r#"/* store::lock::attempts */
        SELECT a.attempt_id, a.number, a.operation, a.status, a.worker_id, a.session_id, a.token_digest, a.reported,
               a.ended_version, a.released, roadstead_now() AS "now!"
        FROM unnest($2::uuid[]) AS k(attempt_id)
        CROSS JOIN LATERAL (
            SELECT * FROM attempt WHERE namespace_id = $1 AND attempt_id = k.attempt_id LIMIT 1) a"#,
        namespace.0,
        ids,
    )
    .fetch_all(conn)
    .await?;
    let now = rows.iter().map(|row| row.now).max().unwrap_or_default();
    Ok((rows.into_iter().map(|row| (row.attempt_id, Attempt::try_from(row))).collect(), now))
}

/// Locks the tasks of queued attempts, passing over those that somebody else has locked.
async fn tasks(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    ids: &[Uuid],
) -> Result<(HashMap<Uuid, Result<Task>>, Timestamp)> {
    let rows = sqlx::query!(
        r#"/* store::lock::tasks */
        WITH locked AS MATERIALIZED (
            SELECT * FROM task WHERE namespace_id = $1 AND attempt_id = ANY($2) ORDER BY attempt_id
            FOR UPDATE SKIP LOCKED
        )
        SELECT attempt_id AS "attempt_id!", hold_from AS "hold_from!",
               (extract(epoch FROM wait) * 1000000)::bigint AS "wait_micros!", start_until,
               (extract(epoch FROM start_timeout) * 1000000)::bigint AS start_timeout_micros, fence AS "fence!",
               worker_id, session_id, token_digest, claimed_at, claim_until, roadstead_now() AS "now!"
        FROM locked"#,
        namespace.0,
        ids,
    )
    .fetch_all(conn)
    .await?;
    let now = rows.iter().map(|row| row.now).max().unwrap_or_default();
    let task = |row: TaskRow| Task::try_from(row);
    Ok((
        rows.into_iter()
            .map(|row| {
                let id = row.attempt_id;
                let row = TaskRow {
                    hold_from: row.hold_from,
                    wait_micros: row.wait_micros,
                    start_until: row.start_until,
                    start_timeout_micros: row.start_timeout_micros,
                    fence: row.fence,
                    worker_id: row.worker_id,
                    session_id: row.session_id,
                    token_digest: row.token_digest,
                    claimed_at: row.claimed_at,
                    claim_until: row.claim_until,
                    now: row.now,
                };
                (id, task(row))
            })
            .collect(),
        now,
    ))
}

fn no_attempt(id: AttemptId) -> Error {
    Error::Unreadable(format!("there is no attempt {id}"))
}

fn no_task(id: AttemptId) -> Error {
    Error::Unreadable(format!("queued attempt {id} has no task"))
}
