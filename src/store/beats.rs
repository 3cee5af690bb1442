//! What keeps an attempt: beats that name it, or renewals of its own. Most beats find nothing to write here.

use sqlx::PgConnection;
use sqlx::types::Uuid;

use super::error::{Error, Result};
use super::rows;
use crate::domain::Timestamp;
use crate::domain::kept::Kept;
use crate::ids::{AttemptId, Digest, NamespaceId, SessionKey};

/// What a session's beat says of its attempts.
#[derive(Debug, Clone)]
pub struct Named {
    /// Whose.
    pub session: SessionKey,
    /// Those it runs, each with the digest of its token; none if it does not say.
    pub attempts: Option<Vec<(AttemptId, Digest)>>,
}

/// What there is to be said to a beat, and to be noted of it.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    /// The attempts the session runs whose cancel was asked for.
    pub cancel: Vec<AttemptId>,
    /// Those it named and does not run under that token.
    pub lost: Vec<AttemptId>,
    /// Whether something of what it named, or left out, is news.
    pub is_news: bool,
}

/// The columns of beats, for `unnest`: sessions with whether they say something, and what they name, by the session's place.
struct Columns {
    workers: Vec<String>,
    sessions: Vec<String>,
    say: Vec<bool>,
    of: Vec<i64>,
    attempts: Vec<Uuid>,
    digests: Vec<Vec<u8>>,
}

impl Columns {
    fn of(beats: &[&Named]) -> Self {
        let mut columns = Self {
            workers: beats.iter().map(|beat| beat.session.worker_id.to_string()).collect(),
            sessions: beats.iter().map(|beat| beat.session.session_id.to_string()).collect(),
            say: beats.iter().map(|beat| beat.attempts.is_some()).collect(),
            of: Vec::new(),
            attempts: Vec::new(),
            digests: Vec::new(),
        };
        for (at, beat) in (1..).zip(beats) {
            for (id, digest) in beat.attempts.iter().flatten() {
                columns.of.push(at);
                columns.attempts.push(id.0);
                columns.digests.push(digest.0.to_vec());
            }
        }
        columns
    }
}

/// Reads what beats of different sessions are to be told, in their order. What is as it was is not spoken of.
///
/// # Errors
/// Of the database.
pub async fn heard(conn: &mut PgConnection, namespace: NamespaceId, beats: &[&Named]) -> Result<Vec<Heard>> {
    let columns = Columns::of(beats);
    let rows = sqlx::query!(
        r#"/* store::beats::heard */
        WITH running AS MATERIALIZED (
            SELECT s.at, s.says, a.* FROM unnest($2::text[], $3::text[], $4::boolean[])
                WITH ORDINALITY AS s(worker_id, session_id, says, at)
            CROSS JOIN LATERAL (
                SELECT attempt_id, token_digest, named, omitted_since, singly, dag_name, run_id FROM attempt
                WHERE namespace_id = $1 AND worker_id = s.worker_id AND session_id = s.session_id AND status = 'running'
                OFFSET 0) a
        ), seen AS MATERIALIZED (
            SELECT coalesce(r.at, n.at) AS at, coalesce(r.attempt_id, n.attempt_id) AS attempt_id,
                   r.attempt_id IS NULL AS unknown, n.token_digest,
                   r.says IS TRUE AND CASE WHEN n.attempt_id IS NULL THEN r.omitted_since IS NULL AND NOT r.singly
                                           ELSE NOT r.named OR r.omitted_since IS NOT NULL END AS news,
                   r.dag_name, r.run_id
            FROM running r
            FULL JOIN unnest($5::bigint[], $6::uuid[], $7::bytea[]) AS n(at, attempt_id, token_digest)
              ON n.at = r.at AND n.attempt_id = r.attempt_id AND n.token_digest = r.token_digest
        ), told AS (
            -- Row by row: as EXISTS they may be answered from a whole table that is read before.
            SELECT at, attempt_id, news,
                   unknown AND (
                       SELECT true FROM task t
                       WHERE t.namespace_id = $1 AND t.attempt_id = seen.attempt_id AND t.token_digest = seen.token_digest
                         AND t.worker_id = ($2::text[])[at] AND t.session_id = ($3::text[])[at] LIMIT 1) IS NULL AS lost,
                   NOT unknown AND (
                       SELECT r.cancel_requested_at FROM run r
                       WHERE r.namespace_id = $1 AND r.dag_name = seen.dag_name AND r.run_id = seen.run_id LIMIT 1
                   ) IS NOT NULL AS cancel
            FROM seen
        )
        SELECT at AS "at!", attempt_id AS "attempt_id!", lost AS "lost!", news AS "news!", cancel AS "cancel!"
        FROM told WHERE lost OR news OR cancel"#,
        namespace.0,
        &columns.workers,
        &columns.sessions,
        &columns.say,
        &columns.of,
        &columns.attempts,
        &columns.digests,
    )
    .fetch_all(conn)
    .await?;
    let mut heard = vec![Heard::default(); beats.len()];
    for row in rows {
        let at = usize::try_from(row.at - 1).ok().and_then(|at| heard.get_mut(at));
        let Some(heard) = at else { return Err(Error::Unreadable(format!("there is no beat {}", row.at))) };
        heard.is_news |= row.news;
        heard.cancel.extend(row.cancel.then_some(AttemptId(row.attempt_id)));
        heard.lost.extend(row.lost.then_some(AttemptId(row.attempt_id)));
    }
    Ok(heard)
}

/// Notes which of their sessions' running attempts these beats have named with their tokens, and which they have left out.
///
/// Only what is news is written: the first time that one is named, the first that it is left out, and the first that it
/// is named again. Rows that somebody else changes at this moment are passed over; the next beat comes to them.
///
/// # Errors
/// Of the database.
pub async fn note(conn: &mut PgConnection, namespace: NamespaceId, beats: &[&Named]) -> Result<()> {
    let columns = Columns::of(beats);
    sqlx::query!(
        r#"/* store::beats::note */
        WITH news AS MATERIALIZED (
            SELECT a.attempt_id, n.attempt_id IS NOT NULL AS is_named
            FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS s(worker_id, session_id, at)
            JOIN attempt a ON a.namespace_id = $1 AND a.worker_id = s.worker_id AND a.session_id = s.session_id
                          AND a.status = 'running'
            LEFT JOIN unnest($4::bigint[], $5::uuid[], $6::bytea[]) AS n(at, attempt_id, token_digest)
              ON n.at = s.at AND n.attempt_id = a.attempt_id AND n.token_digest = a.token_digest
            WHERE CASE WHEN n.attempt_id IS NULL THEN a.omitted_since IS NULL AND NOT a.singly
                       ELSE NOT a.named OR a.omitted_since IS NOT NULL END
            FOR NO KEY UPDATE OF a SKIP LOCKED
        )
        UPDATE attempt a
        SET named = a.named OR is_named, singly = a.singly AND NOT is_named,
            renewed_at = CASE WHEN NOT is_named THEN a.renewed_at END,
            omitted_since = CASE WHEN NOT is_named THEN coalesce(a.omitted_since, now) END
        FROM (SELECT attempt_id, is_named, roadstead_now() AS now FROM news) AS news
        WHERE a.namespace_id = $1 AND a.attempt_id = news.attempt_id AND a.status = 'running'"#,
        namespace.0,
        &columns.workers,
        &columns.sessions,
        &columns.of,
        &columns.attempts,
        &columns.digests,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes that a running attempt, whose run the caller has locked, was renewed by itself: by a renewal, which makes it one
/// that is kept so, or by a report, which does not. Beats that name it rule, if there were any.
///
/// # Errors
/// Of the database.
pub async fn renewed(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    attempt_id: AttemptId,
    by_renewal: bool,
) -> Result<()> {
    sqlx::query!(
        r#"/* store::beats::renewed */
        UPDATE attempt
        SET singly = singly OR $3, renewed_at = CASE WHEN singly OR $3 THEN roadstead_now() END, omitted_since = NULL
        WHERE namespace_id = $1 AND attempt_id = $2 AND status = 'running' AND NOT named
          AND ($3 OR singly OR omitted_since IS NOT NULL)"#,
        namespace.0,
        attempt_id.0,
        by_renewal,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Running attempts that may have been left out, or not renewed, for too long: a hint, to be judged again.
///
/// # Errors
/// Of the database.
pub async fn doubtful(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    heartbeat_interval: std::time::Duration,
) -> Result<Vec<AttemptId>> {
    let found = sqlx::query_scalar!(
        r#"/* store::beats::doubtful */
        SELECT a.attempt_id
        FROM attempt a
        JOIN worker_session s
          ON s.namespace_id = a.namespace_id AND s.worker_id = a.worker_id AND s.session_id = a.session_id
        WHERE a.namespace_id = $1 AND a.status = 'running' AND (a.singly OR a.omitted_since IS NOT NULL)
          AND CASE WHEN a.singly THEN a.renewed_at + s.lease_ttl
                   ELSE a.omitted_since + 2 * least($2::bigint * interval '1 microsecond', s.lease_ttl / 3) END
              <= (SELECT roadstead_now())
        ORDER BY a.attempt_id LIMIT 500"#,
        namespace.0,
        rows::micros(heartbeat_interval),
    )
    .fetch_all(conn)
    .await?;
    Ok(found.into_iter().map(AttemptId).collect())
}

/// What keeps a running attempt, whose run the caller has locked; no beat names it from here on. With the time.
///
/// # Errors
/// Of the database.
pub async fn kept(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    attempt_id: AttemptId,
) -> Result<Option<(Kept, Timestamp)>> {
    let row = sqlx::query!(
        r#"/* store::beats::kept */
        WITH locked AS MATERIALIZED (
            SELECT omitted_since, renewed_at, singly FROM attempt
            WHERE namespace_id = $1 AND attempt_id = $2 AND status = 'running' FOR NO KEY UPDATE
        )
        SELECT omitted_since, renewed_at, singly AS "singly!", roadstead_now() AS "now!" FROM locked"#,
        namespace.0,
        attempt_id.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| {
        (Kept { omitted_since: row.omitted_since, renewed_at: row.renewed_at.filter(|_| row.singly) }, row.now)
    }))
}
