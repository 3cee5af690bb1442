//! The verbs as rules: what each may change, and what it refuses. One file per verb.

pub mod ack;
pub mod again;
pub mod cancel;
pub mod dispatch;
pub mod redispatch;
pub mod release;
pub mod report;
pub mod time;

use super::Timestamp;
use super::attempt::{AttemptStatus, Locked};
use super::event::EventType;
use super::refusal::Refusal;
use super::run::{Run, Status};
use super::transition::{AttemptChange, Ended, TaskChange, Transition};
use crate::ids::Digest;

/// Whether a caller's token stands for what it names.
impl Locked {
    /// The run's next version, changed by `change`.
    fn next(&self, now: Timestamp, change: impl FnOnce(&mut Run)) -> Run {
        let mut run = self.run.clone();
        run.version += 1;
        run.updated_at = now;
        run.fence = self.fence();
        change(&mut run);
        run
    }

    /// The transition to a status that ends the attempt: the run's, the attempt's and the event's in one.
    fn end(
        &self,
        now: Timestamp,
        status: Status,
        attempt: AttemptStatus,
        reported: Option<Status>,
        change: impl FnOnce(&mut Run),
    ) -> Transition {
        let run = self.next(now, |run| {
            run.status = status;
            if status.is_terminal() {
                run.finished_at = Some(now);
            }
            change(run);
        });
        let ended = if self.attempt.status.has_ended() {
            AttemptChange::Keep
        } else {
            AttemptChange::End(Ended {
                attempt_id: self.attempt.id,
                status: attempt,
                reported,
                error: run.error.clone(),
                log_url: run.log_url.clone(),
                released: None,
            })
        };
        let task = if self.task.is_some() { TaskChange::Drop } else { TaskChange::Keep };
        Transition::new(run, ended, task, EventType::of(status), now)
    }

    /// Refuses whoever does not hold the lease: the running attempt's token is needed, and its session must live.
    fn holds_lease(&self, token: Digest, session_ended: bool) -> Result<(), Refusal> {
        match self.attempt.status {
            AttemptStatus::Running if self.attempt.token == Some(token) && !session_ended => Ok(()),
            AttemptStatus::Running => Err(Refusal::LeaseLost(self.attempt.id)),
            AttemptStatus::Queued => Err(Refusal::ClaimExpired(self.attempt.id)),
            _ => Err(self.ended()),
        }
    }

    /// The refusal of whoever speaks for an attempt that has ended.
    fn ended(&self) -> Refusal {
        if !self.is_current() {
            Refusal::AttemptSuperseded { attempt_id: self.attempt.id, current: self.run.attempt.attempt_id }
        } else if self.attempt.status == AttemptStatus::Lost {
            Refusal::LeaseLost(self.attempt.id)
        } else {
            Refusal::RunFinished(self.run.status)
        }
    }
}

#[cfg(test)]
pub(super) mod fixtures;

#[cfg(test)]
mod table;
