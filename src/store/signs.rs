//! Signs of life: most are one read, since one was written a moment ago.

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};

use super::error::Result;
use super::rows;
use super::session::{SessionRow, columns};
use crate::domain::Timestamp;
use crate::domain::session::Session;
use crate::ids::{NamespaceId, SessionKey};

/// How often the signs of one session are written, at the most; a twentieth of the time after which it would be stale,
/// if that is less. Counted by the database's clock from what is in its row, so that it holds for all replicas together.
pub const WRITTEN_EVERY: Duration = Duration::from_secs(1);

/// Whether to wait for who has locked a session's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Yes: there is one to be spoken for.
    ForIt,
    /// No: it is left out, since the others are not to wait for it.
    ForNobody,
}

/// Takes a sign of life of each of these sessions, as [`recent`] found them a moment ago, that has not ended, and answers
/// with what it found. Not in a transaction.
///
/// A presence that was over is closed where it ended and another is opened, as [`Session::beat`] does for a session that
/// changes its offer. The rows are locked by a statement of their own, in key order: one that locks and writes has the
/// row as it was before it waited, and two of them wait for each other.
///
/// # Errors
/// Of the database.
pub async fn touch(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    found: Vec<(Session, Timestamp)>,
    wait: Wait,
) -> Result<Vec<Session>> {
    let written =
        |(session, now): &(Session, Timestamp)| *now < session.last_seen + WRITTEN_EVERY.min(session.stale_after / 20);
    let (lately, due): (Vec<_>, Vec<_>) = found.into_iter().partition(written);
    let due: Vec<SessionKey> = due.into_iter().map(|(session, _)| session.key).collect();
    let mut touched: Vec<Session> = lately.into_iter().map(|(session, _)| session).collect();
    if due.is_empty() {
        return Ok(touched);
    }
    let mut tx = conn.begin().await?;
    let locked = match wait {
        Wait::ForIt => {
            lock(&mut tx, namespace, &due).await?;
            due
        }
        Wait::ForNobody => lock_free(&mut tx, namespace, &due).await?,
    };
    touched.extend(write(&mut tx, namespace, &locked).await?);
    tx.commit().await?;
    Ok(touched)
}

/// These sessions as they stand, with the time; those that have ended, or never were, are left out.
///
/// # Errors
/// Of the database.
pub async fn recent(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    keys: &[SessionKey],
) -> Result<Vec<(Session, Timestamp)>> {
    let (workers, sessions) = columns(keys);
    let found = sqlx::query_as!(
        SessionRow,
        r#"/* store::signs::recent */
        SELECT s.worker_id, s.session_id, s.label_set_no, s.slots,
               (extract(epoch FROM s.stale_after) * 1000000)::bigint AS "stale_after_micros!",
               (extract(epoch FROM s.lease_ttl) * 1000000)::bigint AS "lease_ttl_micros!",
               s.last_seen, s.present_from, s.draining, s.end_reason, roadstead_now() AS "now!"
        FROM unnest($2::text[], $3::text[]) AS k(worker_id, session_id)
        JOIN worker_session s ON s.namespace_id = $1 AND s.worker_id = k.worker_id AND s.session_id = k.session_id
        WHERE s.ended_at IS NULL"#,
        namespace.0,
        &workers,
        &sessions,
    )
    .fetch_all(conn)
    .await?;
    found.into_iter().map(SessionRow::read).collect()
}

async fn lock(conn: &mut PgConnection, namespace: NamespaceId, keys: &[SessionKey]) -> Result<()> {
    let (workers, sessions) = columns(keys);
    sqlx::query!(
        r#"/* store::signs::lock */
        SELECT FROM worker_session s
        JOIN unnest($2::text[], $3::text[]) AS k(worker_id, session_id)
          ON s.worker_id = k.worker_id AND s.session_id = k.session_id
        WHERE s.namespace_id = $1 AND s.ended_at IS NULL
        ORDER BY s.worker_id, s.session_id
        FOR NO KEY UPDATE OF s"#,
        namespace.0,
        &workers,
        &sessions,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Locks those that nobody has locked, and answers which they are.
async fn lock_free(conn: &mut PgConnection, namespace: NamespaceId, keys: &[SessionKey]) -> Result<Vec<SessionKey>> {
    let (workers, sessions) = columns(keys);
    let locked = sqlx::query!(
        r#"/* store::signs::lock_free */
        SELECT s.worker_id, s.session_id FROM worker_session s
        JOIN unnest($2::text[], $3::text[]) AS k(worker_id, session_id)
          ON s.worker_id = k.worker_id AND s.session_id = k.session_id
        WHERE s.namespace_id = $1 AND s.ended_at IS NULL
        ORDER BY s.worker_id, s.session_id
        FOR NO KEY UPDATE OF s SKIP LOCKED"#,
        namespace.0,
        &workers,
        &sessions,
    )
    .fetch_all(conn)
    .await?;
    locked.into_iter().map(|row| rows::session(row.worker_id, row.session_id)).collect()
}

/// Writes the signs of sessions that are locked.
async fn write(conn: &mut PgConnection, namespace: NamespaceId, keys: &[SessionKey]) -> Result<Vec<Session>> {
    let (workers, sessions) = columns(keys);
    let touched = sqlx::query_as!(
        SessionRow,
        r#"/* store::signs::write */
        WITH judged AS MATERIALIZED (
            SELECT s.worker_id, s.session_id, s.label_set_no, s.last_seen, s.stale_after, s.present_from,
                   roadstead_now() AS now
            FROM worker_session s
            JOIN unnest($2::text[], $3::text[]) AS k(worker_id, session_id)
              ON s.worker_id = k.worker_id AND s.session_id = k.session_id
            WHERE s.namespace_id = $1 AND s.ended_at IS NULL
        ), closed AS (
            INSERT INTO presence (namespace_id, label_set_no, until_at, from_at, worker_id, session_id)
            SELECT $1, label_set_no, greatest(last_seen + stale_after, present_from), present_from, worker_id, session_id
            FROM judged WHERE present_from IS NOT NULL AND now >= last_seen + stale_after
            ON CONFLICT DO NOTHING
        )
        UPDATE worker_session w
        SET last_seen = greatest(j.now, w.last_seen),
            present_from = CASE WHEN w.present_from IS NOT NULL AND j.now >= j.last_seen + j.stale_after
                                THEN j.now ELSE w.present_from END
        FROM judged j
        WHERE w.namespace_id = $1 AND w.worker_id = j.worker_id AND w.session_id = j.session_id
        RETURNING w.worker_id, w.session_id, w.label_set_no, w.slots,
                  (extract(epoch FROM w.stale_after) * 1000000)::bigint AS "stale_after_micros!",
                  (extract(epoch FROM w.lease_ttl) * 1000000)::bigint AS "lease_ttl_micros!",
                  w.last_seen, w.present_from, w.draining, w.end_reason, w.last_seen AS "now!""#,
        namespace.0,
        &workers,
        &sessions,
    )
    .fetch_all(conn)
    .await?;
    touched.into_iter().map(|row| Ok(row.read()?.0)).collect()
}
