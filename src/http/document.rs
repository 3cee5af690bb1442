//! The description of the interface, as `OpenAPI` has it: what the routes cannot say of themselves.

use axum::http::header;
use axum::response::IntoResponse;
use utoipa::OpenApi;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi as Document, PathItem, Ref, RefOr, Required, Response, ResponseBuilder};

use super::problem::{MEDIA_TYPE, Problem};
use super::wire::events::EventData;
use super::wire::runs::{AwaitedChange, Order};

/// The document without its operations.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Roadstead",
        description = "A dispatch coordinator: a dispatched run waits, safely and visibly, until the right worker \
            comes alongside.\n\n\
            Clients must accept new response fields and new string values. What is absent is absent: answers carry no \
            nulls, and a null in a request reads as absent. Every error is a `Problem`, whose `action` says what to \
            do; only 429, 502, 503, 504 and a broken connection mean *send the same again*. A body has at most 4 MiB, a \
            report or a batch 16 MiB, and is nested at most 120 levels deep.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    servers((url = "/", description = "Where this document was read.")),
    // What only parameters and raw JSON refer to is not found by itself.
    components(schemas(Problem, EventData, AwaitedChange, Order)),
    tags(
        (name = "runs", description = "Runs, for those who dispatch, read and cancel them."),
        (name = "events", description = "What happened to runs."),
        (name = "workers", description = "Workers, about themselves and for those who watch them."),
        (name = "attempts", description = "Attempts, for the workers that have them."),
    ),
)]
pub(super) struct Frame;

/// Operations whose body may be left out, which the routes cannot say.
const BODY_OPTIONAL: [&str; 2] = ["cancelRun", "registerWorker"];

/// The name of the one security scheme.
pub(super) const BEARER: &str = "bearer";

/// The document with the security scheme, and with the problems that every operation may answer.
pub(super) fn completed(mut document: Document) -> Document {
    let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
        "A token of the service's configuration. It belongs to one namespace, and to no other; an operation lists the \
         scopes of which it needs one. A service without tokens takes every request, and is for one machine.",
    ));
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(BEARER, SecurityScheme::Http(scheme.build()));
    for operation in document.paths.paths.values_mut().flat_map(operations) {
        if BODY_OPTIONAL.contains(&operation.operation_id.as_deref().unwrap_or_default())
            && let Some(RefOr::T(body)) = &mut operation.request_body
        {
            body.required = Some(Required::False);
        }
        let responses = &mut operation.responses.responses;
        responses.insert(
            "4XX".into(),
            problem("The request cannot be done; `code` and `action` say why and what to do.").into(),
        );
        responses
            .insert("5XX".into(), problem("The service cannot do it now; `action` says whether to try again.").into());
    }
    document
}

/// The document as it is served: its text, made once.
pub(super) fn served(document: Document) -> String {
    completed(document).to_json().expect("a document is texts, numbers, lists and maps, and so JSON")
}

/// The answer that carries it.
pub(super) fn answer(document: &str) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, "application/json")], document.to_owned())
}

/// The operations of a path.
pub(super) fn operations(path: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut path.get, &mut path.put, &mut path.post, &mut path.delete].into_iter().filter_map(Option::as_mut)
}

fn problem(description: &str) -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    ResponseBuilder::new().description(description).content(MEDIA_TYPE, content).build()
}

#[cfg(test)]
mod tests;
