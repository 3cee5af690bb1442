//! Release: a worker gives back what it was given.

use std::time::Duration;

use crate::domain::Timestamp;
use crate::domain::attempt::{AttemptStatus, Locked};
use crate::domain::event::EventType;
use crate::domain::hold::Hold;
use crate::domain::refusal::Refusal;
use crate::domain::transition::{self, AttemptChange, TaskChange, Transition};
use crate::ids::{AttemptId, Digest};

/// How long a released task is not offered to the session that released it.
pub const BARRED_FOR: Duration = Duration::from_secs(30);

/// How a release was taken.
#[derive(Debug, Clone, PartialEq)]
pub enum Released {
    /// The claim returns, or the attempt ends.
    Changed(Box<Transition>),
    /// It was released before with this token.
    Already,
}

impl Locked {
    /// Takes back a claim that was not acknowledged: back to its place, with its clocks, or with a hold that begins
    /// after `delay`; the start clock runs on through the delay. A run that was handed over fails, for it never queues. An acknowledged attempt ends like a lost lease, at once; `next` is the run's next attempt then.
    ///
    /// # Errors
    /// As for a report: a wrong or old token changes nothing.
    pub fn release(
        &self,
        token: Digest,
        reason: Option<&str>,
        delay: Duration,
        session_ended: bool,
        next: AttemptId,
        now: Timestamp,
    ) -> Result<Released, Refusal> {
        if self.attempt.released.contains(&token)
            || (self.attempt.status == AttemptStatus::Lost && self.attempt.token == Some(token))
        {
            return Ok(Released::Already);
        }
        if let (Some(task), Some(claim)) = (&self.task, self.claim()) {
            if claim.token != token || session_ended {
                return Err(Refusal::ClaimExpired(self.attempt.id));
            }
            if self.run.direct {
                let cause = cause(reason);
                let failed = self.not_delivered(claim, &cause, now).releasing(token);
                return Ok(Released::Changed(Box::new(failed)));
            }
            let hold = if delay.is_zero() { task.hold } else { Hold { from: now + delay, ..task.hold } };
            let released =
                Some(transition::Released { session: claim.session.clone(), token, barred_until: now + BARRED_FOR });
            let run = self.next(now, |_| ());
            let task = TaskChange::Return { hold, start: task.start, released };
            let returned = Transition::new(run, AttemptChange::Keep, task, EventType::Updated, now);
            return Ok(Released::Changed(Box::new(returned)));
        }
        self.holds_lease(token, session_ended)?;
        Ok(Released::Changed(Box::new(self.lost(&cause(reason), next, now))))
    }
}

/// What follows the worker's name.
fn cause(reason: Option<&str>) -> String {
    reason.map_or_else(|| "released it".to_owned(), |reason| format!("released it: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{at, attempt_id, claimed, ended, queued, running, token};
    use super::*;
    use crate::domain::run::Status;
    use crate::domain::start::StartClock;

    fn release(locked: &Locked, by: u8, delay: u64) -> Result<Released, Refusal> {
        locked.release(token(by), None, Duration::from_secs(delay), false, attempt_id(2), at(5))
    }

    #[test]
    fn an_unacknowledged_claim_returns_to_its_place() {
        let Released::Changed(returned) = release(&claimed(15), 1, 0).unwrap() else { panic!("changes") };
        assert_eq!(returned.run().status, Status::Queued);
        assert_eq!(returned.event(), EventType::Updated);
        let TaskChange::Return { released: Some(released), hold, .. } = returned.task() else { panic!("returns") };
        assert_eq!((released.barred_until, hold.from), (at(35), at(0)));
    }

    #[test]
    fn a_delay_starts_the_hold_clock_anew_after_it_and_leaves_the_start_clock_alone() {
        let mut claimed = claimed(15);
        let start = StartClock::of(Duration::from_secs(600), at(0));
        claimed.task.as_mut().unwrap().start = start;
        let Released::Changed(returned) = release(&claimed, 1, 60).unwrap() else { panic!("changes") };
        let TaskChange::Return { hold, start: kept, .. } = returned.task() else { panic!("returns") };
        assert_eq!((hold.from, hold.wait), (at(65), Duration::from_secs(120)));
        assert_eq!(*kept, start);
    }

    #[test]
    fn what_was_handed_over_fails() {
        let mut direct = claimed(15);
        direct.run.direct = true;
        let Released::Changed(failed) = release(&direct, 1, 60).unwrap() else { panic!("changes") };
        assert_eq!((failed.run().status, failed.task()), (Status::Failed, &TaskChange::Drop));
        assert_eq!(failed.run().error.as_deref(), Some("worker w-b released it"));
        assert_eq!(failed.attempt().ended().unwrap().released, Some(token(1)), "a repeat is known by it");
    }

    #[test]
    fn an_acknowledged_attempt_is_lost_at_once() {
        let Released::Changed(lost) = release(&running(), 1, 0).unwrap() else { panic!("changes") };
        assert_eq!(lost.run().status, Status::Failed);
        assert_eq!(lost.attempt().ended().map(|end| (end.status, end.reported)), Some((AttemptStatus::Lost, None)));
    }

    #[test]
    fn a_repeat_changes_nothing() {
        // Whoever has it by now, and whatever has become of it.
        for mut since in [queued(), claimed(15), running(), ended(Status::Succeeded, AttemptStatus::Succeeded)] {
            since.attempt.released = vec![token(3), token(4)];
            assert_eq!(release(&since, 3, 0), Ok(Released::Already));
            assert_eq!(release(&since, 4, 0), Ok(Released::Already));
        }
        let mut lost = ended(Status::Failed, AttemptStatus::Lost);
        lost.attempt.token = Some(token(1));
        assert_eq!(release(&lost, 1, 0), Ok(Released::Already));
    }

    #[test]
    fn a_wrong_token_is_refused() {
        assert_eq!(release(&claimed(15), 2, 0), Err(Refusal::ClaimExpired(claimed(15).attempt.id)));
        assert_eq!(release(&queued(), 2, 0), Err(Refusal::ClaimExpired(queued().attempt.id)));
        assert_eq!(release(&running(), 2, 0), Err(Refusal::LeaseLost(running().attempt.id)));
    }
}
