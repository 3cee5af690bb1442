//! The feed: stamping events with positions, and reading them in that order.

use sqlx::PgConnection;

use super::error::Result;
use super::event::Event;
use super::rows;
use crate::domain::event::EventType;
use crate::ids::{DagName, NamespaceId, RunId, RunKey};

/// How many positions a filtered read looks at before it answers with what it has.
pub const SCAN: i64 = 5_000;

/// Becomes the stamper of a namespace until the transaction ends, unless somebody else is.
///
/// A statement of its own: what it stamps is read by the *next* one, whose snapshot begins after the lock was had. In
/// one statement two stampers would publish the same events twice.
///
/// # Errors
/// Of the database.
pub async fn become_stamper(conn: &mut PgConnection, namespace: NamespaceId) -> Result<bool> {
    let locked = sqlx::query_scalar!(
        r#"/* store::feed::become_stamper */
        SELECT namespace_id FROM feed WHERE namespace_id = $1 FOR NO KEY UPDATE SKIP LOCKED"#,
        namespace.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(locked.is_some())
}

/// Gives the next positions to up to 1,000 unstamped events, in the order of their numbers, which within a run is the
/// run's. Answers the last position given.
///
/// # Errors
/// Of the database.
pub async fn stamp(conn: &mut PgConnection, namespace: NamespaceId) -> Result<i64> {
    Ok(sqlx::query_scalar!(
        r#"/* store::feed::stamp */
        WITH taken AS (
            DELETE FROM event_unstamped u USING (
                SELECT unstamped_no FROM event_unstamped
                WHERE namespace_id = $1 ORDER BY unstamped_no LIMIT 1000
            ) first
            WHERE u.namespace_id = $1 AND u.unstamped_no = first.unstamped_no
            RETURNING u.unstamped_no, u.dag_name, u.run_id, u.run_seq
        ), moved AS (
            UPDATE feed SET next_position = next_position + (SELECT count(*) FROM taken)
            WHERE namespace_id = $1
            RETURNING next_position
        ), entered AS (
            INSERT INTO feed_entry (namespace_id, position, dag_name, run_id, run_seq)
            SELECT $1, m.next_position - (SELECT count(*) FROM taken) - 1 + row_number() OVER (ORDER BY t.unstamped_no),
                   t.dag_name, t.run_id, t.run_seq
            FROM taken t CROSS JOIN moved m
            RETURNING position
        )
        SELECT m.next_position - 1 AS "last!" FROM moved m"#,
        namespace.0,
    )
    .fetch_one(conn)
    .await?)
}

/// Whether a namespace has unstamped events.
///
/// # Errors
/// Of the database.
pub async fn has_unstamped(conn: &mut PgConnection, namespace: NamespaceId) -> Result<bool> {
    let found = sqlx::query_scalar!(
        r#"/* store::feed::has_unstamped */
        SELECT unstamped_no FROM event_unstamped WHERE namespace_id = $1 ORDER BY unstamped_no LIMIT 1"#,
        namespace.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(found.is_some())
}

/// The first position that is kept and the last that was given: 1 and 0 while the feed is empty.
///
/// # Errors
/// Of the database.
pub async fn bounds(conn: &mut PgConnection, namespace: NamespaceId) -> Result<(i64, i64)> {
    let row = sqlx::query!(
        r#"/* store::feed::bounds */
        SELECT first_position, next_position - 1 AS "last!" FROM feed WHERE namespace_id = $1"#,
        namespace.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map_or((1, 0), |row| (row.first_position, row.last)))
}

/// Which events a reader asks for. Absent filters let everything through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Their type.
    pub kind: Option<String>,
    /// Their run's DAG.
    pub dag_name: Option<DagName>,
    /// Their run's id.
    pub run_id: Option<RunId>,
    /// The run id of the run at the top of their run's family.
    pub root_run_id: Option<RunId>,
    /// The run id of the run that dispatched their run.
    pub parent_run_id: Option<RunId>,
}

/// An event with its place in the feed.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its position.
    pub position: i64,
    /// Its run.
    pub key: RunKey,
    /// The event.
    pub event: Event,
}

/// A stretch of the feed.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The events that pass the filter, by position.
    pub entries: Vec<Entry>,
    /// The last position that was looked at: where the next page begins.
    pub seen: i64,
}

/// Reads the feed after a position: at most `limit` events; those of a filter out of at most [`SCAN`] positions.
///
/// # Errors
/// Of the database.
pub async fn page(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    after: i64,
    filter: &EventFilter,
    limit: i64,
) -> Result<Page> {
    // Read first: what is stamped from here on belongs to the next page, whatever the filter says of it.
    let end = if *filter == EventFilter::default() { i64::MAX } else { window(conn, namespace, after).await? };
    let rows = sqlx::query!(
        r#"/* store::feed::page */
        SELECT f.position, f.dag_name, f.run_id, f.run_seq, e.event_id, e.type AS kind, e.occurred_at, e.data
        FROM feed_entry f
        CROSS JOIN LATERAL (
            SELECT event_id, type, occurred_at, data FROM event
            WHERE namespace_id = $1 AND dag_name = f.dag_name AND run_id = f.run_id AND run_seq = f.run_seq LIMIT 1) e
        WHERE f.namespace_id = $1 AND f.position > $2 AND f.position <= $3
          AND ($4::text IS NULL OR e.type = $4)
          AND ($5::text IS NULL OR f.dag_name = $5)
          AND ($6::text IS NULL OR f.run_id = $6)
          AND (($7::text IS NULL AND $8::text IS NULL) OR EXISTS (
                SELECT FROM run r
                WHERE r.namespace_id = $1 AND r.dag_name = f.dag_name AND r.run_id = f.run_id
                  AND ($7::text IS NULL OR r.root_run_id = $7) AND ($8::text IS NULL OR r.parent_run_id = $8)))
        ORDER BY f.position LIMIT $9"#,
        namespace.0,
        after,
        end,
        filter.kind,
        filter.dag_name.as_ref().map(DagName::as_str),
        filter.run_id.as_ref().map(RunId::as_str),
        filter.root_run_id.as_ref().map(RunId::as_str),
        filter.parent_run_id.as_ref().map(RunId::as_str),
        limit,
    )
    .fetch_all(conn)
    .await?;
    let entries = rows.into_iter().map(|row| {
        Ok(Entry {
            position: row.position,
            key: rows::key(row.dag_name, row.run_id)?,
            event: Event {
                event_id: row.event_id,
                run_seq: row.run_seq,
                kind: rows::word("event.type", &row.kind, EventType::from_word)?,
                occurred_at: row.occurred_at,
                data: row.data,
            },
        })
    });
    let entries = entries.collect::<Result<Vec<Entry>>>()?;
    let full = i64::try_from(entries.len()).is_ok_and(|count| count == limit);
    let last = entries.last().map(|entry| entry.position);
    // A full page ends with its last event; any other has seen all there was, up to where its filter looked.
    let seen = if full || end == i64::MAX { last.unwrap_or(after) } else { end };
    Ok(Page { entries, seen })
}

/// How far a filtered read after a position looks.
async fn window(conn: &mut PgConnection, namespace: NamespaceId, after: i64) -> Result<i64> {
    Ok(sqlx::query_scalar!(
        r#"/* store::feed::window */
        SELECT coalesce(max(position), $2) AS "end!" FROM (
            SELECT position FROM feed_entry
            WHERE namespace_id = $1 AND position > $2 ORDER BY position LIMIT 5000) w"#,
        namespace.0,
        after,
    )
    .fetch_one(conn)
    .await?)
}
