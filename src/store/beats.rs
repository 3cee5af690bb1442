//! What keeps an attempt: beats that name it, or renewals of its own. Most beats find nothing to write here.

use sqlx::PgConnection;

use super::error::Result;
use super::rows;
use crate::domain::Timestamp;
use crate::domain::kept::Kept;
use crate::ids::{AttemptId, Digest, NamespaceId, SessionKey};

/// Notes which of a session's running attempts a beat has named with their tokens, and which it has left out.
///
/// Only what is news is written: the first time that one is named, the first that it is left out, and the first that it
/// is named again. Rows that somebody else changes at this moment are passed over; the next beat comes to them.
///
/// # Errors
/// Of the database.
pub async fn named(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    session: &SessionKey,
    named: &[(AttemptId, Digest)],
) -> Result<()> {
    let ids: Vec<sqlx::types::Uuid> = named.iter().map(|(id, _)| id.0).collect();
    let digests: Vec<Vec<u8>> = named.iter().map(|(_, digest)| digest.0.to_vec()).collect();
    sqlx::query!(
        r#"/* store::beats::named */
        WITH news AS MATERIALIZED (
            SELECT a.attempt_id, n.attempt_id IS NOT NULL AS is_named
            FROM attempt a
            LEFT JOIN unnest($4::uuid[], $5::bytea[]) AS n(attempt_id, token_digest)
              ON n.attempt_id = a.attempt_id AND n.token_digest = a.token_digest
            WHERE a.namespace_id = $1 AND a.worker_id = $2 AND a.session_id = $3 AND a.status = 'running'
              AND CASE WHEN n.attempt_id IS NULL THEN a.omitted_since IS NULL AND NOT a.singly
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
        session.worker_id.as_str(),
        session.session_id.as_str(),
        &ids,
        &digests,
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
