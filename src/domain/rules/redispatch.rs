//! Re-dispatch: a parked run is to be taken now, or stays parked. Its scheduler has a queue of its own and reads the
//! refusal to keep it there.

use std::time::Duration;

use crate::domain::attempt::Locked;
use crate::domain::condition::Situation;
use crate::domain::event::EventType;
use crate::domain::hold::Hold;
use crate::domain::refusal::Refusal;
use crate::domain::run::Status;
use crate::domain::start::StartClock;
use crate::domain::transition::{AttemptChange, TaskChange, Transition};
use crate::ids::AttemptId;

/// How a re-dispatch was taken.
#[derive(Debug, Clone, PartialEq)]
pub enum Redispatched {
    /// It waits for a poll of what matches.
    Queued(Box<Transition>),
    /// It is on its way already, or under way.
    Already,
}

impl Locked {
    /// Gives the parked current attempt a task that waits for nobody: with a wait of zero, and clocks that begin at the
    /// moment the match was looked up. The run's own wait stays as it was asked for.
    ///
    /// # Errors
    /// [`Refusal::StaleDispatch`] when another attempt is the run's current one; [`Refusal::RunFinished`]; and without a
    /// match as a dispatch that would not wait. The run stays as it is then.
    pub fn redispatch(&self, attempt_id: AttemptId, situation: &Situation) -> Result<Redispatched, Refusal> {
        if self.run.attempt.attempt_id != attempt_id {
            return Err(Refusal::StaleDispatch { attempt_id, current: self.run.attempt.attempt_id });
        }
        match self.run.status {
            Status::Queued if self.task.is_none() => {}
            // One that its worker has paused for a person is not the scheduler's any more either.
            Status::Queued | Status::Running | Status::Waiting => return Ok(Redispatched::Already),
            Status::Succeeded | Status::PartiallySucceeded | Status::Failed | Status::Rejected | Status::Aborted => {
                return Err(Refusal::RunFinished(self.run.status));
            }
        }
        situation.needs_match(&self.run.selector)?;
        let now = situation.at;
        let start = StartClock::of(self.run.start_timeout, now);
        let task = TaskChange::Create { hold: Hold { from: now, wait: Duration::ZERO }, start };
        let run = self.next(now, |_| ());
        let queued = Transition::new(run, AttemptChange::Keep, task, EventType::Queued, now);
        Ok(Redispatched::Queued(Box::new(queued)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{at, attempt_id, claimed, ended, matched, nobody, parked, queued, running, waiting};
    use super::*;
    use crate::domain::attempt::AttemptStatus;
    use crate::domain::hold::gaps;

    #[test]
    fn a_parked_run_is_queued_when_something_matches() {
        let mut parked = parked();
        parked.run.start_timeout = Duration::from_secs(600);
        let Redispatched::Queued(queued) = parked.redispatch(attempt_id(1), &matched(at(7))).unwrap() else {
            panic!("changes")
        };
        let start = StartClock::of(Duration::from_secs(600), at(7));
        let task = TaskChange::Create { hold: Hold { from: at(7), wait: Duration::ZERO }, start };
        assert_eq!((queued.task(), queued.event()), (&task, EventType::Queued));
        assert_eq!((queued.run().version, queued.run().status), (2, Status::Queued));
        assert_eq!(queued.attempt(), &AttemptChange::Keep, "it is the same attempt");
        assert_eq!(queued.run().wait, Duration::from_secs(120), "what was asked for stays");
    }

    #[test]
    fn without_a_match_it_stays_parked() {
        let selector = parked().run.selector;
        let refused = |situation| parked().redispatch(attempt_id(1), &situation).unwrap_err();
        assert_eq!(refused(nobody(at(7))), Refusal::NoAvailableWorker(selector.clone()));
        let others = Situation { any_healthy: true, ..nobody(at(7)) };
        assert_eq!(refused(others), Refusal::NoMatchingWorker(selector));
    }

    #[test]
    fn what_is_on_its_way_is_as_it_is() {
        for on_its_way in [queued(), claimed(15), running(), waiting()] {
            // Whether something matches is nothing to it.
            assert_eq!(on_its_way.redispatch(attempt_id(1), &nobody(at(7))), Ok(Redispatched::Already));
        }
    }

    #[test]
    fn a_superseded_attempt_is_stale_and_an_ended_run_has_finished() {
        let stale = Refusal::StaleDispatch { attempt_id: attempt_id(2), current: attempt_id(1) };
        for any in [parked(), queued(), running(), ended(Status::Failed, AttemptStatus::Failed)] {
            assert_eq!(any.redispatch(attempt_id(2), &matched(at(7))), Err(stale.clone()));
        }
        for status in Status::ALL.iter().copied().filter(|status| status.is_terminal()) {
            let ended = ended(status, AttemptStatus::of_run(status));
            assert_eq!(ended.redispatch(attempt_id(1), &matched(at(7))), Err(Refusal::RunFinished(status)));
        }
    }

    /// When its last match goes before it is claimed; its start clock fails it like any other.
    #[test]
    fn a_re_dispatched_run_parks_again() {
        let mut again = queued();
        again.run.park = true;
        again.run.start_timeout = Duration::from_secs(600);
        let task = again.task.as_mut().unwrap();
        task.hold.wait = Duration::ZERO;
        task.fence = 3;
        task.start = StartClock::of(Duration::from_secs(600), at(0));
        assert_eq!(again.expire(&[], &[], at(5)), None);
        let parks = again.expire(&gaps(vec![], at(4), at(5)), &[], at(5)).unwrap();
        assert_eq!((parks.run().status, parks.run().version, parks.run().fence), (Status::Queued, 2, 3));
        assert_eq!((parks.attempt(), parks.task()), (&AttemptChange::Keep, &TaskChange::Drop));
        assert_eq!((parks.event(), &parks.run().failure), (EventType::Updated, &None));
        assert_eq!(again.expire(&[], &[], at(600)).unwrap().run().status, Status::Failed);
    }
}
