//! Claims: the look for what a group of workers may take, the lock on it, and the write that reserves it.
//!
//! The look chooses without locks, then those few are locked by key: locking inside the look would take the head of
//! every selector and starve other looks. A claim changes neither the run's version nor its events, so it locks the
//! task only: whatever moves a run out of the queue deletes its task under the same lock.

use std::collections::HashSet;

use sqlx::PgConnection;
use sqlx::types::Uuid;

use super::error::{Result, expect_rows};
use super::rows;
use crate::domain::Timestamp;
use crate::domain::hold::Hold;
use crate::domain::start::StartClock;
use crate::ids::{AttemptId, Digest, NamespaceId, SelectorNo, SessionKey};

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
    /// Its start clock.
    pub start: Option<StartClock>,
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
               c.start_until AS "start_until?",
               (extract(epoch FROM c.start_timeout) * 1000000)::bigint AS "start_timeout_micros?",
               c.barred_worker AS "barred_worker?", c.barred_session AS "barred_session?",
               c.barred_until AS "barred_until?"
        FROM namespace n
        CROSS JOIN clock
        LEFT JOIN LATERAL (
            SELECT t.* FROM unnest((SELECT $2::bigint[])) AS s(selector_no)
            CROSS JOIN LATERAL (
                SELECT attempt_id, selector_no, priority, place, hold_from, wait, start_until, start_timeout,
                       barred_worker, barred_session, barred_until
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
                start: rows::start(row.start_until, row.start_timeout_micros)?,
                barred,
            });
        }
    }
    Ok(Look { last_selector_no, now, found })
}

/// Which of these selectors have a task that may be claimed, whoever may claim it; with the last selector number taken
/// then. Stops at the first task of each.
///
/// # Errors
/// Of the database.
pub async fn claimable(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    selectors: &[i64],
) -> Result<(i64, HashSet<i64>)> {
    let found = sqlx::query!(
        r#"/* store::claim::claimable */
        WITH clock AS MATERIALIZED (SELECT roadstead_now() AS now)
        SELECT n.last_selector_no, ARRAY(
            SELECT s.selector_no FROM unnest((SELECT $2::bigint[])) AS s(selector_no)
            CROSS JOIN LATERAL (
                SELECT FROM task
                WHERE namespace_id = $1 AND selector_no = s.selector_no AND claim_until IS NULL
                  AND hold_from <= (SELECT now FROM clock)
                ORDER BY priority DESC, place LIMIT 1
            ) t
        ) AS "selectors!"
        FROM namespace n WHERE n.namespace_id = $1"#,
        namespace.0,
        selectors,
    )
    .fetch_one(conn)
    .await?;
    Ok((found.last_selector_no, found.selectors.into_iter().collect()))
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
            SELECT attempt_id, selector_no, hold_from, wait, start_until, start_timeout, barred_worker, barred_session,
                   barred_until
            FROM task
            WHERE namespace_id = $1 AND attempt_id = ANY($2) AND claim_until IS NULL
            ORDER BY attempt_id
            FOR UPDATE SKIP LOCKED
        )
        SELECT attempt_id AS "attempt_id!", selector_no AS "selector_no!", hold_from AS "hold_from!",
               (extract(epoch FROM wait) * 1000000)::bigint AS "wait_micros!", start_until,
               (extract(epoch FROM start_timeout) * 1000000)::bigint AS start_timeout_micros, barred_worker,
               barred_session, barred_until, roadstead_now() AS "now!"
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
            start: rows::start(row.start_until, row.start_timeout_micros)?,
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

/// Reserves locked tasks from `now` until then; each takes the next fence.
///
/// # Errors
/// Of the database.
pub async fn write(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    claims: &[NewClaim],
    now: Timestamp,
    until: Timestamp,
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
            claim_until = $8::timestamptz
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
        until,
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
