//! What goes around every request: its id, its span, and a net for panics.

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::trace::{DefaultOnResponse, TraceLayer};
use tracing::field::Empty;
use tracing::{Level, Span, info_span};

use super::fallback;
use super::problem::{Code, Problem};
use crate::coordinator::Class;
use crate::ids;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest request id that is taken over.
const MAX_ID_BYTES: usize = 128;

/// The most headers of a request.
pub const MAX_HEADERS: usize = 100;

/// The most bytes of a request's headers together, names and values.
pub const MAX_HEAD_BYTES: u32 = 32 * 1024;

/// The most bytes of a request's path and query.
const MAX_TARGET_BYTES: usize = 16 * 1024;

/// Refuses a head that is larger than anybody needs.
async fn of_size(request: Request, next: Next) -> Response {
    let (headers, target) = (request.headers(), request.uri().path_and_query());
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers.len() > MAX_HEADERS || bytes > MAX_HEAD_BYTES as usize {
        let detail = format!(
            "the request must have at most {MAX_HEADERS} headers of {MAX_HEAD_BYTES} bytes together, and has {} of {bytes}",
            headers.len()
        );
        return Problem::new(Code::HeadersTooLarge, detail).into_response();
    }
    match target.map(|target| target.as_str().len()) {
        Some(bytes) if bytes > MAX_TARGET_BYTES => {
            let detail = format!("path and query must have at most {MAX_TARGET_BYTES} bytes, and have {bytes}");
            Problem::new(Code::UriTooLong, detail).into_response()
        }
        Some(_) | None => next.run(request).await,
    }
}

/// How much of the database's attention a request may have. What is no request for the database is not asked.
async fn classed(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str);
    class(request.method(), route).scope(next.run(request)).await
}

fn class(method: &Method, route: &str) -> Class {
    match (method, route) {
        // What a worker says of itself and of what it runs.
        (_, "/readyz") => Class::Sign,
        (&Method::GET, _) => Class::Read,
        (&Method::POST, "/v1/workers/{worker_id}/poll" | "/v1/workers/{worker_id}/drain") => Class::Work,
        (_, "/v1/batch/acks" | "/v1/batch/reports") => Class::Sign,
        (_, route) if route.starts_with("/v1/attempts/") || route.starts_with("/v1/workers/") => Class::Sign,
        _ => Class::Work,
    }
}

/// The router, each request with an id and a span.
pub(super) fn observed(router: Router) -> Router {
    // Failures are logged where they become problems, with their reason.
    let trace = TraceLayer::new_for_http()
        .make_span_with(span)
        .on_request(())
        .on_response(DefaultOnResponse::new().level(Level::DEBUG))
        .on_failure(());
    // The layer added last is the outermost.
    router
        .layer(from_fn(classed))
        .layer(from_fn(of_size))
        .layer(CatchPanicLayer::custom(fallback::panicked))
        .layer(trace)
        .layer(from_fn(identified))
}

/// Gives the request an id, the caller's own if it is fit for a log, and the answer the same.
async fn identified(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(REQUEST_ID).filter(|id| is_request_id(id)).cloned();
    let id = given
        .unwrap_or_else(|| HeaderValue::from_str(&ids::new_uuid().to_string()).expect("a UUID is printable ASCII"));
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let mut response = next.run(request).await;
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

fn is_request_id(id: &HeaderValue) -> bool {
    let bytes = id.as_bytes();
    (1..=MAX_ID_BYTES).contains(&bytes.len())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/=+@".contains(byte))
}

/// Never a payload, a query or a token; the extractors record which run, worker or attempt it is about.
fn span(request: &Request) -> Span {
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str);
    let request_id = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default();
    info_span!(
        "request",
        method = %request.method(),
        route,
        request_id,
        token_name = Empty,
        dag_name = Empty,
        run_id = Empty,
        worker_id = Empty,
        attempt_id = Empty,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_workers_say_of_what_they_run_goes_first_in_a_batch_as_well() {
        for route in ["/v1/attempts/{attempt_id}/ack", "/v1/batch/acks", "/v1/batch/reports"] {
            assert_eq!(class(&Method::POST, route), Class::Sign, "{route}");
        }
        for route in ["/v1/runs", "/v1/batch/runs", "/v1/batch/cancels"] {
            assert_eq!(class(&Method::POST, route), Class::Work, "{route}");
        }
    }
}
