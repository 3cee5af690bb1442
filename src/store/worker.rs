//! Workers: the row that outlives sessions, with its drain, and how each stands by its latest session.

use std::collections::BTreeSet;

use sqlx::PgConnection;

use super::error::Result;
use super::rows;
use crate::domain::Timestamp;
use crate::domain::labels::Labels;
use crate::domain::session::{EndReason, Session, WorkerState};
use crate::ids::{AttemptId, LabelSetNo, NamespaceId, SessionId, SessionKey, WorkerId};

/// A worker as its latest session stands.
#[derive(Debug, Clone)]
pub struct WorkerView {
    /// Its name.
    pub worker_id: WorkerId,
    /// Its latest session.
    pub session_id: SessionId,
    /// What it is to the matcher.
    pub state: WorkerState,
    /// What it offers.
    pub labels: Labels,
    /// Keys it keeps for those who mention them.
    pub exclusive: BTreeSet<String>,
    /// How many tasks it may have at a time.
    pub slots: i32,
    /// Tasks it was given and has not acknowledged.
    pub claimed: i64,
    /// Attempts it runs.
    pub running: i64,
    /// Its own version.
    pub version: Option<String>,
    /// Its last sign of life.
    pub last_seen_at: Timestamp,
    /// Whether an operator drains it.
    pub drain: bool,
    /// Why.
    pub drain_comment: Option<String>,
}

/// Reads these workers, in the order given; those that do not exist are left out. One that cannot be read is an error in
/// its place and stops none of the others.
///
/// # Errors
/// Of the database.
pub async fn views(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    workers: &[WorkerId],
) -> Result<Vec<Result<WorkerView>>> {
    let names: Vec<String> = workers.iter().map(ToString::to_string).collect();
    let rows = sqlx::query!(
        r#"/* store::worker::views */
        WITH clock AS MATERIALIZED (SELECT roadstead_now() AS now)
        SELECT s.worker_id, s.session_id, s.label_set_no, s.slots, s.version, s.last_seen, s.present_from, s.draining,
               s.end_reason, w.drain, w.drain_comment,
               (extract(epoch FROM s.stale_after) * 1000000)::bigint AS "stale_after_micros!",
               (extract(epoch FROM s.lease_ttl) * 1000000)::bigint AS "lease_ttl_micros!",
               l.canonical AS offer, clock.now AS "now!",
               (SELECT count(*) FROM task t WHERE t.namespace_id = $1 AND t.worker_id = s.worker_id
                    AND t.session_id = s.session_id AND t.claim_until IS NOT NULL) AS "claimed!",
               (SELECT count(*) FROM attempt a WHERE a.namespace_id = $1 AND a.worker_id = s.worker_id
                    AND a.session_id = s.session_id AND a.status = 'running') AS "running!"
        FROM clock
        CROSS JOIN unnest($2::text[]) WITH ORDINALITY AS k(worker_id, at)
        CROSS JOIN LATERAL (
            SELECT session_id, drain, drain_comment FROM worker
            WHERE namespace_id = $1 AND worker_id = k.worker_id LIMIT 1) w
        CROSS JOIN LATERAL (
            SELECT * FROM worker_session
            WHERE namespace_id = $1 AND worker_id = k.worker_id AND session_id = w.session_id LIMIT 1) s
        CROSS JOIN LATERAL (
            SELECT canonical FROM label_set WHERE namespace_id = $1 AND label_set_no = s.label_set_no LIMIT 1) l
        ORDER BY k.at"#,
        namespace.0,
        &names,
    )
    .fetch_all(conn)
    .await?;
    let views = rows
        .into_iter()
        .map(|row| {
            let offer = super::intern::offer(&row.offer)?;
            let session = Session {
                key: rows::session(row.worker_id, row.session_id)?,
                label_set_no: LabelSetNo(row.label_set_no),
                slots: row.slots,
                stale_after: rows::duration(row.stale_after_micros)?,
                lease_ttl: rows::duration(row.lease_ttl_micros)?,
                last_seen: row.last_seen,
                present_from: row.present_from,
                draining: row.draining,
                ended: row.end_reason.map(|word| rows::word("end_reason", &word, EndReason::from_word)).transpose()?,
            };
            Ok(WorkerView {
                state: session.state(row.now),
                worker_id: session.key.worker_id,
                session_id: session.key.session_id,
                labels: offer.labels,
                exclusive: offer.exclusive,
                slots: row.slots,
                claimed: row.claimed,
                running: row.running,
                version: row.version,
                last_seen_at: row.last_seen,
                drain: row.drain,
                drain_comment: row.drain_comment,
            })
        })
        .collect();
    Ok(views)
}

/// What a session should hear when it asks for tasks.
#[derive(Debug, Clone)]
pub struct News {
    /// Why it has ended, if it has.
    pub ended: Option<EndReason>,
    /// Whether it is given no more tasks.
    pub drain: bool,
    /// The attempts it runs whose cancel was asked for.
    pub cancel: Vec<AttemptId>,
}

/// Reads what a session should hear; none if there is no such session.
///
/// # Errors
/// Of the database.
pub async fn news(conn: &mut PgConnection, namespace: NamespaceId, session: &SessionKey) -> Result<Option<News>> {
    let row = sqlx::query!(
        r#"/* store::worker::news */
        SELECT s.end_reason, s.present_from IS NULL AS "drain!", ARRAY(
            SELECT a.attempt_id FROM attempt a
            JOIN run r ON r.namespace_id = a.namespace_id AND r.dag_name = a.dag_name AND r.run_id = a.run_id
            WHERE a.namespace_id = $1 AND a.worker_id = $2 AND a.session_id = $3 AND a.status = 'running'
              AND r.cancel_requested_at IS NOT NULL) AS "cancel!"
        FROM worker_session s
        WHERE s.namespace_id = $1 AND s.worker_id = $2 AND s.session_id = $3"#,
        namespace.0,
        session.worker_id.as_str(),
        session.session_id.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        let ended = row.end_reason.map(|word| rows::word("end_reason", &word, EndReason::from_word)).transpose()?;
        Ok(News { ended, drain: row.drain, cancel: row.cancel.into_iter().map(AttemptId).collect() })
    })
    .transpose()
}

/// Locks a worker, making it if it is new, names its latest session, and answers whether an operator drains it. First in
/// the lock order of registration.
///
/// # Errors
/// Of the database.
pub async fn lock(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    worker_id: &WorkerId,
    session_id: &SessionId,
) -> Result<bool> {
    let drained = sqlx::query_scalar!(
        r#"/* store::worker::lock */
        INSERT INTO worker (namespace_id, worker_id, session_id, created_at)
        VALUES ($1, $2, $3, roadstead_now())
        ON CONFLICT (namespace_id, worker_id) DO UPDATE SET session_id = excluded.session_id
        RETURNING drain"#,
        namespace.0,
        worker_id.as_str(),
        session_id.as_str(),
    )
    .fetch_one(conn)
    .await?;
    Ok(drained)
}

/// Whether an operator drains a worker; it stays so until the transaction ends.
///
/// # Errors
/// Of the database.
pub async fn is_drained(conn: &mut PgConnection, namespace: NamespaceId, worker_id: &WorkerId) -> Result<bool> {
    let drained = sqlx::query_scalar!(
        r#"/* store::worker::is_drained */
        SELECT drain FROM worker WHERE namespace_id = $1 AND worker_id = $2 FOR SHARE"#,
        namespace.0,
        worker_id.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(drained.unwrap_or(false))
}

/// Locks a worker and notes whether an operator drains it, and why; answers whether there is such a worker.
///
/// # Errors
/// Of the database.
pub async fn drain(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    worker_id: &WorkerId,
    comment: Option<Option<&str>>,
) -> Result<bool> {
    let wrote = sqlx::query!(
        r#"/* store::worker::drain */
        UPDATE worker SET drain = $3, drain_comment = $4 WHERE namespace_id = $1 AND worker_id = $2"#,
        namespace.0,
        worker_id.as_str(),
        comment.is_some(),
        comment.flatten(),
    )
    .execute(conn)
    .await?
    .rows_affected();
    Ok(wrote == 1)
}
