//! Attempts, their tasks and their claims, as a locked read finds them.

use super::Timestamp;
use super::hold::Hold;
use super::run::{Operation, Run, Status, words};
use super::start::StartClock;
use crate::ids::{AttemptId, Digest, SessionKey};

words!(
    /// Where an attempt stands. All but the first two are ends.
    AttemptStatus {
        /// It waits, or is claimed and not acknowledged.
        Queued = "queued",
        /// A session holds its lease.
        Running = "running",
        /// It ended by pausing for a person.
        Waiting = "waiting",
        /// It ended well.
        Succeeded = "succeeded",
        /// It ended with some of its steps failed.
        PartiallySucceeded = "partially_succeeded",
        /// It failed.
        Failed = "failed",
        /// A person refused it.
        Rejected = "rejected",
        /// It was cancelled.
        Aborted = "aborted",
        /// Its session ended or fell silent.
        Lost = "lost",
    }
);

impl AttemptStatus {
    /// Whether it has ended.
    #[must_use]
    pub const fn has_ended(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }

    /// The attempt's status when its run ends, or pauses, with this one.
    #[must_use]
    pub const fn of_run(status: Status) -> Self {
        match status {
            Status::Queued => Self::Queued,
            Status::Running => Self::Running,
            Status::Waiting => Self::Waiting,
            Status::Succeeded => Self::Succeeded,
            Status::PartiallySucceeded => Self::PartiallySucceeded,
            Status::Failed => Self::Failed,
            Status::Rejected => Self::Rejected,
            Status::Aborted => Self::Aborted,
        }
    }
}

/// One dispatch of a run, as its row has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// Its id.
    pub id: AttemptId,
    /// Counted from 1 within its run.
    pub number: i32,
    /// What its dispatch asked for.
    pub operation: Operation,
    /// Where it stands.
    pub status: AttemptStatus,
    /// Who acknowledged it.
    pub session: Option<SessionKey>,
    /// The digest of the token it was acknowledged with.
    pub token: Option<Digest>,
    /// The status its worker reported at its end.
    pub reported: Option<Status>,
    /// The run's version at its end.
    pub ended_version: Option<i64>,
    /// The digests of the tokens with which claims of it were released, the last of them at least.
    pub released: Vec<Digest>,
}

/// The claimable row of a queued attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// How long it may be without a match.
    pub hold: Hold,
    /// How long it may wait in all, if that is bounded.
    pub start: Option<StartClock>,
    /// The fence of its last claim, or of the run before it.
    pub fence: i64,
    /// Who has it, if anyone.
    pub claim: Option<Claim>,
}

/// A task reserved for one session, to be acknowledged in time.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// For whom.
    pub session: SessionKey,
    /// The digest of its token.
    pub token: Digest,
    /// Since when.
    pub claimed_at: Timestamp,
    /// Until when it must be acknowledged.
    pub until: Timestamp,
}

/// A run with one of its attempts and that attempt's task, all locked: what every rule on an existing run looks at.
#[derive(Debug, Clone, PartialEq)]
pub struct Locked {
    /// The run.
    pub run: Run,
    /// The attempt that the caller named, or the current one.
    pub attempt: Attempt,
    /// Its task, while it is queued.
    pub task: Option<Task>,
}

impl Locked {
    /// Whether the attempt is the run's current one.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.attempt.id == self.run.attempt.attempt_id
    }

    /// The claim on its task, if there is one.
    #[must_use]
    pub fn claim(&self) -> Option<&Claim> {
        self.task.as_ref().and_then(|task| task.claim.as_ref())
    }

    /// The highest fence given out so far.
    #[must_use]
    pub fn fence(&self) -> i64 {
        self.task.as_ref().map_or(self.run.fence, |task| task.fence.max(self.run.fence))
    }
}
