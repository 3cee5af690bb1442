//! The list of documented routes: each stands there with the scopes that open it, and cannot stand there without.

use axum::Router;
use axum::middleware::from_fn_with_state;
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::SecurityRequirement;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use super::document::{BEARER, operations};
use super::guard::{Guard, guarded};
use crate::access::Scope;
use crate::coordinator::Coordinator;

/// Routes on their way to a router or a document.
pub(super) struct Api {
    frame: Document,
    routes: Vec<(&'static [Scope], UtoipaMethodRouter<Coordinator>)>,
}

impl Api {
    /// No routes yet.
    pub fn new(frame: Document) -> Self {
        Self { frame, routes: Vec::new() }
    }

    /// Adds operations of one path, each open to whoever has one of the scopes.
    pub fn route(mut self, scopes: &'static [Scope], mut route: UtoipaMethodRouter<Coordinator>) -> Self {
        assert!(!scopes.is_empty(), "a route that no scope opens is no route");
        let required = SecurityRequirement::new(BEARER, scopes.iter().map(|scope| scope.as_str()));
        for operation in route.1.paths.values_mut().flat_map(operations) {
            operation.security = Some(vec![required.clone()]);
        }
        self.routes.push((scopes, route));
        self
    }

    /// The document of all routes.
    pub fn document(self) -> Document {
        let router = OpenApiRouter::<Coordinator>::with_openapi(self.frame);
        self.routes.into_iter().fold(router, |router, (_, route)| router.routes(route)).split_for_parts().1
    }

    /// The router of all routes, every one behind the guard, and the document.
    pub fn guarded(self, guard: &Guard) -> (Router<Coordinator>, Document) {
        let router = OpenApiRouter::with_openapi(self.frame);
        let add = |router: OpenApiRouter<Coordinator>,
                   (scopes, (schemas, paths, methods)): (_, UtoipaMethodRouter<_>)| {
            let layer = from_fn_with_state((guard.clone(), scopes), guarded);
            router.routes((schemas, paths, methods.route_layer(layer)))
        };
        self.routes.into_iter().fold(router, add).split_for_parts()
    }
}
