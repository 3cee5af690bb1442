//! The headers of a dispatch.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use utoipa::IntoParams;
use utoipa::openapi::schema::Type;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema};

use crate::http::problem::{FieldError, Problem};

const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

/// What a dispatch may say beside its body.
#[derive(Debug, Clone, Default, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Header)]
pub struct DispatchHeaders {
    /// Makes a repeat of this very request safe. Without it the run's identity does, if the request names one.
    #[param(rename = "Idempotency-Key", nullable = false, min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    pub idempotency_key: Option<String>,
    /// W3C trace context, handed on to the worker. Ignored if it is not one.
    #[param(nullable = false, example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    pub traceparent: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for DispatchHeaders {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let idempotency_key = idempotency_key(&parts.headers)
            .map_err(|detail| Problem::invalid(vec![FieldError::new(IDEMPOTENCY_KEY, detail)]))?;
        Ok(Self { idempotency_key, traceparent: traceparent(&parts.headers) })
    }
}

/// What a batch of dispatches may say beside its body.
#[derive(Debug, Clone, Default, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Header)]
pub struct BatchHeaders {
    /// W3C trace context, handed on to the workers of all. Ignored if it is not one.
    #[param(nullable = false, example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    pub traceparent: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for BatchHeaders {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        if parts.headers.contains_key(IDEMPOTENCY_KEY) {
            // Taken for nothing, it would leave a client that believes a repeat is safe.
            let detail = "is for one run; in a batch each item has its own `idempotency_key`";
            return Err(Problem::invalid(vec![FieldError::new(IDEMPOTENCY_KEY, detail)]));
        }
        Ok(Self { traceparent: traceparent(&parts.headers) })
    }
}

fn traceparent(headers: &HeaderMap) -> Option<String> {
    let given = headers.get("traceparent").and_then(|value| value.to_str().ok());
    given.filter(|text| is_traceparent(text)).map(str::to_owned)
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, String> {
    let mut given = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(first) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        return Err("must be given once".into());
    }
    let key = first.as_bytes();
    check_key(key)?;
    Ok(Some(String::from_utf8_lossy(key).into_owned()))
}

/// Checks an idempotency key wherever it came from.
pub fn check_key(key: &[u8]) -> Result<(), String> {
    if !(1..=255).contains(&key.len()) {
        return Err(format!("must have 1 to 255 characters, has {}", key.len()));
    }
    if !key.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        return Err("must be printable ASCII".into());
    }
    Ok(())
}

/// The schema of an idempotency key in a body.
pub fn key_schema(description: &str) -> RefOr<Schema> {
    let text = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    text.min_length(Some(1)).max_length(Some(255)).pattern(Some("^[ -~]+$")).into()
}

/// Whether it is a `traceparent` of version 00, or of a later one that begins like it.
fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [version, trace, parent, flags, later @ ..] = parts.as_slice() else { return false };
    let hex =
        |part: &str, length| part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let id = |part: &str, length| hex(part, length) && part.bytes().any(|byte| byte != b'0');
    hex(version, 2)
        && *version != "ff"
        && (later.is_empty() || *version != "00")
        && text.len() <= 255
        && text.bytes().all(|byte| (b'!'..=b'~').contains(&byte))
        && id(trace, 32)
        && id(parent, 16)
        && hex(flags, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_told_from_other_text() {
        for good in [
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes-later",
        ] {
            assert!(is_traceparent(good), "{good}");
        }
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        ] {
            assert!(!is_traceparent(bad), "{bad}");
        }
    }
}
