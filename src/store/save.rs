//! The writer of run state: takes transitions, and nothing else changes a run that exists.

use sqlx::PgConnection;
use sqlx::types::Uuid;

use super::error::{Result, expect_rows};
use super::event::NewEvent;
use super::rows;
use crate::domain::Timestamp;
use crate::domain::attempt::AttemptStatus;
use crate::domain::hold::Hold;
use crate::domain::run::Status;
use crate::domain::start::StartClock;
use crate::domain::transition::{AttemptChange, TaskChange, Transition};
use crate::ids::NamespaceId;

/// Saves changes of locked runs with their attempts, tasks, payloads and events, each run once.
///
/// Few statements however many transitions there are. The run is written only at the version that was read.
///
/// # Errors
/// Of the database; [`super::Error::RowCount`] when a row was not as it had been locked. Roll back then.
pub async fn save(conn: &mut PgConnection, namespace: NamespaceId, changes: &[(&Transition, &NewEvent)]) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    runs(conn, namespace, changes).await?;
    attempts(conn, namespace, changes).await?;
    tasks(conn, namespace, changes).await?;
    payloads(conn, namespace, changes).await?;
    super::again::save(conn, namespace, changes).await
}

/// The two name columns of each change's run.
pub(super) fn names<'a>(changes: impl Iterator<Item = &'a Transition>) -> (Vec<String>, Vec<String>) {
    changes.map(|change| (change.run().key.dag_name.to_string(), change.run().key.run_id.to_string())).unzip()
}

/// Runs and their events: both or neither.
async fn runs(conn: &mut PgConnection, namespace: NamespaceId, changes: &[(&Transition, &NewEvent)]) -> Result<()> {
    let run = |pick: fn(&Transition) -> Option<String>| -> Vec<Option<String>> {
        changes.iter().map(|(change, _)| pick(change)).collect()
    };
    let time = |pick: fn(&Transition) -> Option<Timestamp>| -> Vec<Option<Timestamp>> {
        changes.iter().map(|(change, _)| pick(change)).collect()
    };
    let (dags, ids) = names(changes.iter().map(|(change, _)| *change));
    let statuses: Vec<String> = changes.iter().map(|(change, _)| change.run().status.as_str().into()).collect();
    let versions: Vec<i64> = changes.iter().map(|(change, _)| change.run().version).collect();
    let fences: Vec<i64> = changes.iter().map(|(change, _)| change.run().fence).collect();
    let at: Vec<Timestamp> = changes.iter().map(|(change, _)| change.at()).collect();
    let failures: Vec<Option<serde_json::Value>> =
        changes.iter().map(|(change, _)| change.run().failure.as_ref().map(|f| serde_json::json!(f))).collect();
    let dropped: Vec<bool> = changes.iter().map(|(change, _)| change.run().output_dropped).collect();
    let event_ids: Vec<Uuid> = changes.iter().map(|(_, event)| event.id).collect();
    let types: Vec<String> = changes.iter().map(|(change, _)| change.event().as_str().into()).collect();
    let data: Vec<String> = changes.iter().map(|(_, event)| event.data.clone()).collect();
    let wrote = sqlx::query_scalar!(
        r#"/* store::save::runs */
        WITH c AS (
            SELECT * FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::text[],
                                 $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::timestamptz[],
                                 $12::text[], $13::text[], $14::jsonb[], $15::text[], $16::bool[], $17::timestamptz[],
                                 $18::uuid[], $19::text[], $20::text[])
            AS c(dag_name, run_id, status, version, fence, worker_id, claimed_at, started_at, finished_at,
                 cancel_requested_at, cancel_reason, error, failure, log_url, output_dropped, at, event_id, type, data)
        ), r AS (
            UPDATE run SET status = c.status, version = c.version, fence = c.fence, worker_id = c.worker_id,
                claimed_at = c.claimed_at, started_at = c.started_at, finished_at = c.finished_at,
                cancel_requested_at = c.cancel_requested_at, cancel_reason = c.cancel_reason, error = c.error,
                failure = c.failure, log_url = c.log_url, output_dropped = c.output_dropped, updated_at = c.at,
                -- Another attempt is not what was cancelled.
                cascade_since = CASE WHEN c.status <> 'queued' THEN run.cascade_since END,
                cascade_force = CASE WHEN c.status <> 'queued' THEN run.cascade_force END,
                cascade_reason = CASE WHEN c.status <> 'queued' THEN run.cascade_reason END
            FROM c
            WHERE run.namespace_id = $1 AND run.dag_name = c.dag_name AND run.run_id = c.run_id
              AND run.version = c.version - 1
            RETURNING run.run_id
        ), e AS (
            INSERT INTO event (namespace_id, dag_name, run_id, run_seq, event_id, type, occurred_at, data)
            SELECT $1, dag_name, run_id, version, event_id, type, at, data FROM c
        ), u AS (
            INSERT INTO event_unstamped (namespace_id, dag_name, run_id, run_seq)
            SELECT $1, dag_name, run_id, version FROM c
        )
        SELECT count(*) AS "wrote!" FROM r"#,
        namespace.0,
        &dags,
        &ids,
        &statuses,
        &versions,
        &fences,
        &run(|change| change.run().worker_id.as_ref().map(ToString::to_string)) as &[Option<String>],
        &time(|change| change.run().claimed_at) as &[Option<Timestamp>],
        &time(|change| change.run().started_at) as &[Option<Timestamp>],
        &time(|change| change.run().finished_at) as &[Option<Timestamp>],
        &time(|change| change.run().cancel_requested_at) as &[Option<Timestamp>],
        &run(|change| change.run().cancel_reason.clone()) as &[Option<String>],
        &run(|change| change.run().error.clone()) as &[Option<String>],
        &failures as &[Option<serde_json::Value>],
        &run(|change| change.run().log_url.clone()) as &[Option<String>],
        &dropped,
        &at,
        &event_ids,
        &types,
        &data,
    )
    .fetch_one(conn)
    .await?;
    expect_rows("store::save::runs", changes.len(), wrote)
}

async fn attempts(conn: &mut PgConnection, namespace: NamespaceId, changes: &[(&Transition, &NewEvent)]) -> Result<()> {
    let changes: Vec<&Transition> = changes
        .iter()
        .map(|(change, _)| *change)
        .filter(|change| matches!(change.attempt(), AttemptChange::Start { .. }) || change.attempt().ended().is_some())
        .collect();
    if changes.is_empty() {
        return Ok(());
    }
    let mut ids: Vec<Uuid> = Vec::new();
    let mut statuses: Vec<String> = Vec::new();
    let (mut workers, mut sessions, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
    let (mut ends, mut reported, mut errors, mut logs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut released: Vec<Option<Vec<u8>>> = Vec::new();
    for change in &changes {
        let start = match change.attempt() {
            AttemptChange::Start { session, token } => Some((session, token)),
            AttemptChange::Create
            | AttemptChange::Follow { .. }
            | AttemptChange::Keep
            | AttemptChange::End(_)
            | AttemptChange::Replace(_) => None,
        };
        let ended = change.attempt().ended();
        ids.push(ended.map_or(change.run().attempt.attempt_id, |ended| ended.attempt_id).0);
        statuses.push(ended.map_or(AttemptStatus::Running, |ended| ended.status).as_str().into());
        workers.push(start.map(|(session, _)| session.worker_id.to_string()));
        sessions.push(start.map(|(session, _)| session.session_id.to_string()));
        tokens.push(start.map(|(_, token)| token.0.to_vec()));
        ends.push(ended.is_some());
        reported.push(ended.and_then(|ended| ended.reported).map(Status::as_str).map(str::to_owned));
        errors.push(ended.and_then(|ended| ended.error.clone()));
        logs.push(ended.and_then(|ended| ended.log_url.clone()));
        released.push(ended.and_then(|ended| ended.released).map(|digest| digest.0.to_vec()));
    }
    let versions: Vec<i64> = changes.iter().map(|change| change.run().version).collect();
    let fences: Vec<i64> = changes.iter().map(|change| change.run().fence).collect();
    let claimed: Vec<Option<Timestamp>> = changes.iter().map(|change| change.run().claimed_at).collect();
    let at: Vec<Timestamp> = changes.iter().map(|change| change.at()).collect();
    let wrote = sqlx::query!(
        r#"/* store::save::attempts */
        UPDATE attempt a SET status = c.status,
            worker_id = coalesce(c.worker_id, a.worker_id), session_id = coalesce(c.session_id, a.session_id),
            token_digest = coalesce(c.token_digest, a.token_digest),
            fence = CASE WHEN c.ended THEN a.fence ELSE c.fence END,
            claimed_at = coalesce(c.claimed_at, a.claimed_at),
            started_at = CASE WHEN c.ended THEN a.started_at ELSE c.at END,
            ended_at = CASE WHEN c.ended THEN c.at END,
            ended_version = CASE WHEN c.ended THEN c.version END,
            reported = c.reported, error = c.error, log_url = c.log_url,
            released = CASE WHEN c.released IS NULL THEN a.released ELSE array_append(a.released, c.released) END
        FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bool[], $8::text[], $9::bigint[],
                    $10::bigint[], $11::timestamptz[], $12::timestamptz[], $13::text[], $14::text[], $15::bytea[])
            AS c(attempt_id, status, worker_id, session_id, token_digest, ended, reported, version, fence, claimed_at,
                 at, error, log_url, released)
        WHERE a.namespace_id = $1 AND a.attempt_id = c.attempt_id"#,
        namespace.0,
        &ids,
        &statuses,
        &workers as &[Option<String>],
        &sessions as &[Option<String>],
        &tokens as &[Option<Vec<u8>>],
        &ends,
        &reported as &[Option<String>],
        &versions,
        &fences,
        &claimed as &[Option<Timestamp>],
        &at,
        &errors as &[Option<String>],
        &logs as &[Option<String>],
        &released as &[Option<Vec<u8>>],
    )
    .execute(conn)
    .await?
    .rows_affected();
    expect_rows("store::save::attempts", changes.len(), wrote.cast_signed())
}

async fn tasks(conn: &mut PgConnection, namespace: NamespaceId, changes: &[(&Transition, &NewEvent)]) -> Result<()> {
    let mut made = Vec::new();
    let mut dropped: Vec<Uuid> = Vec::new();
    let mut returned: Vec<Uuid> = Vec::new();
    let mut hold_from: Vec<Timestamp> = Vec::new();
    let (mut workers, mut sessions, mut digests, mut until) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (change, _) in changes {
        match change.task() {
            TaskChange::Drop => dropped.push(change.run().attempt.attempt_id.0),
            TaskChange::Return { hold, released, .. } => {
                returned.push(change.run().attempt.attempt_id.0);
                hold_from.push(hold.from);
                workers.push(released.as_ref().map(|released| released.session.worker_id.to_string()));
                sessions.push(released.as_ref().map(|released| released.session.session_id.to_string()));
                digests.push(released.as_ref().map(|released| released.token.0.to_vec()));
                until.push(released.as_ref().map(|released| released.barred_until));
            }
            TaskChange::Create { hold, start } => made.push((*change, *hold, *start)),
            TaskChange::Keep => {}
        }
    }
    if !dropped.is_empty() {
        let wrote = sqlx::query!(
            r#"/* store::save::tasks (drop) */
            DELETE FROM task WHERE namespace_id = $1 AND attempt_id = ANY($2)"#,
            namespace.0,
            &dropped,
        )
        .execute(&mut *conn)
        .await?
        .rows_affected();
        expect_rows("store::save::tasks (drop)", dropped.len(), wrote.cast_signed())?;
    }
    if !made.is_empty() {
        make_tasks(&mut *conn, namespace, &made).await?;
    }
    if !returned.is_empty() {
        let wrote = sqlx::query!(
            r#"/* store::save::tasks (return) */
            WITH c AS (
                SELECT * FROM unnest($2::uuid[], $3::timestamptz[], $4::text[], $5::text[], $6::bytea[],
                                     $7::timestamptz[])
                AS c(attempt_id, hold_from, barred_worker, barred_session, released_digest, barred_until)
            ), remembered AS (
                -- The last 16: a repeat comes soon or never.
                UPDATE attempt a
                SET released = (array_append(a.released, c.released_digest))[greatest(cardinality(a.released) - 14, 1):]
                FROM c
                WHERE a.namespace_id = $1 AND a.attempt_id = c.attempt_id AND c.released_digest IS NOT NULL
            )
            UPDATE task t SET worker_id = NULL, session_id = NULL, poll_id = NULL, token_digest = NULL,
                claimed_at = NULL, claim_until = NULL, hold_from = c.hold_from, hold_until = c.hold_from + t.wait,
                barred_worker = coalesce(c.barred_worker, t.barred_worker),
                barred_session = coalesce(c.barred_session, t.barred_session),
                barred_until = coalesce(c.barred_until, t.barred_until)
            FROM c
            WHERE t.namespace_id = $1 AND t.attempt_id = c.attempt_id"#,
            namespace.0,
            &returned,
            &hold_from,
            &workers as &[Option<String>],
            &sessions as &[Option<String>],
            &digests as &[Option<Vec<u8>>],
            &until as &[Option<Timestamp>],
        )
        .execute(conn)
        .await?
        .rows_affected();
        expect_rows("store::save::tasks (return)", returned.len(), wrote.cast_signed())?;
    }
    Ok(())
}

/// Makes the tasks of attempts that exist, or are about to.
async fn make_tasks(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    made: &[(&Transition, Hold, Option<StartClock>)],
) -> Result<()> {
    let runs = || made.iter().map(|(change, ..)| change.run());
    let (dags, ids) = names(made.iter().map(|(change, ..)| *change));
    let attempts: Vec<Uuid> = runs().map(|run| run.attempt.attempt_id.0).collect();
    let selectors: Vec<i64> = runs().map(|run| run.selector_no.0).collect();
    let priorities: Vec<i16> = runs().map(|run| run.priority).collect();
    let fences: Vec<i64> = runs().map(|run| run.fence).collect();
    let hold_from: Vec<Timestamp> = made.iter().map(|(_, hold, _)| hold.from).collect();
    let waits: Vec<i64> = made.iter().map(|(_, hold, _)| rows::micros(hold.wait)).collect();
    let timeouts: Vec<Option<i64>> = made.iter().map(|(.., start)| start.map(|s| rows::micros(s.timeout))).collect();
    let untils: Vec<Option<Timestamp>> = made.iter().map(|(.., start)| start.map(|start| start.until())).collect();
    let wrote = sqlx::query!(
        r#"/* store::save::make_tasks */
        INSERT INTO task (namespace_id, attempt_id, dag_name, run_id, selector_no, priority, hold_from, wait, hold_until,
                          start_timeout, start_until, fence)
        SELECT $1, attempt_id, dag_name, run_id, selector_no, priority, hold_from, wait * interval '1 microsecond',
               hold_from + wait * interval '1 microsecond', start_timeout * interval '1 microsecond', start_until, fence
        FROM unnest($2::uuid[], $3::text[], $4::text[], $5::bigint[], $6::smallint[], $7::timestamptz[], $8::bigint[],
                    $9::bigint[], $10::timestamptz[], $11::bigint[])
            AS c(attempt_id, dag_name, run_id, selector_no, priority, hold_from, wait, start_timeout, start_until, fence)"#,
        namespace.0,
        &attempts,
        &dags,
        &ids,
        &selectors,
        &priorities,
        &hold_from,
        &waits,
        &timeouts as &[Option<i64>],
        &untils as &[Option<Timestamp>],
        &fences,
    )
    .execute(conn)
    .await?
    .rows_affected();
    expect_rows("store::save::make_tasks", made.len(), wrote.cast_signed())
}

async fn payloads(conn: &mut PgConnection, namespace: NamespaceId, changes: &[(&Transition, &NewEvent)]) -> Result<()> {
    for (change, _) in changes {
        let left = change.left();
        if left.output.is_some() || left.progress.is_some() {
            leave(conn, namespace, &change.run().key, left).await?;
        }
    }
    Ok(())
}

/// Keeps what a report leaves in the payload of a locked run.
///
/// # Errors
/// Of the database.
pub async fn leave(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    key: &crate::ids::RunKey,
    left: &crate::domain::transition::Left,
) -> Result<()> {
    let wrote = sqlx::query!(
        r#"/* store::save::leave */
        UPDATE payload SET output = coalesce($4, output), progress = coalesce($5, progress)
        WHERE namespace_id = $1 AND dag_name = $2 AND run_id = $3"#,
        namespace.0,
        key.dag_name.as_str(),
        key.run_id.as_str(),
        left.output,
        left.progress,
    )
    .execute(conn)
    .await?
    .rows_affected();
    expect_rows("store::save::leave", 1, wrote.cast_signed())
}
