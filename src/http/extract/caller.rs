//! Who asks.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::access::{Grant, Scope};
use crate::coordinator::Coordinator;
use crate::domain::labels::Labels;
use crate::http::problem::{Code, Problem};
use crate::ids::NamespaceId;

/// How often a wait looks whether its token has expired. The clock is the database's, which may move.
const RECHECK: Duration = Duration::from_secs(1);

/// Who asks, and for which namespace. Comes from the caller's token only, never from a body or a path.
#[derive(Clone)]
pub struct Caller {
    /// The tenant.
    pub namespace: NamespaceId,
    grant: Arc<Grant>,
    coordinator: Coordinator,
}

impl Caller {
    /// The one to whom this was granted.
    pub fn new(grant: Arc<Grant>, coordinator: Coordinator) -> Self {
        Self { namespace: grant.namespace, grant, coordinator }
    }

    /// The name of its token, if there are tokens.
    pub fn name(&self) -> Option<&str> {
        self.grant.name.as_deref()
    }

    /// Whether its token has this scope.
    pub fn has(&self, scope: Scope) -> bool {
        self.grant.scopes.contains(&scope)
    }

    /// What its workers must offer.
    pub fn bounds(&self) -> &Labels {
        &self.grant.bounds
    }

    /// Whether its token is still good.
    ///
    /// # Errors
    /// `unauthenticated`.
    pub fn check(&self) -> Result<(), Problem> {
        if self.grant.expires_at.is_some() && self.grant.has_expired(self.coordinator.about_now()) {
            let name = self.name().unwrap_or_default();
            return Err(Problem::new(Code::Unauthenticated, format!("the token {name} has expired")));
        }
        Ok(())
    }

    /// Does what may wait for long, but not beyond the end of the token. What is dropped then must be safe to drop.
    ///
    /// # Errors
    /// `unauthenticated`, within a second of the token's end.
    pub async fn while_valid<T>(&self, wait: impl Future<Output = T>) -> Result<T, Problem> {
        let expired = async {
            if self.grant.expires_at.is_none() {
                std::future::pending::<()>().await;
            }
            loop {
                if let Err(problem) = self.check() {
                    return problem;
                }
                tokio::time::sleep(RECHECK).await;
            }
        };
        tokio::select! {
            biased;
            done = wait => Ok(done),
            problem = expired => Err(problem),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    /// The guard has said who it is. Where there was no guard nobody is let in.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            tracing::error!("a route without a guard asks who its caller is");
            Problem::new(Code::Internal, "the service failed; its log says why, under this request's id")
        })
    }
}
