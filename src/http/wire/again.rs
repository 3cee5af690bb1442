//! A retry or a resume: what a run's next attempt asks for otherwise than the one before it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Map, Value};

use super::dispatch::{self, LONGEST_START, MAX_ATTEMPTS, MAX_DEFINITION_BYTES};
use crate::coordinator::again::{Again, AttemptView};
use crate::coordinator::dispatch::Payload;
use crate::domain::attempt::AttemptStatus;
use crate::domain::labels::{Labels, LabelsSchema, MAX_LABELS};
use crate::domain::retry::Retry;
use crate::domain::rules::again::Changes;
use crate::domain::run::Operation;
use crate::domain::selector::{Expression, MAX_TERMS, Selector};
use crate::http::extract::query::read as query;
use crate::http::extract::{Fields, FromFields, Reading, Settings, read};
use crate::http::json;
use crate::ids::{AttemptId, Digest, RunKey, WorkerId};

use super::{DEFAULT_LIMIT, MAX_LIMIT};

/// Another attempt of a run. What is absent is as it was in the dispatch before, but for `not_before` and `park`.
#[derive(Debug, Clone, PartialEq, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NextAttemptRequest {
    /// The attempt it follows, which must be the run's latest. The same request again answers the run as it is then and
    /// makes no second attempt.
    #[schema(value_type = uuid::Uuid)]
    pub after_attempt_id: AttemptId,
    /// The run at the top of the family this one belongs to.
    #[schema(nullable = false)]
    pub root: Option<RunKey>,
    /// The run that dispatches this one.
    #[schema(nullable = false)]
    pub parent: Option<RunKey>,
    /// Labels a worker must offer, in place of those before; empty: none. A target worker of before stays.
    #[schema(value_type = Option<LabelsSchema>, nullable = false)]
    pub worker_selector: Option<Labels>,
    /// What else must hold of that worker's labels, in place of what must before; empty: nothing.
    #[schema(nullable = false, max_items = 16)]
    pub worker_expressions: Option<Vec<Expression>>,
    /// The only worker that may take it.
    #[schema(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255)]
    pub target_worker_id: Option<WorkerId>,
    /// How long it waits without a matching worker until it fails; 0 refuses it when none matches now.
    #[schema(value_type = Option<f64>, nullable = false, minimum = 0)]
    pub worker_wait_timeout_seconds: Option<Duration>,
    /// How long it may be queued in all until it fails, matching worker or not; 0 is without bound.
    #[schema(value_type = Option<f64>, nullable = false, minimum = 0, maximum = 604_800)]
    pub start_timeout_seconds: Option<Duration>,
    /// Record it, and let it wait until it is dispatched again by `redispatchRun`. False when absent, whatever was before.
    #[schema(required = false)]
    pub park: bool,
    /// Higher goes first; ties by age.
    #[schema(nullable = false, minimum = -100, maximum = 100)]
    pub priority: Option<i16>,
    /// How many attempts it may come to by itself, this one counted as the first.
    #[schema(nullable = false, minimum = 1, maximum = 1000)]
    pub max_attempts: Option<i32>,
    /// When it is tried again by itself.
    #[schema(nullable = false)]
    pub retry: Option<Retry>,
    /// Nobody is given it before this time; its clocks begin then.
    #[schema(nullable = false)]
    pub not_before: Option<DateTime<Utc>>,
    /// The DAG itself, for the worker alone: at most 1 MiB.
    #[schema(nullable = false)]
    pub definition: Option<String>,
    /// The run's parameters: any JSON, handed on as sent.
    #[schema(value_type = serde_json::Value, required = false)]
    pub params: Option<String>,
    /// More for the worker: any JSON, handed on as sent.
    #[schema(value_type = serde_json::Value, required = false)]
    pub context: Option<String>,
    /// What the worker is told of the attempt before, in place of what is known of it here: any JSON.
    #[schema(value_type = serde_json::Value, required = false)]
    pub previous: Option<String>,
    /// For listing; at most 64, in place of those before.
    #[schema(value_type = Option<LabelsSchema>, nullable = false)]
    pub labels: Option<Labels>,
}

impl FromFields for NextAttemptRequest {
    const READING: Reading = Reading::Strict;

    fn from_fields(fields: &mut Fields<'_>, settings: &Settings) -> Option<Self> {
        let after_attempt_id = fields.required("after_attempt_id", read::attempt_id);
        let longest = settings.worker_wait_timeout_max;
        let park = fields.or("park", false, read::boolean);
        let request = Self {
            // What is wrong is noted; what stands for it here is not used.
            after_attempt_id: after_attempt_id.unwrap_or(AttemptId(uuid::Uuid::nil())),
            root: fields.optional("root", read::run_key),
            parent: fields.optional("parent", read::run_key),
            worker_selector: fields.optional("worker_selector", read::labels(MAX_TERMS)),
            worker_expressions: fields.optional("worker_expressions", dispatch::expressions),
            target_worker_id: fields.optional("target_worker_id", read::name),
            worker_wait_timeout_seconds: fields
                .optional("worker_wait_timeout_seconds", read::seconds(Duration::ZERO, longest)),
            start_timeout_seconds: fields
                .optional("start_timeout_seconds", read::seconds(Duration::ZERO, LONGEST_START)),
            park: park.unwrap_or_default(),
            priority: fields.optional("priority", read::integer(-100, 100)),
            max_attempts: fields.optional("max_attempts", read::integer(1, MAX_ATTEMPTS)),
            retry: fields.optional("retry", dispatch::retry),
            not_before: fields.optional("not_before", dispatch::time),
            definition: fields.optional("definition", read::text_up_to(MAX_DEFINITION_BYTES)),
            params: fields.optional("params", read::any),
            context: fields.optional("context", read::any),
            previous: fields.optional("previous", read::any),
            labels: fields.optional("labels", read::labels(MAX_LABELS)),
        };
        dispatch::parked_until(fields, park, request.not_before);
        // With what stays of before it may be too much all the same, which only shows under the run's lock.
        let labels = request.worker_selector.clone().unwrap_or_default();
        let (expressions, target) = (request.worker_expressions.as_ref(), request.target_worker_id.as_ref());
        dispatch::bound_terms(fields, Some(&labels), expressions, target);
        after_attempt_id.map(|_| request)
    }
}

impl NextAttemptRequest {
    /// What the coordinator takes.
    pub fn into_again(self, operation: Operation) -> Again {
        let digest = self.digest(operation);
        Again {
            operation,
            after: self.after_attempt_id,
            changes: Changes {
                worker_selector: self.worker_selector,
                worker_expressions: self.worker_expressions,
                target: self.target_worker_id,
                wait: self.worker_wait_timeout_seconds,
                start_timeout: self.start_timeout_seconds,
                park: self.park,
                priority: self.priority,
                max_attempts: self.max_attempts,
                retry: self.retry,
                not_before: self.not_before,
                labels: self.labels,
                root: self.root,
                parent: self.parent,
                traceparent: None,
            },
            payload: Payload {
                definition: self.definition,
                params: self.params,
                context: self.context,
                previous: self.previous,
            },
            digest,
        }
    }

    /// What makes a repeat the same: all that was asked for, however it was written. Kept with its attempt and compared
    /// across releases: what is absent leaves no trace.
    fn digest(&self, operation: Operation) -> Digest {
        let mut asked = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                asked.insert(name.to_owned(), value);
            }
        };
        let any = |text: &Option<String>| {
            text.as_ref().map(|text| {
                Value::from(json::canonical(text).expect("the body it stands in was checked as strict JSON"))
            })
        };
        put("operation", Some(Value::from(operation.as_str())));
        put("root", self.root.as_ref().map(|key| serde_json::json!(key)));
        put("parent", self.parent.as_ref().map(|key| serde_json::json!(key)));
        put("worker_selector", self.worker_selector.as_ref().map(|labels| serde_json::json!(labels)));
        let expressions = self.worker_expressions.clone();
        let expressions = expressions.map(|asked| Selector::new(Labels::new(), asked, None).expressions);
        put("worker_expressions", expressions.map(|asked| serde_json::json!(asked)));
        put("target_worker_id", self.target_worker_id.as_ref().map(|id| Value::from(id.as_str())));
        let micros = self.worker_wait_timeout_seconds.map(|wait| wait.as_micros().to_string());
        put("wait_micros", micros.map(Value::from));
        let micros = self.start_timeout_seconds.map(|timeout| timeout.as_micros().to_string());
        put("start_timeout_micros", micros.map(Value::from));
        put("park", self.park.then_some(Value::from(true)));
        put("priority", self.priority.map(Value::from));
        put("max_attempts", self.max_attempts.map(Value::from));
        put("retry", self.retry.as_ref().map(|retry| serde_json::json!(retry)));
        put("not_before", self.not_before.map(|time| Value::from(time.timestamp_micros())));
        put("definition", self.definition.as_deref().map(Value::from));
        put("params", any(&self.params));
        put("context", any(&self.context));
        put("previous", any(&self.previous));
        put("labels", self.labels.as_ref().map(|labels| serde_json::json!(labels)));
        Digest::of(Value::Object(asked).to_string())
    }
}

/// Which attempt is to be dispatched.
#[derive(Debug, Clone, PartialEq, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RedispatchRequest {
    /// The attempt that its scheduler believes to be parked.
    #[schema(value_type = uuid::Uuid)]
    pub attempt_id: AttemptId,
}

impl FromFields for RedispatchRequest {
    const READING: Reading = Reading::Strict;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        Some(Self { attempt_id: fields.required("attempt_id", read::attempt_id)? })
    }
}

/// Which of a run's attempts to list.
#[derive(Debug, Clone, PartialEq, Eq, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListAttempts {
    /// Only attempts with a number above this one. 0 when absent.
    #[param(required = false, minimum = 0, maximum = 2_147_483_647)]
    pub after: i32,
    /// At most this many; 50 when absent.
    #[param(required = false, minimum = 1, maximum = 500)]
    pub limit: i64,
}

impl FromFields for ListAttempts {
    const READING: Reading = Reading::Strict;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        let after = fields.or("after", 0, query::integer(0, i64::from(i32::MAX)));
        let limit = fields.or("limit", DEFAULT_LIMIT, query::integer(1, MAX_LIMIT));
        Some(Self { after: i32::try_from(after?).unwrap_or(i32::MAX), limit: limit? })
    }
}

/// A run's attempts, the first one first.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AttemptList {
    /// The attempts.
    pub attempts: Vec<AttemptEntry>,
}

/// One dispatch of a run, and what it came to.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Attempt)]
pub struct AttemptEntry {
    /// Its id.
    #[schema(value_type = uuid::Uuid)]
    pub attempt_id: AttemptId,
    /// Counted from 1 within its run.
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    pub number: i32,
    /// What was asked for.
    pub operation: Operation,
    /// Where it stands. `lost`: its session ended or fell silent, or gave it back. More may be added.
    #[schema(value_type = String, example = "lost")]
    pub status: AttemptStatus,
    /// The attempt it follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = uuid::Uuid, required = false)]
    pub after_attempt_id: Option<AttemptId>,
    /// The worker that acknowledged it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub worker_id: Option<String>,
    /// When it was dispatched.
    pub queued_at: DateTime<Utc>,
    /// When it was given to that worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub claimed_at: Option<DateTime<Utc>>,
    /// When it was acknowledged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub ended_at: Option<DateTime<Utc>>,
    /// What went wrong, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
    /// Where its log is, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub log_url: Option<String>,
}

impl From<AttemptView> for AttemptEntry {
    fn from(view: AttemptView) -> Self {
        Self {
            attempt_id: view.attempt_id,
            number: view.number,
            operation: view.operation,
            status: view.status,
            after_attempt_id: view.after,
            worker_id: view.worker_id.map(String::from),
            queued_at: view.queued_at,
            claimed_at: view.claimed_at,
            started_at: view.started_at,
            ended_at: view.ended_at,
            error: view.error,
            log_url: view.log_url,
        }
    }
}
