//! Events: written with their change by `create` and `save`, read here in the run's order.

use sqlx::PgConnection;
use sqlx::types::Uuid;

use super::error::Result;
use super::rows;
use crate::domain::Timestamp;
use crate::domain::event::EventType;
use crate::ids::{NamespaceId, RunKey};

/// An event to be written with its transition, which has its type, its time and its place.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// Its id.
    pub id: Uuid,
    /// JSON: the run's snapshot, and what it asks for.
    pub data: String,
}

/// An event as it was written.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its id.
    pub event_id: Uuid,
    /// The run's version that it made.
    pub run_seq: i64,
    /// What happened.
    pub kind: EventType,
    /// When.
    pub occurred_at: Timestamp,
    /// JSON: the run's snapshot, and what it asks for.
    pub data: String,
}

/// A run's events after `after`, in order, at most `limit`.
///
/// # Errors
/// Of the database.
pub async fn of_run(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    key: &RunKey,
    after: i64,
    limit: i64,
) -> Result<Vec<Event>> {
    let rows = sqlx::query!(
        r#"/* store::event::of_run */
        SELECT event_id, run_seq, type AS kind, occurred_at, data FROM event
        WHERE namespace_id = $1 AND dag_name = $2 AND run_id = $3 AND run_seq > $4
        ORDER BY run_seq LIMIT $5"#,
        namespace.0,
        key.dag_name.as_str(),
        key.run_id.as_str(),
        after,
        limit,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(Event {
                event_id: row.event_id,
                run_seq: row.run_seq,
                kind: rows::word("event.type", &row.kind, EventType::from_word)?,
                occurred_at: row.occurred_at,
                data: row.data,
            })
        })
        .collect()
}
