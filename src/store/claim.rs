//! Claims: the look for what a group of workers may take, the lock on it, and the write that reserves it.
//!
//! The look chooses without locks, then those few are locked by key: locking inside the look would take the head of
//! every selector and starve other looks. A claim changes neither the run's version nor its events, so it locks the
//! task only: whatever moves a run out of the queue deletes its task under the same lock.
//!
//! Rows are fetched by `LATERAL (… LIMIT 1)` on their key: as a plain join, a generic plan made while the tables were
//! small hashes whole tables, and goes on doing so when they are not.

use std::collections::HashMap;

use sqlx::PgConnection;
use sqlx::types::Uuid;

use super::create::Payload;
use super::error::{Result, expect_rows};
use super::rows;
use crate::domain::Timestamp;
use crate::domain::hold::Hold;
use crate::domain::labels::Labels;
use crate::domain::run::Operation;
use crate::domain::selector::Selector;
use crate::ids::{AttemptId, Digest, NamespaceId, RunKey, SelectorNo, SessionKey};

/// How many tasks one look may choose. In the statements it is a literal: as a parameter, a generic plan would cost
/// it as a tenth of the table.
pub const LOOK_LIMIT: usize = 64;

/// A task that a look found unclaimed, in the order in which it should be taken.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// What it asks for.
    pub selector_no: SelectorNo,
    /// Its hold.
    pub hold: Hold,
    /// Who is not offered it, until when.
    pub barred: Option<(SessionKey, Timestamp)>,
}

/// What a look saw.
#[derive(Debug)]
pub struct Look {
    /// The last selector number taken then: a looker who knows fewer has to learn the rest and look again.
    pub last_selector_no: i64,
    /// The moment of the look.
    pub now: Timestamp,
    /// The first unclaimed tasks of these selectors, highest priority first, then oldest.
    pub found: Vec<Candidate>,
}

/// Looks for unclaimed tasks of these selectors without locking any.
///
/// Reads the head of each selector by index, so tasks of other selectors cost it nothing. What a `sole` session that
/// asks has released, and is not offered yet, is passed over, so that it does not stand before the rest.
///
/// # Errors
/// Of the database.
pub async fn look(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    selectors: &[i64],
    sole: Option<&SessionKey>,
) -> Result<Look> {
    let rows = sqlx::query!(
        r#"/* store::claim::look */
        WITH clock AS MATERIALIZED (SELECT roadstead_now() AS now)
        SELECT n.last_selector_no, clock.now AS "now!", c.attempt_id AS "attempt_id?", c.selector_no AS "selector_no?",
               c.hold_from AS "hold_from?", (extract(epoch FROM c.wait) * 1000000)::bigint AS "wait_micros?",
               c.barred_worker AS "barred_worker?", c.barred_session AS "barred_session?",
               c.barred_until AS "barred_until?"
        FROM namespace n
        CROSS JOIN clock
        LEFT JOIN LATERAL (
            SELECT t.* FROM unnest($2::bigint[]) AS s(selector_no)
            CROSS JOIN LATERAL (
                SELECT attempt_id, selector_no, priority, place, hold_from, wait, barred_worker, barred_session,
                       barred_until
                FROM task
                WHERE namespace_id = $1 AND selector_no = s.selector_no AND claim_until IS NULL
                  AND hold_from <= (SELECT now FROM clock)
                  AND (barred_until IS NULL OR barred_until <= (SELECT now FROM clock)
                       OR barred_worker IS DISTINCT FROM $3 OR barred_session IS DISTINCT FROM $4)
                ORDER BY priority DESC, place LIMIT 64
            ) t
            ORDER BY t.priority DESC, t.place LIMIT 64
        ) c ON true
        WHERE n.namespace_id = $1"#,
        namespace.0,
        selectors,
        sole.map(|session| session.worker_id.as_str()),
        sole.map(|session| session.session_id.as_str()),
    )
    .fetch_all(conn)
    .await?;
    let first = rows.first().ok_or_else(|| super::Error::Unreadable("the namespace is gone".into()))?;
    let (last_selector_no, now) = (first.last_selector_no, first.now);
    let mut found = Vec::new();
    for row in rows {
        if let (Some(attempt_id), Some(no), Some(from), Some(wait)) =
            (row.attempt_id, row.selector_no, row.hold_from, row.wait_micros)
        {
            let barred = barred(row.barred_worker, row.barred_session, row.barred_until)?;
            found.push(Candidate {
                attempt_id: AttemptId(attempt_id),
                selector_no: SelectorNo(no),
                hold: Hold { from, wait: rows::duration(wait)? },
                barred,
            });
        }
    }
    Ok(Look { last_selector_no, now, found })
}

/// Locks those of these tasks that are still unclaimed and that nobody else has locked, in no order, as they are now;
/// with the moment after. Between the look and the lock one may have been claimed and released.
///
/// # Errors
/// Of the database.
pub async fn lock(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    ids: &[Uuid],
) -> Result<(Vec<Candidate>, Option<Timestamp>)> {
    let rows = sqlx::query!(
        r#"/* store::claim::lock */
        WITH locked AS MATERIALIZED (
            SELECT attempt_id, selector_no, hold_from, wait, barred_worker, barred_session, barred_until FROM task
            WHERE namespace_id = $1 AND attempt_id = ANY($2) AND claim_until IS NULL
            ORDER BY attempt_id
            FOR UPDATE SKIP LOCKED
        )
        SELECT attempt_id AS "attempt_id!", selector_no AS "selector_no!", hold_from AS "hold_from!",
               (extract(epoch FROM wait) * 1000000)::bigint AS "wait_micros!", barred_worker, barred_session,
               barred_until, roadstead_now() AS "now!"
        FROM locked"#,
        namespace.0,
        ids,
    )
    .fetch_all(conn)
    .await?;
    let now = rows.iter().map(|row| row.now).max();
    let locked = rows.into_iter().map(|row| {
        Ok(Candidate {
            attempt_id: AttemptId(row.attempt_id),
            selector_no: SelectorNo(row.selector_no),
            hold: Hold { from: row.hold_from, wait: rows::duration(row.wait_micros)? },
            barred: barred(row.barred_worker, row.barred_session, row.barred_until)?,
        })
    });
    Ok((locked.collect::<Result<_>>()?, now))
}

/// Who is not offered a task, until when.
fn barred(
    worker: Option<String>,
    session: Option<String>,
    until: Option<Timestamp>,
) -> Result<Option<(SessionKey, Timestamp)>> {
    match (worker, session, until) {
        (Some(worker), Some(session), Some(until)) => Ok(Some((rows::session(worker, session)?, until))),
        _ => Ok(None),
    }
}

/// A task being given to a session.
#[derive(Debug, Clone)]
pub struct NewClaim {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// To whom.
    pub session: SessionKey,
    /// By which of its polls.
    pub poll_id: Option<String>,
    /// The digest of its token.
    pub token: Digest,
}

/// Reserves locked tasks until `now` plus `ack_timeout`; each takes the next fence.
///
/// # Errors
/// Of the database.
pub async fn write(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    claims: &[NewClaim],
    now: Timestamp,
    ack_timeout: std::time::Duration,
) -> Result<()> {
    let ids: Vec<Uuid> = claims.iter().map(|claim| claim.attempt_id.0).collect();
    let keys: Vec<SessionKey> = claims.iter().map(|claim| claim.session.clone()).collect();
    let (workers, sessions) = super::session::columns(&keys);
    let polls: Vec<Option<String>> = claims.iter().map(|claim| claim.poll_id.clone()).collect();
    let tokens: Vec<Vec<u8>> = claims.iter().map(|claim| claim.token.0.to_vec()).collect();
    let wrote = sqlx::query!(
        r#"/* store::claim::write */
        UPDATE task t SET worker_id = c.worker_id, session_id = c.session_id, poll_id = c.poll_id,
            token_digest = c.token_digest, fence = t.fence + 1, claimed_at = $7::timestamptz,
            claim_until = $7::timestamptz + $8::bigint * interval '1 microsecond'
        FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[])
            AS c(attempt_id, worker_id, session_id, poll_id, token_digest)
        WHERE t.namespace_id = $1 AND t.attempt_id = c.attempt_id"#,
        namespace.0,
        &ids,
        &workers,
        &sessions,
        &polls as &[Option<String>],
        &tokens,
        now,
        rows::micros(ack_timeout),
    )
    .execute(conn)
    .await?
    .rows_affected();
    expect_rows("store::claim::write", claims.len(), wrote.cast_signed())
}

/// Finds, and locks, what this poll was given before and has not acknowledged: its answer was lost on the way.
///
/// Waits for whoever looks at one of them just now: passed over, it would be lost to the repeat. Nobody who waits for
/// it here holds its run.
///
/// # Errors
/// Of the database.
pub async fn of_poll(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    session: &SessionKey,
    poll_id: &str,
) -> Result<Vec<AttemptId>> {
    let ids = sqlx::query_scalar!(
        r#"/* store::claim::of_poll */
        WITH locked AS MATERIALIZED (
            SELECT attempt_id, claim_until FROM task
            WHERE namespace_id = $1 AND worker_id = $2 AND session_id = $3 AND poll_id = $4 AND claim_until IS NOT NULL
            ORDER BY attempt_id
            FOR UPDATE
        ), judged AS (
            SELECT attempt_id, claim_until, roadstead_now() AS now FROM locked
        )
        SELECT attempt_id AS "attempt_id!" FROM judged
        WHERE now < claim_until
           OR EXISTS (SELECT FROM outage o WHERE o.namespace_id = $1 AND judged.now < o.until_at)"#,
        namespace.0,
        session.worker_id.as_str(),
        session.session_id.as_str(),
        poll_id,
    )
    .fetch_all(conn)
    .await?;
    Ok(ids.into_iter().map(AttemptId).collect())
}

/// Gives locked claims fresh tokens; fence and ack clock stay.
///
/// # Errors
/// Of the database.
pub async fn renew_tokens(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    tokens: &[(AttemptId, Digest)],
) -> Result<()> {
    let ids: Vec<Uuid> = tokens.iter().map(|(id, _)| id.0).collect();
    let digests: Vec<Vec<u8>> = tokens.iter().map(|(_, digest)| digest.0.to_vec()).collect();
    let wrote = sqlx::query!(
        r#"/* store::claim::renew_tokens */
        UPDATE task t SET token_digest = c.token_digest
        FROM unnest($2::uuid[], $3::bytea[]) AS c(attempt_id, token_digest)
        WHERE t.namespace_id = $1 AND t.attempt_id = c.attempt_id"#,
        namespace.0,
        &ids,
        &digests,
    )
    .execute(conn)
    .await?
    .rows_affected();
    expect_rows("store::claim::renew_tokens", tokens.len(), wrote.cast_signed())
}

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
    /// About how many bytes it is in an answer.
    #[must_use]
    pub fn size(&self) -> usize {
        [&self.payload.definition, &self.payload.params, &self.payload.context]
            .into_iter()
            .flatten()
            .map(String::len)
            .sum::<usize>()
            + 4_096
    }
}

/// About how many bytes each of these tasks is in an answer, so that a poll can stop before its limit. A task that
/// cannot be read, or whose run is gone, is left out: it is not to be given to anybody.
///
/// # Errors
/// Of the database.
pub async fn sizes(conn: &mut PgConnection, namespace: NamespaceId, ids: &[Uuid]) -> Result<HashMap<AttemptId, usize>> {
    let rows = sqlx::query!(
        r#"/* store::claim::sizes */
        SELECT t.attempt_id, t.dag_name, t.run_id, r.operation, r.labels, r.root_dag_name, r.root_run_id,
               r.parent_dag_name, r.parent_run_id, s.canonical AS selector, p.size AS "size!"
        FROM unnest($2::uuid[]) AS k(attempt_id)
        CROSS JOIN LATERAL (
            SELECT * FROM task WHERE namespace_id = $1 AND attempt_id = k.attempt_id LIMIT 1) t
        CROSS JOIN LATERAL (
            SELECT * FROM run WHERE namespace_id = $1 AND dag_name = t.dag_name AND run_id = t.run_id LIMIT 1) r
        CROSS JOIN LATERAL (
            SELECT coalesce(octet_length(definition), 0) + coalesce(octet_length(params), 0)
                 + coalesce(octet_length(context), 0) + 4096 AS size
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

/// Reads the contents of claimed tasks, in no order.
///
/// # Errors
/// Of the database.
pub async fn contents(conn: &mut PgConnection, namespace: NamespaceId, ids: &[Uuid]) -> Result<Vec<Contents>> {
    let rows = sqlx::query!(
        r#"/* store::claim::contents */
        SELECT t.attempt_id, t.dag_name, t.run_id, t.fence, t.claim_until AS "claim_until!", r.attempt_number,
               r.operation, r.labels, r.root_dag_name, r.root_run_id, r.parent_dag_name, r.parent_run_id,
               r.traceparent, s.canonical AS selector, p.definition, p.params, p.context, roadstead_now() AS "now!"
        FROM unnest($2::uuid[]) AS k(attempt_id)
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
                payload: Payload { definition: row.definition, params: row.params, context: row.context },
            })
        })
        .collect()
}
