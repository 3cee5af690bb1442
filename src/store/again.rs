//! What a run's next attempt adds to its change: the attempt, and what the one before came to.

use sqlx::PgConnection;
use sqlx::types::Uuid;

use super::create::Payload;
use super::error::{Result, expect_rows};
use super::event::NewEvent;
use super::rows;
use super::save::names;
use crate::domain::Timestamp;
use crate::domain::labels::{self, Labels};
use crate::domain::run::Operation;
use crate::domain::transition::{AttemptChange, Transition};
use crate::ids::{AttemptId, Digest, NamespaceId, RunKey};

/// The attempt that a change makes: after which, and by which request if not by itself.
fn next(change: &Transition) -> Option<(AttemptId, Option<Digest>)> {
    match change.attempt() {
        AttemptChange::Follow { after, request } => Some((*after, Some(*request))),
        AttemptChange::Replace(ended) => Some((ended.attempt_id, None)),
        AttemptChange::Create | AttemptChange::Keep | AttemptChange::Start { .. } | AttemptChange::End(_) => None,
    }
}

/// Saves the next attempts among these changes, whose runs and ended attempts have been saved.
pub(super) async fn save(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    changes: &[(&Transition, &NewEvent)],
) -> Result<()> {
    let changes: Vec<(&Transition, AttemptId, Option<Digest>)> = changes
        .iter()
        .filter_map(|(change, _)| next(change).map(|(after, request)| (*change, after, request)))
        .collect();
    if changes.is_empty() {
        return Ok(());
    }
    queue(conn, namespace, &changes).await?;
    hand_on(conn, namespace, &changes).await
}

async fn queue(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    changes: &[(&Transition, AttemptId, Option<Digest>)],
) -> Result<()> {
    let runs = || changes.iter().map(|(change, ..)| change.run());
    let families =
        |pick: fn(&crate::domain::run::Run) -> Option<&RunKey>| -> (Vec<Option<String>>, Vec<Option<String>>) {
            runs().map(|run| pick(run).map(|key| (key.dag_name.to_string(), key.run_id.to_string())).unzip()).unzip()
        };
    let (dags, ids) = names(changes.iter().map(|(change, ..)| *change));
    let attempts: Vec<Uuid> = runs().map(|run| run.attempt.attempt_id.0).collect();
    let numbers: Vec<i32> = runs().map(|run| run.attempt.number).collect();
    let operations: Vec<String> = runs().map(|run| run.attempt.operation.as_str().into()).collect();
    let selectors: Vec<i64> = runs().map(|run| run.selector_no.0).collect();
    let waits: Vec<i64> = runs().map(|run| rows::micros(run.wait)).collect();
    let priorities: Vec<i16> = runs().map(|run| run.priority).collect();
    let most: Vec<i32> = runs().map(|run| run.max_attempts).collect();
    let counted: Vec<i32> = runs().map(|run| run.counted_from).collect();
    let retries: Vec<Option<serde_json::Value>> =
        runs().map(|run| run.retry.as_ref().map(|retry| serde_json::json!(retry))).collect();
    let labels: Vec<serde_json::Value> = runs().map(|run| serde_json::json!(run.labels)).collect();
    let ((root_dags, root_runs), (parent_dags, parent_runs)) =
        (families(|run| run.root.as_ref()), families(|run| run.parent.as_ref()));
    let traces: Vec<Option<String>> = runs().map(|run| run.traceparent.clone()).collect();
    let at: Vec<Timestamp> = changes.iter().map(|(change, ..)| change.at()).collect();
    let start_timeouts: Vec<i64> = runs().map(|run| rows::micros(run.start_timeout)).collect();
    let parks: Vec<bool> = runs().map(|run| run.park).collect();
    let after: Vec<Uuid> = changes.iter().map(|(_, after, _)| after.0).collect();
    let requests: Vec<Option<Vec<u8>>> =
        changes.iter().map(|(.., request)| request.map(|digest| digest.0.to_vec())).collect();
    let wrote = sqlx::query_scalar!(
        r#"/* store::again::queue */
        WITH c AS (
            SELECT * FROM unnest($2::text[], $3::text[], $4::uuid[], $5::int[], $6::text[], $7::bigint[], $8::bigint[],
                                 $9::smallint[], $10::int[], $11::int[], $12::jsonb[], $13::jsonb[], $14::text[],
                                 $15::text[], $16::text[], $17::text[], $18::text[], $19::timestamptz[], $20::uuid[],
                                 $21::bytea[], $22::bigint[], $23::bool[])
            AS c(dag_name, run_id, attempt_id, number, operation, selector_no, wait, priority, max_attempts,
                 counted_from, retry, labels, root_dag_name, root_run_id, parent_dag_name, parent_run_id, traceparent,
                 at, after_attempt_id, request_digest, start_timeout, park)
        ), r AS (
            UPDATE run SET attempt_id = c.attempt_id, attempt_number = c.number, operation = c.operation,
                selector_no = c.selector_no, wait = c.wait * interval '1 microsecond',
                start_timeout = c.start_timeout * interval '1 microsecond', park = c.park, direct = false, priority = c.priority,
                max_attempts = c.max_attempts, counted_from = c.counted_from, retry = c.retry, labels = c.labels,
                root_dag_name = c.root_dag_name, root_run_id = c.root_run_id, parent_dag_name = c.parent_dag_name,
                parent_run_id = c.parent_run_id, traceparent = c.traceparent, queued_at = c.at
            FROM c
            WHERE run.namespace_id = $1 AND run.dag_name = c.dag_name AND run.run_id = c.run_id
            RETURNING run.run_id
        ), a AS (
            INSERT INTO attempt (namespace_id, attempt_id, dag_name, run_id, number, operation, status, queued_at,
                                 after_attempt_id, request_digest)
            SELECT $1, attempt_id, dag_name, run_id, number, operation, 'queued', at, after_attempt_id, request_digest
            FROM c
        )
        SELECT count(*) AS "wrote!" FROM r"#,
        namespace.0,
        &dags,
        &ids,
        &attempts,
        &numbers,
        &operations,
        &selectors,
        &waits,
        &priorities,
        &most,
        &counted,
        &retries as &[Option<serde_json::Value>],
        &labels,
        &root_dags as &[Option<String>],
        &root_runs as &[Option<String>],
        &parent_dags as &[Option<String>],
        &parent_runs as &[Option<String>],
        &traces as &[Option<String>],
        &at,
        &after,
        &requests as &[Option<Vec<u8>>],
        &start_timeouts,
        &parks,
    )
    .fetch_one(conn)
    .await?;
    expect_rows("store::again::queue", changes.len(), wrote)
}

/// Puts what the ended attempts came to where the next ones find it, and clears it for what these will leave. A resume
/// that was cut short before it left anything hands on what it was given: that is where the next one goes on.
async fn hand_on(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    changes: &[(&Transition, AttemptId, Option<Digest>)],
) -> Result<()> {
    let (dags, ids) = names(changes.iter().map(|(change, ..)| *change));
    let after: Vec<Uuid> = changes.iter().map(|(_, after, _)| after.0).collect();
    let cut_short: Vec<bool> = changes
        .iter()
        .map(|(change, _, request)| request.is_none() && change.run().attempt.operation == Operation::Resume)
        .collect();
    let wrote = sqlx::query!(
        r#"/* store::again::hand_on */
        UPDATE payload p SET output = NULL, progress = NULL, previous = CASE
            WHEN c.cut_short AND p.output IS NULL AND p.progress IS NULL AND p.previous IS NOT NULL THEN p.previous
            ELSE '{"attempt_id":"' || a.attempt_id || '","status":"' || a.status || '"'
                || coalesce(',"error":' || to_json(a.error)::text, '') || coalesce(',"output":' || p.output, '')
                || coalesce(',"progress":' || p.progress, '') || '}'
            END
        FROM unnest($2::text[], $3::text[], $4::uuid[], $5::bool[]) AS c(dag_name, run_id, after, cut_short)
        CROSS JOIN LATERAL (SELECT * FROM attempt WHERE namespace_id = $1 AND attempt_id = c.after LIMIT 1) a
        WHERE p.namespace_id = $1 AND p.dag_name = c.dag_name AND p.run_id = c.run_id"#,
        namespace.0,
        &dags,
        &ids,
        &after,
        &cut_short,
    )
    .execute(conn)
    .await?
    .rows_affected();
    expect_rows("store::again::hand_on", changes.len(), wrote.cast_signed())
}

/// Replaces what a dispatch carried by what its successor carries, where that carries anything.
///
/// # Errors
/// Of the database.
pub async fn carry(conn: &mut PgConnection, namespace: NamespaceId, key: &RunKey, payload: &Payload) -> Result<()> {
    let wrote = sqlx::query!(
        r#"/* store::again::carry */
        UPDATE payload SET definition = coalesce($4, definition), params = coalesce($5, params),
            context = coalesce($6, context), previous = coalesce($7, previous)
        WHERE namespace_id = $1 AND dag_name = $2 AND run_id = $3"#,
        namespace.0,
        key.dag_name.as_str(),
        key.run_id.as_str(),
        payload.definition,
        payload.params,
        payload.context,
        payload.previous,
    )
    .execute(conn)
    .await?
    .rows_affected();
    expect_rows("store::again::carry", 1, wrote.cast_signed())
}

/// Lists a run under other labels.
///
/// # Errors
/// Of the database.
pub async fn relabel(conn: &mut PgConnection, namespace: NamespaceId, key: &RunKey, labels: &Labels) -> Result<()> {
    let terms: Vec<String> = labels.iter().map(|(key, value)| labels::term(key, value)).collect();
    sqlx::query!(
        r#"/* store::again::relabel */
        WITH r AS (
            SELECT created_at, labels FROM run WHERE namespace_id = $1 AND dag_name = $2 AND run_id = $3
        ), gone AS (
            DELETE FROM run_label l USING r, jsonb_each_text(r.labels) AS old(key, value)
            WHERE l.namespace_id = $1 AND l.term = old.key || '=' || old.value AND l.created_at = r.created_at
              AND l.dag_name = $2 AND l.run_id = $3 AND l.term <> ALL($4)
        )
        INSERT INTO run_label (namespace_id, term, created_at, dag_name, run_id)
        SELECT $1, term, r.created_at, $2, $3 FROM r CROSS JOIN unnest($4::text[]) AS term
        ON CONFLICT DO NOTHING"#,
        namespace.0,
        key.dag_name.as_str(),
        key.run_id.as_str(),
        &terms,
    )
    .execute(conn)
    .await?;
    Ok(())
}
