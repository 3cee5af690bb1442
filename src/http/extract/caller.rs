//! Who asks.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::ids::NamespaceId;

/// Who asks, and for which namespace. Comes from the caller's token only, never from a body or a path.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// The tenant.
    pub namespace: NamespaceId,
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    /// Without tokens every caller is in the default namespace.
    async fn from_request_parts(_: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self { namespace: NamespaceId::DEFAULT })
    }
}
