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

/// Reads the feed after a position: at most `limit` events, out of at most [`SCAN`] positions.
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
    let rows = sqlx::query!(
        r#"/* store::feed::page */
        WITH looked_at AS MATERIALIZED (
            SELECT position, dag_name, run_id, run_seq FROM feed_entry
            WHERE namespace_id = $1 AND position > $2 ORDER BY position LIMIT 5000
        )
        SELECT (SELECT max(position) FROM looked_at) AS "seen?", f.position AS "position?", f.dag_name AS "dag_name?",
               f.run_id AS "run_id?", f.run_seq AS "run_seq?", f.event_id AS "event_id?", f.type AS "kind?",
               f.occurred_at AS "occurred_at?", f.data AS "data?"
        FROM (SELECT) one LEFT JOIN (
            SELECT l.position, l.dag_name, l.run_id, l.run_seq, e.event_id, e.type, e.occurred_at, e.data
            FROM looked_at l
            CROSS JOIN LATERAL (
                SELECT event_id, type, occurred_at, data FROM event
                WHERE namespace_id = $1 AND dag_name = l.dag_name AND run_id = l.run_id AND run_seq = l.run_seq LIMIT 1) e
            WHERE ($3::text IS NULL OR e.type = $3)
              AND ($4::text IS NULL OR l.dag_name = $4)
              AND ($5::text IS NULL OR l.run_id = $5)
              AND (($6::text IS NULL AND $7::text IS NULL) OR EXISTS (
                    SELECT FROM run r
                    WHERE r.namespace_id = $1 AND r.dag_name = l.dag_name AND r.run_id = l.run_id
                      AND ($6::text IS NULL OR r.root_run_id = $6) AND ($7::text IS NULL OR r.parent_run_id = $7)))
            ORDER BY l.position LIMIT $8
        ) f ON true
        ORDER BY f.position"#,
        namespace.0,
        after,
        filter.kind,
        filter.dag_name.as_ref().map(DagName::as_str),
        filter.run_id.as_ref().map(RunId::as_str),
        filter.root_run_id.as_ref().map(RunId::as_str),
        filter.parent_run_id.as_ref().map(RunId::as_str),
        limit,
    )
    .fetch_all(conn)
    .await?;
    let mut page = Page { entries: Vec::new(), seen: rows.first().and_then(|row| row.seen).unwrap_or(after) };
    for row in rows {
        if let (Some(position), Some(dag_name), Some(run_id), Some(run_seq), Some(event_id), Some(kind)) =
            (row.position, row.dag_name, row.run_id, row.run_seq, row.event_id, row.kind)
        {
            page.entries.push(Entry {
                position,
                key: rows::key(dag_name, run_id)?,
                event: Event {
                    event_id,
                    run_seq,
                    kind: rows::word("event.type", &kind, EventType::from_word)?,
                    occurred_at: row.occurred_at.unwrap_or_default(),
                    data: row.data.unwrap_or_default(),
                },
            });
        }
    }
    if i64::try_from(page.entries.len()).is_ok_and(|count| count == limit) {
        // More may stand between the last one given and the last one looked at.
        page.seen = page.entries.last().map_or(page.seen, |entry| entry.position);
    }
    Ok(page)
}
