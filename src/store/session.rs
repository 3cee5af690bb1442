//! Sessions: registration, changes, ends. Their signs of life are in [`super::signs`].

use sqlx::PgConnection;

use super::error::{Result, expect_rows};
use super::rows;
use crate::domain::Timestamp;
use crate::domain::session::{EndReason, Session, SessionChange};
use crate::ids::{LabelSetNo, NamespaceId, SessionKey, WorkerId};

/// Locks these sessions against each other and against their end, in key order, for what fills their slots. With the
/// moment after the locks.
///
/// # Errors
/// Of the database.
pub async fn lock_for_claims(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    keys: &[SessionKey],
) -> Result<Vec<(Session, Timestamp)>> {
    let (workers, sessions) = columns(keys);
    let locked = sqlx::query_as!(
        SessionRow,
        r#"/* store::session::lock_for_claims */
        WITH locked AS MATERIALIZED (
            SELECT s.* FROM worker_session s
            JOIN unnest($2::text[], $3::text[]) AS k(worker_id, session_id)
              ON s.worker_id = k.worker_id AND s.session_id = k.session_id
            WHERE s.namespace_id = $1
            ORDER BY s.worker_id, s.session_id
            FOR NO KEY UPDATE OF s
        )
        SELECT worker_id AS "worker_id!", session_id AS "session_id!", label_set_no AS "label_set_no!",
               slots AS "slots!", (extract(epoch FROM stale_after) * 1000000)::bigint AS "stale_after_micros!",
               (extract(epoch FROM lease_ttl) * 1000000)::bigint AS "lease_ttl_micros!",
               last_seen AS "last_seen!", present_from, draining AS "draining!", end_reason, roadstead_now() AS "now!"
        FROM locked"#,
        namespace.0,
        &workers,
        &sessions,
    )
    .fetch_all(conn)
    .await?;
    locked.into_iter().map(SessionRow::read).collect()
}

/// Reads these sessions as they stand, locking nothing; those that never were are left out.
///
/// # Errors
/// Of the database.
pub async fn standing(conn: &mut PgConnection, namespace: NamespaceId, keys: &[SessionKey]) -> Result<Vec<Session>> {
    let (workers, sessions) = columns(keys);
    let found = sqlx::query_as!(
        SessionRow,
        r#"/* store::session::standing */
        SELECT s.worker_id, s.session_id, s.label_set_no, s.slots,
               (extract(epoch FROM s.stale_after) * 1000000)::bigint AS "stale_after_micros!",
               (extract(epoch FROM s.lease_ttl) * 1000000)::bigint AS "lease_ttl_micros!",
               s.last_seen, s.present_from, s.draining, s.end_reason, roadstead_now() AS "now!"
        FROM unnest($2::text[], $3::text[]) AS k(worker_id, session_id)
        JOIN worker_session s ON s.namespace_id = $1 AND s.worker_id = k.worker_id AND s.session_id = k.session_id"#,
        namespace.0,
        &workers,
        &sessions,
    )
    .fetch_all(conn)
    .await?;
    found.into_iter().map(|row| Ok(row.read()?.0)).collect()
}

/// How many slots each of these sessions uses: claims not acknowledged and attempts running. In the order given.
///
/// # Errors
/// Of the database.
pub async fn used_slots(conn: &mut PgConnection, namespace: NamespaceId, keys: &[SessionKey]) -> Result<Vec<i64>> {
    let (workers, sessions) = columns(keys);
    Ok(sqlx::query_scalar!(
        r#"/* store::session::used_slots */
        SELECT roadstead_used_slots($1, k.worker_id, k.session_id) AS "used!"
        FROM unnest((SELECT $2::text[]), (SELECT $3::text[])) WITH ORDINALITY AS k(worker_id, session_id, at)
        ORDER BY k.at"#,
        namespace.0,
        &workers,
        &sessions,
    )
    .fetch_all(conn)
    .await?)
}

/// A session's lease, as one who speaks by a token needs it.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    /// Whether the session has ended, and its lease with it.
    pub ended: bool,
    /// When it ends if the session stays silent.
    pub until: Timestamp,
    /// Its length.
    pub ttl: std::time::Duration,
}

/// Reads a session's lease and keeps the session from ending until the transaction does. None if there is no such
/// session.
///
/// # Errors
/// Of the database.
pub async fn hold_lease(conn: &mut PgConnection, namespace: NamespaceId, key: &SessionKey) -> Result<Option<Lease>> {
    let row = sqlx::query!(
        r#"/* store::session::hold_lease */
        SELECT ended_at IS NOT NULL AS "ended!", last_seen + lease_ttl AS "until!",
               (extract(epoch FROM lease_ttl) * 1000000)::bigint AS "ttl_micros!"
        FROM worker_session
        WHERE namespace_id = $1 AND worker_id = $2 AND session_id = $3
        FOR KEY SHARE"#,
        namespace.0,
        key.worker_id.as_str(),
        key.session_id.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| Ok(Lease { ended: row.ended, until: row.until, ttl: rows::duration(row.ttl_micros)? })).transpose()
}

/// Locks a session to change or end it, with the moment after the lock.
///
/// # Errors
/// Of the database.
pub async fn lock(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    key: &SessionKey,
) -> Result<Option<(Session, Timestamp)>> {
    let row = sqlx::query_as!(
        SessionRow,
        r#"/* store::session::lock */
        WITH locked AS MATERIALIZED (
            SELECT * FROM worker_session
            WHERE namespace_id = $1 AND worker_id = $2 AND session_id = $3
            FOR UPDATE
        )
        SELECT worker_id AS "worker_id!", session_id AS "session_id!", label_set_no AS "label_set_no!",
               slots AS "slots!", (extract(epoch FROM stale_after) * 1000000)::bigint AS "stale_after_micros!",
               (extract(epoch FROM lease_ttl) * 1000000)::bigint AS "lease_ttl_micros!",
               last_seen AS "last_seen!", present_from, draining AS "draining!", end_reason, roadstead_now() AS "now!"
        FROM locked"#,
        namespace.0,
        key.worker_id.as_str(),
        key.session_id.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    row.map(SessionRow::read).transpose()
}

/// The living session of a worker, not locked.
///
/// # Errors
/// Of the database.
pub async fn living(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    worker_id: &WorkerId,
) -> Result<Option<SessionKey>> {
    let session_id = sqlx::query_scalar!(
        r#"/* store::session::living */
        SELECT session_id FROM worker_session WHERE namespace_id = $1 AND worker_id = $2 AND ended_at IS NULL"#,
        namespace.0,
        worker_id.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    session_id.map(|session_id| rows::session(worker_id.to_string(), session_id)).transpose()
}

/// What a session offers, not locked; none if there is no such session.
///
/// # Errors
/// Of the database.
pub async fn label_set_no(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    key: &SessionKey,
) -> Result<Option<LabelSetNo>> {
    let no = sqlx::query_scalar!(
        r#"/* store::session::label_set_no */
        SELECT label_set_no FROM worker_session WHERE namespace_id = $1 AND worker_id = $2 AND session_id = $3"#,
        namespace.0,
        key.worker_id.as_str(),
        key.session_id.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(no.map(LabelSetNo))
}

/// Why a session ended: none if it is not known, `Some(None)` if it lives.
///
/// # Errors
/// Of the database.
pub async fn end_reason(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    key: &SessionKey,
) -> Result<Option<Option<EndReason>>> {
    let reason = sqlx::query_scalar!(
        r#"/* store::session::end_reason */
        SELECT end_reason FROM worker_session WHERE namespace_id = $1 AND worker_id = $2 AND session_id = $3"#,
        namespace.0,
        key.worker_id.as_str(),
        key.session_id.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    reason
        .map(|reason| reason.map(|word| rows::word("end_reason", &word, EndReason::from_word)).transpose())
        .transpose()
}

/// Begins a session of a worker that has none.
///
/// # Errors
/// Of the database.
pub async fn begin(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    session: &Session,
    version: Option<&str>,
) -> Result<()> {
    let wrote = sqlx::query!(
        r#"/* store::session::begin */
        INSERT INTO worker_session (namespace_id, worker_id, session_id, label_set_no, slots, version, stale_after,
                                    lease_ttl, started_at, last_seen, present_from)
        VALUES ($1, $2, $3, $4, $5, $6, $7::bigint * interval '1 microsecond', $8::bigint * interval '1 microsecond',
                $9, $9, $10)"#,
        namespace.0,
        session.key.worker_id.as_str(),
        session.key.session_id.as_str(),
        session.label_set_no.0,
        session.slots,
        version,
        rows::micros(session.stale_after),
        rows::micros(session.lease_ttl),
        session.last_seen,
        session.present_from,
    )
    .execute(conn)
    .await?
    .rows_affected();
    expect_rows("store::session::begin", 1, wrote.cast_signed())
}

/// Saves a change of a locked session and the stretch of presence it closed.
///
/// # Errors
/// Of the database.
pub async fn save(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    change: &SessionChange,
    now: Timestamp,
) -> Result<()> {
    let SessionChange { session, closed } = change;
    if let Some((label_set_no, stretch)) = closed {
        sqlx::query!(
            r#"/* store::session::save (presence) */
            INSERT INTO presence (namespace_id, label_set_no, until_at, from_at, worker_id, session_id)
            VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING"#,
            namespace.0,
            label_set_no.0,
            stretch.until,
            stretch.from,
            session.key.worker_id.as_str(),
            session.key.session_id.as_str(),
        )
        .execute(&mut *conn)
        .await?;
    }
    let wrote = sqlx::query!(
        r#"/* store::session::save */
        UPDATE worker_session
        SET label_set_no = $4, slots = $5, last_seen = $6, present_from = $7, end_reason = $8,
            ended_at = CASE WHEN $8::text IS NULL THEN NULL ELSE $9::timestamptz END,
            stale_after = $10::bigint * interval '1 microsecond', lease_ttl = $11::bigint * interval '1 microsecond',
            draining = $12
        WHERE namespace_id = $1 AND worker_id = $2 AND session_id = $3"#,
        namespace.0,
        session.key.worker_id.as_str(),
        session.key.session_id.as_str(),
        session.label_set_no.0,
        session.slots,
        session.last_seen,
        session.present_from,
        session.ended.map(EndReason::as_str),
        now,
        rows::micros(session.stale_after),
        rows::micros(session.lease_ttl),
        session.draining,
    )
    .execute(conn)
    .await?
    .rows_affected();
    expect_rows("store::session::save", 1, wrote.cast_signed())
}

/// A session's row, with the moment it was read or locked.
pub(super) struct SessionRow {
    pub(super) worker_id: String,
    pub(super) session_id: String,
    pub(super) label_set_no: i64,
    pub(super) slots: i32,
    pub(super) stale_after_micros: i64,
    pub(super) lease_ttl_micros: i64,
    pub(super) last_seen: Timestamp,
    pub(super) present_from: Option<Timestamp>,
    pub(super) draining: bool,
    pub(super) end_reason: Option<String>,
    pub(super) now: Timestamp,
}

impl SessionRow {
    pub(super) fn read(self) -> Result<(Session, Timestamp)> {
        let session = Session {
            key: rows::session(self.worker_id, self.session_id)?,
            label_set_no: LabelSetNo(self.label_set_no),
            slots: self.slots,
            stale_after: rows::duration(self.stale_after_micros)?,
            lease_ttl: rows::duration(self.lease_ttl_micros)?,
            last_seen: self.last_seen,
            present_from: self.present_from,
            draining: self.draining,
            ended: self.end_reason.map(|word| rows::word("end_reason", &word, EndReason::from_word)).transpose()?,
        };
        Ok((session, self.now))
    }
}

/// The two key columns, for `unnest`.
pub(super) fn columns(keys: &[SessionKey]) -> (Vec<String>, Vec<String>) {
    keys.iter().map(|key| (key.worker_id.to_string(), key.session_id.to_string())).unzip()
}
