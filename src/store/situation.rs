//! How the workers stand to a selector, at one moment.

use std::sync::Arc;

use sqlx::PgConnection;

use super::error::Result;
use crate::domain::condition::Situation;
use crate::ids::{NamespaceId, SelectorNo};

/// A situation, with the last label set number that was taken when it was read: a reader who knows fewer label sets
/// has to learn the rest and look again.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// What was seen.
    pub situation: Situation,
    /// The namespace's counter then.
    pub last_label_set_no: i64,
}

/// The statement, for one selector or for many: what stands for the selector's number, where selectors come from, and
/// what stands for the label sets that fit one.
macro_rules! situation {
    ($name:literal, $no:literal, $selectors:literal, $fitting:literal, $($argument:expr),+) => {
        sqlx::query!(
            "/* store::situation::" + $name + r#" */
            WITH clock AS MATERIALIZED (SELECT roadstead_now() AS now)
            SELECT "# + $no + r#" AS "selector_no!", c.now AS "now!", n.last_label_set_no, m.present_from AS "matched_from?",
                (m.present_from IS NOT NULL OR EXISTS (
                    SELECT FROM worker_session s
                    WHERE s.namespace_id = $1 AND s.ended_at IS NULL AND s.present_from IS NOT NULL
                      AND s.last_seen + s.stale_after > c.now)) AS "any_healthy!",
                (m.present_from IS NOT NULL AND EXISTS (
                    SELECT FROM worker_session s
                    WHERE s.namespace_id = $1 AND s.ended_at IS NULL AND s.label_set_no = ANY("# + $fitting + r#")
                      AND s.present_from IS NOT NULL AND s.last_seen + s.stale_after > c.now
                      AND s.slots > (SELECT count(*) FROM task t
                                     WHERE t.namespace_id = $1 AND t.worker_id = s.worker_id
                                       AND t.session_id = s.session_id AND t.claim_until IS NOT NULL)
                                  + (SELECT count(*) FROM attempt a
                                     WHERE a.namespace_id = $1 AND a.worker_id = s.worker_id
                                       AND a.session_id = s.session_id AND a.status = 'running'))) AS "free!",
                (m.present_from IS NULL AND EXISTS (
                    SELECT FROM worker_session s
                    WHERE s.namespace_id = $1 AND s.ended_at IS NULL AND s.label_set_no = ANY("# + $fitting + r#")
                      AND s.present_from IS NULL AND s.last_seen + s.stale_after > c.now)) AS "draining!",
                CASE WHEN m.present_from IS NULL THEN greatest(
                    (SELECT max(p.until_at) FROM unnest("# + $fitting + r#"::bigint[]) AS f(label_set_no)
                     CROSS JOIN LATERAL (SELECT until_at FROM presence
                                         WHERE namespace_id = $1 AND label_set_no = f.label_set_no
                                           AND until_at > from_at
                                         ORDER BY until_at DESC LIMIT 1) p),
                    (SELECT max(s.last_seen + s.stale_after) FROM worker_session s
                     WHERE s.namespace_id = $1 AND s.ended_at IS NULL AND s.label_set_no = ANY("# + $fitting + r#")
                       AND s.present_from IS NOT NULL),
                    (SELECT max(until_at) FROM outage WHERE namespace_id = $1)) END AS "gap_from?"
            FROM clock c
            JOIN namespace n ON n.namespace_id = $1 "# + $selectors + r#"
            LEFT JOIN LATERAL (
                SELECT s.present_from FROM worker_session s
                WHERE s.namespace_id = $1 AND s.ended_at IS NULL AND s.label_set_no = ANY("# + $fitting + r#")
                  AND s.present_from IS NOT NULL AND s.last_seen + s.stale_after > c.now
                LIMIT 1
            ) m ON true"#,
            $($argument),+
        )
    };
}

/// What either statement answers.
macro_rules! seen {
    ($row:expr) => {
        Seen {
            situation: Situation {
                at: $row.now,
                any_healthy: $row.any_healthy,
                matched: $row.matched_from.is_some(),
                free: $row.free,
                draining: $row.draining,
                since: $row.matched_from.or($row.gap_from),
            },
            last_label_set_no: $row.last_label_set_no,
        }
    };
}

/// Reads the situation of a selector that these label sets fit.
///
/// Stops at the first session that fits, so its cost grows only with fitting sessions that have no free slot.
///
/// # Errors
/// Of the database.
pub async fn read(conn: &mut PgConnection, namespace: NamespaceId, fitting: &[i64]) -> Result<Seen> {
    let row = situation!("read", "0::bigint", "", "(SELECT $2::bigint[])::bigint[]", namespace.0, fitting)
        .fetch_one(conn)
        .await?;
    Ok(seen!(row))
}

/// Reads the situations of several selectors, each with the label sets that fit it, at one moment and by one statement.
/// The answers are in no certain order.
///
/// # Errors
/// Of the database.
pub async fn read_all(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    selectors: &[(SelectorNo, Arc<Vec<i64>>)],
) -> Result<Vec<(SelectorNo, Seen)>> {
    let nos: Vec<i64> = selectors.iter().map(|(no, _)| no.0).collect();
    // All that fit, one selector after the other, and where those of each end.
    let all: Vec<i64> = selectors.iter().flat_map(|(_, fitting)| fitting.iter().copied()).collect();
    let ends = selectors.iter().scan(0, |end, (_, fitting)| {
        *end += fitting.len();
        i32::try_from(*end).ok()
    });
    let ends: Vec<i32> = ends.collect();
    let starts: Vec<i32> = std::iter::once(1).chain(ends.iter().map(|end| end + 1)).take(ends.len()).collect();
    let rows = situation!(
        "read_all",
        "k.no",
        "CROSS JOIN (
             SELECT u.no, ($3::bigint[])[u.starts:u.ends] AS fitting
             FROM unnest($2::bigint[], $4::int[], $5::int[]) AS u(no, starts, ends) OFFSET 0) k",
        "k.fitting",
        namespace.0,
        &nos,
        &all,
        &starts,
        &ends
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (SelectorNo(row.selector_no), seen!(row))).collect())
}
