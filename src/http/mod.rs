//! The HTTP interface: every route on one page, handlers that decode, call one verb and encode.
//!
//! Errors of the verbs meet HTTP in [`problem`], the framework's own are kept out by the extractors in [`extract`], and
//! what is documented is what is routed: both come from the same list.

mod again;
mod api;
mod attempts;
mod batch;
mod document;
mod events;
mod extract;
mod fallback;
mod guard;
mod health;
mod json;
mod problem;
mod request;
mod runs;
mod wire;
mod workers;

use axum::Router;
use axum::extract::FromRef;
use axum::routing::{MethodRouter, get};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;
use utoipa_axum::routes;

pub use request::{MAX_HEAD_BYTES, MAX_HEADERS};

use api::Api;
use guard::Guard;

use crate::access::{Keyring, Scope};
use crate::coordinator::Coordinator;

/// Every documented route, with the scopes of which a caller needs one.
fn api() -> Api {
    use Scope::{Admin, Dispatch, Read, Work};
    Api::new(document::Frame::openapi())
        // Runs, for those who dispatch, read and cancel them.
        .route(&[Dispatch], routes!(runs::dispatch_run))
        .route(&[Read], routes!(runs::list_runs))
        .route(&[Read], routes!(runs::get_run))
        .route(&[Dispatch, Admin], routes!(runs::cancel_run))
        .route(&[Dispatch], routes!(again::retry_run))
        .route(&[Dispatch], routes!(again::resume_run))
        .route(&[Dispatch], routes!(again::redispatch_run))
        .route(&[Read], routes!(again::list_attempts))
        .route(&[Read], routes!(runs::list_run_events))
        .route(&[Dispatch], routes!(batch::dispatch_runs))
        .route(&[Dispatch, Admin], routes!(batch::cancel_runs))
        // The feed of all events.
        .route(&[Read], routes!(events::list_events))
        .route(&[Read], routes!(events::stream_events))
        // Workers, about themselves and for those who watch them.
        .route(&[Read], routes!(workers::list_workers))
        .route(&[Read], routes!(workers::get_worker))
        .route(&[Work], routes!(workers::register_worker, workers::deregister_worker))
        .route(&[Admin], routes!(workers::drain_worker))
        .route(&[Work], routes!(workers::poll_tasks))
        .route(&[Work], routes!(workers::heartbeat_worker))
        // Attempts, for the workers that have them.
        .route(&[Work], routes!(attempts::ack_attempt))
        .route(&[Work], routes!(attempts::renew_attempt))
        .route(&[Work], routes!(attempts::release_attempt))
        .route(&[Work], routes!(attempts::report_attempt))
        .route(&[Work], routes!(batch::ack_attempts))
        .route(&[Work], routes!(batch::report_attempts))
}

/// Every route outside the document. They are open to everyone, and tell nothing about anyone.
fn outside(document: String) -> [(&'static str, MethodRouter<Coordinator>); 3] {
    [
        ("/livez", get(health::live)),
        ("/readyz", get(health::ready)),
        ("/openapi.json", get(move || std::future::ready(document::answer(&document)))),
    ]
}

/// The whole interface, ready to be served, open to whom the keyring lets in.
pub fn router(coordinator: Coordinator, keyring: Keyring) -> Router {
    let (router, document) = api().guarded(&Guard::new(keyring, coordinator.clone()));
    let outside = outside(document::served(document));
    let router = outside.into_iter().fold(router, |router, (path, methods)| router.route(path, methods));
    finished(router.with_state(coordinator))
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
    document::completed(api().document())
}

/// The paths of [`router`] that the document does not have: those that need no token.
#[must_use]
pub fn outside_the_document() -> Vec<&'static str> {
    outside(String::new()).into_iter().map(|(path, _)| path).collect()
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
