//! The HTTP interface: every route on one page, handlers that decode, call one verb and encode.
//!
//! Errors of the verbs meet HTTP in [`problem`], the framework's own are kept out by the extractors in [`extract`], and
//! what is documented is what is routed: both come from the same list.

mod attempts;
mod document;
mod events;
mod extract;
mod fallback;
mod health;
mod json;
mod problem;
mod request;
mod runs;
mod wire;
mod workers;

use axum::Router;
use axum::extract::FromRef;
use axum::routing::get;
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::coordinator::Coordinator;

/// Every documented route.
fn api() -> OpenApiRouter<Coordinator> {
    OpenApiRouter::with_openapi(document::Frame::openapi())
        // Runs, for those who dispatch, read and cancel them.
        .routes(routes!(runs::dispatch_run, runs::list_runs))
        .routes(routes!(runs::get_run))
        .routes(routes!(runs::cancel_run))
        .routes(routes!(runs::list_run_events))
        // The feed of all events.
        .routes(routes!(events::list_events))
        .routes(routes!(events::stream_events))
        // Workers, about themselves and for those who watch them.
        .routes(routes!(workers::list_workers))
        .routes(routes!(workers::register_worker, workers::get_worker, workers::deregister_worker))
        .routes(routes!(workers::poll_tasks))
        .routes(routes!(workers::heartbeat_worker))
        // Attempts, for the workers that have them.
        .routes(routes!(attempts::ack_attempt))
        .routes(routes!(attempts::renew_attempt))
        .routes(routes!(attempts::release_attempt))
        .routes(routes!(attempts::report_attempt))
}

/// The whole interface, ready to be served.
pub fn router(coordinator: Coordinator) -> Router {
    let (router, document) = api().split_for_parts();
    let document = document::served(document);
    let router = router
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/openapi.json", get(move || std::future::ready(document::answer(&document))))
        .with_state(coordinator);
    finished(router)
}

/// A whole HTTP/1.1 answer for a client whose request is not even read, since the service is full.
#[must_use]
pub fn full() -> String {
    let problem = problem::Problem::new(problem::Code::Overloaded, "the service has no seat for another connection");
    let body = problem.to_json();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: {}\r\nretry-after: 1\r\ncontent-length: {}\r\nconnection: \
         close\r\n\r\n{body}",
        problem::MEDIA_TYPE,
        body.len()
    )
}

/// The `OpenAPI` document of [`router`].
#[must_use]
pub fn openapi() -> Document {
    document::completed(api().split_for_parts().1)
}

/// The router with what goes around every route: a request's id, its span, and a problem for all that goes wrong.
fn finished(router: Router) -> Router {
    request::observed(router.fallback(fallback::not_found).method_not_allowed_fallback(fallback::method_not_allowed))
}

impl FromRef<Coordinator> for extract::Settings {
    fn from_ref(coordinator: &Coordinator) -> Self {
        coordinator.settings().clone()
    }
}
