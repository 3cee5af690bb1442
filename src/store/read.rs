//! Reads of runs, for answers.

use sqlx::PgConnection;

use super::create::Payload;
use super::error::Result;
use super::rows::{self, run_row};
use crate::domain::Timestamp;
use crate::domain::hold::Hold;
use crate::domain::run::Run;
use crate::domain::start::StartClock;
use crate::ids::{NamespaceId, RunKey, WorkerId};

/// A run with what is read of its task, while there is one.
#[derive(Debug, Clone)]
pub struct Found {
    /// The run.
    pub run: Run,
    /// Its task.
    pub task: Option<FoundTask>,
}

/// A task, as far as people read it.
#[derive(Debug, Clone)]
pub struct FoundTask {
    /// Its hold.
    pub hold: Hold,
    /// Its start clock.
    pub start: Option<StartClock>,
    /// Who was given it when.
    pub claimed: Option<(WorkerId, Timestamp)>,
}

/// Reads these runs, in the order given; those that do not exist are left out. One that cannot be read is an error in
/// its place and stops none of the others.
///
/// # Errors
/// Of the database.
pub async fn runs(conn: &mut PgConnection, namespace: NamespaceId, keys: &[RunKey]) -> Result<Vec<Result<Found>>> {
    let dags: Vec<String> = keys.iter().map(|key| key.dag_name.to_string()).collect();
    let ids: Vec<String> = keys.iter().map(|key| key.run_id.to_string()).collect();
    let rows = sqlx::query!(
        r#"/* store::read::runs */
        SELECT r.dag_name, r.run_id, r.status, r.version, r.attempt_id, r.attempt_number, r.operation, r.fence,
               r.selector_no, s.canonical AS selector,
               (extract(epoch FROM r.wait) * 1000000)::bigint AS "wait_micros!",
               (extract(epoch FROM r.start_timeout) * 1000000)::bigint AS "start_timeout_micros!", r.park, r.direct, r.priority,
               r.max_attempts,
               r.counted_from, r.retry, r.labels,
               r.root_dag_name, r.root_run_id, r.parent_dag_name, r.parent_run_id, r.traceparent, r.worker_id,
               r.created_at, r.updated_at, r.queued_at, r.claimed_at, r.started_at, r.finished_at,
               r.cancel_requested_at, r.cancel_reason, r.error, r.failure, r.log_url, r.output_dropped,
               t.hold_from AS "hold_from?", (extract(epoch FROM t.wait) * 1000000)::bigint AS "hold_wait_micros?",
               t.start_until AS "start_until?",
               (extract(epoch FROM t.start_timeout) * 1000000)::bigint AS "task_start_timeout_micros?",
               t.worker_id AS "claim_worker_id?", t.claimed_at AS "claim_claimed_at?"
        FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS k(dag_name, run_id, at)
        CROSS JOIN LATERAL (
            SELECT * FROM run WHERE namespace_id = $1 AND dag_name = k.dag_name AND run_id = k.run_id LIMIT 1) r
        JOIN selector s ON s.namespace_id = $1 AND s.selector_no = r.selector_no
        LEFT JOIN LATERAL (
            SELECT * FROM task WHERE namespace_id = $1 AND attempt_id = r.attempt_id LIMIT 1) t ON true
        ORDER BY k.at"#,
        namespace.0,
        &dags,
        &ids,
    )
    .fetch_all(conn)
    .await?;
    let found = rows
        .into_iter()
        .map(|row| {
            let task = match (row.hold_from, row.hold_wait_micros) {
                (Some(from), Some(wait)) => {
                    let claimed = row.claim_worker_id.map(rows::worker_id).transpose()?.zip(row.claim_claimed_at);
                    let hold = Hold { from, wait: rows::duration(wait)? };
                    let start = rows::start(row.start_until, row.task_start_timeout_micros)?;
                    Some(FoundTask { hold, start, claimed })
                }
                _ => None,
            };
            let run = run_row!(row, selector: row.selector);
            Ok(Found { run: Run::try_from(run)?, task })
        })
        .collect();
    Ok(found)
}

/// What only a single run's read shows.
#[derive(Debug, Clone, Default)]
pub struct Detail {
    /// Its output, JSON.
    pub output: Option<String>,
    /// Its progress, JSON.
    pub progress: Option<String>,
    /// What its dispatch carried.
    pub payload: Payload,
}

/// Reads a run's payload; the dispatch's part only when asked for.
///
/// # Errors
/// Of the database.
pub async fn detail(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    key: &RunKey,
    with_payload: bool,
) -> Result<Detail> {
    let row = sqlx::query!(
        r#"/* store::read::detail */
        SELECT output, progress, CASE WHEN $4 THEN definition END AS definition, CASE WHEN $4 THEN params END AS params,
               CASE WHEN $4 THEN context END AS context, CASE WHEN $4 THEN previous END AS previous
        FROM payload WHERE namespace_id = $1 AND dag_name = $2 AND run_id = $3"#,
        namespace.0,
        key.dag_name.as_str(),
        key.run_id.as_str(),
        with_payload,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map_or_else(Detail::default, |row| Detail {
        output: row.output,
        progress: row.progress,
        payload: Payload {
            definition: row.definition,
            params: row.params,
            context: row.context,
            previous: row.previous,
        },
    }))
}

/// The versions of these runs and whether each has finished: one statement for all who wait for a change.
///
/// # Errors
/// Of the database.
pub async fn versions(conn: &mut PgConnection, namespace: NamespaceId, keys: &[RunKey]) -> Result<Vec<(RunKey, i64)>> {
    let dags: Vec<String> = keys.iter().map(|key| key.dag_name.to_string()).collect();
    let ids: Vec<String> = keys.iter().map(|key| key.run_id.to_string()).collect();
    let rows = sqlx::query!(
        r#"/* store::read::versions */
        SELECT r.dag_name, r.run_id, r.version
        FROM unnest($2::text[], $3::text[]) AS k(dag_name, run_id)
        CROSS JOIN LATERAL (
            SELECT * FROM run WHERE namespace_id = $1 AND dag_name = k.dag_name AND run_id = k.run_id LIMIT 1) r"#,
        namespace.0,
        &dags,
        &ids,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(|row| Ok((rows::key(row.dag_name, row.run_id)?, row.version))).collect()
}
