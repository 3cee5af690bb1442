//! Batches: many of the same in one request, each item judged, done and answered alone.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::attempts::{AckAnswer, ReportAnswer, ReportRequest, Standing};
use super::dispatch::DispatchRequest;
use super::runs::CancelRequest;
use crate::coordinator::dispatch::Dispatched;
use crate::domain::snapshot::RunSnapshot;
use crate::http::extract::{Faults, Fields, FromFields, Reading, Settings, headers, read};
use crate::http::problem::Problem;
use crate::ids::{AttemptId, RunKey, Token};

/// The most items of a batch.
pub const MAX_ITEMS: usize = 1_000;

/// The largest batch.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// The items of a batch in their order; one that cannot be read stands in no other's way.
pub type Items<T> = Vec<Result<T, Faults>>;

fn items<T>(
    reading: Reading,
    take: impl Fn(&mut Fields<'_>) -> Option<T>,
) -> impl FnOnce(&str) -> Result<Items<T>, Faults> {
    read::each(MAX_ITEMS, read::object(reading, take))
}

/// Runs to be dispatched.
#[derive(Debug, Clone, PartialEq, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DispatchRunsRequest {
    /// At most 1,000.
    #[schema(value_type = Vec<BatchedDispatch>, max_items = 1000)]
    pub runs: Items<BatchedDispatch>,
}

impl FromFields for DispatchRunsRequest {
    const READING: Reading = Reading::Strict;
    const MAX_BYTES: usize = MAX_BYTES;

    fn from_fields(fields: &mut Fields<'_>, settings: &Settings) -> Option<Self> {
        let take = |fields: &mut Fields<'_>| BatchedDispatch::from_fields(fields, settings);
        Some(Self { runs: fields.required("runs", items(Reading::Strict, take))? })
    }
}

/// A dispatch in a batch, with the key that it would have in a header if it came alone.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchedDispatch {
    /// Makes a repeat of this very item safe.
    pub idempotency_key: Option<String>,
    /// The dispatch.
    pub request: DispatchRequest,
}

impl FromFields for BatchedDispatch {
    const READING: Reading = Reading::Strict;

    fn from_fields(fields: &mut Fields<'_>, settings: &Settings) -> Option<Self> {
        let idempotency_key = fields.optional("idempotency_key", |json| {
            let key = read::text(json)?;
            headers::check_key(key.as_bytes()).map(|()| key).map_err(Faults::from)
        });
        Some(Self { idempotency_key, request: DispatchRequest::from_fields(fields, settings)? })
    }
}

/// Attempts to be acknowledged.
#[derive(Debug, Clone, PartialEq, ToSchema)]
pub struct AckAttemptsRequest {
    /// At most 1,000.
    #[schema(value_type = Vec<BatchedAck>, max_items = 1000)]
    pub items: Items<BatchedAck>,
}

impl FromFields for AckAttemptsRequest {
    const READING: Reading = Reading::Tolerant;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        let take = |fields: &mut Fields<'_>| {
            let attempt_id = fields.required("attempt_id", read::attempt_id);
            let token = fields.required("token", read::token);
            Some(BatchedAck { attempt_id: attempt_id?, token: token? })
        };
        Some(Self { items: fields.required("items", items(Reading::Tolerant, take))? })
    }
}

/// An ack in a batch.
#[derive(Debug, Clone, PartialEq, ToSchema)]
pub struct BatchedAck {
    /// Which attempt.
    #[schema(value_type = String, format = Uuid)]
    pub attempt_id: AttemptId,
    /// The token the task came with.
    #[schema(value_type = String)]
    pub token: Token,
}

/// Attempts to be reported on. Those on the same attempt are taken in their order.
#[derive(Debug, Clone, PartialEq, ToSchema)]
pub struct ReportAttemptsRequest {
    /// At most 1,000.
    #[schema(value_type = Vec<BatchedReport>, max_items = 1000)]
    pub items: Items<BatchedReport>,
}

impl FromFields for ReportAttemptsRequest {
    const READING: Reading = Reading::Mending;
    const MAX_BYTES: usize = MAX_BYTES;

    fn from_fields(fields: &mut Fields<'_>, settings: &Settings) -> Option<Self> {
        let take = |fields: &mut Fields<'_>| {
            let attempt_id = fields.required("attempt_id", read::attempt_id);
            let report = ReportRequest::from_fields(fields, settings);
            Some(BatchedReport { attempt_id: attempt_id?, report: report? })
        };
        Some(Self { items: fields.required("items", items(Reading::Mending, take))? })
    }
}

/// A report in a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchedReport {
    /// Which attempt.
    pub attempt_id: AttemptId,
    /// What is said of it.
    pub report: ReportRequest,
}

/// Runs to be cancelled.
#[derive(Debug, Clone, PartialEq, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRunsRequest {
    /// At most 1,000.
    #[schema(value_type = Vec<RunKey>, max_items = 1000)]
    pub runs: Items<RunKey>,
    /// Why, for people.
    #[schema(nullable = false, max_length = 4096)]
    pub reason: Option<String>,
    /// End running attempts now, without waiting for their workers. False when absent.
    #[schema(required = false)]
    pub force: bool,
}

impl FromFields for CancelRunsRequest {
    const READING: Reading = Reading::Strict;
    const MAX_BYTES: usize = MAX_BYTES;

    fn from_fields(fields: &mut Fields<'_>, settings: &Settings) -> Option<Self> {
        let runs = fields.required("runs", read::each(MAX_ITEMS, read::run_key));
        let CancelRequest { reason, force } = CancelRequest::from_fields(fields, settings)?;
        Some(Self { runs: runs?, reason, force })
    }
}

/// The schema of an object that is another with one field more.
fn with_field(of: RefOr<Schema>, name: &str, field: RefOr<Schema>, required: bool) -> RefOr<Schema> {
    let RefOr::T(Schema::Object(mut object)) = of else { unreachable!("requests are objects") };
    object.properties.insert(name.to_owned(), field);
    object.required.extend(required.then(|| name.to_owned()));
    RefOr::T(Schema::Object(object))
}

// By hand: flattened by the derive they would be unions of schemas, which generators of clients stumble over.
impl PartialSchema for BatchedDispatch {
    fn schema() -> RefOr<Schema> {
        let key = headers::key_schema("Makes a repeat of this very item safe.");
        with_field(DispatchRequest::schema(), "idempotency_key", key, false)
    }
}

impl ToSchema for BatchedDispatch {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        DispatchRequest::schemas(schemas);
    }
}

impl PartialSchema for BatchedReport {
    fn schema() -> RefOr<Schema> {
        let RefOr::T(Schema::Object(mut ack)) = BatchedAck::schema() else { unreachable!("requests are objects") };
        let attempt_id = ack.properties.remove("attempt_id").expect("an ack names its attempt");
        with_field(ReportRequest::schema(), "attempt_id", attempt_id, true)
    }
}

impl ToSchema for BatchedReport {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        ReportRequest::schemas(schemas);
    }
}

/// What became of each item, in their order.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunResults {
    /// As many as there were items.
    pub results: Vec<RunResult>,
}

/// What became of a run in a batch: the run, or a problem.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunResult {
    /// The HTTP status that it would have been answered with alone.
    #[schema(minimum = 200, maximum = 599, example = 201)]
    pub status: u16,
    /// The run, as it is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub run: Option<RunSnapshot>,
    /// Whether an earlier request had dispatched it; absent otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub idempotent_replayed: bool,
    /// Why it was not done, and what to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub problem: Option<Problem>,
}

impl RunResult {
    /// Of a dispatch.
    pub fn of_dispatch(done: Result<Dispatched, Problem>) -> Self {
        match done {
            Ok(Dispatched { run, replayed }) => {
                Self { status: 201, run: Some(run), idempotent_replayed: replayed, problem: None }
            }
            Err(problem) => Self::failed(problem),
        }
    }

    /// Of a cancel.
    pub fn of_cancel(done: Result<RunSnapshot, Problem>) -> Self {
        match done {
            Ok(run) => Self { status: 200, run: Some(run), idempotent_replayed: false, problem: None },
            Err(problem) => Self::failed(problem),
        }
    }

    fn failed(problem: Problem) -> Self {
        Self { status: problem.status(), run: None, idempotent_replayed: false, problem: Some(problem) }
    }
}

/// What became of each item, in their order.
#[derive(Debug, Serialize, ToSchema)]
pub struct AckResults {
    /// As many as there were items.
    pub results: Vec<AckResult>,
}

/// What became of an ack in a batch: a lease, or a problem.
#[derive(Debug, Serialize, ToSchema)]
pub struct AckResult {
    /// The HTTP status that it would have been answered with alone.
    #[schema(minimum = 200, maximum = 599, example = 200)]
    pub status: u16,
    /// Until when the attempt is safe without another sign of life, by the service's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub lease_until: Option<DateTime<Utc>>,
    /// The same, counted from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub lease_seconds: Option<f64>,
    /// How often to renew it, or to name it in a heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub renew_every_seconds: Option<f64>,
    /// Why it was not done, and what to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub problem: Option<Problem>,
}

impl From<Result<AckAnswer, Problem>> for AckResult {
    fn from(done: Result<AckAnswer, Problem>) -> Self {
        let status = done.as_ref().map_or_else(Problem::status, |_| 200);
        let (lease, problem) = (done.as_ref().ok(), None);
        let result = Self {
            status,
            lease_until: lease.map(|lease| lease.lease_until),
            lease_seconds: lease.map(|lease| lease.lease_seconds),
            renew_every_seconds: lease.map(|lease| lease.renew_every_seconds),
            problem,
        };
        Self { problem: done.err(), ..result }
    }
}

/// What became of each item, in their order.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReportResults {
    /// As many as there were items.
    pub results: Vec<ReportResult>,
}

/// What became of a report in a batch: where the run stands now, or a problem.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReportResult {
    /// The HTTP status that it would have been answered with alone.
    #[schema(minimum = 200, maximum = 599, example = 200)]
    pub status: u16,
    /// Where the run stands now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub run: Option<Standing>,
    /// Whether to stop, and to report it as `aborted`; false once the attempt has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub cancel_requested: Option<bool>,
    /// Why it was not done, and what to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub problem: Option<Problem>,
}

impl From<Result<ReportAnswer, Problem>> for ReportResult {
    fn from(done: Result<ReportAnswer, Problem>) -> Self {
        match done {
            Ok(ReportAnswer { dag_name, run_id, status, version, cancel_requested }) => Self {
                status: 200,
                run: Some(Standing { dag_name, run_id, status, version }),
                cancel_requested: Some(cancel_requested),
                problem: None,
            },
            Err(problem) => {
                Self { status: problem.status(), run: None, cancel_requested: None, problem: Some(problem) }
            }
        }
    }
}
