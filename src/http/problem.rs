//! Problems: every answer that is no success, ours and the framework's alike (RFC 9457).

mod code;
mod translation;

use std::fmt;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

pub use code::{Action, Code};
pub use translation::{Verb, translate};

/// The media type of every problem.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// The most wrong parts that are listed; `detail` counts them all.
const MAX_ERRORS: usize = 100;

/// One part of a request that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct FieldError {
    /// Where: a JSON pointer into the body, `?name` for a query parameter, `{name}` for a part of the path, else the
    /// name of a header.
    #[schema(example = "/worker_selector/zone")]
    pub pointer: String,
    /// Which rule it breaks.
    #[schema(example = "must be a string")]
    pub detail: String,
}

impl FieldError {
    /// The error of what stands there.
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pointer.as_str() {
            "" => write!(f, "the body {}", self.detail),
            pointer => write!(f, "`{pointer}` {}", self.detail),
        }
    }
}

/// Why a request was not done, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Problem {
    /// `urn:roadstead:problem:` and the code.
    #[serde(rename = "type")]
    #[schema(example = "urn:roadstead:problem:no-matching-worker")]
    kind: String,
    /// The code in words.
    #[schema(value_type = String, example = "No matching worker")]
    title: &'static str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599, example = 409)]
    status: u16,
    /// What happened this time.
    #[schema(example = "no healthy worker matches the selector {zone: b}")]
    detail: String,
    /// The kind of problem, for machines; more may be added.
    #[schema(value_type = String, example = "no-matching-worker")]
    code: Code,
    /// What to do: `retry` the same request later, `register` anew, `stop_attempt` (stop working on it, its result is
    /// not wanted), `fix_request`, or `give_up`. More may be added.
    #[schema(value_type = String, example = "give_up")]
    action: Action,
    /// How long to wait before the same request is sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 3600)]
    retry_after_seconds: Option<u32>,
    /// The parts of the request that are wrong, all that were found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    errors: Vec<FieldError>,
}

impl Problem {
    /// A problem with the code's own status, title and action.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let facts = code.facts();
        Self {
            kind: format!("urn:roadstead:problem:{}", facts.word),
            title: facts.title,
            status: facts.status.as_u16(),
            detail: detail.into(),
            code,
            action: facts.action,
            retry_after_seconds: facts.retry_after_seconds,
            errors: Vec::new(),
        }
    }

    /// The problem of a request with these wrong parts.
    pub fn invalid(mut errors: Vec<FieldError>) -> Self {
        let detail = match errors.as_slice() {
            [] => "the request is not valid".to_owned(),
            [only] => only.to_string(),
            [first, rest @ ..] => format!("{first}, and {} more", rest.len()),
        };
        errors.truncate(MAX_ERRORS);
        Self { errors, ..Self::new(Code::InvalidRequest, detail) }
    }

    /// The HTTP status.
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The text of its body.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers are JSON")
    }

    /// The same with another action, where who asks makes a difference.
    #[must_use]
    pub fn with_action(self, action: Action) -> Self {
        Self { action, ..self }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).expect("it was a StatusCode when the problem was made");
        let body = self.to_json();
        let mut response = (status, [(header::CONTENT_TYPE, MEDIA_TYPE)], body).into_response();
        if self.code == Code::Unauthenticated {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
