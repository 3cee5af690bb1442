//! The codes: what can go wrong, each with its status, its title and what to do about it.

use axum::http::StatusCode;
use serde::{Serialize, Serializer};

/// What a client does about a problem, so that it needs no table of codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Send the same request again, after `retry_after_seconds` if it says so.
    Retry,
    /// Register, then go on.
    Register,
    /// Stop working on the attempt; its result is not wanted.
    StopAttempt,
    /// Send another request: this one will never do.
    FixRequest,
    /// Stop asking.
    GiveUp,
}

/// A kind of problem. Its word is part of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The body is no JSON, or holds what no JSON here may hold.
    MalformedJson,
    /// A part of the request breaks a rule.
    InvalidRequest,
    /// No token, or none that is known and still good.
    Unauthenticated,
    /// The token is not good for this.
    Forbidden,
    /// What is named does not exist.
    NotFound,
    /// The path exists, the method on it does not.
    MethodNotAllowed,
    /// The body is larger than it may be.
    PayloadTooLarge,
    /// The path and query are longer than they may be.
    UriTooLong,
    /// The headers are larger, or more, than they may be.
    HeadersTooLarge,
    /// The body is not `application/json`.
    UnsupportedMediaType,
    /// A dispatch would not wait, and no worker is healthy.
    NoAvailableWorker,
    /// A dispatch would not wait, and no healthy worker fits.
    NoMatchingWorker,
    /// A dispatch was to be handed over, and no poll that fits is parked here.
    NoParkedPoll,
    /// The session is not known or has ended.
    UnknownSession,
    /// The claim was not acknowledged in time.
    ClaimExpired,
    /// The lease is gone.
    LeaseLost,
    /// The run has gone on to a later attempt.
    AttemptSuperseded,
    /// The run has come to its end.
    RunFinished,
    /// The parent has come to its end, or is to.
    ParentFinished,
    /// The run has not come to its end.
    RunNotFinished,
    /// The run does not wait for a person.
    RunNotWaiting,
    /// The attempt to be dispatched is not the run's current one.
    StaleDispatch,
    /// The identity is another request's.
    RunExists,
    /// The idempotency key is another request's.
    IdempotencyMismatch,
    /// Events after the position are no longer kept.
    PositionExpired,
    /// The service is full.
    Overloaded,
    /// The service cannot reach what it needs.
    Unavailable,
    /// A fault of the service.
    Internal,
}

/// What is always so of a code.
pub(super) struct Facts {
    pub(super) word: &'static str,
    pub(super) status: StatusCode,
    pub(super) title: &'static str,
    pub(super) action: Action,
    pub(super) retry_after_seconds: Option<u32>,
}

impl Code {
    /// Every code.
    #[cfg(test)]
    pub const ALL: &'static [Self] = &[
        Self::MalformedJson,
        Self::InvalidRequest,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::PayloadTooLarge,
        Self::UriTooLong,
        Self::HeadersTooLarge,
        Self::UnsupportedMediaType,
        Self::NoAvailableWorker,
        Self::NoMatchingWorker,
        Self::NoParkedPoll,
        Self::UnknownSession,
        Self::ClaimExpired,
        Self::LeaseLost,
        Self::AttemptSuperseded,
        Self::RunFinished,
        Self::ParentFinished,
        Self::RunNotFinished,
        Self::RunNotWaiting,
        Self::StaleDispatch,
        Self::RunExists,
        Self::IdempotencyMismatch,
        Self::PositionExpired,
        Self::Overloaded,
        Self::Unavailable,
        Self::Internal,
    ];

    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        self.facts().word
    }

    /// The table of codes.
    pub(super) const fn facts(self) -> Facts {
        use Action::{FixRequest, GiveUp, Register, Retry, StopAttempt};
        let (word, status, title, action) = match self {
            Self::MalformedJson => ("malformed-json", StatusCode::BAD_REQUEST, "Malformed JSON", FixRequest),
            Self::InvalidRequest => {
                ("invalid-request", StatusCode::UNPROCESSABLE_ENTITY, "Invalid request", FixRequest)
            }
            Self::Unauthenticated => ("unauthenticated", StatusCode::UNAUTHORIZED, "Unauthenticated", GiveUp),
            Self::Forbidden => ("forbidden", StatusCode::FORBIDDEN, "Forbidden", GiveUp),
            Self::NotFound => ("not-found", StatusCode::NOT_FOUND, "Not found", FixRequest),
            Self::MethodNotAllowed => {
                ("method-not-allowed", StatusCode::METHOD_NOT_ALLOWED, "Method not allowed", FixRequest)
            }
            Self::PayloadTooLarge => {
                ("payload-too-large", StatusCode::PAYLOAD_TOO_LARGE, "Payload too large", FixRequest)
            }
            Self::UriTooLong => ("uri-too-long", StatusCode::URI_TOO_LONG, "URI too long", FixRequest),
            Self::HeadersTooLarge => {
                ("headers-too-large", StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "Headers too large", FixRequest)
            }
            Self::UnsupportedMediaType => {
                ("unsupported-media-type", StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unsupported media type", FixRequest)
            }
            Self::NoAvailableWorker => ("no-available-worker", StatusCode::CONFLICT, "No available worker", GiveUp),
            Self::NoMatchingWorker => ("no-matching-worker", StatusCode::CONFLICT, "No matching worker", GiveUp),
            Self::NoParkedPoll => ("no-parked-poll", StatusCode::CONFLICT, "No parked poll", GiveUp),
            Self::UnknownSession => ("unknown-session", StatusCode::CONFLICT, "Unknown session", Register),
            Self::ClaimExpired => ("claim-expired", StatusCode::CONFLICT, "Claim expired", StopAttempt),
            Self::LeaseLost => ("lease-lost", StatusCode::CONFLICT, "Lease lost", StopAttempt),
            Self::AttemptSuperseded => ("attempt-superseded", StatusCode::CONFLICT, "Attempt superseded", StopAttempt),
            Self::RunFinished => ("run-finished", StatusCode::CONFLICT, "Run finished", GiveUp),
            Self::ParentFinished => ("parent-finished", StatusCode::CONFLICT, "Parent finished", GiveUp),
            Self::RunNotFinished => ("run-not-finished", StatusCode::CONFLICT, "Run not finished", GiveUp),
            Self::RunNotWaiting => ("run-not-waiting", StatusCode::CONFLICT, "Run not waiting", GiveUp),
            Self::StaleDispatch => ("stale-dispatch", StatusCode::CONFLICT, "Stale dispatch", GiveUp),
            Self::RunExists => ("run-exists", StatusCode::CONFLICT, "Run exists", GiveUp),
            Self::IdempotencyMismatch => {
                ("idempotency-mismatch", StatusCode::UNPROCESSABLE_ENTITY, "Idempotency mismatch", FixRequest)
            }
            Self::PositionExpired => ("position-expired", StatusCode::GONE, "Position expired", FixRequest),
            Self::Overloaded => ("overloaded", StatusCode::SERVICE_UNAVAILABLE, "Overloaded", Retry),
            Self::Unavailable => ("unavailable", StatusCode::SERVICE_UNAVAILABLE, "Unavailable", Retry),
            Self::Internal => ("internal", StatusCode::INTERNAL_SERVER_ERROR, "Internal error", GiveUp),
        };
        let retry_after_seconds = if status.as_u16() == 503 { Some(1) } else { None };
        Facts { word, status, title, action, retry_after_seconds }
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only 429, 502, 503 and 504 mean *send the same again*.
    #[test]
    fn retry_goes_with_the_status() {
        for code in Code::ALL {
            let facts = code.facts();
            assert_eq!(
                facts.action == Action::Retry,
                facts.status == StatusCode::SERVICE_UNAVAILABLE,
                "{}",
                facts.word
            );
            assert_eq!(facts.retry_after_seconds.is_some(), facts.status == StatusCode::SERVICE_UNAVAILABLE);
        }
    }

    #[test]
    fn words_are_unique_and_titles_say_them() {
        let words: std::collections::BTreeSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(words.len(), Code::ALL.len());
        for code in Code::ALL {
            let facts = code.facts();
            assert!(facts.title.to_lowercase().replace(' ', "-").starts_with(facts.word), "{}", facts.word);
        }
    }
}
