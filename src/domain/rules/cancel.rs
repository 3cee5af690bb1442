//! Cancel: a run that waits is aborted at once, one that runs is asked to stop.

use crate::domain::Timestamp;
use crate::domain::attempt::{AttemptStatus, Locked};
use crate::domain::event::EventType;
use crate::domain::run::Status;
use crate::domain::transition::{AttemptChange, TaskChange, Transition};

impl Locked {
    /// The change a cancel makes, if it makes one: none on a terminal run, and none when it was asked for already.
    ///
    /// With `force` a running attempt ends now, and its token with it.
    #[must_use]
    pub fn cancel(&self, reason: Option<String>, force: bool, now: Timestamp) -> Option<Transition> {
        match self.run.status {
            Status::Running if !force => self.run.cancel_requested_at.is_none().then(|| {
                let run = self.next(now, |run| {
                    run.cancel_requested_at = Some(now);
                    run.cancel_reason = reason;
                });
                Transition::new(run, AttemptChange::Keep, TaskChange::Keep, EventType::Updated, now)
            }),
            Status::Queued | Status::Waiting | Status::Running => {
                Some(self.end(now, Status::Aborted, AttemptStatus::Aborted, None, |run| {
                    run.cancel_requested_at.get_or_insert(now);
                    run.cancel_reason = reason.or(run.cancel_reason.take());
                }))
            }
            Status::Succeeded | Status::PartiallySucceeded | Status::Failed | Status::Rejected | Status::Aborted => {
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{at, claimed, ended, queued, running, waiting};
    use super::*;

    #[test]
    fn what_waits_is_aborted_at_once_and_its_task_dropped() {
        for locked in [queued(), claimed(15)] {
            let aborted = locked.cancel(Some("no longer needed".into()), false, at(3)).unwrap();
            assert_eq!(aborted.run().status, Status::Aborted);
            assert_eq!(aborted.run().finished_at, Some(at(3)));
            assert_eq!(aborted.run().cancel_reason.as_deref(), Some("no longer needed"));
            assert_eq!(aborted.task(), &TaskChange::Drop);
            let end = aborted.attempt().ended().expect("ends");
            assert_eq!((end.status, end.reported), (AttemptStatus::Aborted, None));
            assert_eq!(aborted.event(), EventType::Aborted);
        }
        let aborted = waiting().cancel(None, false, at(3)).unwrap();
        assert_eq!((aborted.run().status, aborted.attempt()), (Status::Aborted, &AttemptChange::Keep));
    }

    #[test]
    fn what_runs_is_asked_once() {
        let asked = running().cancel(Some("stop".into()), false, at(3)).unwrap();
        assert_eq!(asked.run().status, Status::Running);
        assert_eq!(asked.run().cancel_requested_at, Some(at(3)));
        assert_eq!(asked.event(), EventType::Updated);
        let mut again = running();
        again.run = asked.run().clone();
        assert_eq!(again.cancel(Some("stop!".into()), false, at(4)), None);
    }

    #[test]
    fn by_force_what_runs_ends_now() {
        let aborted = running().cancel(None, true, at(3)).unwrap();
        assert_eq!(aborted.run().status, Status::Aborted);
        assert_eq!(
            aborted.attempt().ended().map(|end| (end.status, end.reported)),
            Some((AttemptStatus::Aborted, None))
        );
    }

    #[test]
    fn what_has_ended_stays_as_it_is() {
        for status in Status::ALL.iter().copied().filter(|status| status.is_terminal()) {
            for force in [false, true] {
                assert_eq!(ended(status, AttemptStatus::of_run(status)).cancel(None, force, at(3)), None);
            }
        }
    }
}
