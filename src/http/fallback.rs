//! Answers where no handler is reached.

use std::any::Any;

use axum::http::{Method, Uri};
use axum::response::{IntoResponse, Response};

use super::problem::{Code, Problem};

/// No such path.
pub(super) async fn not_found(uri: Uri) -> Problem {
    Problem::new(Code::NotFound, format!("there is nothing at {}", uri.path()))
}

/// No such method on this path.
pub(super) async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    Problem::new(Code::MethodNotAllowed, format!("{} does not take {method}", uri.path()))
}

/// A handler panicked. What it said is for the log.
pub(super) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => {
            panic.downcast_ref::<&str>().map_or_else(|| "something that is no text".to_owned(), ToString::to_string)
        }
    };
    tracing::error!(panic = text, "a handler panicked");
    Problem::new(Code::Internal, "the service failed; its log says why, under this request's id").into_response()
}
