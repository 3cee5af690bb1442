//! The one place where errors meet HTTP: what a verb refuses becomes a problem that says what to do.

use super::{Action, Code, FieldError, Problem};
use crate::coordinator::Error;
use crate::domain::refusal::Refusal;
use crate::domain::selector::MAX_TERMS;
use crate::domain::session::EndReason;

/// Whose verb it was. The same refusal may mean another thing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Of those who dispatch, read and cancel runs.
    Run,
    /// Of a worker, about itself.
    Worker,
    /// Of a worker, about an attempt it was given.
    Attempt,
}

/// The problem of an error. The text of a fault of ours goes to the log and nowhere else.
pub fn translate(error: Error, verb: Verb) -> Problem {
    match error {
        Error::Refused(refusal) => refused(refusal, verb),
        Error::Overloaded => {
            Problem::new(Code::Overloaded, "the service is full or shutting down; send the same again")
        }
        Error::Unavailable(text) => {
            tracing::warn!(error = text, "a request was given up");
            Problem::new(
                Code::Unavailable,
                "the database cannot be reached or did not answer in time; send the same again",
            )
        }
        Error::Internal(text) => {
            tracing::error!(error = text, "internal error");
            Problem::new(Code::Internal, "the service failed; its log says why, under this request's id")
        }
    }
}

#[expect(clippy::too_many_lines, reason = "an arm a refusal")]
fn refused(refusal: Refusal, verb: Verb) -> Problem {
    match refusal {
        Refusal::NoAvailableWorker(selector) => Problem::new(
            Code::NoAvailableWorker,
            if selector.is_empty() {
                "no healthy worker is available".to_owned()
            } else {
                format!("no healthy worker is available, let alone one that matches the selector {selector}")
            },
        ),
        Refusal::NoMatchingWorker(selector) => {
            Problem::new(Code::NoMatchingWorker, format!("no healthy worker matches the selector {selector}"))
        }
        Refusal::NoParkedPoll(selector) => Problem::new(
            Code::NoParkedPoll,
            if selector.is_empty() {
                "no poll with a free slot is parked here".to_owned()
            } else {
                format!("no poll of a worker with a free slot that matches the selector {selector} is parked here")
            },
        ),
        Refusal::RunExists(key) => Problem::new(
            Code::RunExists,
            format!("the run {key} exists already, dispatched with another request or under another idempotency key"),
        ),
        Refusal::IdempotencyMismatch => {
            Problem::new(Code::IdempotencyMismatch, "this idempotency key was used for another request")
        }
        Refusal::NoSuchRun(key) => Problem::new(Code::NotFound, format!("there is no run {key}")),
        Refusal::NoSuchWorker(worker_id) => Problem::new(Code::NotFound, format!("there is no worker {worker_id}")),
        Refusal::NoSuchAttempt(attempt_id) => {
            let problem = Problem::new(Code::NotFound, format!("there is no attempt {attempt_id}"));
            match verb {
                Verb::Attempt | Verb::Worker => problem.with_action(Action::StopAttempt),
                Verb::Run => problem,
            }
        }
        Refusal::UnknownSession { session, ended } => {
            let (worker_id, session_id) = (session.worker_id, session.session_id);
            let (why, action) = match ended {
                None => ("is not known", Action::Register),
                Some(EndReason::Left) => ("has ended: it said goodbye", Action::Register),
                Some(EndReason::Lapsed) => ("has ended: it gave no sign of life for its whole lease", Action::Register),
                // Two processes that share a name would push each other out for ever.
                Some(EndReason::Replaced) => ("has ended: another session of this worker registered", Action::GiveUp),
            };
            Problem::new(Code::UnknownSession, format!("the session {session_id} of worker {worker_id} {why}"))
                .with_action(action)
        }
        Refusal::OutOfBounds { key, required, offered } => {
            let found = match offered {
                Some(value) => format!("this one offers {key}={value}"),
                None => format!("this one has no label {key}"),
            };
            let rule = format!("this token obliges its workers to offer the label {key}={required}");
            Problem::new(Code::Forbidden, format!("{rule}; {found}"))
        }
        Refusal::ClaimExpired(attempt_id) => Problem::new(
            Code::ClaimExpired,
            format!("this token holds no claim on attempt {attempt_id}, or none that was acknowledged in time"),
        ),
        Refusal::LeaseLost(attempt_id) => {
            Problem::new(Code::LeaseLost, format!("this token holds no lease on attempt {attempt_id} any more"))
        }
        Refusal::AttemptSuperseded { attempt_id, current } => {
            let detail = format!("the run has gone on from attempt {attempt_id} to attempt {current}");
            let problem = Problem::new(Code::AttemptSuperseded, detail);
            match verb {
                Verb::Run => problem.with_action(Action::GiveUp),
                Verb::Attempt | Verb::Worker => problem,
            }
        }
        Refusal::StaleDispatch { attempt_id, current } => Problem::new(
            Code::StaleDispatch,
            format!("attempt {attempt_id} is not the one the run is at: that is attempt {current}"),
        ),
        Refusal::PositionExpired { after, first } => Problem::new(
            Code::PositionExpired,
            format!(
                "events after position {after} are no longer kept; the first that is has position {first}: read the \
                 runs anew, then go on after position {}",
                first - 1
            ),
        ),
        Refusal::ParentFinished { parent, status } => Problem::new(
            Code::ParentFinished,
            if status.is_terminal() {
                format!("the parent {parent} has ended: it is {status}")
            } else {
                format!("the parent {parent} is to be cancelled")
            },
        ),
        Refusal::TooManyTerms(terms) => Problem::invalid(vec![FieldError::new(
            "/worker_selector",
            format!("must have at most {MAX_TERMS} terms, has {terms} with the `target_worker_id` of before"),
        )]),
        Refusal::RunNotFinished(status) => Problem::new(
            Code::RunNotFinished,
            format!("the run has not ended: it is {status}; only what has ended can be retried"),
        ),
        Refusal::RunNotWaiting(status) => Problem::new(
            Code::RunNotWaiting,
            format!("the run does not wait for a person: it is {status}; only what is waiting can be resumed"),
        ),
        Refusal::RunFinished(status) => {
            let what =
                if status.is_terminal() { "the run has ended: it is" } else { "the attempt has ended; the run is" };
            let detail = format!("{what} {status}");
            let problem = Problem::new(Code::RunFinished, detail);
            match verb {
                Verb::Attempt => problem.with_action(Action::StopAttempt),
                Verb::Run | Verb::Worker => problem,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::run::Status;
    use crate::domain::selector::Selector;
    use crate::ids::{AttemptId, DagName, RunId, RunKey, SessionId, SessionKey, WorkerId};

    fn body(error: impl Into<Error>, verb: Verb) -> serde_json::Value {
        serde_json::to_value(translate(error.into(), verb)).unwrap()
    }

    fn selector(zone: &str) -> Arc<Selector> {
        Arc::new(Selector { equal: [("zone".to_owned(), zone.to_owned())].into(), ..Selector::default() })
    }

    fn session(ended: Option<EndReason>) -> Refusal {
        let session =
            SessionKey { worker_id: WorkerId::parse("w-1").unwrap(), session_id: SessionId::parse("s-1").unwrap() };
        Refusal::UnknownSession { session, ended }
    }

    #[test]
    fn the_whole_of_one() {
        let expected = serde_json::json!({
            "type": "urn:roadstead:problem:no-matching-worker",
            "title": "No matching worker",
            "status": 409,
            "detail": "no healthy worker matches the selector {zone: b}",
            "code": "no-matching-worker",
            "action": "give_up",
        });
        assert_eq!(body(Refusal::NoMatchingWorker(selector("b")), Verb::Run), expected);
    }

    #[test]
    fn each_says_what_to_do() {
        let attempt = AttemptId(uuid::Uuid::nil());
        let run = RunKey { dag_name: DagName::parse("etl").unwrap(), run_id: RunId::parse("1").unwrap() };
        let rows = [
            (Refusal::NoAvailableWorker(selector("b")), Verb::Run, "no-available-worker", 409, "give_up"),
            (Refusal::NoMatchingWorker(selector("b")), Verb::Run, "no-matching-worker", 409, "give_up"),
            (Refusal::RunExists(run.clone()), Verb::Run, "run-exists", 409, "give_up"),
            (Refusal::IdempotencyMismatch, Verb::Run, "idempotency-mismatch", 422, "fix_request"),
            (Refusal::NoSuchRun(run), Verb::Run, "not-found", 404, "fix_request"),
            (Refusal::NoSuchWorker(WorkerId::parse("w").unwrap()), Verb::Worker, "not-found", 404, "fix_request"),
            (Refusal::NoSuchAttempt(attempt), Verb::Attempt, "not-found", 404, "stop_attempt"),
            (session(None), Verb::Worker, "unknown-session", 409, "register"),
            (session(Some(EndReason::Left)), Verb::Worker, "unknown-session", 409, "register"),
            (session(Some(EndReason::Lapsed)), Verb::Worker, "unknown-session", 409, "register"),
            (session(Some(EndReason::Replaced)), Verb::Worker, "unknown-session", 409, "give_up"),
            (
                Refusal::OutOfBounds { key: "zone".into(), required: "b".into(), offered: None },
                Verb::Worker,
                "forbidden",
                403,
                "give_up",
            ),
            (Refusal::ClaimExpired(attempt), Verb::Attempt, "claim-expired", 409, "stop_attempt"),
            (Refusal::LeaseLost(attempt), Verb::Attempt, "lease-lost", 409, "stop_attempt"),
            (
                Refusal::AttemptSuperseded { attempt_id: attempt, current: attempt },
                Verb::Attempt,
                "attempt-superseded",
                409,
                "stop_attempt",
            ),
            (Refusal::RunFinished(Status::Aborted), Verb::Attempt, "run-finished", 409, "stop_attempt"),
            (Refusal::RunFinished(Status::Aborted), Verb::Run, "run-finished", 409, "give_up"),
        ];
        for (refusal, verb, code, status, action) in rows {
            let body = body(refusal.clone(), verb);
            assert_eq!(
                (&body["code"], &body["status"], &body["action"]),
                (&code.into(), &status.into(), &action.into()),
                "{refusal:?}"
            );
        }
    }

    #[test]
    fn the_text_of_a_fault_stays_in_the_log() {
        for (error, code, action) in [
            (Error::Internal("password=hunter2".into()), "internal", "give_up"),
            (Error::Unavailable("password=hunter2".into()), "unavailable", "retry"),
            (Error::Overloaded, "overloaded", "retry"),
        ] {
            let body = body(error, Verb::Run);
            assert_eq!((&body["code"], &body["action"]), (&code.into(), &action.into()));
            assert!(!body.to_string().contains("hunter2"));
        }
        assert_eq!(body(Error::Overloaded, Verb::Run)["retry_after_seconds"], 1);
    }
}
