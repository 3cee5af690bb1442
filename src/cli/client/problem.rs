//! Why a request was not answered with success, and what to do about it.

use std::{error::Error, fmt, time::Duration};

use serde::Deserialize;

use super::seconds;

/// What a client does about a problem. The service says it; this is the whole table that a client needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the same again, later.
    Retry,
    /// Register anew, keeping nothing of the old session.
    Register,
    /// Stop the attempt's work and report nothing.
    StopAttempt,
    /// The request is wrong and stays wrong.
    FixRequest,
    /// The state forbids it, or nothing better is known.
    GiveUp,
}

impl Action {
    /// An action's name in an answer, or none if this client does not know it.
    fn named(name: &str) -> Option<Self> {
        match name {
            "retry" => Some(Self::Retry),
            "register" => Some(Self::Register),
            "stop_attempt" => Some(Self::StopAttempt),
            "fix_request" => Some(Self::FixRequest),
            "give_up" => Some(Self::GiveUp),
            _ => None,
        }
    }

    /// What a status alone says, for answers that a proxy wrote and for names of later versions.
    fn of_status(status: u16) -> Self {
        match status {
            429 | 502 | 503 | 504 => Self::Retry,
            400 | 422 => Self::FixRequest,
            _ => Self::GiveUp,
        }
    }
}

/// What is wrong with one field of a request.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct FieldError {
    /// Where, as a JSON pointer.
    #[serde(default)]
    pub pointer: String,
    /// What.
    #[serde(default)]
    pub detail: String,
}

/// A request that was refused, or never answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The contract's code, or one of this client's own: `connection`, `unreadable-answer`, `unusable-url`, `http-<status>`.
    pub code: String,
    /// What to do.
    pub action: Action,
    /// The explanation, for people.
    pub detail: String,
    /// The HTTP status; 0 when there was no answer.
    pub status: u16,
    /// How long the service asks to wait before the next attempt.
    pub retry_after_seconds: Option<f64>,
    /// The fields at fault.
    pub errors: Vec<FieldError>,
}

/// An error body. Every field is optional, since whatever stands in front of the service may answer instead of it.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Body {
    code: Option<String>,
    action: Option<String>,
    detail: Option<String>,
    title: Option<String>,
    retry_after_seconds: Option<f64>,
    errors: Vec<FieldError>,
}

impl Problem {
    /// A problem found on this side of the wire.
    pub(in crate::cli) fn local(code: &str, action: Action, detail: String) -> Self {
        Self { code: code.to_owned(), action, detail, status: 0, retry_after_seconds: None, errors: Vec::new() }
    }

    /// The connection failed, or broke before the answer was complete: nobody knows whether the request was heard.
    pub(super) fn transport(error: &reqwest::Error) -> Self {
        let action = if error.is_builder() { Action::GiveUp } else { Action::Retry };
        Self::local("connection", action, chain(error))
    }

    /// An answer that was not a success.
    pub(super) fn answered(status: u16, body: &[u8], retry_after_header: Option<f64>) -> Self {
        Self::of(status, serde_json::from_slice(body).unwrap_or_default(), retry_after_header)
    }

    /// The same from a body that was read.
    pub(super) fn of(status: u16, body: Body, retry_after_header: Option<f64>) -> Self {
        Self {
            code: body.code.unwrap_or_else(|| format!("http-{status}")),
            action: body.action.and_then(|name| Action::named(&name)).unwrap_or_else(|| Action::of_status(status)),
            detail: body.detail.or(body.title).unwrap_or_else(|| "no explanation was given".to_owned()),
            status,
            retry_after_seconds: body.retry_after_seconds.or(retry_after_header),
            errors: body.errors,
        }
    }

    /// How long to wait before sending the same again, if the service said so.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after_seconds.map(seconds)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.status != 0 {
            write!(f, "{} ", self.status)?;
        }
        write!(f, "{}: {}", self.code, self.detail)?;
        for FieldError { pointer, detail } in &self.errors {
            write!(f, "; {pointer}: {detail}")?;
        }
        Ok(())
    }
}

impl Error for Problem {}

/// An error with its causes: the outermost text of a failed request seldom says why.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_says_what_to_do() {
        let body = br#"{"type":"urn:roadstead:problem:unknown-session","title":"Unknown session","status":409,
            "detail":"session s-1 has ended","code":"unknown-session","action":"register"}"#;
        let problem = Problem::answered(409, body, None);
        assert_eq!(problem.action, Action::Register);
        assert_eq!(problem.to_string(), "409 unknown-session: session s-1 has ended");
    }

    #[test]
    fn fields_at_fault_are_shown() {
        let body = br#"{"code":"invalid-request","action":"fix_request","detail":"2 fields are wrong",
            "errors":[{"pointer":"/labels/zone","detail":"blank at the end"}]}"#;
        let problem = Problem::answered(422, body, None);
        assert_eq!(problem.to_string(), "422 invalid-request: 2 fields are wrong; /labels/zone: blank at the end");
    }

    #[test]
    fn an_answer_of_a_proxy_is_judged_by_its_status() {
        let problem = Problem::answered(502, b"<html>Bad gateway</html>", Some(3.0));
        assert_eq!((problem.action, problem.code.as_str()), (Action::Retry, "http-502"));
        assert_eq!(problem.retry_after(), Some(Duration::from_secs(3)));
        assert_eq!(Problem::answered(500, b"", None).action, Action::GiveUp);
    }

    #[test]
    fn an_action_of_a_later_version_is_judged_by_its_status() {
        assert_eq!(Problem::answered(503, br#"{"action":"wait_for_moon"}"#, None).action, Action::Retry);
        assert_eq!(Problem::answered(400, br#"{"action":"wait_for_moon"}"#, None).action, Action::FixRequest);
    }

    #[test]
    fn a_wait_in_the_past_is_no_wait() {
        let problem = Problem::answered(503, br#"{"retry_after_seconds":-1}"#, None);
        assert_eq!(problem.retry_after(), Some(Duration::ZERO));
    }
}
