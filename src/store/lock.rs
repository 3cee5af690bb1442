//! Locking reads: what a rule looks at, and the clock after the last lock was had.
//!
//! Each lock is a statement of its own, and what depends on it is read by the next one, which sees all that was
//! committed while the lock was waited for. The clock is read in the outer select list over the materialized locking
//! part: anywhere else it is the time before the wait.

use std::collections::HashMap;

use sqlx::PgConnection;
use sqlx::types::Uuid;

use super::error::{Error, Result};
use super::rows::{AttemptRow, RunRow, TaskRow, run_row};
use crate::domain::Timestamp;
use crate::domain::attempt::{Attempt, AttemptStatus, Locked, Task};
use crate::domain::run::Run;
use crate::ids::{AttemptId, NamespaceId, RunKey, SessionKey};

/// Where an attempt belongs, not locked: the way from its id to the rows to lock.
#[derive(Debug, Clone)]
pub struct Whereabouts {
    /// Its run.
    pub key: RunKey,
    /// The session that holds its lease or its claim.
    pub session: Option<SessionKey>,
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
               coalesce(a.session_id, t.session_id) AS session_id
        FROM attempt a
        LEFT JOIN task t ON t.namespace_id = a.namespace_id AND t.attempt_id = a.attempt_id
        WHERE a.namespace_id = $1 AND a.attempt_id = $2"#,
        namespace.0,
        attempt_id.0,
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
               (extract(epoch FROM r.start_timeout) * 1000000)::bigint AS "start_timeout_micros!", r.priority,
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
        let (locked, after) = self::task(conn, namespace, attempt_id).await?;
        (task, now) = (Some(locked), after);
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

/// Locks the task of a queued attempt, waiting for a claim in flight.
async fn task(conn: &mut PgConnection, namespace: NamespaceId, attempt_id: AttemptId) -> Result<(Task, Timestamp)> {
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
    .await?
    .ok_or_else(|| no_task(attempt_id))?;
    let now = row.now;
    Ok((Task::try_from(row)?, now))
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
               (extract(epoch FROM r.start_timeout) * 1000000)::bigint AS "start_timeout_micros!", r.priority,
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
        (tasks, now) = self::tasks(conn, namespace, &queued).await?;
    }
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        let (key, id) = (row.key()?, AttemptId(row.attempt_id));
        let attempt = attempts.remove(&id.0).unwrap_or_else(|| Err(no_attempt(id)));
        let is_queued = attempt.as_ref().is_ok_and(|attempt| attempt.status == AttemptStatus::Queued);
        let task = tasks.remove(&id.0);
        if is_queued && task.is_none() {
            continue;
        }
        let read = || Ok((Locked { run: Run::try_from(row)?, attempt: attempt?, task: task.transpose()? }, now));
        found.push((key, read()));
    }
    Ok(found)
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

/// What a locking read from tasks found: the run with its task, or why its row cannot be read.
pub struct FromTask {
    /// The task's attempt.
    pub attempt_id: AttemptId,
    /// Everything a rule looks at.
    pub locked: Result<Locked>,
    /// Whether the claim's session has ended.
    pub session_ended: bool,
    /// The moment after the locks.
    pub now: Timestamp,
}

/// Locks tasks and their runs together, passing over what somebody else has locked: whoever starts from a task must
/// not wait for its run, which a cancel may hold while it waits for the task.
///
/// # Errors
/// Of the database. A row that cannot be read is an error of that row only.
pub async fn from_tasks(conn: &mut PgConnection, namespace: NamespaceId, ids: &[Uuid]) -> Result<Vec<FromTask>> {
    let rows = sqlx::query!(
        r#"/* store::lock::from_tasks */
        WITH locked AS MATERIALIZED (
            SELECT t.attempt_id AS task_attempt_id, t.hold_from, t.wait AS task_wait, t.start_until,
                   t.start_timeout AS task_start_timeout, t.fence AS task_fence,
                   t.worker_id AS claim_worker_id, t.session_id AS claim_session_id, t.token_digest,
                   t.claimed_at AS task_claimed_at, t.claim_until, r.*
            FROM task t
            JOIN run r ON r.namespace_id = t.namespace_id AND r.dag_name = t.dag_name AND r.run_id = t.run_id
            WHERE t.namespace_id = $1 AND t.attempt_id = ANY($2)
            ORDER BY r.dag_name, r.run_id
            FOR NO KEY UPDATE OF r SKIP LOCKED
            FOR UPDATE OF t SKIP LOCKED
        )
        SELECT l.task_attempt_id AS "task_attempt_id!", l.hold_from AS "hold_from!",
               (extract(epoch FROM l.task_wait) * 1000000)::bigint AS "task_wait_micros!", l.start_until,
               (extract(epoch FROM l.task_start_timeout) * 1000000)::bigint AS task_start_timeout_micros,
               l.task_fence AS "task_fence!",
               l.claim_worker_id, l.claim_session_id, l.token_digest, l.task_claimed_at, l.claim_until,
               l.dag_name AS "dag_name!", l.run_id AS "run_id!", l.status AS "status!", l.version AS "version!",
               l.attempt_id AS "attempt_id!", l.attempt_number AS "attempt_number!", l.operation AS "operation!",
               l.fence AS "fence!", l.selector_no AS "selector_no!", s.canonical AS "selector?",
               (extract(epoch FROM l.wait) * 1000000)::bigint AS "wait_micros!",
               (extract(epoch FROM l.start_timeout) * 1000000)::bigint AS "start_timeout_micros!", l.priority AS "priority!",
               l.max_attempts AS "max_attempts!", l.counted_from AS "counted_from!", l.retry, l.labels AS "labels!", l.root_dag_name, l.root_run_id, l.parent_dag_name, l.parent_run_id,
               l.traceparent, l.worker_id, l.created_at AS "created_at!", l.updated_at AS "updated_at!",
               l.queued_at AS "queued_at!", l.claimed_at, l.started_at, l.finished_at, l.cancel_requested_at,
               l.cancel_reason, l.error, l.failure, l.log_url, l.output_dropped AS "output_dropped!",
               coalesce(w.ended_at IS NOT NULL, false) AS "session_ended!", roadstead_now() AS "now!"
        FROM locked l
        LEFT JOIN selector s ON s.namespace_id = $1 AND s.selector_no = l.selector_no
        LEFT JOIN worker_session w ON w.namespace_id = $1 AND w.worker_id = l.claim_worker_id
                                  AND w.session_id = l.claim_session_id"#,
        namespace.0,
        ids,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let (attempt_id, session_ended, now) = (AttemptId(row.task_attempt_id), row.session_ended, row.now);
            let task = TaskRow {
                hold_from: row.hold_from,
                wait_micros: row.task_wait_micros,
                start_until: row.start_until,
                start_timeout_micros: row.task_start_timeout_micros,
                fence: row.task_fence,
                worker_id: row.claim_worker_id,
                session_id: row.claim_session_id,
                token_digest: row.token_digest,
                claimed_at: row.task_claimed_at,
                claim_until: row.claim_until,
                now,
            };
            let run = run_row!(row, selector: row.selector.unwrap_or_default());
            FromTask { attempt_id, locked: with_task(run, task), session_ended, now }
        })
        .collect())
}

/// A run with its task. That there is a task says all there is to say of the attempt: it is current and queued.
fn with_task(run: RunRow, task: TaskRow) -> Result<Locked> {
    let run = Run::try_from(run)?;
    let attempt = Attempt {
        id: run.attempt.attempt_id,
        number: run.attempt.number,
        operation: run.attempt.operation,
        status: AttemptStatus::Queued,
        session: None,
        token: None,
        reported: None,
        ended_version: None,
        released: Vec::new(),
    };
    Ok(Locked { run, attempt, task: Some(Task::try_from(task)?) })
}
