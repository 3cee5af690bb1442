//! What time does: holds expire, claims lapse, leases are lost.

use crate::domain::Timestamp;
use crate::domain::attempt::{AttemptStatus, Claim, Locked};
use crate::domain::event::EventType;
use crate::domain::hold::Stretch;
use crate::domain::retry::RetryOn;
use crate::domain::run::{Failure, FailureReason, Run, Status};
use crate::domain::transition::{AttemptChange, Ended, TaskChange, Transition};
use crate::duration;
use crate::ids::AttemptId;

impl Locked {
    /// Fails a run whose task nobody has claimed and one of whose clocks has run out: its hold, which ran its full wait
    /// within one of these gaps, or its start clock, which only these outages stop. The one that ran out first says why;
    /// of both at once it is the hold, which says more.
    ///
    /// A run that its scheduler dispatched again is not failed for its hold: it parks again.
    ///
    /// A claim is not cut: what was given out in time may be acknowledged in time, and it is this rule that looks again
    /// when the claim returns.
    #[must_use]
    pub fn expire(&self, gaps: &[Stretch], outages: &[Stretch], now: Timestamp) -> Option<Transition> {
        let task = self.task.as_ref().filter(|task| task.claim.is_none())?;
        let hold = task.hold.expired_at(gaps);
        let start = task.start.map(|start| (start.ends_at(outages), start.from)).filter(|(end, _)| *end <= now);
        let (reason, from, error) = match (hold, start) {
            (hold, Some((end, from))) if hold.is_none_or(|hold| end < hold) => {
                let within = duration::text(self.run.start_timeout);
                (FailureReason::StartTimeout, from, format!("run was not started within {within}"))
            }
            (Some(_), _) => (FailureReason::HoldExpired, task.hold.from, waited_in_vain(&self.run)),
            (None, _) => return None,
        };
        if self.run.park && reason == FailureReason::HoldExpired {
            let run = self.next(now, |_| ());
            return Some(Transition::new(run, AttemptChange::Keep, TaskChange::Drop, EventType::Updated, now));
        }
        let waited = (now - from).to_std().unwrap_or_default();
        Some(self.end(now, Status::Failed, AttemptStatus::Failed, None, |run| {
            run.error = Some(error);
            run.failure = Some(Failure {
                reason,
                worker_selector: Some(run.selector.equal.clone()),
                worker_expressions: run.selector.expressions.clone(),
                target_worker_id: run.selector.target.clone(),
                waited_seconds: Some(waited.as_secs_f64()),
                worker_id: None,
            });
        }))
    }

    /// Returns a claim that was not acknowledged in time, or whose holder is gone: to its place, with its clocks and its
    /// attempt number. A run that was handed over fails instead.
    #[must_use]
    pub fn lapse(&self, holder_gone: bool, amnesty_until: Option<Timestamp>, now: Timestamp) -> Option<Transition> {
        let task = self.task.as_ref()?;
        let claim = task.claim.as_ref()?;
        let amnesty = amnesty_until.is_some_and(|until| now < until);
        (holder_gone || (now >= claim.until && !amnesty)).then(|| {
            if self.run.direct {
                return self.not_delivered(claim, "did not take the run that was handed to it", now);
            }
            let run = self.next(now, |_| ());
            let task = TaskChange::Return { hold: task.hold, start: task.start, released: None };
            Transition::new(run, AttemptChange::Keep, task, EventType::Updated, now)
        })
    }

    /// The end of a run that was handed to a worker which did not take it, for a cause that follows the worker's name.
    pub(super) fn not_delivered(&self, claim: &Claim, cause: &str, now: Timestamp) -> Transition {
        let worker_id = claim.session.worker_id.clone();
        self.end(now, Status::Failed, AttemptStatus::Failed, None, |run| {
            run.error = Some(format!("worker {worker_id} {cause}"));
            run.failure = Some(Failure {
                reason: FailureReason::DeliveryFailed,
                worker_selector: None,
                worker_expressions: Vec::new(),
                target_worker_id: None,
                waited_seconds: None,
                worker_id: Some(worker_id),
            });
        })
    }

    /// Ends a running attempt whose session has ended: the run goes over to its next attempt, `next`, if it has one
    /// left, else fails, naming the worker; or is aborted, if that was asked for.
    #[must_use]
    pub fn lose(&self, session_ended: bool, next: AttemptId, now: Timestamp) -> Option<Transition> {
        (self.attempt.status == AttemptStatus::Running && session_ended)
            .then(|| self.lost("was lost: its session ended", next, now))
    }

    /// Ends a running attempt that its worker has neglected, for a cause that follows the worker's name, though its session
    /// lives.
    #[must_use]
    pub fn neglect(&self, cause: &str, next: AttemptId, now: Timestamp) -> Option<Transition> {
        (self.attempt.status == AttemptStatus::Running).then(|| self.lost(cause, next, now))
    }

    /// The loss of a running attempt, for a cause that follows the worker's name.
    pub(super) fn lost(&self, cause: &str, next: AttemptId, now: Timestamp) -> Transition {
        let ended = Ended {
            attempt_id: self.attempt.id,
            status: AttemptStatus::Lost,
            reported: None,
            error: self.run.worker_id.as_ref().map(|worker_id| format!("worker {worker_id} {cause}")),
            log_url: self.run.log_url.clone(),
            released: None,
        };
        if let Some(again) = self.replace(RetryOn::LeaseLost, ended, next, now) {
            return again;
        }
        let cancelled = self.run.cancel_requested_at.is_some();
        let status = if cancelled { Status::Aborted } else { Status::Failed };
        self.end(now, status, AttemptStatus::Lost, None, |run| {
            if let Some(worker_id) = run.worker_id.clone() {
                run.error = Some(format!("worker {worker_id} {cause}"));
                run.failure = Some(Failure {
                    reason: FailureReason::LeaseLost,
                    worker_selector: None,
                    worker_expressions: Vec::new(),
                    target_worker_id: None,
                    waited_seconds: None,
                    worker_id: Some(worker_id),
                });
            }
        })
    }
}

/// What a run whose hold expired says: what was waited for, and for how long.
fn waited_in_vain(run: &Run) -> String {
    let within = duration::text(run.wait);
    match (run.selector.is_empty(), run.wait.is_zero()) {
        (true, true) => "no worker is available any more".into(),
        (true, false) => format!("no worker was available within {within}"),
        (false, true) => format!("no worker matches the selector {} any more", run.selector),
        (false, false) => format!("no worker matched the selector {} within {within}", run.selector),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::fixtures::{at, attempt_id, claimed, ended, queued, running};
    use super::*;
    use crate::domain::hold::gaps;
    use crate::domain::selector::Selector;
    use crate::domain::start::StartClock;

    #[test]
    fn a_hold_that_ran_out_fails_the_run_naming_what_was_waited_for() {
        let never = |now| gaps(vec![], at(0), at(now));
        assert_eq!(queued().expire(&never(119), &[], at(119)), None);
        let failed = queued().expire(&never(120), &[], at(121)).unwrap();
        assert_eq!(failed.run().status, Status::Failed);
        assert_eq!(failed.run().error.as_deref(), Some("no worker matched the selector {zone: b} within 2m0s"));
        let failure = failed.run().failure.clone().unwrap();
        assert_eq!((failure.reason, failure.waited_seconds), (FailureReason::HoldExpired, Some(121.0)));
        assert_eq!(failed.task(), &TaskChange::Drop);
        assert_eq!(failed.event(), EventType::Failed);
    }

    #[test]
    fn a_claimed_task_does_not_expire() {
        assert_eq!(claimed(500).expire(&gaps(vec![], at(0), at(300)), &[], at(300)), None);
        assert_eq!(with_start(claimed(500), 10).expire(&gaps(vec![], at(0), at(300)), &[], at(300)), None);
    }

    /// The same with a start clock that began with its hold.
    fn with_start(mut locked: Locked, timeout: u64) -> Locked {
        let timeout = Duration::from_secs(timeout);
        locked.run.start_timeout = timeout;
        let task = locked.task.as_mut().unwrap();
        task.start = StartClock::of(timeout, task.hold.from);
        locked
    }

    #[test]
    fn a_start_clock_that_ran_out_fails_the_run_though_something_matches() {
        let queued = with_start(queued(), 600);
        assert_eq!(queued.expire(&[], &[], at(599)), None);
        let failed = queued.expire(&[], &[], at(600)).unwrap();
        assert_eq!(failed.run().status, Status::Failed);
        assert_eq!(failed.run().error.as_deref(), Some("run was not started within 10m0s"));
        let failure = failed.run().failure.clone().unwrap();
        assert_eq!((failure.reason, failure.waited_seconds), (FailureReason::StartTimeout, Some(600.0)));
        assert_eq!(failure.worker_selector, Some(queued.run.selector.equal.clone()));
        assert_eq!((failed.task(), failed.event()), (&TaskChange::Drop, EventType::Failed));
    }

    #[test]
    fn an_outage_lets_the_start_clock_run_longer() {
        let queued = with_start(queued(), 600);
        let outages = [Stretch { from: at(100), until: at(160) }];
        assert_eq!(queued.expire(&[], &outages, at(659)), None);
        assert!(queued.expire(&[], &outages, at(660)).is_some());
    }

    #[test]
    fn of_two_clocks_the_first_to_run_out_says_why() {
        let reason = |start, now| {
            let gaps = gaps(vec![], at(0), at(now));
            let failed = with_start(queued(), start).expire(&gaps, &[], at(now))?;
            Some(failed.run().failure.clone().unwrap().reason)
        };
        assert_eq!(reason(60, 59), None);
        assert_eq!(reason(60, 60), Some(FailureReason::StartTimeout));
        assert_eq!(reason(60, 300), Some(FailureReason::StartTimeout), "both are over, found late");
        assert_eq!(reason(200, 120), Some(FailureReason::HoldExpired));
        assert_eq!(reason(200, 300), Some(FailureReason::HoldExpired), "both are over, found late");
        assert_eq!(reason(120, 120), Some(FailureReason::HoldExpired), "at the same moment");
    }

    /// After the delay of a release the hold begins anew; the start clock does not.
    #[test]
    fn the_delay_of_a_release_does_not_stop_the_start_clock() {
        let mut put_off = with_start(queued(), 60);
        put_off.task.as_mut().unwrap().hold.from = at(100);
        assert_eq!(put_off.expire(&[], &[], at(59)), None);
        let failed = put_off.expire(&[], &[], at(61)).unwrap();
        assert_eq!(failed.run().failure.clone().unwrap().waited_seconds, Some(61.0));
    }

    #[test]
    fn the_text_follows_the_selector_and_the_wait() {
        let mut run = queued().run;
        run.wait = Duration::ZERO;
        assert_eq!(waited_in_vain(&run), "no worker matches the selector {zone: b} any more");
        run.selector = Arc::new(Selector::default());
        assert_eq!(waited_in_vain(&run), "no worker is available any more");
        run.wait = Duration::from_secs(120);
        assert_eq!(waited_in_vain(&run), "no worker was available within 2m0s");
    }

    /// P8: the same attempt number, place and clocks.
    #[test]
    fn an_unacknowledged_claim_returns_as_it_was() {
        assert_eq!(claimed(15).lapse(false, None, at(14)), None);
        let returned = claimed(15).lapse(false, None, at(15)).unwrap();
        let hold = queued().task.unwrap().hold;
        assert_eq!(returned.task(), &TaskChange::Return { hold, start: None, released: None });
        let start = with_start(claimed(15), 600).task.unwrap().start;
        let returned_too = with_start(claimed(15), 600).lapse(false, None, at(15)).unwrap();
        assert_eq!(returned_too.task(), &TaskChange::Return { hold, start, released: None });
        assert_eq!(returned.run().attempt, claimed(15).run.attempt);
        assert_eq!(returned.event(), EventType::Updated);
        assert!(claimed(15).lapse(true, None, at(1)).is_some(), "its session ended");
        assert_eq!(claimed(15).lapse(false, Some(at(20)), at(15)), None, "an amnesty is on");
        assert_eq!(queued().lapse(true, None, at(99)), None);
    }

    #[test]
    fn what_was_handed_over_and_not_taken_fails() {
        let mut direct = claimed(15);
        direct.run.direct = true;
        assert_eq!(direct.lapse(false, None, at(14)), None);
        for gone in [false, true] {
            let failed = direct.lapse(gone, None, at(15)).unwrap();
            assert_eq!(failed.run().error.as_deref(), Some("worker w-b did not take the run that was handed to it"));
            assert_eq!(failed.run().failure.as_ref().unwrap().reason, FailureReason::DeliveryFailed);
            assert_eq!((failed.task(), failed.event()), (&TaskChange::Drop, EventType::Failed));
        }
    }

    #[test]
    fn a_lost_lease_fails_the_run_naming_the_worker() {
        assert_eq!(running().lose(false, attempt_id(2), at(9)), None);
        assert_eq!(ended(Status::Succeeded, AttemptStatus::Succeeded).lose(true, attempt_id(2), at(9)), None);
        let failed = running().lose(true, attempt_id(2), at(9)).unwrap();
        assert_eq!(failed.run().error.as_deref(), Some("worker w-b was lost: its session ended"));
        let end = failed.attempt().ended().expect("ends");
        assert_eq!((end.status, end.reported), (AttemptStatus::Lost, None));
        assert_eq!(end.error, failed.run().error);
    }

    #[test]
    fn a_lease_lost_after_a_cancel_ends_as_aborted() {
        let mut cancelled = running();
        cancelled.run.cancel_requested_at = Some(at(8));
        assert_eq!(cancelled.lose(true, attempt_id(2), at(9)).unwrap().run().status, Status::Aborted);
    }
}
