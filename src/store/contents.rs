//! What a task holds for the worker that is given it.
//!
//! Rows are fetched by `LATERAL (… LIMIT 1)` on their key: as a plain join, a generic plan made while the tables were
//! small hashes whole tables, and goes on doing so when they are not.

use std::collections::HashMap;

use sqlx::PgConnection;
use sqlx::types::Uuid;

use super::create::Payload;
use super::error::Result;
use super::rows;
use crate::domain::Timestamp;
use crate::domain::labels::Labels;
use crate::domain::run::Operation;
use crate::domain::selector::Selector;
use crate::ids::{AttemptId, NamespaceId, RunKey};

/// What a worker is given with a task, its token aside.
#[derive(Debug, Clone)]
pub struct Contents {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// Its run.
    pub key: RunKey,
    /// Its number within the run.
    pub attempt_number: i32,
    /// What its dispatch asked for.
    pub operation: Operation,
    /// The claim's fence.
    pub fence: i64,
    /// Until when it must be acknowledged.
    pub claim_until: Timestamp,
    /// The moment of this read.
    pub now: Timestamp,
    /// What it asks for.
    pub selector: Selector,
    /// For listing.
    pub labels: Labels,
    /// The run at the top of its family.
    pub root: Option<RunKey>,
    /// The run that dispatched it.
    pub parent: Option<RunKey>,
    /// W3C trace context.
    pub traceparent: Option<String>,
    /// What it carries.
    pub payload: Payload,
}

impl Contents {
    /// The same, reserved until then.
    #[must_use]
    pub fn claimed(self, claim_until: Timestamp) -> Self {
        Self { fence: self.fence + 1, claim_until, ..self }
    }

    /// About how many bytes it is in an answer, never less: see [`sizes`].
    #[must_use]
    pub fn size(&self) -> usize {
        let Payload { definition, params, context, previous } = &self.payload;
        let json: usize = [params, context, previous].into_iter().flatten().map(String::len).sum();
        // A character may take six to be written as JSON; what that comes to is only worked out where it matters.
        let definition = definition.as_ref().map_or(0, |text| match text.len() {
            0..=10_000 => text.len() * 6,
            _ => serde_json::to_string(text).map_or(text.len() * 6, |json| json.len()),
        });
        let labels: usize = self.labels.iter().map(|(key, value)| key.len() + 6 * value.len() + 8).sum();
        json + definition + labels + 4_096
    }
}

/// About how many bytes each of these tasks is in an answer, so that a poll can stop before its limit. A task that
/// cannot be read, or whose run is gone, is left out: it is not to be given to anybody.
///
/// # Errors
/// Of the database.
pub async fn sizes(conn: &mut PgConnection, namespace: NamespaceId, ids: &[Uuid]) -> Result<HashMap<AttemptId, usize>> {
    let rows = sqlx::query!(
        r#"/* store::contents::sizes */
        SELECT t.attempt_id, t.dag_name, t.run_id, r.operation, r.labels, r.root_dag_name, r.root_run_id,
               r.parent_dag_name, r.parent_run_id, s.canonical AS selector, p.size AS "size!"
        FROM unnest((SELECT $2::uuid[])) AS k(attempt_id)
        CROSS JOIN LATERAL (
            SELECT * FROM task WHERE namespace_id = $1 AND attempt_id = k.attempt_id LIMIT 1) t
        CROSS JOIN LATERAL (
            SELECT * FROM run WHERE namespace_id = $1 AND dag_name = t.dag_name AND run_id = t.run_id LIMIT 1) r
        CROSS JOIN LATERAL (
            SELECT coalesce(CASE WHEN octet_length(definition) > 10000 THEN octet_length(to_json(definition)::text)
                                 ELSE octet_length(definition) * 6 END, 0)
                 + coalesce(octet_length(params), 0) + coalesce(octet_length(context), 0)
                 + coalesce(octet_length(previous), 0) + octet_length(r.labels::text) + 4096 AS size
            FROM payload WHERE namespace_id = $1 AND dag_name = t.dag_name AND run_id = t.run_id LIMIT 1) p
        JOIN selector s ON s.namespace_id = $1 AND s.selector_no = t.selector_no"#,
        namespace.0,
        ids,
    )
    .fetch_all(conn)
    .await?;
    let mut sizes = HashMap::with_capacity(rows.len());
    for row in rows {
        let readable = || {
            rows::key(row.dag_name, row.run_id)?;
            rows::word("run.operation", &row.operation, Operation::from_word)?;
            rows::selector(&row.selector)?;
            rows::json::<Labels>("run.labels", row.labels)?;
            rows::optional_key(row.root_dag_name, row.root_run_id)?;
            rows::optional_key(row.parent_dag_name, row.parent_run_id)
        };
        match readable() {
            Ok(_) => _ = sizes.insert(AttemptId(row.attempt_id), usize::try_from(row.size).unwrap_or(0)),
            Err(error) => tracing::error!(attempt = %row.attempt_id, %error, "it is not given to anybody"),
        }
    }
    Ok(sizes)
}

/// Reads the contents of tasks, in no order. One that is not claimed yet has the fence of its last claim, and its time to
/// be acknowledged is over.
///
/// # Errors
/// Of the database.
pub async fn read(conn: &mut PgConnection, namespace: NamespaceId, ids: &[Uuid]) -> Result<Vec<Contents>> {
    let rows = sqlx::query!(
        r#"/* store::contents::read */
        SELECT t.attempt_id, t.dag_name, t.run_id, t.fence,
               coalesce(t.claim_until, t.hold_from) AS "claim_until!", r.attempt_number,
               r.operation, r.labels, r.root_dag_name, r.root_run_id, r.parent_dag_name, r.parent_run_id,
               r.traceparent, s.canonical AS selector, p.definition, p.params, p.context, p.previous,
               roadstead_now() AS "now!"
        FROM unnest((SELECT $2::uuid[])) AS k(attempt_id)
        CROSS JOIN LATERAL (
            SELECT * FROM task WHERE namespace_id = $1 AND attempt_id = k.attempt_id LIMIT 1) t
        CROSS JOIN LATERAL (
            SELECT * FROM run WHERE namespace_id = $1 AND dag_name = t.dag_name AND run_id = t.run_id LIMIT 1) r
        CROSS JOIN LATERAL (
            SELECT * FROM payload WHERE namespace_id = $1 AND dag_name = t.dag_name AND run_id = t.run_id LIMIT 1) p
        JOIN selector s ON s.namespace_id = $1 AND s.selector_no = t.selector_no"#,
        namespace.0,
        ids,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(Contents {
                attempt_id: AttemptId(row.attempt_id),
                key: rows::key(row.dag_name, row.run_id)?,
                attempt_number: row.attempt_number,
                operation: rows::word("run.operation", &row.operation, Operation::from_word)?,
                fence: row.fence,
                claim_until: row.claim_until,
                now: row.now,
                selector: rows::selector(&row.selector)?,
                labels: rows::json("run.labels", row.labels)?,
                root: rows::optional_key(row.root_dag_name, row.root_run_id)?,
                parent: rows::optional_key(row.parent_dag_name, row.parent_run_id)?,
                traceparent: row.traceparent,
                payload: Payload {
                    definition: row.definition,
                    params: row.params,
                    context: row.context,
                    previous: row.previous,
                },
            })
        })
        .collect()
}
