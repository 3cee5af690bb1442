//! Pages: which runs and which workers are next in a list.
//!
//! A list has one statement per access path and direction, chosen in Rust, so that each reads its index in the order of
//! the answer and begins where the page before it ended. What the index cannot tell is checked row by row, on a window
//! of [`WINDOW`] rows: a page never costs more than that, may be short for it, and says then where the next one begins.
//! The file is long because the paths are to be compared with each other: apart, they would soon differ by accident.

use sqlx::PgConnection;

use super::error::Result;
use super::rows;
use crate::domain::Timestamp;
use crate::domain::labels::{self, Labels};
use crate::domain::run::{Run, Status};
use crate::domain::session::WorkerState;
use crate::ids::{DagName, NamespaceId, RunId, RunKey, WorkerId};

/// The most rows that one page looks at. Written out in the statements, so that every plan is made for it.
pub const WINDOW: i64 = 1_000;

/// Where a run stands in a list: lists are in the order of these. Names break the ties of time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// When it was first dispatched.
    pub created_at: Timestamp,
    /// Its DAG, as the row has it.
    pub dag_name: String,
    /// Its id, as the row has it.
    pub run_id: String,
}

impl Position {
    /// A run's position.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        Self { created_at: run.created_at, dag_name: run.key.dag_name.to_string(), run_id: run.key.run_id.to_string() }
    }

    /// Before every run of a moment, and after all of earlier ones: no name is empty.
    fn before_all_of(created_at: Timestamp) -> Self {
        Self { created_at, dag_name: String::new(), run_id: String::new() }
    }
}

/// A part of a list.
#[derive(Debug, Clone)]
pub struct Page<T, P> {
    /// What is on it, in order.
    pub items: Vec<T>,
    /// Where it ended, if more may follow: the next page is what comes after.
    pub next: Option<P>,
}

/// Which runs a list asks for. Absent filters let everything through.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    /// Their status.
    pub status: Option<Status>,
    /// Their DAG.
    pub dag_name: Option<DagName>,
    /// The run id of the run at the top of their family.
    pub root_run_id: Option<RunId>,
    /// The run id of the run that dispatched them.
    pub parent_run_id: Option<RunId>,
    /// The worker that has them, or had them last.
    pub worker_id: Option<WorkerId>,
    /// Labels they carry, all of them.
    pub labels: Labels,
    /// Dispatched at or after.
    pub created_after: Option<Timestamp>,
    /// Dispatched before.
    pub created_before: Option<Timestamp>,
    /// Oldest first, else newest first.
    pub oldest_first: bool,
}

/// The index a list of runs is read by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    Parent,
    Root,
    Worker,
    DagAndStatus,
    Unfinished,
    Finished,
    Label,
    Dag,
    Time,
}

impl RunFilter {
    /// The narrowest index that the filter allows. Families and workers are small; a label may be on every run, but what
    /// has not ended is few beside what has.
    fn path(&self) -> Path {
        match self.status {
            _ if self.parent_run_id.is_some() => Path::Parent,
            _ if self.root_run_id.is_some() => Path::Root,
            _ if self.worker_id.is_some() => Path::Worker,
            Some(_) if self.dag_name.is_some() => Path::DagAndStatus,
            Some(status) if !status.is_terminal() => Path::Unfinished,
            _ if !self.labels.is_empty() => Path::Label,
            Some(_) => Path::Finished,
            None if self.dag_name.is_some() => Path::Dag,
            None => Path::Time,
        }
    }

    /// Whether the index of this path tells all that the filter asks.
    fn is_told_by(&self, path: Path) -> bool {
        let mut rest = self.clone();
        match path {
            Path::Parent => rest.parent_run_id = None,
            Path::Root => rest.root_run_id = None,
            Path::Worker => rest.worker_id = None,
            Path::DagAndStatus => (rest.dag_name, rest.status) = (None, None),
            Path::Unfinished | Path::Finished => rest.status = None,
            Path::Label => _ = rest.labels.pop_first(),
            Path::Dag => rest.dag_name = None,
            Path::Time => {}
        }
        rest.status.is_none()
            && rest.dag_name.is_none()
            && rest.root_run_id.is_none()
            && rest.parent_run_id.is_none()
            && rest.worker_id.is_none()
            && rest.labels.is_empty()
    }

    /// Behind which position a page begins that follows `after`.
    fn start(&self, after: Option<&Position>) -> Position {
        let time =
            if self.oldest_first { self.created_after.unwrap_or(FIRST) } else { self.created_before.unwrap_or(LAST) };
        let first = Position::before_all_of(time);
        match after.cloned() {
            Some(after) if self.oldest_first => after.max(first),
            Some(after) => after.min(first),
            None => first,
        }
    }

    /// Whether the list goes on as far as this position.
    fn reaches(&self, at: &Position) -> bool {
        if self.oldest_first {
            self.created_before.is_none_or(|before| at.created_at < before)
        } else {
            self.created_after.is_none_or(|after| at.created_at >= after)
        }
    }
}

/// Before and after all that the database's clock has ever shown when a run was dispatched.
const FIRST: Timestamp = Timestamp::UNIX_EPOCH;
const LAST: Timestamp = Timestamp::from_timestamp_nanos(i64::MAX);

/// The part of a list of runs that follows `after`: at most `limit`, and at most those among the next [`WINDOW`].
///
/// # Errors
/// Of the database.
#[expect(clippy::too_many_lines, reason = "one statement per access path, side by side, to be compared")]
pub async fn keys(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    filter: &RunFilter,
    after: Option<&Position>,
    limit: i64,
) -> Result<Page<RunKey, Position>> {
    let path = filter.path();
    let from = filter.start(after);
    let labels = (!filter.labels.is_empty()).then(|| serde_json::json!(filter.labels));

    /// The statement of a path in one direction: `$inner` is what its index tells, in order.
    macro_rules! select {
        ($name:literal, $direction:literal, $order:literal, $($inner:literal)+) => {
            sqlx::query!(
                "/* store::list::keys (" + $name + ", " + $direction
                    + r#") */
                SELECT k.created_at AS "created_at!", k.dag_name AS "dag_name!", k.run_id AS "run_id!",
                       k.fits AS "fits!", k.at = 1000 AS "last!"
                FROM (
                    SELECT s.created_at, s.dag_name, s.run_id, row_number() OVER (ORDER BY "# + $order + r#") AS at,
                           coalesce($5::boolean OR (
                               SELECT ($6::text IS NULL OR r.status = $6)
                                  AND ($7::text IS NULL OR r.dag_name = $7)
                                  AND ($8::text IS NULL OR r.root_run_id = $8)
                                  AND ($9::text IS NULL OR r.parent_run_id = $9)
                                  AND ($10::text IS NULL OR $10 = coalesce(r.worker_id, (
                                      SELECT t.worker_id FROM task t
                                      WHERE t.namespace_id = $1 AND t.attempt_id = r.attempt_id
                                        AND t.claim_until IS NOT NULL LIMIT 1)))
                                  AND ($11::jsonb IS NULL OR r.labels @> $11)
                               FROM run r
                               WHERE r.namespace_id = $1 AND r.dag_name = s.dag_name AND r.run_id = s.run_id LIMIT 1
                           ), false) AS fits
                    FROM ("# $(+ $inner)+ + " ORDER BY " + $order + " LIMIT 1000) s
                ) k
                WHERE k.fits OR k.at = 1000
                ORDER BY " + $order + " LIMIT $12",
                namespace.0,
                from.created_at,
                from.dag_name,
                from.run_id,
                filter.is_told_by(path),
                filter.status.map(Status::as_str),
                filter.dag_name.as_ref().map(DagName::as_str),
                filter.root_run_id.as_ref().map(RunId::as_str),
                filter.parent_run_id.as_ref().map(RunId::as_str),
                filter.worker_id.as_ref().map(WorkerId::as_str),
                labels,
                limit + 1,
            )
            .fetch_all(conn)
            .await?
            .into_iter()
            .map(|row| Seen {
                at: Position { created_at: row.created_at, dag_name: row.dag_name, run_id: row.run_id },
                fits: row.fits,
                last: row.last,
            })
            .collect::<Vec<_>>()
        };
    }
    /// A path that is one stretch of one index: the table, and what is equal in it.
    macro_rules! stretch {
        ($name:literal, $direction:literal, $order:literal, $after:literal, $table:literal, $equal:literal) => {
            select!(
                $name, $direction, $order,
                "SELECT created_at, dag_name, run_id FROM " $table " WHERE namespace_id = $1 " $equal " AND " $after
            )
        };
    }
    /// The runs of a worker, and those it was given and has not acknowledged, which are queued and not its own yet.
    macro_rules! worker {
        ($name:literal, $direction:literal, $order:literal, $after:literal) => {
            select!(
                $name, $direction, $order,
                "(SELECT created_at, dag_name, run_id FROM run
                  WHERE namespace_id = $1 AND worker_id = $10 AND " $after
                " ORDER BY " $order " LIMIT 1000)
                 UNION ALL
                 (SELECT created_at, dag_name, run_id FROM (
                      SELECT r.created_at, r.dag_name, r.run_id FROM task t
                      CROSS JOIN LATERAL (
                          SELECT created_at, dag_name, run_id FROM run
                          WHERE namespace_id = $1 AND dag_name = t.dag_name AND run_id = t.run_id
                            AND attempt_id = t.attempt_id AND status = 'queued' LIMIT 1) r
                      WHERE t.namespace_id = $1 AND t.worker_id = $10 AND t.claim_until IS NOT NULL) c
                  WHERE " $after
                " ORDER BY " $order " LIMIT 1000)"
            )
        };
    }
    /// The runs of a DAG: its statuses merged, so that one index serves it with a status and without.
    macro_rules! dag {
        ($name:literal, $direction:literal, $order:literal, $after:literal, $first:literal $(, $more:literal)+) => {
            select!(
                $name, $direction, $order,
                "(SELECT created_at, dag_name, run_id FROM run
                  WHERE namespace_id = $1 AND dag_name = $7 AND status = '" $first "' AND " $after
                " ORDER BY " $order " LIMIT 1000)"
                $(
                " UNION ALL
                 (SELECT created_at, dag_name, run_id FROM run
                  WHERE namespace_id = $1 AND dag_name = $7 AND status = '" $more "' AND " $after
                " ORDER BY " $order " LIMIT 1000)"
                )+
            )
        };
    }
    /// A path in the direction asked for.
    macro_rules! directed {
        ($kind:ident, $name:literal $(, $rest:literal)*) => {
            if filter.oldest_first {
                $kind!(
                    $name,
                    "oldest",
                    "created_at, dag_name, run_id",
                    "(created_at, dag_name, run_id) > ($2, $3, $4)"
                    $(, $rest)*
                )
            } else {
                $kind!(
                    $name,
                    "newest",
                    "created_at DESC, dag_name DESC, run_id DESC",
                    "(created_at, dag_name, run_id) < ($2, $3, $4)"
                    $(, $rest)*
                )
            }
        };
    }
    /// The same within one DAG, whose name must not stand in the order: the planner would sort by it once more.
    macro_rules! directed_in_dag {
        ($kind:ident, $name:literal $(, $rest:literal)*) => {
            if filter.oldest_first {
                $kind!(
                    $name,
                    "oldest",
                    "created_at, run_id",
                    "(created_at, dag_name, run_id) > ($2, $3, $4)"
                    $(, $rest)*
                )
            } else {
                $kind!(
                    $name,
                    "newest",
                    "created_at DESC, run_id DESC",
                    "(created_at, dag_name, run_id) < ($2, $3, $4)"
                    $(, $rest)*
                )
            }
        };
    }
    let mut seen = match path {
        Path::Parent => directed!(stretch, "parent", "run", "AND parent_run_id = $9"),
        Path::Root => directed!(stretch, "root", "run", "AND root_run_id = $8"),
        Path::Worker => directed!(worker, "worker"),
        Path::DagAndStatus => {
            directed_in_dag!(stretch, "dag and status", "run", "AND dag_name = $7 AND status = $6")
        }
        Path::Unfinished => directed!(stretch, "unfinished", "run", "AND status = $6 AND finished_at IS NULL"),
        Path::Finished => directed!(stretch, "finished", "run", "AND status = $6 AND finished_at IS NOT NULL"),
        // Any one of the labels; the others are checked.
        Path::Label => directed!(
            stretch,
            "label",
            "run_label",
            "AND term = (SELECT key || '=' || value FROM jsonb_each_text($11) LIMIT 1)"
        ),
        Path::Dag => directed_in_dag!(
            dag,
            "dag",
            "queued",
            "running",
            "waiting",
            "succeeded",
            "partially_succeeded",
            "failed",
            "rejected",
            "aborted"
        ),
        Path::Time => directed!(stretch, "time", "run", ""),
    };
    // Where the list ends in time is not told to the statement: of two bounds whose values it does not know, the planner
    // believes that they leave next to nothing, and sorts.
    let within = seen.iter().take_while(|seen| filter.reaches(&seen.at)).count();
    seen.truncate(within);
    let found = page(seen, limit);
    let items = found.items.into_iter().filter_map(|at| match rows::key(at.dag_name, at.run_id) {
        Ok(key) => Some(key),
        Err(error) => {
            tracing::error!(%error, "it is left out of lists");
            None
        }
    });
    Ok(Page { items: items.collect(), next: found.next })
}

/// What a list looked at: where, whether it passes the filter, and whether the window ends there.
struct Seen<P> {
    at: P,
    fits: bool,
    last: bool,
}

/// A page of what was seen, which is one more than the page holds if there is more.
fn page<P: Clone>(seen: Vec<Seen<P>>, limit: i64) -> Page<P, P> {
    let limit = usize::try_from(limit).unwrap_or_default();
    let more = seen.len() > limit;
    let mut found = Page { items: Vec::with_capacity(seen.len().min(limit)), next: None };
    for Seen { at, fits, last } in seen.into_iter().take(limit) {
        found.next = (more || last).then(|| at.clone());
        if fits {
            found.items.push(at);
        }
    }
    found
}

/// Which workers a list asks for.
#[derive(Debug, Clone, Default)]
pub struct WorkerFilter {
    /// Labels they offer, all of them.
    pub labels: Labels,
    /// What they are to the matcher.
    pub state: Option<WorkerState>,
}

/// The part of the list of workers, by name, that follows `after`: at most `limit`, and at most those among the next
/// [`WINDOW`].
///
/// # Errors
/// Of the database.
pub async fn workers(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    filter: &WorkerFilter,
    after: Option<&str>,
    limit: i64,
) -> Result<Page<WorkerId, String>> {
    let terms: Vec<String> = filter.labels.iter().map(|(key, value)| labels::term(key, value)).collect();
    let told = terms.is_empty() && filter.state.is_none();

    /// The statement that goes through these sessions, each its worker's latest.
    macro_rules! select {
        ($name:literal, $inner:literal) => {
            sqlx::query!(
                "/* store::list::workers (" + $name + r#") */
                WITH clock AS MATERIALIZED (SELECT roadstead_now() AS now)
                SELECT k.worker_id AS "worker_id!", k.fits AS "fits!", k.at = 1000 AS "last!"
                FROM (
                    SELECT w.worker_id, row_number() OVER (ORDER BY worker_id) AS at, coalesce($3::boolean OR (
                               SELECT l.terms @> $4
                                  AND ($5::text IS NULL OR $5 = CASE
                                      WHEN s.ended_at IS NOT NULL THEN 'ended'
                                      WHEN (SELECT now FROM clock) >= s.last_seen + s.stale_after THEN 'stale'
                                      WHEN s.present_from IS NULL THEN 'draining' ELSE 'healthy' END)
                               FROM worker_session s
                               CROSS JOIN LATERAL (
                                   SELECT terms FROM label_set
                                   WHERE namespace_id = $1 AND label_set_no = s.label_set_no LIMIT 1) l
                               WHERE s.namespace_id = $1 AND s.worker_id = w.worker_id AND s.session_id = w.session_id
                               LIMIT 1
                           ), false) AS fits
                    FROM (SELECT worker_id, session_id FROM "# + $inner + " AND worker_id > $2
                          ORDER BY worker_id LIMIT 1000) w
                ) k
                WHERE k.fits OR k.at = 1000
                ORDER BY worker_id LIMIT $6",
                namespace.0,
                after.unwrap_or_default(),
                told,
                &terms,
                filter.state.map(WorkerState::as_str),
                limit + 1,
            )
            .fetch_all(conn)
            .await?
            .into_iter()
            .map(|row| Seen { at: row.worker_id, fits: row.fits, last: row.last })
            .collect::<Vec<_>>()
        };
    }
    let seen = match filter.state {
        // The living are few beside all who ever were.
        Some(WorkerState::Healthy | WorkerState::Draining | WorkerState::Stale) => {
            select!("alive", "worker_session WHERE namespace_id = $1 AND ended_at IS NULL")
        }
        Some(WorkerState::Ended) | None => select!("all", "worker WHERE namespace_id = $1"),
    };
    let found = page(seen, limit);
    let items = found.items.into_iter().filter_map(|name| match rows::worker_id(name) {
        Ok(worker_id) => Some(worker_id),
        Err(error) => {
            tracing::error!(%error, "it is left out of lists");
            None
        }
    });
    Ok(Page { items: items.collect(), next: found.next })
}
