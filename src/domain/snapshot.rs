//! The snapshot of a run: what people read of it, the same in answers, lists and events.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::Timestamp;
use super::condition::{Condition, Reason, Situation, conditions};
use super::hold::Hold;
use super::labels::{Labels, LabelsSchema};
use super::retry::Retry;
use super::run::{AttemptRef, Delivery, Failure, Run, Status};
use super::selector::Expression;
use crate::ids::{RunKey, WorkerId};

/// What a queued run waits for, as tables and sessions stand.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// Its task; none while it is parked.
    pub task: Option<WaitingTask>,
    /// How the workers stand to its selector.
    pub situation: Situation,
}

/// The task of a queued run, as far as people read it.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingTask {
    /// Its hold.
    pub hold: Hold,
    /// When its start clock runs out, if it has one.
    pub start_until: Option<Timestamp>,
    /// Who was given it and when, while that is not acknowledged.
    pub claimed: Option<(WorkerId, Timestamp)>,
}

impl Waiting {
    /// Both conditions, with the first reason that holds.
    ///
    /// `returned_at` is when it last came into the queue: the dispatch, or the return of a claim, or from where it was
    /// parked.
    #[must_use]
    pub fn conditions(&self, queued_at: Timestamp, returned_at: Timestamp) -> Vec<Condition> {
        let since = self.situation.since.unwrap_or(queued_at);
        let (reason, since) = match &self.task {
            None if self.situation.matched => (Reason::Parked, since),
            Some(WaitingTask { claimed: Some((_, claimed_at)), .. }) => (Reason::ClaimPending, *claimed_at),
            Some(task) if self.situation.at < task.hold.from => (Reason::BackingOff, queued_at),
            // It cannot have been runnable while somebody had it, or while it was parked.
            Some(_) if self.situation.free => (self.situation.reason(), since.max(returned_at)),
            None | Some(_) => (self.situation.reason(), since),
        };
        // An outage ends later than now; what it does to the condition has been so all along.
        conditions(reason, since.min(self.situation.at).max(queued_at))
    }

    /// When its hold will expire if nothing comes; none while the clock stands still.
    #[must_use]
    pub fn hold_until(&self) -> Option<DateTime<Utc>> {
        let task = self.task.as_ref().filter(|task| task.claimed.is_none())?;
        self.situation.hold_until(&task.hold)
    }
}

/// The hold of a queued run.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = Hold)]
pub struct HoldSnapshot {
    /// How long it may be without a match.
    pub wait_timeout_seconds: f64,
    /// When it may be taken and its clock begins, while that is to come.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub from: Option<DateTime<Utc>>,
    /// When it fails if no match comes; absent while the clock stands still.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub until: Option<DateTime<Utc>>,
}

/// A run as people read it.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = Run)]
pub struct RunSnapshot {
    /// The DAG's name.
    pub dag_name: String,
    /// The run's id within the DAG.
    pub run_id: String,
    /// Where it stands.
    pub status: Status,
    /// Rises by one with each change.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub version: i64,
    /// The attempt it is at.
    pub attempt: AttemptRef,
    /// The labels it requires of a worker.
    #[schema(value_type = LabelsSchema)]
    pub worker_selector: Labels,
    /// What else it requires of that worker's labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub worker_expressions: Vec<Expression>,
    /// The one worker that may take it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub target_worker_id: Option<String>,
    /// How long it may be without a match while it is queued.
    pub worker_wait_timeout_seconds: f64,
    /// How long it may be queued in all, matching worker or not; absent when that is without bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub start_timeout_seconds: Option<f64>,
    /// Present and true when its attempt was recorded parked, for its scheduler to dispatch again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub park: bool,
    /// Present when its attempt was handed to a poll: `direct`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub delivery: Option<Delivery>,
    /// -100 to 100, higher first; ties by age.
    #[schema(minimum = -100, maximum = 100)]
    pub priority: i16,
    /// How many attempts its latest dispatch may come to by itself.
    #[schema(minimum = 1, maximum = 1000)]
    pub max_attempts: i32,
    /// When it is tried again by itself, if its dispatch said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub retry: Option<Retry>,
    /// For listing.
    #[schema(value_type = LabelsSchema)]
    pub labels: Labels,
    /// The run at the top of its family.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub root: Option<RunKey>,
    /// The run that dispatched it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub parent: Option<RunKey>,
    /// The worker that has it, or had it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub worker_id: Option<String>,
    /// Its hold, while it is queued and not parked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hold: Option<HoldSnapshot>,
    /// When it fails if nobody has started it, while it is queued; absent when that is without bound. An outage of the
    /// service moves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub start_until: Option<DateTime<Utc>>,
    /// Why it is not running yet, while it is queued.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// When the current attempt was dispatched.
    pub queued_at: DateTime<Utc>,
    /// When it was given to its worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub claimed_at: Option<DateTime<Utc>>,
    /// When its worker acknowledged it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub finished_at: Option<DateTime<Utc>>,
    /// When its cancel was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub cancel_requested_at: Option<DateTime<Utc>>,
    /// Why it was cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub cancel_reason: Option<String>,
    /// What went wrong, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
    /// What went wrong, for machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub failure: Option<Failure>,
    /// Where its log is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub log_url: Option<String>,
    /// Present and true when an output was too large to keep.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub output_dropped: bool,
}

impl RunSnapshot {
    /// The run as it stands, with what it waits for while it is queued.
    #[must_use]
    pub fn of(run: &Run, waiting: Option<&Waiting>) -> Self {
        let waiting = waiting.filter(|_| run.status == Status::Queued);
        let task = waiting.and_then(|waiting| waiting.task.as_ref());
        let claimed = task.and_then(|task| task.claimed.clone());
        Self {
            dag_name: run.key.dag_name.to_string(),
            run_id: run.key.run_id.to_string(),
            status: run.status,
            version: run.version,
            attempt: run.attempt,
            worker_selector: run.selector.equal.clone(),
            worker_expressions: run.selector.expressions.clone(),
            target_worker_id: run.selector.target.as_ref().map(ToString::to_string),
            worker_wait_timeout_seconds: run.wait.as_secs_f64(),
            start_timeout_seconds: Some(run.start_timeout)
                .filter(|timeout| !timeout.is_zero())
                .map(|t| t.as_secs_f64()),
            park: run.park,
            delivery: run.direct.then_some(Delivery::Direct),
            priority: run.priority,
            max_attempts: run.max_attempts,
            retry: run.retry.clone(),
            labels: run.labels.clone(),
            root: run.root.clone(),
            parent: run.parent.clone(),
            worker_id: claimed
                .as_ref()
                .map(|(worker_id, _)| worker_id)
                .or(run.worker_id.as_ref())
                .map(ToString::to_string),
            hold: waiting.zip(task).map(|(waiting, task)| HoldSnapshot {
                wait_timeout_seconds: task.hold.wait.as_secs_f64(),
                from: Some(task.hold.from).filter(|from| *from > waiting.situation.at),
                until: waiting.hold_until(),
            }),
            start_until: task.and_then(|task| task.start_until),
            conditions: waiting.map(|waiting| waiting.conditions(run.queued_at, run.updated_at)).unwrap_or_default(),
            queued_at: run.queued_at,
            claimed_at: claimed.map(|(_, claimed_at)| claimed_at).or(run.claimed_at),
            started_at: run.started_at,
            finished_at: run.finished_at,
            cancel_requested_at: run.cancel_requested_at,
            cancel_reason: run.cancel_reason.clone(),
            error: run.error.clone(),
            failure: run.failure.clone(),
            log_url: run.log_url.clone(),
            output_dropped: run.output_dropped,
        }
    }
}
