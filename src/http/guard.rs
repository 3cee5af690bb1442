//! The guard before every documented route: whose token it is, and whether it is good for this.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Span;

use super::extract::Caller;
use super::problem::{Code, Problem};
use crate::access::{Form, Grant, Keyring, Scope};
use crate::coordinator::Coordinator;

/// Knows the tokens and what time it is.
#[derive(Clone)]
pub(super) struct Guard {
    keyring: Arc<Keyring>,
    everyone: Arc<Grant>,
    coordinator: Coordinator,
}

impl Guard {
    /// A guard that lets in whom the keyring knows, or everyone if there are no tokens.
    pub fn new(keyring: Keyring, coordinator: Coordinator) -> Self {
        Self { keyring: Arc::new(keyring), everyone: Arc::new(Grant::of_everyone()), coordinator }
    }

    /// Who asks; a problem if nobody may be asking with this.
    fn admit(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let grant = if self.keyring.is_empty() { &self.everyone } else { self.grant(headers)? };
        let caller = Caller::new(Arc::clone(grant), self.coordinator.clone());
        caller.check()?;
        Ok(caller)
    }

    fn grant(&self, headers: &HeaderMap) -> Result<&Arc<Grant>, Problem> {
        let refused = |why: &str| Problem::new(Code::Unauthenticated, why);
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let shown = match (given.next(), given.next()) {
            (None, _) => return Err(refused("a token is needed, as `Authorization: Bearer rst_…`")),
            (Some(_), Some(_)) => return Err(refused("the header Authorization is there more than once")),
            (Some(value), None) => value.to_str().ok().and_then(bearer),
        };
        let Some(shown) = shown else {
            return Err(refused("the header Authorization must be `Bearer`, a blank and a token"));
        };
        self.keyring.find(shown).ok_or_else(|| {
            refused(match Form::of(shown) {
                Form::Whole => "the token is not known here: it was revoked, or belongs to another service",
                Form::Broken => "the token is mistyped or cut short: its checksum is wrong",
                Form::Foreign => "the token is not known, and does not look like one of this service, rst_…",
            })
        })
    }
}

/// The token of an `Authorization` header. The word before it may be in any case (RFC 9110).
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Lets a request through if its token has one of the scopes, and tells the handler whose it is.
pub(super) async fn guarded(
    State((guard, scopes)): State<(Guard, &'static [Scope])>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let caller = guard.admit(request.headers())?;
    if let Some(name) = caller.name() {
        Span::current().record("token_name", name);
    }
    if !scopes.iter().any(|scope| caller.has(*scope)) {
        let needed: Vec<String> = scopes.iter().map(|scope| format!("`{scope}`")).collect();
        let whose = caller.name().unwrap_or_default();
        let detail = format!("this needs the scope {}, which the token {whose} has not", needed.join(" or "));
        return Err(Problem::new(Code::Forbidden, detail));
    }
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_is_what_follows_the_word() {
        for (value, token) in [
            ("Bearer rst_1", Some("rst_1")),
            ("bearer rst_1", Some("rst_1")),
            ("BEARER   rst_1 ", Some("rst_1")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Basic rst_1", None),
            ("rst_1", None),
            ("Bearerrst_1", None),
            ("", None),
        ] {
            assert_eq!(bearer(value), token, "{value}");
        }
    }
}
