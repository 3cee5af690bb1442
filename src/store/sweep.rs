//! What is due: the sweep's questions. Every answer is a hint, to be judged again under lock.

use sqlx::PgConnection;
use sqlx::types::Uuid;

use super::error::Result;
use super::rows;
use crate::domain::Timestamp;
use crate::domain::hold::Stretch;
use crate::domain::start::StartClock;
use crate::ids::{AttemptId, NamespaceId, RunKey, SelectorNo, SessionKey};

/// How many rows one statement of the sweep takes on.
pub const BATCH: usize = 500;

/// The namespaces there are.
///
/// # Errors
/// Of the database.
pub async fn namespaces(conn: &mut PgConnection) -> Result<Vec<NamespaceId>> {
    let ids = sqlx::query_scalar!("/* store::sweep::namespaces */ SELECT namespace_id FROM namespace ORDER BY 1")
        .fetch_all(conn)
        .await?;
    Ok(ids.into_iter().map(NamespaceId).collect())
}

/// The clock.
///
/// # Errors
/// Of the database.
pub async fn now(conn: &mut PgConnection) -> Result<Timestamp> {
    Ok(sqlx::query_scalar!(r#"/* store::sweep::now */ SELECT roadstead_now() AS "now!""#).fetch_one(conn).await?)
}

/// Selectors with unclaimed tasks whose hold could first have expired in `(after, now]`.
///
/// # Errors
/// Of the database.
pub async fn newly_due(conn: &mut PgConnection, namespace: NamespaceId, after: Timestamp) -> Result<Vec<SelectorNo>> {
    let numbers = sqlx::query_scalar!(
        r#"/* store::sweep::newly_due */
        SELECT DISTINCT selector_no FROM task
        WHERE namespace_id = $1 AND claim_until IS NULL AND hold_until > $2
          AND hold_until <= (SELECT roadstead_now())"#,
        namespace.0,
        after,
    )
    .fetch_all(conn)
    .await?;
    Ok(numbers.into_iter().map(SelectorNo).collect())
}

/// How many selectors one statement of the sweep goes through.
pub const ROUND: usize = 1_000;

/// Up to [`ROUND`] selectors with unclaimed tasks, by number from `after` on: a skip through the index, one step each.
///
/// # Errors
/// Of the database.
pub async fn selectors(conn: &mut PgConnection, namespace: NamespaceId, after: i64) -> Result<Vec<SelectorNo>> {
    let numbers = sqlx::query_scalar!(
        r#"/* store::sweep::selectors */
        WITH RECURSIVE s(selector_no) AS (
            (SELECT selector_no FROM task
             WHERE namespace_id = $1 AND claim_until IS NULL AND selector_no > $2
             ORDER BY selector_no LIMIT 1)
            UNION ALL
            SELECT (SELECT t.selector_no FROM task t
                    WHERE t.namespace_id = $1 AND t.claim_until IS NULL AND t.selector_no > s.selector_no
                    ORDER BY t.selector_no LIMIT 1)
            FROM s WHERE s.selector_no IS NOT NULL
        )
        SELECT selector_no AS "selector_no!" FROM s WHERE selector_no IS NOT NULL LIMIT 1000"#,
        namespace.0,
        after,
    )
    .fetch_all(conn)
    .await?;
    Ok(numbers.into_iter().map(SelectorNo).collect())
}

/// Those of these selectors that have unclaimed tasks.
///
/// # Errors
/// Of the database.
pub async fn with_tasks(conn: &mut PgConnection, namespace: NamespaceId, selectors: &[i64]) -> Result<Vec<SelectorNo>> {
    let numbers = sqlx::query_scalar!(
        r#"/* store::sweep::with_tasks */
        SELECT t.selector_no FROM unnest($2::bigint[]) AS s(selector_no)
        CROSS JOIN LATERAL (
            SELECT selector_no FROM task
            WHERE namespace_id = $1 AND selector_no = s.selector_no AND claim_until IS NULL
            ORDER BY priority DESC, place LIMIT 1) t"#,
        namespace.0,
        selectors,
    )
    .fetch_all(conn)
    .await?;
    Ok(numbers.into_iter().map(SelectorNo).collect())
}

/// One distinct wait among a selector's unclaimed tasks.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    /// The selector.
    pub selector_no: SelectorNo,
    /// How long.
    pub wait: std::time::Duration,
    /// The earliest `hold_until` among them.
    pub hold_until: Timestamp,
}

/// The distinct waits of these selectors' unclaimed tasks: a skip through the index, one step each.
///
/// # Errors
/// Of the database.
pub async fn waits(conn: &mut PgConnection, namespace: NamespaceId, selectors: &[SelectorNo]) -> Result<Vec<Wait>> {
    let numbers: Vec<i64> = selectors.iter().map(|no| no.0).collect();
    let rows = sqlx::query!(
        r#"/* store::sweep::waits */
        WITH RECURSIVE w(selector_no, wait, hold_until) AS (
            SELECT s.selector_no, f.wait, f.hold_until FROM unnest($2::bigint[]) AS s(selector_no) CROSS JOIN LATERAL (
                SELECT t.wait, t.hold_until FROM task t
                WHERE t.namespace_id = $1 AND t.selector_no = s.selector_no AND t.claim_until IS NULL
                ORDER BY t.wait, t.hold_until LIMIT 1
            ) f
            UNION ALL
            SELECT w.selector_no, n.wait, n.hold_until FROM w CROSS JOIN LATERAL (
                SELECT t.wait, t.hold_until FROM task t
                WHERE t.namespace_id = $1 AND t.selector_no = w.selector_no AND t.claim_until IS NULL AND t.wait > w.wait
                ORDER BY t.wait, t.hold_until LIMIT 1
            ) n
        )
        SELECT selector_no AS "selector_no!", (extract(epoch FROM wait) * 1000000)::bigint AS "wait_micros!",
               hold_until AS "hold_until!" FROM w"#,
        namespace.0,
        &numbers,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let wait = rows::duration(row.wait_micros)?;
            Ok(Wait { selector_no: SelectorNo(row.selector_no), wait, hold_until: row.hold_until })
        })
        .collect()
}

/// What a gap of a selector ended: the tasks with this wait whose hold ran out within it.
#[derive(Debug, Clone, Copy)]
pub struct Due {
    /// The selector.
    pub selector_no: SelectorNo,
    /// How long they wait; the gap lasted as long.
    pub wait: std::time::Duration,
    /// The gap.
    pub gap: Stretch,
}

/// A place in the tasks of a list of [`Due`]: which one, and the last task that was answered of it.
pub type DueCursor = (usize, Timestamp, AttemptId);

/// Up to 500 unclaimed tasks that are due, in the order of the list, after a cursor.
///
/// A hold that began in the gap ran out in it when `hold_until` did; one that began before, when the gap lasted the
/// whole wait too, which the caller has checked.
///
/// # Errors
/// Of the database.
pub async fn expired_in(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    due: &[Due],
    after: Option<DueCursor>,
) -> Result<Vec<DueCursor>> {
    let (first, after_until, after_id) =
        after.map_or((0, Timestamp::UNIX_EPOCH, Uuid::nil()), |(at, until, id)| (at, until, id.0));
    let left = &due[first..];
    let selectors: Vec<i64> = left.iter().map(|due| due.selector_no.0).collect();
    let waits: Vec<i64> = left.iter().map(|due| rows::micros(due.wait)).collect();
    let untils: Vec<Timestamp> = left.iter().map(|due| due.gap.until).collect();
    let rows = sqlx::query!(
        r#"/* store::sweep::expired_in */
        SELECT d.at AS "at!", t.hold_until AS "hold_until!", t.attempt_id AS "attempt_id!"
        FROM unnest($2::bigint[], $3::bigint[], $4::timestamptz[]) WITH ORDINALITY AS d(selector_no, wait, until_at, at)
        CROSS JOIN LATERAL (
            SELECT hold_until, attempt_id FROM task
            WHERE namespace_id = $1 AND selector_no = d.selector_no AND claim_until IS NULL
              AND wait = d.wait * interval '1 microsecond' AND hold_until <= d.until_at AND hold_from < d.until_at
              AND (d.at > 1 OR (hold_until, attempt_id) > ($5, $6))
            ORDER BY hold_until, attempt_id LIMIT 500
        ) t
        ORDER BY d.at, t.hold_until, t.attempt_id LIMIT 500"#,
        namespace.0,
        &selectors,
        &waits,
        &untils,
        after_until,
        after_id,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let at = usize::try_from(row.at).map_err(|error| super::Error::Unreadable(error.to_string()))?;
            Ok((first + at - 1, row.hold_until, AttemptId(row.attempt_id)))
        })
        .collect()
}

/// Claims that were not acknowledged in time, after a cursor, oldest first, at most 500.
///
/// # Errors
/// Of the database.
pub async fn lapsed_claims(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    after: Option<(Timestamp, AttemptId)>,
) -> Result<Vec<(Timestamp, AttemptId)>> {
    let (after_until, after_id) = after.map_or((Timestamp::UNIX_EPOCH, Uuid::nil()), |(until, id)| (until, id.0));
    let rows = sqlx::query!(
        r#"/* store::sweep::lapsed_claims */
        SELECT claim_until AS "claim_until!", attempt_id FROM task
        WHERE namespace_id = $1 AND claim_until <= (SELECT roadstead_now()) AND claim_until IS NOT NULL
          AND (claim_until, attempt_id) > ($2, $3)
        ORDER BY claim_until, attempt_id LIMIT 500"#,
        namespace.0,
        after_until,
        after_id,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.claim_until, AttemptId(row.attempt_id))).collect())
}

/// Living sessions that have been silent for their whole lease.
///
/// # Errors
/// Of the database.
pub async fn silent_sessions(conn: &mut PgConnection, namespace: NamespaceId) -> Result<Vec<SessionKey>> {
    let rows = sqlx::query!(
        r#"/* store::sweep::silent_sessions */
        SELECT worker_id, session_id FROM worker_session
        WHERE namespace_id = $1 AND ended_at IS NULL AND last_seen + lease_ttl <= (SELECT roadstead_now())"#,
        namespace.0,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(|row| rows::session(row.worker_id, row.session_id)).collect()
}

/// Sessions that have ended and still hold a claim or a running attempt: found from what they hold, by a skip through
/// the index, one step a session.
///
/// # Errors
/// Of the database.
pub async fn ended_holders(conn: &mut PgConnection, namespace: NamespaceId) -> Result<Vec<SessionKey>> {
    let rows = sqlx::query!(
        r#"/* store::sweep::ended_holders */
        WITH RECURSIVE a(worker_id, session_id) AS (
            (SELECT worker_id, session_id FROM attempt
             WHERE namespace_id = $1 AND status = 'running' ORDER BY worker_id, session_id LIMIT 1)
            UNION ALL
            SELECT n.worker_id, n.session_id FROM a CROSS JOIN LATERAL (
                SELECT x.worker_id, x.session_id FROM attempt x
                WHERE x.namespace_id = $1 AND x.status = 'running'
                  AND (x.worker_id, x.session_id) > (a.worker_id, a.session_id)
                ORDER BY x.worker_id, x.session_id LIMIT 1) n
        ), t(worker_id, session_id) AS (
            (SELECT worker_id, session_id FROM task
             WHERE namespace_id = $1 AND claim_until IS NOT NULL ORDER BY worker_id, session_id LIMIT 1)
            UNION ALL
            SELECT n.worker_id, n.session_id FROM t CROSS JOIN LATERAL (
                SELECT x.worker_id, x.session_id FROM task x
                WHERE x.namespace_id = $1 AND x.claim_until IS NOT NULL
                  AND (x.worker_id, x.session_id) > (t.worker_id, t.session_id)
                ORDER BY x.worker_id, x.session_id LIMIT 1) n
        )
        SELECT h.worker_id AS "worker_id!", h.session_id AS "session_id!"
        FROM (SELECT * FROM a UNION SELECT * FROM t) h
        LEFT JOIN worker_session s ON s.namespace_id = $1 AND s.worker_id = h.worker_id AND s.session_id = h.session_id
        WHERE s.ended_at IS NOT NULL OR s.session_id IS NULL"#,
        namespace.0,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(|row| rows::session(row.worker_id, row.session_id)).collect()
}

/// What a session holds: its claims and its running attempts, the latter with their runs.
///
/// # Errors
/// Of the database.
pub async fn held_by(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    session: &SessionKey,
) -> Result<(Vec<AttemptId>, Vec<(AttemptId, RunKey)>)> {
    let claims = sqlx::query_scalar!(
        r#"/* store::sweep::held_by (claims) */
        SELECT attempt_id FROM task
        WHERE namespace_id = $1 AND worker_id = $2 AND session_id = $3 AND claim_until IS NOT NULL"#,
        namespace.0,
        session.worker_id.as_str(),
        session.session_id.as_str(),
    )
    .fetch_all(&mut *conn)
    .await?;
    let running = sqlx::query!(
        r#"/* store::sweep::held_by (running) */
        SELECT attempt_id, dag_name, run_id FROM attempt
        WHERE namespace_id = $1 AND worker_id = $2 AND session_id = $3 AND status = 'running'"#,
        namespace.0,
        session.worker_id.as_str(),
        session.session_id.as_str(),
    )
    .fetch_all(conn)
    .await?;
    let running = running.into_iter().map(|row| Ok((AttemptId(row.attempt_id), rows::key(row.dag_name, row.run_id)?)));
    Ok((claims.into_iter().map(AttemptId).collect(), running.collect::<Result<_>>()?))
}

/// Drops tasks among these whose run no longer exists, and answers how many: there is nobody left to tell.
///
/// # Errors
/// Of the database.
pub async fn drop_orphans(conn: &mut PgConnection, namespace: NamespaceId, ids: &[Uuid]) -> Result<u64> {
    Ok(sqlx::query!(
        r#"/* store::sweep::drop_orphans */
        DELETE FROM task t WHERE t.namespace_id = $1 AND t.attempt_id = ANY($2) AND NOT EXISTS (
            SELECT FROM run r WHERE r.namespace_id = $1 AND r.dag_name = t.dag_name AND r.run_id = t.run_id)"#,
        namespace.0,
        ids,
    )
    .execute(conn)
    .await?
    .rows_affected())
}

/// An unclaimed task whose start clock has run out, but for what outages add to it.
#[derive(Debug, Clone, Copy)]
pub struct StartDue {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// What it asks for.
    pub selector_no: SelectorNo,
    /// Its start clock.
    pub start: StartClock,
}

/// Unclaimed tasks whose start clock would have run out by now if there were no outages, after a cursor, the first to
/// run out first, at most 500.
///
/// # Errors
/// Of the database.
pub async fn start_due(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    after: Option<(Timestamp, AttemptId)>,
) -> Result<Vec<StartDue>> {
    let (after_until, after_id) = after.map_or((Timestamp::UNIX_EPOCH, Uuid::nil()), |(until, id)| (until, id.0));
    let rows = sqlx::query!(
        r#"/* store::sweep::start_due */
        SELECT attempt_id, selector_no, start_until AS "start_until!",
               (extract(epoch FROM start_timeout) * 1000000)::bigint AS "start_timeout_micros!"
        FROM task
        WHERE namespace_id = $1 AND claim_until IS NULL AND start_until IS NOT NULL
          AND start_until <= (SELECT roadstead_now()) AND (start_until, attempt_id) > ($2, $3)
        ORDER BY start_until, attempt_id LIMIT 500"#,
        namespace.0,
        after_until,
        after_id,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let timeout = rows::duration(row.start_timeout_micros)?;
            let start = StartClock { from: row.start_until - timeout, timeout };
            Ok(StartDue { attempt_id: AttemptId(row.attempt_id), selector_no: SelectorNo(row.selector_no), start })
        })
        .collect()
}

/// How long until the next hold or start clock could run out or the next claim lapses, by the database's clock; none when
/// nothing waits for it.
///
/// # Errors
/// Of the database.
pub async fn next_due(conn: &mut PgConnection, namespace: NamespaceId) -> Result<Option<std::time::Duration>> {
    let micros = sqlx::query_scalar!(
        r#"/* store::sweep::next_due */
        WITH clock AS MATERIALIZED (SELECT roadstead_now() AS now)
        SELECT (extract(epoch FROM least(
            (SELECT hold_until FROM task
             WHERE namespace_id = $1 AND claim_until IS NULL AND hold_until > (SELECT now FROM clock)
             ORDER BY hold_until LIMIT 1),
            (SELECT start_until FROM task
             WHERE namespace_id = $1 AND claim_until IS NULL AND start_until > (SELECT now FROM clock)
             ORDER BY start_until LIMIT 1),
            (SELECT claim_until FROM task
             WHERE namespace_id = $1 AND claim_until IS NOT NULL AND claim_until > (SELECT now FROM clock)
             ORDER BY claim_until LIMIT 1)) - now) * 1000000)::bigint
        FROM clock"#,
        namespace.0,
    )
    .fetch_one(conn)
    .await?;
    micros.map(rows::duration).transpose()
}
