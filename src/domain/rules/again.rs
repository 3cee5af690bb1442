//! Another attempt: by a retry or a resume, through the same door as a first dispatch, or by itself after a loss or a
//! failure, while the run has attempts left.

use std::sync::Arc;
use std::time::Duration;

use super::dispatch::Dispatch;
use crate::domain::Timestamp;
use crate::domain::attempt::Locked;
use crate::domain::condition::Situation;
use crate::domain::event::EventType;
use crate::domain::hold::Hold;
use crate::domain::labels::Labels;
use crate::domain::refusal::Refusal;
use crate::domain::retry::{Retry, RetryOn};
use crate::domain::run::{AttemptRef, Operation, Run, Status};
use crate::domain::selector::{Expression, MAX_TERMS, Selector};
use crate::domain::start::StartClock;
use crate::domain::transition::{AttemptChange, Ended, TaskChange, Transition};
use crate::ids::{AttemptId, Digest, RunKey, SelectorNo};

/// What a retry or a resume asks for otherwise than the dispatch before it; what is absent is as before. When it may
/// begin, and whether it is parked or handed over, is never inherited.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// The labels it requires of a worker.
    pub worker_selector: Option<Labels>,
    /// What else it requires of that worker's labels.
    pub worker_expressions: Option<Vec<Expression>>,
    /// The one worker that may take it.
    pub target: Option<crate::ids::WorkerId>,
    /// How long it may be without a match.
    pub wait: Option<Duration>,
    /// How long it may be queued in all.
    pub start_timeout: Option<Duration>,
    /// Whether it is recorded without a task. Never inherited.
    pub park: bool,
    /// Higher goes first.
    pub priority: Option<i16>,
    /// How many attempts it may come to by itself.
    pub max_attempts: Option<i32>,
    /// When there is another.
    pub retry: Option<Retry>,
    /// Nobody is to take it before.
    pub not_before: Option<Timestamp>,
    /// For listing.
    pub labels: Option<Labels>,
    /// The run at the top of its family.
    pub root: Option<RunKey>,
    /// The run that dispatches it.
    pub parent: Option<RunKey>,
    /// W3C trace context.
    pub traceparent: Option<String>,
}

impl Changes {
    /// The dispatch that comes of it.
    #[must_use]
    pub fn of(self, run: &Run, operation: Operation) -> Dispatch {
        let before = &run.selector;
        let selector = match (self.worker_selector, self.worker_expressions, self.target) {
            (None, None, None) => Arc::clone(before),
            (equal, expressions, target) => Arc::new(Selector::new(
                equal.unwrap_or_else(|| before.equal.clone()),
                expressions.unwrap_or_else(|| before.expressions.clone()),
                target.or_else(|| before.target.clone()),
            )),
        };
        Dispatch {
            key: run.key.clone(),
            operation,
            selector,
            wait: self.wait.unwrap_or(run.wait),
            start_timeout: self.start_timeout.unwrap_or(run.start_timeout),
            park: self.park,
            direct: false,
            priority: self.priority.unwrap_or(run.priority),
            max_attempts: self.max_attempts.unwrap_or(run.max_attempts),
            retry: self.retry.or_else(|| run.retry.clone()),
            not_before: self.not_before,
            labels: self.labels.unwrap_or_else(|| run.labels.clone()),
            root: self.root.or_else(|| run.root.clone()),
            parent: self.parent.or_else(|| run.parent.clone()),
            traceparent: self.traceparent.or_else(|| run.traceparent.clone()),
        }
    }
}

impl Locked {
    /// The run's next attempt, as dispatched: queued with new clocks, whatever the one before it came to.
    ///
    /// # Errors
    /// [`Refusal::RunNotFinished`] of a retry, [`Refusal::RunNotWaiting`] of a resume; and as for a first dispatch,
    /// when it would not wait and nothing matches. The run stays as it is then.
    pub fn dispatch_again(
        &self,
        dispatch: Dispatch,
        selector_no: SelectorNo,
        situation: &Situation,
        attempt_id: AttemptId,
        request: Digest,
    ) -> Result<Transition, Refusal> {
        match dispatch.operation {
            Operation::Resume if self.run.status != Status::Waiting => {
                return Err(Refusal::RunNotWaiting(self.run.status));
            }
            Operation::Start | Operation::Retry if !self.run.status.is_terminal() => {
                return Err(Refusal::RunNotFinished(self.run.status));
            }
            Operation::Start | Operation::Retry | Operation::Resume => {}
        }
        if dispatch.selector.size() > MAX_TERMS {
            return Err(Refusal::TooManyTerms(dispatch.selector.size()));
        }
        dispatch.may_be_queued(situation)?;
        let now = situation.at;
        let task = dispatch.task(now);
        let run = self.queue_again(now, attempt_id, dispatch.operation, |run| {
            run.counted_from = run.attempt.number;
            run.selector = dispatch.selector;
            run.selector_no = selector_no;
            run.wait = dispatch.wait;
            run.start_timeout = dispatch.start_timeout;
            run.park = dispatch.park;
            run.priority = dispatch.priority;
            run.max_attempts = dispatch.max_attempts;
            run.retry = dispatch.retry;
            run.labels = dispatch.labels;
            run.root = dispatch.root;
            run.parent = dispatch.parent;
            run.traceparent = dispatch.traceparent;
        });
        let follows = AttemptChange::Follow { after: self.attempt.id, request };
        Ok(Transition::new(run, follows, task, EventType::Queued, now))
    }

    /// The end of an attempt that is followed by another, if the run has attempts left for what it came to and nobody
    /// wants it cancelled.
    pub(super) fn replace(
        &self,
        came_to: RetryOn,
        ended: Ended,
        attempt_id: AttemptId,
        now: Timestamp,
    ) -> Option<Transition> {
        let delay = self.run.tried_again(came_to).filter(|_| self.run.cancel_requested_at.is_none())?;
        let operation = match self.run.attempt.operation {
            Operation::Start | Operation::Retry => Operation::Retry,
            Operation::Resume => Operation::Resume,
        };
        let from = now + delay;
        let hold = Hold { from, wait: self.run.wait };
        let task = TaskChange::Create { hold, start: StartClock::of(self.run.start_timeout, from) };
        let run = self.queue_again(now, attempt_id, operation, |_| ());
        Some(Transition::new(run, AttemptChange::Replace(ended), task, EventType::Queued, now))
    }

    /// The run with a new attempt that waits: nothing of what the one before came to is left in it.
    fn queue_again(
        &self,
        now: Timestamp,
        attempt_id: AttemptId,
        operation: Operation,
        change: impl FnOnce(&mut Run),
    ) -> Run {
        self.next(now, |run| {
            run.status = Status::Queued;
            run.park = false;
            run.direct = false;
            run.attempt = AttemptRef { number: run.attempt.number + 1, attempt_id, operation };
            run.worker_id = None;
            run.queued_at = now;
            run.claimed_at = None;
            run.started_at = None;
            run.finished_at = None;
            run.cancel_requested_at = None;
            run.cancel_reason = None;
            run.error = None;
            run.failure = None;
            run.log_url = None;
            run.output_dropped = false;
            change(run);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{at, attempt_id, ended, nobody, running, session, token, waiting};
    use super::*;
    use crate::domain::attempt::AttemptStatus;
    use crate::domain::rules::report::{Report, Reported};
    use crate::domain::transition::Left;

    fn again(locked: &Locked, operation: Operation, changes: Changes) -> Result<Transition, Refusal> {
        let dispatch = changes.of(&locked.run, operation);
        locked.dispatch_again(dispatch, SelectorNo(7), &nobody(at(50)), attempt_id(2), token(9))
    }

    /// A task whose hold begins then, in seconds; its start clock is off.
    fn waits(from: i64, wait: u64) -> TaskChange {
        TaskChange::Create { hold: Hold { from: at(from), wait: Duration::from_secs(wait) }, start: None }
    }

    /// A run that failed, with everything that a run may have by then.
    fn failed() -> Locked {
        let mut locked = ended(Status::Failed, AttemptStatus::Failed);
        let run = &mut locked.run;
        run.error = Some("it broke".into());
        run.log_url = Some("https://logs/1".into());
        run.cancel_reason = Some("too late".into());
        run.cancel_requested_at = Some(at(1));
        run.output_dropped = true;
        run.fence = 4;
        locked
    }

    #[test]
    fn a_retry_queues_the_next_attempt_with_new_clocks_and_leaves_nothing_of_the_last() {
        let change = again(&failed(), Operation::Retry, Changes::default()).unwrap();
        let run = change.run();
        assert_eq!((run.status, run.version, run.fence), (Status::Queued, 4, 4));
        assert_eq!(run.attempt, AttemptRef { number: 2, attempt_id: attempt_id(2), operation: Operation::Retry });
        assert_eq!(change.task(), &waits(50, 120));
        assert_eq!(change.attempt(), &AttemptChange::Follow { after: attempt_id(1), request: token(9) });
        assert_eq!(change.event(), EventType::Queued);
        let bare = (&run.error, &run.log_url, &run.cancel_reason, &run.worker_id);
        assert_eq!(bare, (&None, &None, &None, &None));
        assert_eq!((run.started_at, run.finished_at, run.cancel_requested_at), (None, None, None));
        assert!(!run.output_dropped);
        assert_eq!((run.queued_at, run.created_at), (at(50), at(0)));
    }

    #[test]
    fn what_is_asked_for_anew_replaces_what_was_and_the_rest_stays() {
        let changes = Changes {
            worker_selector: Some(Labels::from([("zone".into(), "c".into())])),
            wait: Some(Duration::from_secs(5)),
            start_timeout: Some(Duration::from_secs(600)),
            max_attempts: Some(3),
            not_before: Some(at(60)),
            ..Changes::default()
        };
        let change = again(&failed(), Operation::Retry, changes).unwrap();
        let run = change.run();
        assert_eq!((run.selector.to_string(), run.selector_no), ("{zone: c}".into(), SelectorNo(7)));
        assert_eq!((run.max_attempts, run.counted_from, run.priority), (3, 2, failed().run.priority));
        let start = StartClock::of(Duration::from_secs(600), at(60));
        assert_eq!(
            change.task(),
            &TaskChange::Create { hold: Hold { from: at(60), wait: Duration::from_secs(5) }, start }
        );
    }

    #[test]
    fn the_next_attempt_is_parked_only_if_that_is_asked_for() {
        let mut failed = failed();
        failed.run.park = true;
        let retried = again(&failed, Operation::Retry, Changes::default()).unwrap();
        assert_eq!((retried.run().park, retried.task()), (false, &waits(50, 120)));
        let changes = Changes { park: true, wait: Some(Duration::ZERO), ..Changes::default() };
        let parked = again(&failed, Operation::Retry, changes).unwrap();
        assert_eq!((parked.run().park, parked.task()), (true, &TaskChange::Keep));
        let mut lost = of(2, &[RetryOn::LeaseLost]);
        (lost.run.park, lost.run.direct) = (true, true);
        let by_itself = lost.lose(true, attempt_id(2), at(9)).unwrap();
        assert_eq!((by_itself.run().park, by_itself.run().direct), (false, false));
        assert_eq!(by_itself.task(), &waits(19, 120));
    }

    #[test]
    fn only_what_has_ended_is_retried_and_only_what_waits_is_resumed() {
        let (retry, resume) = (Operation::Retry, Operation::Resume);
        assert_eq!(again(&running(), retry, Changes::default()), Err(Refusal::RunNotFinished(Status::Running)));
        assert_eq!(again(&waiting(), retry, Changes::default()), Err(Refusal::RunNotFinished(Status::Waiting)));
        assert_eq!(again(&failed(), resume, Changes::default()), Err(Refusal::RunNotWaiting(Status::Failed)));
        assert!(again(&waiting(), resume, Changes::default()).is_ok());
    }

    #[test]
    fn without_a_wait_and_without_a_match_the_run_stays_as_it_is() {
        let changes = Changes { wait: Some(Duration::ZERO), ..Changes::default() };
        let refused = again(&failed(), Operation::Retry, changes).unwrap_err();
        assert_eq!(refused, Refusal::NoAvailableWorker(failed().run.selector));
    }

    /// A running attempt of a run that may come to so many.
    fn of(max_attempts: i32, on: &[RetryOn]) -> Locked {
        let mut locked = running();
        locked.run.max_attempts = max_attempts;
        locked.run.retry = Some(Retry { on: on.to_vec(), delay_seconds: 10.0, factor: 2.0, ..Retry::default() });
        locked
    }

    #[test]
    fn a_lost_lease_goes_over_to_the_next_attempt_while_there_is_one() {
        let lost = of(2, &[RetryOn::LeaseLost]).lose(true, attempt_id(2), at(9)).unwrap();
        assert_eq!((lost.run().status, lost.run().attempt.number), (Status::Queued, 2));
        assert_eq!(lost.run().attempt.operation, Operation::Retry);
        let end = lost.attempt().ended().unwrap();
        assert_eq!((end.attempt_id, end.status), (attempt_id(1), AttemptStatus::Lost));
        assert_eq!(end.error.as_deref(), Some("worker w-b was lost: its session ended"));
        assert_eq!(lost.run().error, None, "it is queued, not failed");
        assert_eq!(lost.task(), &waits(19, 120));

        let mut final_one = of(2, &[RetryOn::LeaseLost]);
        final_one.run.attempt.number = 2;
        assert_eq!(final_one.lose(true, attempt_id(3), at(9)).unwrap().run().status, Status::Failed);
        final_one.run.counted_from = 2;
        let counted_anew = final_one.lose(true, attempt_id(3), at(9)).unwrap();
        assert_eq!(counted_anew.run().status, Status::Queued, "a retry counts anew");
        let elsewhere = of(2, &[RetryOn::Failed]).lose(true, attempt_id(2), at(9)).unwrap();
        assert_eq!(elsewhere.run().status, Status::Failed, "not for this");
    }

    #[test]
    fn the_second_loss_backs_off_longer() {
        let mut second = of(3, &[RetryOn::LeaseLost]);
        second.run.attempt.number = 2;
        let lost = second.lose(true, attempt_id(3), at(9)).unwrap();
        assert_eq!(lost.task(), &waits(29, 120));
    }

    /// Both clocks begin at the end of the back-off.
    #[test]
    fn the_next_attempt_has_a_start_clock_of_its_own() {
        let mut bounded = of(2, &[RetryOn::LeaseLost]);
        bounded.run.start_timeout = Duration::from_secs(600);
        let lost = bounded.lose(true, attempt_id(2), at(9)).unwrap();
        let start = StartClock::of(Duration::from_secs(600), at(19));
        assert_eq!(
            lost.task(),
            &TaskChange::Create { hold: Hold { from: at(19), wait: Duration::from_secs(120) }, start }
        );
        let mut failed = failed();
        failed.run.start_timeout = Duration::from_secs(600);
        let retried = again(&failed, Operation::Retry, Changes::default()).unwrap();
        let start = StartClock::of(Duration::from_secs(600), at(50));
        assert_eq!(
            retried.task(),
            &TaskChange::Create { hold: Hold { from: at(50), wait: Duration::from_secs(120) }, start }
        );
        let off = Changes { start_timeout: Some(Duration::ZERO), ..Changes::default() };
        assert_eq!(again(&failed, Operation::Retry, off).unwrap().task(), &waits(50, 120), "zero turns it off");
    }

    #[test]
    fn what_is_to_be_cancelled_is_not_tried_again() {
        let mut cancelled = of(5, &[RetryOn::LeaseLost]);
        cancelled.run.cancel_requested_at = Some(at(8));
        assert_eq!(cancelled.lose(true, attempt_id(2), at(9)).unwrap().run().status, Status::Aborted);
    }

    #[test]
    fn a_resume_that_is_lost_is_resumed_again() {
        let mut resumed = of(2, &[RetryOn::LeaseLost]);
        resumed.run.attempt.operation = Operation::Resume;
        let lost = resumed.lose(true, attempt_id(2), at(9)).unwrap();
        assert_eq!(lost.run().attempt.operation, Operation::Resume);
    }

    #[test]
    fn a_reported_failure_is_tried_again_only_where_that_was_asked_for_and_its_worker_does_not_mind() {
        let report = |locked: &Locked, retryable| {
            let report = Report {
                status: Status::Failed,
                error: Some("no space".into()),
                left: Left { output: Some("1".into()), progress: None },
                log_url: Some("https://logs/2".into()),
                output_dropped: false,
                retryable,
            };
            match locked.report(token(1), report, false, attempt_id(2), at(9)).unwrap() {
                Reported::Changed(change) => *change,
                other => panic!("{other:?}"),
            }
        };
        let both = of(2, &[RetryOn::LeaseLost, RetryOn::Failed]);
        for retryable in [None, Some(true)] {
            let again = report(&both, retryable);
            assert_eq!(again.run().status, Status::Queued);
            assert_eq!(again.left().output.as_deref(), Some("1"), "what it left is handed on");
            let end = again.attempt().ended().unwrap();
            assert_eq!((end.status, end.reported), (AttemptStatus::Failed, Some(Status::Failed)));
            assert_eq!((end.error.as_deref(), end.log_url.as_deref()), (Some("no space"), Some("https://logs/2")));
        }
        assert_eq!(report(&both, Some(false)).run().status, Status::Failed);
        assert_eq!(report(&of(2, &[RetryOn::LeaseLost]), None).run().status, Status::Failed);
        let lost = both.lose(true, attempt_id(2), at(9)).unwrap();
        assert_eq!(lost.run().worker_id, None);
        assert_eq!(both.attempt.session, Some(session()));
    }
}
