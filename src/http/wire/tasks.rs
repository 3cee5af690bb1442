//! Tasks: how a worker asks for work, and what it is given.

use std::time::Duration;

use serde::Serialize;

use super::MAX_WAIT;
use super::raw::RawJson;
use crate::coordinator::poll::{GivenTask, Poll, PollAnswer};
use crate::domain::labels::{Labels, LabelsSchema};
use crate::domain::run::Operation;
use crate::domain::selector::Expression;
use crate::http::extract::{Fields, FromFields, Reading, Settings, read};
use crate::ids::{AttemptId, RunKey, SessionId, SessionKey, WorkerId};

/// How long a poll waits when it does not say.
const DEFAULT_WAIT: Duration = Duration::from_secs(20);

/// A request for work.
#[derive(Debug, Clone, PartialEq, utoipa::ToSchema)]
pub struct PollRequest {
    /// Which session asks.
    #[schema(value_type = String, min_length = 1, max_length = 255)]
    pub session_id: SessionId,
    /// The most tasks to be given; never more than its free slots. 1 when absent.
    #[schema(required = false, minimum = 1, maximum = 100)]
    pub max_tasks: i64,
    /// How long to wait for a task; more than 50 is lowered to 50. 20 when absent.
    #[schema(value_type = f64, required = false, minimum = 0)]
    pub wait_seconds: Duration,
    /// The poll's own name. The same again is given that poll's unacknowledged tasks again, with fresh tokens: so a
    /// poll whose answer was lost loses nothing.
    #[schema(nullable = false, min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    pub poll_id: Option<String>,
}

impl FromFields for PollRequest {
    const READING: Reading = Reading::Tolerant;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        let session_id = fields.required("session_id", read::name);
        let max_tasks = fields.or("max_tasks", 1, read::integer(1, 100));
        let wait_seconds = fields.or("wait_seconds", DEFAULT_WAIT, read::seconds_lowered(MAX_WAIT));
        let poll_id = fields.optional("poll_id", |json| match read::text(json)? {
            id if (1..=255).contains(&id.len()) && id.bytes().all(|byte| (b' '..=b'~').contains(&byte)) => Ok(id),
            _ => Err("must be 1 to 255 characters of printable ASCII".into()),
        });
        Some(Self { session_id: session_id?, max_tasks: max_tasks?, wait_seconds: wait_seconds?, poll_id })
    }
}

impl PollRequest {
    /// What the coordinator takes.
    pub fn into_poll(self, worker_id: WorkerId) -> Poll {
        Poll {
            session: SessionKey { worker_id, session_id: self.session_id },
            max_tasks: self.max_tasks,
            wait: self.wait_seconds,
            poll_id: self.poll_id,
        }
    }
}

/// What a worker is given, and told.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = PollAnswer)]
pub struct Polled {
    /// Tasks to acknowledge and do; none when the wait is over.
    pub tasks: Vec<Task>,
    /// Attempts to stop, and to report as `aborted`.
    #[schema(value_type = Vec<uuid::Uuid>)]
    pub cancel: Vec<AttemptId>,
    /// Attempts that are not its own any more: stop them and report nothing.
    #[schema(value_type = Vec<uuid::Uuid>)]
    pub lost: Vec<AttemptId>,
    /// Whether it will be given no more tasks.
    pub drain: bool,
    /// How long to wait before the next poll.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub poll_after_seconds: Option<f64>,
}

impl From<PollAnswer> for Polled {
    fn from(answer: PollAnswer) -> Self {
        Self {
            tasks: answer.tasks.into_iter().map(Task::from).collect(),
            cancel: answer.cancel,
            lost: answer.lost,
            drain: answer.drain,
            poll_after_seconds: answer.poll_after.map(|after| after.as_secs_f64()),
        }
    }
}

/// An attempt that is reserved for a worker until it acknowledges it or the time for that is over.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Task {
    /// The DAG's name.
    pub dag_name: String,
    /// The run's id within the DAG.
    pub run_id: String,
    /// The attempt.
    #[schema(value_type = uuid::Uuid)]
    pub attempt_id: AttemptId,
    /// Counted from 1 within its run.
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    pub attempt_number: i32,
    /// What to do.
    pub operation: Operation,
    /// What to show with every word about this attempt. Keep it secret.
    pub token: String,
    /// Rises with each claim of the run: hand it on to what the attempt writes to, so that an older one is kept out.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fence: i64,
    /// How soon to acknowledge it, else it goes back into the queue.
    pub ack_within_seconds: f64,
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
    /// The labels it requires of a worker.
    #[schema(value_type = LabelsSchema)]
    pub worker_selector: Labels,
    /// What else it requires of that worker's labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub worker_expressions: Vec<Expression>,
    /// The run at the top of its family.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub root: Option<RunKey>,
    /// The run that dispatched it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub parent: Option<RunKey>,
    /// The run's labels.
    #[schema(value_type = LabelsSchema)]
    pub labels: Labels,
    /// W3C trace context of its dispatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub traceparent: Option<String>,
    /// What the attempt before this one came to: `{attempt_id, status, error, output, progress}`, or what was dispatched
    /// for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub previous: Option<RawJson>,
}

impl From<GivenTask> for Task {
    fn from(task: GivenTask) -> Self {
        Self {
            dag_name: task.key.dag_name.into(),
            run_id: task.key.run_id.into(),
            attempt_id: task.attempt_id,
            attempt_number: task.attempt_number,
            operation: task.operation,
            token: task.token.reveal().to_owned(),
            fence: task.fence,
            ack_within_seconds: task.ack_within.as_secs_f64(),
            definition: task.payload.definition,
            params: task.payload.params.map(RawJson),
            context: task.payload.context.map(RawJson),
            worker_selector: task.selector.equal.clone(),
            worker_expressions: task.selector.expressions.clone(),
            root: task.root,
            parent: task.parent,
            labels: task.labels,
            traceparent: task.traceparent,
            previous: task.payload.previous.map(RawJson),
        }
    }
}
