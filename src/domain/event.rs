//! Events: one immutable record per change of a run, committed with it.

use super::run::{Status, words};

words!(
    /// What happened, as `dag.run.*` names it.
    EventType {
        /// Dispatched: it waits for a worker, or is parked.
        Queued = "dag.run.queued",
        /// Acknowledged by a worker.
        Running = "dag.run.running",
        /// A change that is none of the others: cancel requested, claim returned, parked again, progress.
        Updated = "dag.run.updated",
        /// Paused for a person.
        Waiting = "dag.run.waiting",
        /// Ended well.
        Succeeded = "dag.run.succeeded",
        /// Ended with some of its steps failed.
        PartiallySucceeded = "dag.run.partially_succeeded",
        /// Failed.
        Failed = "dag.run.failed",
        /// Refused by a person.
        Rejected = "dag.run.rejected",
        /// Cancelled.
        Aborted = "dag.run.aborted",
    }
);

impl EventType {
    /// The event of a run that comes to stand at this status.
    #[must_use]
    pub const fn of(status: Status) -> Self {
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
