//! The lock of who starts from a task: with its run, and waiting for nobody.

use sqlx::PgConnection;
use sqlx::types::Uuid;

use super::error::Result;
use super::rows::{RunRow, TaskRow, run_row};
use crate::domain::Timestamp;
use crate::domain::attempt::{Attempt, AttemptStatus, Locked, Task};
use crate::domain::run::Run;
use crate::ids::{AttemptId, NamespaceId};

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
pub async fn lock(conn: &mut PgConnection, namespace: NamespaceId, ids: &[Uuid]) -> Result<Vec<FromTask>> {
    let rows = sqlx::query!(
        r#"/* store::from_tasks::lock */
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
               (extract(epoch FROM l.start_timeout) * 1000000)::bigint AS "start_timeout_micros!", l.park AS "park!", l.direct AS "direct!", l.priority AS "priority!",
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
