//! Conditions: why a queued run is not running yet. Observations, derived when read, never a gate.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::Timestamp;
use super::hold::Hold;
use super::refusal::Refusal;
use super::run::words;
use super::selector::Selector;

words!(
    /// The one reason that both conditions give: the first that holds.
    Reason {
        /// Handed to a worker, not acknowledged yet.
        ClaimPending = "ClaimPending",
        /// It was put off; no clock runs until then.
        BackingOff = "BackingOff",
        /// Its scheduler is to dispatch it; something matches.
        Parked = "Parked",
        /// A match has a free slot; it is between two polls.
        AwaitingPoll = "AwaitingPoll",
        /// There are matches, none with a free slot.
        WorkersBusy = "WorkersBusy",
        /// Only draining sessions would match.
        WorkersDraining = "WorkersDraining",
        /// There are healthy sessions, none matches.
        NoMatchingWorker = "NoMatchingWorker",
        /// There is no healthy session at all.
        NoAvailableWorker = "NoAvailableWorker",
    }
);

impl Reason {
    /// Whether it is a reason to expect a start at once.
    #[must_use]
    pub const fn is_true(self) -> bool {
        match self {
            Self::AwaitingPoll => true,
            Self::ClaimPending
            | Self::BackingOff
            | Self::Parked
            | Self::WorkersBusy
            | Self::WorkersDraining
            | Self::NoMatchingWorker
            | Self::NoAvailableWorker => false,
        }
    }

    /// The reason as a sentence.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::ClaimPending => "a worker was given the task and has not acknowledged it yet",
            Self::BackingOff => "it was put off and will be offered to workers later",
            Self::Parked => "it is parked; a worker matches, and its scheduler is to dispatch it",
            Self::AwaitingPoll => "a matching worker has a free slot and will be given the task by its next poll",
            Self::WorkersBusy => "matching workers are healthy, but none has a free slot",
            Self::WorkersDraining => "only draining workers match",
            Self::NoMatchingWorker => "no healthy worker matches the selector",
            Self::NoAvailableWorker => "no healthy worker is available",
        }
    }
}

/// How the workers stand to one selector at one moment.
#[expect(clippy::struct_excessive_bools, reason = "four independent observations, from which the reason follows")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Situation {
    /// When this was so.
    pub at: Timestamp,
    /// Whether any session of the namespace is healthy.
    pub any_healthy: bool,
    /// Whether a healthy session fits.
    pub matched: bool,
    /// Whether one of those that fit has a free slot.
    pub free: bool,
    /// Whether a draining session would fit.
    pub draining: bool,
    /// Since when what matters has been so: the start of the longest presence that fits, or the end of the last one.
    /// None when nothing ever fitted.
    pub since: Option<Timestamp>,
}

impl Situation {
    /// The reason of an unclaimed task.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        if self.free {
            Reason::AwaitingPoll
        } else if self.matched {
            Reason::WorkersBusy
        } else if self.draining {
            Reason::WorkersDraining
        } else if self.any_healthy {
            Reason::NoMatchingWorker
        } else {
            Reason::NoAvailableWorker
        }
    }

    /// Refuses what would not wait, unless something matches.
    ///
    /// # Errors
    /// [`Refusal::NoAvailableWorker`] when no session is healthy and undrained, else [`Refusal::NoMatchingWorker`].
    pub fn needs_match(&self, selector: &Arc<Selector>) -> Result<(), Refusal> {
        match (self.matched, self.any_healthy) {
            (true, _) => Ok(()),
            (false, true) => Err(Refusal::NoMatchingWorker(Arc::clone(selector))),
            (false, false) => Err(Refusal::NoAvailableWorker(Arc::clone(selector))),
        }
    }

    /// When a hold will expire if nothing comes; none while its clock stands still: while something matches, or in an
    /// outage, whose end is `since` then and lies ahead.
    #[must_use]
    pub fn hold_until(&self, hold: &Hold) -> Option<Timestamp> {
        let since = self.since.unwrap_or(hold.from);
        (!self.matched && since <= self.at).then(|| hold.expires_at(since))
    }
}

/// One observation about a queued run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Condition {
    /// `Runnable` or `WorkerReady`; more may be added.
    #[serde(rename = "type")]
    #[schema(value_type = String, example = "WorkerReady")]
    pub kind: &'static str,
    /// `True` or `False`.
    #[schema(value_type = String, example = "False")]
    pub status: &'static str,
    /// Why, in one word; more may be added.
    #[schema(value_type = String, example = "NoMatchingWorker")]
    pub reason: Reason,
    /// Why, in a sentence.
    #[schema(value_type = String)]
    pub message: &'static str,
    /// When `status` last changed for this attempt, as far as presence tells.
    pub last_transition_at: DateTime<Utc>,
}

/// Both conditions with their one reason.
#[must_use]
pub fn conditions(reason: Reason, last_transition_at: Timestamp) -> Vec<Condition> {
    let status = if reason.is_true() { "True" } else { "False" };
    ["Runnable", "WorkerReady"]
        .map(|kind| Condition { kind, status, reason, message: reason.message(), last_transition_at })
        .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn situation([any_healthy, matched, free, draining]: [bool; 4]) -> Situation {
        Situation { at: Timestamp::UNIX_EPOCH, any_healthy, matched, free, draining, since: None }
    }

    #[test]
    fn the_first_reason_that_holds() {
        let rows = [
            (situation([true, true, true, true]), Reason::AwaitingPoll, "True"),
            (situation([true, true, false, true]), Reason::WorkersBusy, "False"),
            (situation([true, false, false, true]), Reason::WorkersDraining, "False"),
            (situation([true, false, false, false]), Reason::NoMatchingWorker, "False"),
            (situation([false, false, false, false]), Reason::NoAvailableWorker, "False"),
        ];
        for (situation, reason, status) in rows {
            assert_eq!(situation.reason(), reason);
            let both = conditions(reason, situation.at);
            assert_eq!(both.iter().map(|c| c.kind).collect::<Vec<_>>(), ["Runnable", "WorkerReady"]);
            assert!(both.iter().all(|c| c.status == status && c.reason == reason));
        }
        assert!(!Reason::ClaimPending.is_true());
    }
}
