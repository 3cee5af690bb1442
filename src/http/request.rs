//! What goes around every request: its id, its span, and a net for panics.

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::trace::{DefaultOnResponse, TraceLayer};
use tracing::field::Empty;
use tracing::{Level, Span, info_span};

use super::fallback;
use crate::coordinator::Class;
use crate::ids;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest request id that is taken over.
const MAX_ID_BYTES: usize = 128;

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
