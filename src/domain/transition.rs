//! Transitions: a change of a run with its event. Only rules make them, and the store's writer takes nothing else, so
//! a change without its event cannot compile.

use super::Timestamp;
use super::attempt::AttemptStatus;
use super::event::EventType;
use super::hold::Hold;
use super::run::{Run, Status};
use super::start::StartClock;
use crate::ids::{AttemptId, Digest, SessionKey};

/// What becomes of the attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptChange {
    /// It is the run's first attempt.
    Create,
    /// It is the run's next attempt, as somebody asked.
    Follow {
        /// The attempt it follows, which has ended.
        after: AttemptId,
        /// The digest of the request, to know a repeat.
        request: Digest,
    },
    /// It stays as it is.
    Keep,
    /// A session has acknowledged it.
    Start {
        /// Who holds the lease.
        session: SessionKey,
        /// The token that stands for it.
        token: Digest,
    },
    /// It has ended, once and for all.
    End(Ended),
    /// It has ended, and the run has another.
    Replace(Ended),
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// Which.
    pub attempt_id: AttemptId,
    /// How.
    pub status: AttemptStatus,
    /// What its worker said, to know a repeat.
    pub reported: Option<Status>,
    /// What went wrong, for people.
    pub error: Option<String>,
    /// Where its log is.
    pub log_url: Option<String>,
    /// The token of the claim that was given back, to know a repeat.
    pub released: Option<Digest>,
}

impl AttemptChange {
    /// The end that is part of it.
    #[must_use]
    pub const fn ended(&self) -> Option<&Ended> {
        match self {
            Self::End(ended) | Self::Replace(ended) => Some(ended),
            Self::Create | Self::Follow { .. } | Self::Keep | Self::Start { .. } => None,
        }
    }
}

/// What becomes of the task.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskChange {
    /// The attempt waits.
    Create {
        /// How long it may be without a match.
        hold: Hold,
        /// How long it may wait in all, if that is bounded.
        start: Option<StartClock>,
    },
    /// It stays as it is, or there is none.
    Keep,
    /// Its claim is taken from it; its place stays.
    Return {
        /// Its hold from now on: the one it had, unless its release asked for a delay.
        hold: Hold,
        /// Its start clock, which is as it was.
        start: Option<StartClock>,
        /// The session that released it, which is not offered it again for a while.
        released: Option<Released>,
    },
    /// It is gone.
    Drop,
}

/// A release, as the task remembers it.
#[derive(Debug, Clone, PartialEq)]
pub struct Released {
    /// Who released it.
    pub session: SessionKey,
    /// With which token, to know a repeat.
    pub token: Digest,
    /// Until when it is not offered to that session.
    pub barred_until: Timestamp,
}

/// What a worker's report leaves in the payload.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Left {
    /// The output, JSON as sent.
    pub output: Option<String>,
    /// The progress, JSON as sent.
    pub progress: Option<String>,
}

/// One change of one run: its state after, and everything written with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    run: Run,
    attempt: AttemptChange,
    task: TaskChange,
    left: Left,
    event: EventType,
    at: Timestamp,
}

impl Transition {
    /// Made by rules only.
    pub(super) fn new(run: Run, attempt: AttemptChange, task: TaskChange, event: EventType, at: Timestamp) -> Self {
        Self { run, attempt, task, left: Left::default(), event, at }
    }

    /// The same, and remembers that this claim was given back with it.
    pub(super) fn releasing(mut self, token: Digest) -> Self {
        if let AttemptChange::End(ended) = &mut self.attempt {
            ended.released = Some(token);
        }
        self
    }

    /// The same with what a report leaves.
    pub(super) fn leaving(mut self, left: Left) -> Self {
        self.left = left;
        self
    }

    /// The run after the change; its version is the event's `run_seq`.
    #[must_use]
    pub const fn run(&self) -> &Run {
        &self.run
    }

    /// What becomes of the attempt.
    #[must_use]
    pub const fn attempt(&self) -> &AttemptChange {
        &self.attempt
    }

    /// What becomes of the task.
    #[must_use]
    pub const fn task(&self) -> &TaskChange {
        &self.task
    }

    /// What is left in the payload.
    #[must_use]
    pub const fn left(&self) -> &Left {
        &self.left
    }

    /// The event's type.
    #[must_use]
    pub const fn event(&self) -> EventType {
        self.event
    }

    /// When it happened, by the database's clock, read under lock.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.at
    }
}
