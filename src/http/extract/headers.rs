//! The headers of a dispatch.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use utoipa::IntoParams;

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
        let traceparent = parts.headers.get("traceparent").and_then(|value| value.to_str().ok());
        Ok(Self { idempotency_key, traceparent: traceparent.filter(|text| is_traceparent(text)).map(str::to_owned) })
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, String> {
    let mut given = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(first) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        return Err("must be given once".into());
    }
    let key = first.as_bytes();
    if !(1..=255).contains(&key.len()) {
        return Err(format!("must have 1 to 255 characters, has {}", key.len()));
    }
    if !key.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        return Err("must be printable ASCII".into());
    }
    Ok(Some(String::from_utf8_lossy(key).into_owned()))
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
