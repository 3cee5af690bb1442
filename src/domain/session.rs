//! Sessions: one life of a worker's process, its signs of life and its lease.

use std::time::Duration;

use super::Timestamp;
use super::run::words;
use crate::ids::{LabelSetNo, SessionKey};

words!(
    /// Why a session ended.
    EndReason {
        /// Another session of the same worker registered.
        Replaced = "replaced",
        /// It said goodbye.
        Left = "left",
        /// It gave no sign of life for its whole lease.
        Lapsed = "lapsed",
    }
);

words!(
    /// What a worker is to the matcher.
    WorkerState {
        /// It gives signs of life and may be given tasks.
        Healthy = "healthy",
        /// It finishes what it has and is given nothing.
        Draining = "draining",
        /// It has been silent for `stale_after`: no match, though its lease still holds.
        Stale = "stale",
        /// It is gone.
        Ended = "ended",
    }
);

/// One session, as its row has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// Whose, and which.
    pub key: SessionKey,
    /// What it offers.
    pub label_set_no: LabelSetNo,
    /// How many tasks it may have at a time.
    pub slots: i32,
    /// How long without a sign of life until it is stale.
    pub stale_after: Duration,
    /// How long without a sign of life until it is lost.
    pub lease_ttl: Duration,
    /// Its last sign of life.
    pub last_seen: Timestamp,
    /// Since when it has been present without a break; none while it is draining or has ended.
    pub present_from: Option<Timestamp>,
    /// Why it ended, if it has.
    pub ended: Option<EndReason>,
}

impl Session {
    /// What it is to the matcher at this moment.
    #[must_use]
    pub fn state(&self, now: Timestamp) -> WorkerState {
        if self.ended.is_some() {
            WorkerState::Ended
        } else if now >= self.last_seen + self.stale_after {
            WorkerState::Stale
        } else if self.present_from.is_none() {
            WorkerState::Draining
        } else {
            WorkerState::Healthy
        }
    }

    /// When its lease ends if it stays silent.
    #[must_use]
    pub fn lease_until(&self) -> Timestamp {
        self.last_seen + self.lease_ttl
    }

    /// Whether its lease has lapsed at this moment, outside of an amnesty.
    #[must_use]
    pub fn lapsed(&self, now: Timestamp, amnesty_until: Option<Timestamp>) -> bool {
        self.ended.is_none() && now >= self.lease_until() && amnesty_until.is_none_or(|until| now >= until)
    }
}
