//! Runs: how they are listed, read and cancelled.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::cursor::Mark;
use super::raw::RawJson;
use super::{DEFAULT_LIMIT, MAX_INTEGER, MAX_LIMIT, MAX_REASON_BYTES, MAX_WAIT};
use crate::coordinator::list::{Position, RunFilter};
use crate::coordinator::runs::{RunDetail, Wait, WaitFor};
use crate::domain::condition::Reason;
use crate::domain::labels::Labels;
use crate::domain::run::Status;
use crate::domain::snapshot::RunSnapshot;
use crate::http::extract::query::read as query;
use crate::http::extract::{Fields, FromFields, Reading, Settings, read};
use crate::ids::{DagName, RunId, WorkerId};

/// Which end of a list comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The oldest first.
    Oldest,
    /// The newest first.
    Newest,
}

impl Order {
    const ALL: &'static [Self] = &[Self::Oldest, Self::Newest];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Oldest => "oldest",
            Self::Newest => "newest",
        }
    }
}

/// Which runs to list. All that is given must hold.
#[derive(Debug, Clone, PartialEq, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListRuns {
    /// Runs that stand there.
    #[param(nullable = false)]
    pub status: Option<Status>,
    /// Runs of this DAG.
    #[param(value_type = Option<String>, nullable = false)]
    pub dag_name: Option<DagName>,
    /// Runs whose root has this run id.
    #[param(value_type = Option<String>, nullable = false)]
    pub root_run_id: Option<RunId>,
    /// Runs whose parent has this run id.
    #[param(value_type = Option<String>, nullable = false)]
    pub parent_run_id: Option<RunId>,
    /// Runs that this worker has, or had last.
    #[param(value_type = Option<String>, nullable = false)]
    pub worker_id: Option<WorkerId>,
    /// Runs with all of these labels: `key=value,key=value`.
    #[param(value_type = String, required = false, example = "team=data,tier=1")]
    pub label: Labels,
    /// Runs first dispatched at or after this time.
    #[param(nullable = false)]
    pub created_after: Option<DateTime<Utc>>,
    /// Runs first dispatched before this time.
    #[param(nullable = false)]
    pub created_before: Option<DateTime<Utc>>,
    /// Queued runs whose conditions give this reason, such as `NoMatchingWorker`.
    #[param(value_type = Option<String>, nullable = false, example = "NoMatchingWorker")]
    pub reason: Option<Reason>,
    /// Which come first; `newest` when absent.
    #[param(nullable = false)]
    pub order: Option<Order>,
    /// At most this many; 50 when absent.
    #[param(required = false, minimum = 1, maximum = 500)]
    pub limit: i64,
    /// The `next_cursor` of the page before, with all other parameters but `limit` as they were.
    #[param(value_type = Option<String>, nullable = false)]
    pub cursor: Option<Position>,
}

impl ListRuns {
    /// What tells this list's cursors from those of others.
    pub fn mark(&self) -> Mark {
        let families = (&self.root_run_id, &self.parent_run_id);
        let which = (self.status, &self.dag_name, families, &self.worker_id, &self.label, self.reason);
        Mark::of("runs", (which, self.created_after, self.created_before, self.oldest_first()))
    }

    fn oldest_first(&self) -> bool {
        self.order == Some(Order::Oldest)
    }
}

impl FromFields for ListRuns {
    const READING: Reading = Reading::Strict;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        let status = fields.optional("status", query::word(Status::ALL, Status::as_str));
        let dag_name = fields.optional("dag_name", query::name);
        let root_run_id = fields.optional("root_run_id", query::name);
        let parent_run_id = fields.optional("parent_run_id", query::name);
        let worker_id = fields.optional("worker_id", query::name);
        let label = fields.or("label", Labels::new(), query::labels);
        let created_after = fields.optional("created_after", query::time);
        let created_before = fields.optional("created_before", query::time);
        let reason = fields.optional("reason", query::word(Reason::ALL, Reason::as_str));
        let order = fields.optional("order", query::word(Order::ALL, Order::as_str));
        let limit = fields.or("limit", DEFAULT_LIMIT, query::integer(1, MAX_LIMIT));
        let mut list = Self {
            status,
            dag_name,
            root_run_id,
            parent_run_id,
            worker_id,
            // What is wrong is noted; what stands for it here is not used.
            label: label.unwrap_or_default(),
            created_after,
            created_before,
            reason,
            order,
            limit: limit.unwrap_or(DEFAULT_LIMIT),
            cursor: None,
        };
        list.cursor = fields.dependent("cursor", |cursor| list.mark().read(cursor));
        Some(list)
    }
}

impl From<ListRuns> for RunFilter {
    fn from(list: ListRuns) -> Self {
        Self {
            oldest_first: list.oldest_first(),
            status: list.status,
            dag_name: list.dag_name,
            root_run_id: list.root_run_id,
            parent_run_id: list.parent_run_id,
            worker_id: list.worker_id,
            labels: list.label,
            created_after: list.created_after,
            created_before: list.created_before,
        }
    }
}

/// A page of runs.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RunList {
    /// The runs, in the order asked for. They may be fewer than `limit`, even none, although more follow.
    pub runs: Vec<RunSnapshot>,
    /// What to send as `cursor` for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next_cursor: Option<String>,
}

/// What a read of a run may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = WaitFor)]
pub enum AwaitedChange {
    /// A version later than `since_version`, or than the present one.
    Change,
    /// Its end.
    Finished,
}

impl AwaitedChange {
    const ALL: &'static [Self] = &[Self::Change, Self::Finished];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Change => "change",
            Self::Finished => "finished",
        }
    }
}

/// What may be included on request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    /// The definition, the parameters, the context and what the attempt before came to.
    Payload,
}

/// How to read a run.
#[derive(Debug, Clone, PartialEq, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct GetRun {
    /// Answer when this has come about, or `wait_seconds` are over; `change` when absent.
    #[param(nullable = false)]
    pub wait_for: Option<AwaitedChange>,
    /// The version already known; any later one is a change.
    #[param(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub since_version: Option<i64>,
    /// How long to wait; more than 50 is lowered to 50. 0 when absent.
    #[param(value_type = Option<f64>, nullable = false, minimum = 0)]
    pub wait_seconds: Option<std::time::Duration>,
    /// `payload` adds `definition`, `params`, `context` and `previous`.
    #[param(value_type = Option<String>, nullable = false, pattern = "^payload$", example = "payload")]
    pub include: Option<Include>,
}

impl FromFields for GetRun {
    const READING: Reading = Reading::Strict;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        Some(Self {
            wait_for: fields.optional("wait_for", query::word(AwaitedChange::ALL, AwaitedChange::as_str)),
            since_version: fields.optional("since_version", query::integer(0, MAX_INTEGER)),
            wait_seconds: fields.optional("wait_seconds", query::seconds_lowered(MAX_WAIT)),
            include: fields.optional("include", query::word(&[Include::Payload], |_| "payload")),
        })
    }
}

impl GetRun {
    /// What to wait for, if at all.
    pub fn wait(&self) -> Option<Wait> {
        let at_most = self.wait_seconds.filter(|wait| !wait.is_zero())?;
        let until = match self.wait_for {
            Some(AwaitedChange::Finished) => WaitFor::Finished,
            Some(AwaitedChange::Change) | None => WaitFor::Change { since_version: self.since_version },
        };
        Some(Wait { until, at_most })
    }
}

/// A run with what its worker left, and on request with what it was given.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = RunDetail)]
pub struct DetailedRun {
    /// The run.
    #[serde(flatten)]
    pub run: RunSnapshot,
    /// What its worker left at the end: any JSON, as sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub output: Option<RawJson>,
    /// What its worker last said of its progress: any JSON, as sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub progress: Option<RawJson>,
    /// The DAG itself, as dispatched.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub definition: Option<String>,
    /// The run's parameters, as dispatched.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub params: Option<RawJson>,
    /// What else was dispatched for the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub context: Option<RawJson>,
    /// What the attempt before the current one came to: `{attempt_id, status, error, output, progress}`, or what was
    /// dispatched for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub previous: Option<RawJson>,
}

impl From<RunDetail> for DetailedRun {
    fn from(detail: RunDetail) -> Self {
        let payload = detail.payload.unwrap_or_default();
        Self {
            run: detail.run,
            output: detail.output.map(RawJson),
            progress: detail.progress.map(RawJson),
            definition: payload.definition,
            params: payload.params.map(RawJson),
            context: payload.context.map(RawJson),
            previous: payload.previous.map(RawJson),
        }
    }
}

/// A cancel.
#[derive(Debug, Clone, Default, PartialEq, Eq, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Why, for people.
    #[schema(nullable = false, max_length = 4096)]
    pub reason: Option<String>,
    /// End a running attempt now, without waiting for its worker. False when absent.
    #[schema(required = false)]
    pub force: bool,
}

impl FromFields for CancelRequest {
    const READING: Reading = Reading::Strict;
    const MAY_BE_EMPTY: bool = true;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        let reason = fields.optional("reason", read::text_up_to(MAX_REASON_BYTES));
        let force = fields.or("force", false, read::boolean);
        Some(Self { reason, force: force? })
    }
}
