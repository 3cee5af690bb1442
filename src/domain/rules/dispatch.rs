//! Dispatch: a run is recorded and waits, or is refused because it would not wait.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::Timestamp;
use crate::domain::condition::Situation;
use crate::domain::event::EventType;
use crate::domain::hold::Hold;
use crate::domain::labels::Labels;
use crate::domain::refusal::Refusal;
use crate::domain::retry::Retry;
use crate::domain::run::{AttemptRef, Operation, Run, Status};
use crate::domain::selector::Selector;
use crate::domain::start::StartClock;
use crate::domain::transition::{AttemptChange, TaskChange, Transition};
use crate::ids::{AttemptId, RunKey, SelectorNo};

/// What a dispatch asks for, its payload aside.
#[derive(Debug, Clone, PartialEq)]
pub struct Dispatch {
    /// The run's identity.
    pub key: RunKey,
    /// What is asked for.
    pub operation: Operation,
    /// What it requires of a worker.
    pub selector: Arc<Selector>,
    /// How long it may be without a match; zero refuses at once.
    pub wait: Duration,
    /// How long it may be queued in all; zero is without bound.
    pub start_timeout: Duration,
    /// Whether it is recorded without a task, for its scheduler to dispatch again.
    pub park: bool,
    /// Whether it is handed to a poll that is parked now, or refused.
    pub direct: bool,
    /// -100 to 100, higher first.
    pub priority: i16,
    /// How many attempts it may come to by itself.
    pub max_attempts: i32,
    /// When there is another, and after how long.
    pub retry: Option<Retry>,
    /// Nobody is to take it before: its clocks begin then, if that is later.
    pub not_before: Option<Timestamp>,
    /// For listing.
    pub labels: Labels,
    /// The run at the top of its family.
    pub root: Option<RunKey>,
    /// The run that dispatches it.
    pub parent: Option<RunKey>,
    /// W3C trace context.
    pub traceparent: Option<String>,
}

impl Dispatch {
    /// The run's first attempt, queued with its hold; both clocks begin at the moment the match was looked up, or at
    /// `not_before`.
    ///
    /// # Errors
    /// Without a match and without a wait: [`Refusal::NoAvailableWorker`] when no session is healthy and undrained,
    /// else [`Refusal::NoMatchingWorker`]. Nothing is recorded then.
    pub fn start(
        self,
        selector_no: SelectorNo,
        situation: &Situation,
        attempt_id: AttemptId,
    ) -> Result<Transition, Refusal> {
        self.may_be_queued(situation)?;
        let now = situation.at;
        let task = self.task(now);
        let run = Run {
            key: self.key,
            status: Status::Queued,
            version: 1,
            attempt: AttemptRef { number: 1, attempt_id, operation: self.operation },
            fence: 0,
            selector: self.selector,
            selector_no,
            wait: self.wait,
            start_timeout: self.start_timeout,
            park: self.park,
            direct: self.direct,
            priority: self.priority,
            max_attempts: self.max_attempts,
            counted_from: 1,
            retry: self.retry,
            labels: self.labels,
            root: self.root,
            parent: self.parent,
            traceparent: self.traceparent,
            worker_id: None,
            created_at: now,
            updated_at: now,
            queued_at: now,
            claimed_at: None,
            started_at: None,
            finished_at: None,
            cancel_requested_at: None,
            cancel_reason: None,
            error: None,
            failure: None,
            log_url: None,
            output_dropped: false,
        };
        Ok(Transition::new(run, AttemptChange::Create, task, EventType::Queued, now))
    }

    /// Refuses what would not wait and finds no match: it is the one thing that a dispatch with a wait of zero is for.
    /// What is parked waits for its scheduler, and is never refused; what is handed over waits for nobody.
    pub(super) fn may_be_queued(&self, situation: &Situation) -> Result<(), Refusal> {
        let waits = !self.wait.is_zero() || self.park;
        if waits && !self.direct { Ok(()) } else { situation.needs_match(&self.selector) }
    }

    /// The task of an attempt that is queued now: both its clocks begin when it may be taken. A parked one has none.
    pub(super) fn task(&self, now: Timestamp) -> TaskChange {
        if self.park {
            return TaskChange::Keep;
        }
        let from = self.not_before.map_or(now, |time| time.max(now));
        let hold = Hold { from, wait: self.wait };
        TaskChange::Create { hold, start: StartClock::of(self.start_timeout, from) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{at, attempt_id, dispatch};
    use super::*;

    fn situation(any_healthy: bool, matched: bool) -> Situation {
        Situation { at: at(0), any_healthy, matched, free: matched, draining: false, since: None }
    }

    #[test]
    fn is_recorded_with_and_without_a_match() {
        for (any_healthy, matched) in [(false, false), (true, false), (true, true)] {
            let started = dispatch(120).start(SelectorNo(1), &situation(any_healthy, matched), attempt_id(1)).unwrap();
            assert_eq!(started.run().status, Status::Queued);
            assert_eq!(started.run().version, 1);
            assert_eq!(started.event(), EventType::Queued);
            let hold = Hold { from: at(0), wait: Duration::from_secs(120) };
            assert_eq!(started.task(), &TaskChange::Create { hold, start: None });
        }
    }

    #[test]
    fn parked_it_has_no_task_and_is_never_refused() {
        for wait in [0, 120] {
            let parked = Dispatch { park: true, ..dispatch(wait) };
            let parked = parked.start(SelectorNo(1), &situation(false, false), attempt_id(1)).unwrap();
            assert_eq!((parked.task(), parked.event()), (&TaskChange::Keep, EventType::Queued));
            assert_eq!((parked.run().status, parked.run().park), (Status::Queued, true));
        }
    }

    #[test]
    fn what_is_handed_over_is_refused_without_a_match_whatever_it_would_wait() {
        let direct = || Dispatch { direct: true, ..dispatch(120) };
        let refused = direct().start(SelectorNo(1), &situation(true, false), attempt_id(1)).unwrap_err();
        assert_eq!(refused, Refusal::NoMatchingWorker(direct().selector));
        assert!(direct().start(SelectorNo(1), &situation(true, true), attempt_id(1)).unwrap().run().direct);
    }

    /// The start clock stands beside the hold, and begins where it does.
    #[test]
    fn both_clocks_begin_with_the_dispatch_or_at_not_before() {
        for (not_before, from) in [(None, 0), (Some(at(60)), 60), (Some(at(-60)), 0)] {
            let dispatch = Dispatch { start_timeout: Duration::from_secs(600), not_before, ..dispatch(120) };
            let started = dispatch.start(SelectorNo(1), &situation(true, true), attempt_id(1)).unwrap();
            let hold = Hold { from: at(from), wait: Duration::from_secs(120) };
            let start = Some(StartClock { from: at(from), timeout: Duration::from_secs(600) });
            assert_eq!(started.task(), &TaskChange::Create { hold, start });
            assert_eq!(started.run().start_timeout, Duration::from_secs(600));
        }
    }

    #[test]
    fn without_a_wait_and_without_a_match_is_refused() {
        let selector = dispatch(0).selector;
        let refused = |any| dispatch(0).start(SelectorNo(1), &situation(any, false), attempt_id(1)).unwrap_err();
        assert_eq!(refused(false), Refusal::NoAvailableWorker(Arc::clone(&selector)));
        assert_eq!(refused(true), Refusal::NoMatchingWorker(Arc::clone(&selector)));
        let draining = Situation { draining: true, ..situation(false, false) };
        let refused = dispatch(0).start(SelectorNo(1), &draining, attempt_id(1)).unwrap_err();
        assert_eq!(refused, Refusal::NoAvailableWorker(selector), "a draining worker is not available");
    }

    #[test]
    fn without_a_wait_but_with_a_match_is_recorded() {
        assert!(dispatch(0).start(SelectorNo(1), &situation(true, true), attempt_id(1)).is_ok());
    }
}
