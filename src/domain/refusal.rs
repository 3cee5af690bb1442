//! Refusals: a rule's no, with the facts and no prose.

use std::sync::Arc;

use super::run::Status;
use super::selector::Selector;
use super::session::EndReason;
use crate::ids::{AttemptId, RunKey, SessionKey, WorkerId};

/// Why a request cannot be done as things stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// A dispatch that would not wait: no session is healthy.
    NoAvailableWorker(Arc<Selector>),
    /// A dispatch that would not wait: healthy sessions, none fits.
    NoMatchingWorker(Arc<Selector>),
    /// A dispatch that is to be handed over: no poll that fits is parked here.
    NoParkedPoll(Arc<Selector>),
    /// The same identity was dispatched with another request, or under another key.
    RunExists(RunKey),
    /// The key was used for another request.
    IdempotencyMismatch,
    /// There is no such run.
    NoSuchRun(RunKey),
    /// There is no such worker.
    NoSuchWorker(WorkerId),
    /// There is no such attempt.
    NoSuchAttempt(AttemptId),
    /// The session is not known (`ended` is none) or has ended.
    UnknownSession {
        /// Which.
        session: SessionKey,
        /// Why it ended.
        ended: Option<EndReason>,
    },
    /// The worker does not offer a label that the caller's token obliges it to.
    OutOfBounds {
        /// The label's key.
        key: String,
        /// The value it must have.
        required: String,
        /// The value it has.
        offered: Option<String>,
    },
    /// The claim this token stood for was not acknowledged in time, returned, or never existed.
    ClaimExpired(AttemptId),
    /// The lease this token stood for is gone, or it never stood for one.
    LeaseLost(AttemptId),
    /// The run has gone on to a later attempt.
    AttemptSuperseded {
        /// The one named.
        attempt_id: AttemptId,
        /// The run's current one.
        current: AttemptId,
    },
    /// What is to be dispatched again is not the run's current attempt.
    StaleDispatch {
        /// The one named.
        attempt_id: AttemptId,
        /// The run's current one.
        current: AttemptId,
    },
    /// Events after this position are no longer kept.
    PositionExpired {
        /// The position asked for.
        after: i64,
        /// The first that is kept.
        first: i64,
    },
    /// The run, or the attempt named, has come to its end.
    RunFinished(Status),
    /// A run whose parent has ended, or is to be cancelled, is not begun any more.
    ParentFinished {
        /// The parent.
        parent: RunKey,
        /// Where it stands.
        status: Status,
    },
    /// A selector would have more terms than one may have, those it inherits counted.
    TooManyTerms(usize),
    /// Only what has ended can be tried again.
    RunNotFinished(Status),
    /// Only what waits for a person can be resumed.
    RunNotWaiting(Status),
}
