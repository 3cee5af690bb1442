//! Runs: one requested execution of a DAG, and the words for its states.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Timestamp;
use super::labels::{Labels, LabelsSchema};
use super::retry::{Retry, RetryOn};
use super::selector::{Expression, Selector};
use crate::ids::{AttemptId, RunKey, SelectorNo, WorkerId};

/// Declares an enum whose variants have one text each, in the database and on the wire.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$variant_doc])* #[serde(rename = $text)] $variant),+ }

        impl $name {
            /// Every value, in the order of the lifecycle.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word for it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The value of a word, or none if it is no word of ours.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($text => Some(Self::$variant),)+ _ => None }
            }
        }

        // By hand, since the derive does not see a renaming that comes out of a macro.
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let words = Self::ALL.iter().map(|value| value.as_str());
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .enum_values(Some(words))
                    .into()
            }
        }

        impl utoipa::ToSchema for $name {}

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use words;

words!(
    /// Where a run stands.
    Status {
        /// It waits for a worker.
        Queued = "queued",
        /// A worker has acknowledged it and holds its lease.
        Running = "running",
        /// Its worker paused it for a person.
        Waiting = "waiting",
        /// It ended well.
        Succeeded = "succeeded",
        /// It ended with some of its steps failed.
        PartiallySucceeded = "partially_succeeded",
        /// It failed, by its worker's word or ours.
        Failed = "failed",
        /// A person refused it.
        Rejected = "rejected",
        /// It was cancelled.
        Aborted = "aborted",
    }
);

impl Status {
    /// Whether nothing but a retry leads out of it.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Queued | Self::Running | Self::Waiting => false,
            Self::Succeeded | Self::PartiallySucceeded | Self::Failed | Self::Rejected | Self::Aborted => true,
        }
    }
}

words!(
    /// What a dispatch asks for.
    Operation {
        /// The first attempt.
        Start = "start",
        /// Another attempt, from the beginning.
        Retry = "retry",
        /// Another attempt, from where it paused.
        Resume = "resume",
    }
);

words!(
    /// How a run comes to its worker.
    Delivery {
        /// It waits for one.
        Queue = "queue",
        /// It is handed to a poll that waits already, or not at all.
        Direct = "direct",
    }
);

words!(
    /// Why a run failed, for machines.
    FailureReason {
        /// No worker matched for the whole wait.
        HoldExpired = "hold_expired",
        /// It was not started in time.
        StartTimeout = "start_timeout",
        /// It was handed to a poll directly, and its worker did not take it.
        DeliveryFailed = "delivery_failed",
        /// The session that ran it ended or fell silent.
        LeaseLost = "lease_lost",
        /// Its worker said so.
        Reported = "reported",
    }
);

/// Why a run failed, with the facts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Failure {
    /// The kind of failure; more may be added.
    #[schema(value_type = String, example = "hold_expired")]
    pub reason: FailureReason,
    /// What was waited for, of a clock that ran out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<LabelsSchema>, nullable = false)]
    pub worker_selector: Option<Labels>,
    /// What else was asked of its labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub worker_expressions: Vec<Expression>,
    /// The one worker that was waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, nullable = false)]
    pub target_worker_id: Option<WorkerId>,
    /// How long it had waited, of a clock that ran out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub waited_seconds: Option<f64>,
    /// The worker that lost it, reported it or did not take it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, nullable = false)]
    pub worker_id: Option<WorkerId>,
}

/// Which attempt a run is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct AttemptRef {
    /// Counted from 1.
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    pub number: i32,
    /// Its id, by which workers speak of it.
    #[schema(value_type = uuid::Uuid)]
    pub attempt_id: AttemptId,
    /// What its dispatch asked for.
    pub operation: Operation,
}

/// A run as its row has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Its identity.
    pub key: RunKey,
    /// Where it stands.
    pub status: Status,
    /// Rises by one with each change; the `run_seq` of the change's event.
    pub version: i64,
    /// The attempt it is at.
    pub attempt: AttemptRef,
    /// The highest fence that any of its claims was given.
    pub fence: i64,
    /// What it requires of a worker.
    pub selector: Arc<Selector>,
    /// The number of that selector.
    pub selector_no: SelectorNo,
    /// How long it may be without a match while it is queued.
    pub wait: Duration,
    /// How long it may be queued in all; zero is without bound.
    pub start_timeout: Duration,
    /// Whether its attempt was recorded parked: without a task until it is dispatched again.
    pub park: bool,
    /// Whether its attempt was handed to a poll: then it never waits for another one.
    pub direct: bool,
    /// -100 to 100, higher first.
    pub priority: i16,
    /// How many attempts its latest dispatch may come to by itself.
    pub max_attempts: i32,
    /// The attempt that was dispatched last: [`Self::max_attempts`] counts from it.
    pub counted_from: i32,
    /// When there is another attempt, and after how long; none is the default.
    pub retry: Option<Retry>,
    /// For listing.
    pub labels: Labels,
    /// The run at the top of its family.
    pub root: Option<RunKey>,
    /// The run that dispatched it.
    pub parent: Option<RunKey>,
    /// W3C trace context of its dispatch.
    pub traceparent: Option<String>,
    /// The worker that acknowledged the current attempt.
    pub worker_id: Option<WorkerId>,
    /// When it was first dispatched.
    pub created_at: Timestamp,
    /// When its latest version was made.
    pub updated_at: Timestamp,
    /// When the current attempt was dispatched.
    pub queued_at: Timestamp,
    /// When the acknowledged claim was made.
    pub claimed_at: Option<Timestamp>,
    /// When it was acknowledged.
    pub started_at: Option<Timestamp>,
    /// When it became terminal.
    pub finished_at: Option<Timestamp>,
    /// When its cancel was asked for.
    pub cancel_requested_at: Option<Timestamp>,
    /// Why it was cancelled.
    pub cancel_reason: Option<String>,
    /// What went wrong, for people.
    pub error: Option<String>,
    /// What went wrong, for machines.
    pub failure: Option<Failure>,
    /// Where its log is.
    pub log_url: Option<String>,
    /// Whether an output was too large to keep.
    pub output_dropped: bool,
}

impl Run {
    /// How long the next attempt backs off, if an attempt that came to this is followed by another.
    #[must_use]
    pub fn tried_again(&self, came_to: RetryOn) -> Option<Duration> {
        let retry = self.retry.clone().unwrap_or_default();
        let failed = self.attempt.number - self.counted_from + 1;
        (failed < self.max_attempts && retry.on.contains(&came_to)).then(|| retry.delay(failed))
    }
}
