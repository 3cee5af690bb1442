//! A dispatch: what is asked for, and what makes two of them the same.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::coordinator::dispatch::{Payload, Request};
use crate::domain::labels::{Labels, LabelsSchema, MAX_LABELS};
use crate::domain::retry::{LONGEST_DELAY, Retry, RetryOn};
use crate::domain::rules::dispatch::Dispatch;
use crate::domain::run::{Delivery, Operation};
use crate::domain::selector::{Expression, MAX_TERMS, MAX_VALUES, Operator, Selector};
use crate::http::extract::query::read as query;
use crate::http::extract::{DispatchHeaders, Faults, Fields, FromFields, Reading, Settings, read};
use crate::http::json;
use crate::http::problem::FieldError;
use crate::ids::{self, DagName, Digest, RunId, RunKey, WorkerId};

/// The largest definition.
pub const MAX_DEFINITION_BYTES: usize = 1024 * 1024;

/// The most attempts that a dispatch may come to by itself.
pub const MAX_ATTEMPTS: i64 = 1_000;

/// The longest start timeout.
pub const LONGEST_START: Duration = Duration::from_hours(7 * 24);

/// A run to be taken by a worker.
#[derive(Debug, Clone, PartialEq, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DispatchRequest {
    /// The DAG's name.
    #[schema(value_type = String, min_length = 1, max_length = 250, example = "etl")]
    pub dag_name: DagName,
    /// The run's id within the DAG; a UUID is made for it when absent.
    #[schema(
        value_type = Option<String>,
        nullable = false,
        min_length = 1,
        max_length = 255,
        pattern = "^[A-Za-z0-9._:@+~=-]+$",
        example = "2026-01-31"
    )]
    pub run_id: Option<RunId>,
    /// What to do; `start` when absent. `retry` and `resume` are for a run that had its earlier attempts elsewhere.
    #[schema(nullable = false)]
    pub operation: Option<Operation>,
    /// The run at the top of the family this one belongs to.
    #[schema(nullable = false)]
    pub root: Option<RunKey>,
    /// The run that dispatches this one.
    #[schema(nullable = false)]
    pub parent: Option<RunKey>,
    /// Labels a worker must offer, each with exactly this value. Absent or empty: any worker may take it. At most 16
    /// terms, `worker_expressions` counted, and `target_worker_id` as one.
    #[schema(value_type = LabelsSchema, required = false, example = json!({"zone": "b"}))]
    pub worker_selector: Labels,
    /// What else must hold of that worker's labels, all of it.
    #[schema(required = false, max_items = 16)]
    pub worker_expressions: Vec<Expression>,
    /// The only worker that may take it.
    #[schema(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255)]
    pub target_worker_id: Option<WorkerId>,
    /// How long it waits without a matching worker until it fails; 0 refuses the dispatch when none matches now.
    /// Absent: the service's configuration, which also says what is the most.
    #[schema(value_type = Option<f64>, nullable = false, minimum = 0, example = 120)]
    pub worker_wait_timeout_seconds: Option<Duration>,
    /// How long it may be queued in all until it fails, matching worker or not; 0 is without bound. Absent: the service's
    /// configuration.
    #[schema(value_type = Option<f64>, nullable = false, minimum = 0, maximum = 604_800, example = 600)]
    pub start_timeout_seconds: Option<Duration>,
    /// Record it, and let it wait until it is dispatched again by `redispatchRun`: for a scheduler that keeps a queue of
    /// its own. False when absent.
    #[schema(required = false)]
    pub park: bool,
    /// `direct`: hand it to a poll that is parked at this replica right now, or refuse it; it never queues, and fails if its
    /// worker does not acknowledge it. `queue` when absent.
    #[schema(nullable = false)]
    pub delivery: Option<Delivery>,
    /// Higher goes first; ties by age. 0 when absent.
    #[schema(required = false, minimum = -100, maximum = 100)]
    pub priority: i16,
    /// How many attempts it may come to by itself, when one is lost or, if `retry` says so, fails. 1 when absent.
    #[schema(required = false, minimum = 1, maximum = 1000)]
    pub max_attempts: i32,
    /// When it is tried again by itself, and after how long.
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
    /// More for the worker, such as a base configuration or who asked: any JSON, handed on as sent.
    #[schema(value_type = serde_json::Value, required = false)]
    pub context: Option<String>,
    /// What the attempt before came to, of a run that is retried or resumed and had it elsewhere: any JSON, handed on as
    /// sent.
    #[schema(value_type = serde_json::Value, required = false)]
    pub previous: Option<String>,
    /// For listing; at most 64.
    #[schema(value_type = LabelsSchema, required = false)]
    pub labels: Labels,
}

impl FromFields for DispatchRequest {
    const READING: Reading = Reading::Strict;

    fn from_fields(fields: &mut Fields<'_>, settings: &Settings) -> Option<Self> {
        let dag_name: Option<DagName> = fields.required("dag_name", read::name);
        let run_id: Option<RunId> = fields.optional("run_id", read::name);
        let operation = fields.optional("operation", |json| {
            Operation::from_word(&read::text(json)?).ok_or_else(|| "must be one of start, retry, resume".into())
        });
        let root = fields.optional("root", read::run_key);
        let parent: Option<RunKey> = fields.optional("parent", read::run_key);
        if let (Some(parent), Some(dag_name), Some(run_id)) = (&parent, &dag_name, &run_id)
            && (&parent.dag_name, &parent.run_id) == (dag_name, run_id)
        {
            fields.fault("parent", "must be another run");
        }
        let worker_selector = fields.or("worker_selector", Labels::new(), read::labels(MAX_TERMS));
        let worker_expressions = fields.or("worker_expressions", Vec::new(), expressions);
        let target_worker_id = fields.optional("target_worker_id", read::name);
        bound_terms(fields, worker_selector.as_ref(), worker_expressions.as_ref(), target_worker_id.as_ref());
        let longest = settings.worker_wait_timeout_max;
        let worker_wait_timeout_seconds =
            fields.optional("worker_wait_timeout_seconds", read::seconds(Duration::ZERO, longest));
        let start_timeout_seconds =
            fields.optional("start_timeout_seconds", read::seconds(Duration::ZERO, LONGEST_START));
        let park = fields.or("park", false, read::boolean);
        let delivery = fields.optional("delivery", |json| {
            Delivery::from_word(&read::text(json)?).ok_or_else(|| "must be one of queue, direct".into())
        });
        let priority = fields.or("priority", 0, read::integer(-100, 100));
        let max_attempts = fields.or("max_attempts", 1, read::integer(1, MAX_ATTEMPTS));
        let retry = fields.optional("retry", retry);
        let not_before = fields.optional("not_before", time);
        parked_until(fields, park, not_before);
        if delivery == Some(Delivery::Direct) {
            if park == Some(true) {
                fields.fault("delivery", "is not for a parked run");
            }
            if not_before.is_some() {
                fields.fault("not_before", "is not for a run that is handed over right now");
            }
        }
        let definition = fields.optional("definition", read::text_up_to(MAX_DEFINITION_BYTES));
        let params = fields.optional("params", read::any);
        let context = fields.optional("context", read::any);
        let previous = fields.optional("previous", read::any);
        if previous.is_some() && matches!(operation, None | Some(Operation::Start)) {
            fields.fault("previous", "is for `retry` and `resume`");
        }
        let labels = fields.or("labels", Labels::new(), read::labels(MAX_LABELS));
        Some(Self {
            dag_name: dag_name?,
            run_id,
            operation,
            root,
            parent,
            worker_selector: worker_selector?,
            worker_expressions: worker_expressions?,
            target_worker_id,
            worker_wait_timeout_seconds,
            start_timeout_seconds,
            park: park?,
            delivery,
            priority: priority?,
            max_attempts: max_attempts?,
            retry,
            not_before,
            definition,
            params,
            context,
            previous,
            labels: labels?,
        })
    }
}

impl DispatchRequest {
    /// What the coordinator takes: a run id is made if none was sent, and what is configured stands for an
    /// absent wait or start timeout.
    pub fn into_request(self, headers: DispatchHeaders, settings: &Settings) -> Request {
        let selector = Arc::new(self.selector());
        let digest = self.digest(&selector);
        let run_id = self.run_id.unwrap_or_else(|| {
            RunId::parse(ids::new_uuid().to_string()).expect("a UUID has 36 characters that ids may have")
        });
        Request {
            dispatch: Dispatch {
                key: RunKey { dag_name: self.dag_name, run_id },
                operation: self.operation.unwrap_or(Operation::Start),
                selector,
                wait: self.worker_wait_timeout_seconds.unwrap_or(settings.worker_wait_timeout),
                start_timeout: self.start_timeout_seconds.unwrap_or(settings.start_timeout),
                park: self.park,
                direct: self.delivery == Some(Delivery::Direct),
                priority: self.priority,
                max_attempts: self.max_attempts,
                retry: self.retry,
                not_before: self.not_before,
                labels: self.labels,
                root: self.root,
                parent: self.parent,
                traceparent: headers.traceparent,
            },
            payload: Payload {
                definition: self.definition,
                params: self.params,
                context: self.context,
                previous: self.previous,
            },
            idempotency_key: headers.idempotency_key,
            digest,
        }
    }

    /// What it requires of a worker.
    fn selector(&self) -> Selector {
        let expressions = self.worker_expressions.clone();
        Selector::new(self.worker_selector.clone(), expressions, self.target_worker_id.clone())
    }

    /// What makes a repeat the same: all that was asked for, however it was written.
    ///
    /// An absent wait or start timeout stays absent, so that a repeat is one whatever the configuration says by then. The trace context
    /// is not part of it: each try of a traced client has its own.
    fn digest(&self, selector: &Selector) -> Digest {
        let any = |text: &Option<String>| {
            text.as_ref().map(|text| json::canonical(text).expect("the body it stands in was checked as strict JSON"))
        };
        let canonical = Canonical {
            dag_name: &self.dag_name,
            run_id: self.run_id.as_ref(),
            operation: self.operation.filter(|operation| *operation != Operation::Start),
            root: self.root.as_ref(),
            parent: self.parent.as_ref(),
            worker_selector: &selector.equal,
            worker_expressions: &selector.expressions,
            target_worker_id: selector.target.as_ref(),
            wait_micros: self.worker_wait_timeout_seconds.map(|wait| wait.as_micros()),
            start_timeout_micros: self.start_timeout_seconds.map(|timeout| timeout.as_micros()),
            park: self.park.then_some(true),
            delivery: self.delivery.filter(|delivery| *delivery != Delivery::Queue),
            priority: self.priority,
            max_attempts: (self.max_attempts != 1).then_some(self.max_attempts),
            retry: self.retry.as_ref(),
            not_before: self.not_before.map(|time| time.timestamp_micros()),
            definition: self.definition.as_deref(),
            params: any(&self.params),
            context: any(&self.context),
            previous: any(&self.previous),
            labels: &self.labels,
        };
        Digest::of(serde_json::to_vec(&canonical).expect("texts, maps of texts and numbers are JSON"))
    }
}

/// One form for all ways to write the same dispatch.
///
/// Digests are kept with their runs and compared across releases: a field that joins must leave no trace while it is
/// absent. A test holds the digest of one dispatch.
#[derive(Serialize)]
struct Canonical<'a> {
    dag_name: &'a DagName,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<&'a RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<Operation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<&'a RunKey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<&'a RunKey>,
    worker_selector: &'a Labels,
    #[serde(skip_serializing_if = "<[Expression]>::is_empty")]
    worker_expressions: &'a [Expression],
    #[serde(skip_serializing_if = "Option::is_none")]
    target_worker_id: Option<&'a WorkerId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_micros: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_timeout_micros: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    park: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery: Option<Delivery>,
    priority: i16,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<&'a Retry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    definition: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous: Option<String>,
    labels: &'a Labels,
}

/// Notes a time for what its scheduler is to dispatch: the clocks of a parked run begin when it does.
pub(super) fn parked_until(fields: &mut Fields<'_>, park: Option<bool>, not_before: Option<DateTime<Utc>>) {
    if park == Some(true) && not_before.is_some() {
        fields.fault("not_before", "is not for a parked run, whose time comes when it is dispatched again");
    }
}

/// Notes a selector that has more terms than one may have, expressions and target counted.
pub(super) fn bound_terms(
    fields: &mut Fields<'_>,
    labels: Option<&Labels>,
    expressions: Option<&Vec<Expression>>,
    target: Option<&WorkerId>,
) {
    let Some(labels) = labels.filter(|labels| labels.len() <= MAX_TERMS) else { return };
    let terms = labels.len() + expressions.map_or(0, Vec::len) + usize::from(target.is_some());
    if terms > MAX_TERMS {
        let with = "with `worker_expressions` and `target_worker_id`";
        fields.fault("worker_selector", format!("must have at most {MAX_TERMS} terms, has {terms} {with}"));
    }
}

/// What a selector asks of labels beyond equality.
pub(super) fn expressions(json: &str) -> Result<Vec<Expression>, Faults> {
    read::list(MAX_TERMS, |json| {
        let expression = read::object(Reading::Strict, |fields| {
            let key = fields.required("key", read::text);
            let operator = fields.required("operator", |json| {
                let words = || Operator::ALL.iter().map(|word| word.as_str()).collect::<Vec<_>>().join(", ");
                Operator::from_word(&read::text(json)?).ok_or_else(|| format!("must be one of {}", words()).into())
            });
            let values = fields.or("values", Vec::new(), read::list(MAX_VALUES, read::text));
            Some(Expression { key: key?, operator: operator?, values: values?.into_iter().collect() })
        })(json)?;
        match expression.check() {
            Ok(()) => Ok(expression),
            Err((field, detail)) => Err(Faults(vec![FieldError::new(format!("/{field}"), detail)])),
        }
    })(json)
}

/// When a run is tried again by itself.
pub(super) fn retry(json: &str) -> Result<Retry, Faults> {
    read::object(Reading::Strict, |fields| {
        let absent = Retry::default();
        let on = fields.or(
            "on",
            absent.on,
            read::list(RetryOn::ALL.len(), |json| {
                let words = || RetryOn::ALL.iter().map(|on| on.as_str()).collect::<Vec<_>>().join(", ");
                RetryOn::from_word(&read::text(json)?).ok_or_else(|| format!("must be one of {}", words()).into())
            }),
        );
        let delay = fields.or("delay_seconds", Duration::ZERO, read::seconds(Duration::ZERO, LONGEST_DELAY));
        let factor = fields.or("factor", absent.factor, |json| match json.parse::<f64>() {
            Ok(factor) if (1.0..=100.0).contains(&factor) => Ok(factor),
            _ => Err("must be a number from 1 to 100".into()),
        });
        let most = fields.or("max_delay_seconds", LONGEST_DELAY, read::seconds(Duration::ZERO, LONGEST_DELAY));
        Some(Retry {
            on: on?,
            delay_seconds: delay?.as_secs_f64(),
            factor: factor?,
            max_delay_seconds: most?.as_secs_f64(),
        })
    })(json)
}

/// A time in a body.
pub(super) fn time(json: &str) -> Result<DateTime<Utc>, Faults> {
    query::time(&read::text(json)?)
}

#[cfg(test)]
mod tests;
