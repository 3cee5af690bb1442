//! Report and renew: what the holder of a lease says, and only the holder.

use std::time::Duration;

use crate::domain::Timestamp;
use crate::domain::attempt::{AttemptStatus, Locked};
use crate::domain::event::EventType;
use crate::domain::refusal::Refusal;
use crate::domain::retry::RetryOn;
use crate::domain::run::{Failure, FailureReason, Status};
use crate::domain::transition::{AttemptChange, Ended, Left, TaskChange, Transition};
use crate::ids::{AttemptId, Digest};

/// How often progress makes a new version of its run, at most.
pub const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// What a worker says of its attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// `running` for progress, `waiting`, or a terminal status. Never `queued`.
    pub status: Status,
    /// What went wrong, for people.
    pub error: Option<String>,
    /// What is kept of its output and progress.
    pub left: Left,
    /// Where its log is.
    pub log_url: Option<String>,
    /// Whether its output was too large to keep.
    pub output_dropped: bool,
    /// Whether another attempt might do better, if it says so.
    pub retryable: Option<bool>,
}

/// How a report was taken.
#[derive(Debug, Clone, PartialEq)]
pub enum Reported {
    /// The run changes with it.
    Changed(Box<Transition>),
    /// Progress within a second of the last version: kept, without a version and an event.
    Kept(Left),
    /// Nothing changes; this is where the attempt left the run.
    Unchanged {
        /// The run's status when the attempt ended, or now.
        status: Status,
        /// The run's version then.
        version: i64,
    },
}

impl Locked {
    /// Whether this token may go on working; a renewal changes nothing of the run.
    ///
    /// # Errors
    /// [`Refusal::LeaseLost`] and what else a stale token is told.
    pub fn renew(&self, token: Digest, session_ended: bool) -> Result<(), Refusal> {
        self.holds_lease(token, session_ended)
    }

    /// Takes a report. Once a cancel was requested, every end is `aborted`: the cancel was ordered first. A failure of
    /// a run that is tried again goes over to its next attempt, `next`, and the run never shows it.
    ///
    /// # Errors
    /// [`Refusal::LeaseLost`] and what else a stale token is told. The repeat of the report that ended the attempt is
    /// no error: it is answered from the attempt's own record, also after a retry.
    pub fn report(
        &self,
        token: Digest,
        report: Report,
        session_ended: bool,
        next: AttemptId,
        now: Timestamp,
    ) -> Result<Reported, Refusal> {
        if let Some(version) = self.attempt.ended_version
            && self.attempt.token == Some(token)
            && self.attempt.reported == Some(report.status)
        {
            return Ok(Reported::Unchanged { status: self.status_at_end(report.status), version });
        }
        self.holds_lease(token, session_ended)?;
        if report.status == Status::Running {
            return Ok(self.progress(report, now));
        }
        let cancelled = self.run.cancel_requested_at.is_some();
        let status = if cancelled { Status::Aborted } else { report.status };
        if status == Status::Failed && report.retryable != Some(false) {
            let ended = Ended {
                attempt_id: self.attempt.id,
                status: AttemptStatus::Failed,
                reported: Some(report.status),
                error: report.error.clone(),
                log_url: report.log_url.clone().or_else(|| self.run.log_url.clone()),
                released: None,
            };
            if let Some(again) = self.replace(RetryOn::Failed, ended, next, now) {
                return Ok(Reported::Changed(Box::new(again.leaving(report.left))));
            }
        }
        let failed = (status == Status::Failed).then(|| Failure {
            reason: FailureReason::Reported,
            worker_selector: None,
            worker_expressions: Vec::new(),
            target_worker_id: None,
            waited_seconds: None,
            worker_id: self.run.worker_id.clone(),
        });
        let ended = self.end(now, status, AttemptStatus::of_run(status), Some(report.status), |run| {
            run.error = report.error;
            run.failure = failed;
            run.log_url = report.log_url.or(run.log_url.take());
            run.output_dropped = report.output_dropped;
        });
        Ok(Reported::Changed(Box::new(ended.leaving(report.left))))
    }

    /// Progress makes a version at most once a second; `log_url` always does, when it is new.
    fn progress(&self, report: Report, now: Timestamp) -> Reported {
        let moved = report.log_url.is_some() && report.log_url != self.run.log_url;
        let fresh = report.left.progress.is_some() || report.left.output.is_some();
        if moved || (fresh && now >= self.run.updated_at + PROGRESS_EVERY) {
            let run = self.next(now, |run| run.log_url = report.log_url.or(run.log_url.take()));
            let updated = Transition::new(run, AttemptChange::Keep, TaskChange::Keep, EventType::Updated, now);
            Reported::Changed(Box::new(updated.leaving(report.left)))
        } else if fresh {
            Reported::Kept(report.left)
        } else {
            Reported::Unchanged { status: self.run.status, version: self.run.version }
        }
    }

    /// What the run came to when this attempt ended with this report.
    fn status_at_end(&self, reported: Status) -> Status {
        let since = self.run.counted_from..self.run.attempt.number;
        match self.attempt.status {
            AttemptStatus::Aborted => Status::Aborted,
            // The run went over to its next attempt and never showed it.
            AttemptStatus::Failed if since.contains(&self.attempt.number) => Status::Queued,
            _ => reported,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{at, attempt_id, claimed, ended, queued, running, token};
    use super::*;

    fn says(status: Status) -> Report {
        Report { status, error: None, left: Left::default(), log_url: None, output_dropped: false, retryable: None }
    }

    #[test]
    fn every_end_ends_the_run_and_the_attempt() {
        for status in Status::ALL.iter().copied().filter(|s| s.is_terminal() || *s == Status::Waiting) {
            let Reported::Changed(ended) =
                running().report(token(1), says(status), false, attempt_id(2), at(9)).unwrap()
            else {
                panic!("changes")
            };
            assert_eq!(ended.run().status, status);
            assert_eq!(ended.run().finished_at.is_some(), status.is_terminal());
            assert_eq!(ended.event(), EventType::of(status));
            let end = ended.attempt().ended().expect("ends");
            assert_eq!((end.status, end.reported), (AttemptStatus::of_run(status), Some(status)));
        }
    }

    /// B31: the cancel was accepted first, so the run ends aborted whatever its worker says.
    #[test]
    fn after_a_cancel_every_end_is_aborted() {
        let mut cancelled = running();
        cancelled.run.cancel_requested_at = Some(at(8));
        let Reported::Changed(ended) =
            cancelled.report(token(1), says(Status::Succeeded), false, attempt_id(2), at(9)).unwrap()
        else {
            panic!("changes")
        };
        assert_eq!(ended.run().status, Status::Aborted);
    }

    #[test]
    fn a_repeat_is_answered_from_the_attempts_own_record() {
        let mut done = ended(Status::Succeeded, AttemptStatus::Succeeded);
        done.attempt.token = Some(token(1));
        done.attempt.reported = Some(Status::Succeeded);
        done.attempt.ended_version = Some(3);
        let same = done.report(token(1), says(Status::Succeeded), true, attempt_id(2), at(99));
        assert_eq!(same, Ok(Reported::Unchanged { status: Status::Succeeded, version: 3 }));
        assert_eq!(
            done.report(token(1), says(Status::Failed), false, attempt_id(2), at(99)),
            Err(Refusal::RunFinished(Status::Succeeded))
        );
        assert_eq!(
            done.report(token(2), says(Status::Succeeded), false, attempt_id(2), at(99)),
            Err(Refusal::RunFinished(Status::Succeeded))
        );
    }

    #[test]
    fn stale_tokens_change_nothing() {
        let report =
            |locked: &Locked, by, gone| locked.report(token(by), says(Status::Succeeded), gone, attempt_id(2), at(9));
        let lost = Err(Refusal::LeaseLost(running().attempt.id));
        assert_eq!(report(&running(), 2, false), lost);
        assert_eq!(report(&running(), 1, true), lost);
        assert_eq!(report(&ended(Status::Failed, AttemptStatus::Lost), 1, false), lost);
        assert_eq!(report(&queued(), 1, false), Err(Refusal::ClaimExpired(queued().attempt.id)));
        assert_eq!(report(&claimed(15), 1, false), Err(Refusal::ClaimExpired(queued().attempt.id)));
        assert_eq!(running().renew(token(2), false), Err(Refusal::LeaseLost(running().attempt.id)));
        assert_eq!(running().renew(token(1), false), Ok(()));
    }

    #[test]
    fn an_older_attempt_is_superseded() {
        let mut old = running();
        old.attempt.status = AttemptStatus::Lost;
        old.run.attempt.attempt_id = attempt_id(2);
        let refused = old.report(token(1), says(Status::Succeeded), false, attempt_id(2), at(9)).unwrap_err();
        assert_eq!(
            refused,
            Refusal::AttemptSuperseded { attempt_id: old.attempt.id, current: old.run.attempt.attempt_id }
        );
    }

    #[test]
    fn progress_makes_a_version_at_most_once_a_second() {
        let mut report = says(Status::Running);
        assert_eq!(
            running().report(token(1), report.clone(), false, attempt_id(2), at(9)),
            Ok(Reported::Unchanged { status: Status::Running, version: 2 })
        );
        report.left.progress = Some("1".into());
        let soon = running().run.updated_at;
        assert_eq!(
            running().report(token(1), report.clone(), false, attempt_id(2), soon),
            Ok(Reported::Kept(report.left.clone()))
        );
        let Reported::Changed(updated) =
            running().report(token(1), report, false, attempt_id(2), soon + PROGRESS_EVERY).unwrap()
        else {
            panic!("changes")
        };
        assert_eq!((updated.run().version, updated.event()), (3, EventType::Updated));
    }
}
