//! Workers: how they are read and listed, and how they say goodbye.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::cursor::Mark;
use super::{DEFAULT_LIMIT, MAX_LIMIT, MAX_REASON_BYTES};
use crate::coordinator::list::WorkerFilter;
use crate::coordinator::workers::WorkerView;
use crate::domain::labels::{Labels, LabelsSchema};
use crate::domain::session::WorkerState;
use crate::http::extract::query::read as query;
use crate::http::extract::{Fields, FromFields, Reading, Settings, read};
use crate::ids::SessionId;

/// A worker as people read it, with its latest session.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[expect(clippy::struct_field_names, reason = "the fields are named as the contract names them")]
pub struct Worker {
    /// The worker's name.
    pub worker_id: String,
    /// Its latest session.
    pub session_id: String,
    /// `healthy`, `draining`, `stale` or `ended`; more may be added.
    #[schema(value_type = String, example = "healthy")]
    pub state: WorkerState,
    /// What it offers.
    #[schema(value_type = LabelsSchema)]
    pub labels: Labels,
    /// Keys that a run's selector must mention, else it is no match.
    pub exclusive: BTreeSet<String>,
    /// How many tasks it may have at a time.
    #[schema(minimum = 1, maximum = 10_000)]
    pub slots: i32,
    /// How many it was given and has not acknowledged.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub claimed: i64,
    /// How many it is at.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub running: i64,
    /// The version of its program.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub version: Option<String>,
    /// Its last sign of life.
    pub last_seen_at: DateTime<Utc>,
    /// Whether an operator drains it.
    pub drain: bool,
    /// Why, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub drain_comment: Option<String>,
}

impl From<WorkerView> for Worker {
    fn from(view: WorkerView) -> Self {
        Self {
            worker_id: view.worker_id.into(),
            session_id: view.session_id.into(),
            state: view.state,
            labels: view.labels,
            exclusive: view.exclusive,
            slots: view.slots,
            claimed: view.claimed,
            running: view.running,
            version: view.version,
            last_seen_at: view.last_seen_at,
            drain: view.drain,
            drain_comment: view.drain_comment,
        }
    }
}

/// An operator's word on whether a worker is given tasks.
#[derive(Debug, Clone, PartialEq, Eq, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// Whether it is given no more tasks, whatever session it is in. It finishes what it has.
    pub drain: bool,
    /// Why, for people; gone when the drain is undone.
    #[schema(nullable = false, max_length = 4096)]
    pub comment: Option<String>,
}

impl FromFields for DrainRequest {
    const READING: Reading = Reading::Strict;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        let drain = fields.required("drain", read::boolean);
        let comment = fields.optional("comment", read::text_up_to(MAX_REASON_BYTES));
        Some(Self { drain: drain?, comment })
    }
}

/// A page of workers.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct WorkerList {
    /// The workers, by name. They may be fewer than `limit`, even none, although more follow.
    pub workers: Vec<Worker>,
    /// What to send as `cursor` for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next_cursor: Option<String>,
}

/// Which workers to list. All that is given must hold.
#[derive(Debug, Clone, PartialEq, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListWorkers {
    /// Workers that offer all of these labels: `key=value,key=value`.
    #[param(value_type = String, required = false, example = "zone=b,gpu=a100")]
    pub label: Labels,
    /// `healthy`, `draining`, `stale` or `ended`.
    #[param(value_type = Option<String>, nullable = false, pattern = "^(healthy|draining|stale|ended)$")]
    pub state: Option<WorkerState>,
    /// At most this many; 50 when absent.
    #[param(required = false, minimum = 1, maximum = 500)]
    pub limit: i64,
    /// The `next_cursor` of the page before, with all other parameters but `limit` as they were.
    #[param(value_type = Option<String>, nullable = false)]
    pub cursor: Option<String>,
}

impl ListWorkers {
    /// What tells this list's cursors from those of others.
    pub fn mark(&self) -> Mark {
        Mark::of("workers", (&self.label, self.state))
    }
}

impl FromFields for ListWorkers {
    const READING: Reading = Reading::Strict;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        let label = fields.or("label", Labels::new(), query::labels);
        let state = fields.optional("state", query::word(WorkerState::ALL, WorkerState::as_str));
        let limit = fields.or("limit", DEFAULT_LIMIT, query::integer(1, MAX_LIMIT));
        // What is wrong is noted; what stands for it here is not used.
        let (label, limit) = (label.unwrap_or_default(), limit.unwrap_or(DEFAULT_LIMIT));
        let mut list = Self { label, state, limit, cursor: None };
        list.cursor = fields.dependent("cursor", |cursor| list.mark().read(cursor));
        Some(list)
    }
}

impl From<ListWorkers> for WorkerFilter {
    fn from(list: ListWorkers) -> Self {
        Self { labels: list.label, state: list.state }
    }
}

/// Which session says goodbye.
#[derive(Debug, Clone, PartialEq, Eq, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Deregister {
    /// The session; the latest one, whichever it is, when absent.
    #[param(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255)]
    pub session_id: Option<SessionId>,
}

impl FromFields for Deregister {
    const READING: Reading = Reading::Strict;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        Some(Self { session_id: fields.optional("session_id", query::name) })
    }
}
