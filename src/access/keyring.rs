//! The tokens that open the front door, each with what it grants.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use subtle::ConstantTimeEq as _;

use super::scope::Scope;
use crate::domain::Timestamp;
use crate::domain::labels::Labels;
use crate::ids::{Digest, NamespaceId};

/// What a caller may do, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The token's name; none when there are no tokens.
    pub name: Option<String>,
    /// The tenant.
    pub namespace: NamespaceId,
    /// What it is good for.
    pub scopes: BTreeSet<Scope>,
    /// What its workers must offer.
    pub bounds: Labels,
    /// From when on it is good for nothing.
    pub expires_at: Option<Timestamp>,
}

impl Grant {
    /// Everything in the default namespace: what every caller has when there are no tokens.
    #[must_use]
    pub fn of_everyone() -> Self {
        Self {
            name: None,
            namespace: NamespaceId::DEFAULT,
            scopes: Scope::ALL.into(),
            bounds: Labels::new(),
            expires_at: None,
        }
    }

    /// Whether it is over at this time.
    #[must_use]
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|until| until <= now)
    }
}

/// All tokens. An empty one opens the door to everyone.
#[derive(Clone, Default)]
pub struct Keyring(Vec<(Digest, Arc<Grant>)>);

impl Keyring {
    /// A keyring of these tokens.
    #[must_use]
    pub fn new(grants: impl IntoIterator<Item = (Digest, Grant)>) -> Self {
        Self(grants.into_iter().map(|(digest, grant)| (digest, Arc::new(grant))).collect())
    }

    /// Whether there are no tokens, so that everyone is let in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the token shown grants. Takes as long for a wrong one as for a right one: every digest is compared, and
    /// each in constant time.
    #[must_use]
    pub fn find(&self, shown: &str) -> Option<&Arc<Grant>> {
        let digest = Digest::of(shown);
        let mut found = None;
        for (known, grant) in &self.0 {
            if bool::from(known.0.ct_eq(&digest.0)) {
                found = Some(grant);
            }
        }
        found
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(_, grant)| &grant.name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Secret;

    #[test]
    fn finds_whose_token_it_is_and_nobody_for_any_other_text() {
        let secrets: Vec<Secret> = (0..3).map(|_| Secret::draw()).collect();
        let grant = |name: usize| Grant { name: Some(name.to_string()), ..Grant::of_everyone() };
        let keyring = Keyring::new(secrets.iter().enumerate().map(|(name, s)| (s.digest(), grant(name))));
        for (name, secret) in secrets.iter().enumerate() {
            assert_eq!(**keyring.find(secret.reveal()).unwrap(), grant(name));
        }
        for wrong in ["", Secret::draw().reveal(), &secrets[0].reveal()[..75]] {
            assert!(keyring.find(wrong).is_none());
        }
    }
}
