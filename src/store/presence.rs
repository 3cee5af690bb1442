//! Presence: when something matched, from which follows when nothing did.

use sqlx::PgConnection;

use super::error::Result;
use crate::domain::Timestamp;
use crate::domain::hold::Stretch;
use crate::ids::NamespaceId;

/// The stretches since `from` in which a session with one of these label sets was present, each with its label set;
/// and the outages, which fit everything and have none. An open stretch lasts until its session's last sign of life
/// plus `stale_after`.
///
/// # Errors
/// Of the database.
pub async fn stretches(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    fitting: &[i64],
    from: Timestamp,
) -> Result<Vec<(Option<i64>, Stretch)>> {
    let rows = sqlx::query!(
        r#"/* store::presence::stretches */
        SELECT label_set_no, from_at AS "from_at!", until_at AS "until_at!" FROM presence
        WHERE namespace_id = $1 AND label_set_no = ANY($2) AND until_at > $3
        UNION ALL
        SELECT label_set_no, present_from, last_seen + stale_after FROM worker_session
        WHERE namespace_id = $1 AND label_set_no = ANY($2) AND ended_at IS NULL AND present_from IS NOT NULL
          AND last_seen + stale_after > $3
        UNION ALL
        SELECT NULL, from_at, until_at FROM outage WHERE namespace_id = $1 AND until_at > $3"#,
        namespace.0,
        fitting,
        from,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.label_set_no, Stretch { from: row.from_at, until: row.until_at })).collect())
}

/// The outages that reach beyond `since`, in no certain order: what stops start clocks.
///
/// # Errors
/// Of the database.
pub async fn outages(conn: &mut PgConnection, namespace: NamespaceId, since: Timestamp) -> Result<Vec<Stretch>> {
    let rows = sqlx::query!(
        r#"/* store::presence::outages */
        SELECT from_at, until_at FROM outage WHERE namespace_id = $1 AND until_at > $2"#,
        namespace.0,
        since,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| Stretch { from: row.from_at, until: row.until_at }).collect())
}

/// The label sets that somebody offers now, and those that somebody stopped offering since `since`: by a change or an
/// end, or by falling silent.
///
/// # Errors
/// Of the database.
pub async fn label_sets(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    since: Timestamp,
) -> Result<(Vec<i64>, Vec<i64>)> {
    let present = sqlx::query_scalar!(
        r#"/* store::presence::label_sets (present) */
        SELECT DISTINCT label_set_no FROM worker_session
        WHERE namespace_id = $1 AND ended_at IS NULL AND present_from IS NOT NULL
          AND last_seen + stale_after > (SELECT roadstead_now())"#,
        namespace.0,
    )
    .fetch_all(&mut *conn)
    .await?;
    let ceased = sqlx::query_scalar!(
        r#"/* store::presence::label_sets (ceased) */
        SELECT label_set_no AS "label_set_no!" FROM presence WHERE namespace_id = $1 AND until_at > $2
        UNION
        SELECT label_set_no FROM worker_session
        WHERE namespace_id = $1 AND ended_at IS NULL AND present_from IS NOT NULL
          AND last_seen + stale_after > $2 AND last_seen + stale_after <= (SELECT roadstead_now())"#,
        namespace.0,
        since,
    )
    .fetch_all(conn)
    .await?;
    Ok((present, ceased))
}

/// Stamps the sweep of a namespace, and first records an outage when nobody has for longer than `tolerated`: from the
/// stamp until `grace` from now. Answers when the last amnesty ends, if it is still on.
///
/// # Errors
/// Of the database.
pub async fn stamp(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    tolerated: std::time::Duration,
    grace: std::time::Duration,
) -> Result<Option<Timestamp>> {
    let row = sqlx::query!(
        r#"/* store::presence::stamp */
        WITH locked AS MATERIALIZED (
            SELECT stamped_at FROM sweep_stamp WHERE namespace_id = $1 FOR NO KEY UPDATE
        ), judged AS MATERIALIZED (
            SELECT stamped_at, roadstead_now() AS now FROM locked
        ), away AS (
            INSERT INTO outage (namespace_id, from_at, until_at)
            SELECT $1, stamped_at, now + $3::bigint * interval '1 microsecond' FROM judged
            WHERE now > stamped_at + $2::bigint * interval '1 microsecond'
            ON CONFLICT (namespace_id, from_at) DO UPDATE SET until_at = greatest(outage.until_at, excluded.until_at)
            RETURNING until_at
        ), stamped AS (
            INSERT INTO sweep_stamp (namespace_id, stamped_at) VALUES ($1, roadstead_now())
            ON CONFLICT (namespace_id) DO UPDATE SET stamped_at = greatest(sweep_stamp.stamped_at, excluded.stamped_at)
        )
        SELECT greatest((SELECT max(until_at) FROM away),
                        (SELECT max(until_at) FROM outage WHERE namespace_id = $1
                             AND until_at > (SELECT roadstead_now()))) AS until_at"#,
        namespace.0,
        super::rows::micros(tolerated),
        super::rows::micros(grace),
    )
    .fetch_one(conn)
    .await?;
    Ok(row.until_at)
}

/// When the amnesty ends that is on now, if one is.
///
/// # Errors
/// Of the database.
pub async fn amnesty(conn: &mut PgConnection, namespace: NamespaceId) -> Result<Option<Timestamp>> {
    Ok(sqlx::query_scalar!(
        r#"/* store::presence::amnesty */
        SELECT max(until_at) FROM outage WHERE namespace_id = $1 AND until_at > (SELECT roadstead_now())"#,
        namespace.0,
    )
    .fetch_one(conn)
    .await?)
}
