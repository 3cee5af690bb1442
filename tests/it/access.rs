//! The front door: tokens, what each is good for, and the walls between namespaces.

mod bounds;
mod expiry;
mod operations;
mod process;
mod scopes;
mod tenants;

use roadstead::access::{Entry, Scope, Secret};
use roadstead::config::Config;
use roadstead::domain::labels::Labels;

use crate::harness::{Client, Test, settings};

/// The tokens of a test, by name.
pub(crate) struct Tokens {
    entries: Vec<Entry>,
    secrets: Vec<(String, Secret)>,
}

impl Tokens {
    pub(crate) fn none() -> Self {
        Self { entries: Vec::new(), secrets: Vec::new() }
    }

    /// One more, for a namespace and with these scopes.
    pub(crate) fn and(self, name: &str, namespace: &str, scopes: &[Scope]) -> Self {
        self.and_with(name, namespace, scopes, |_| {})
    }

    /// One more, with what else is to be said of it.
    fn and_with(mut self, name: &str, namespace: &str, scopes: &[Scope], with: impl FnOnce(&mut Entry)) -> Self {
        let secret = Secret::draw();
        let mut entry = Entry {
            name: name.to_owned(),
            digest: secret.digest(),
            namespace: namespace.to_owned(),
            scopes: scopes.iter().copied().collect(),
            labels: Labels::new(),
            expires_at: None,
        };
        with(&mut entry);
        self.entries.push(entry);
        self.secrets.push((name.to_owned(), secret));
        self
    }

    /// The usual settings with these tokens.
    pub(crate) fn settings(&self) -> Config {
        let mut config = settings();
        config.auth.tokens.clone_from(&self.entries);
        config
    }

    fn secret(&self, name: &str) -> &str {
        self.secrets.iter().find(|(known, _)| known == name).unwrap().1.reveal()
    }

    /// A client that shows the token of this name.
    pub(crate) fn client(&self, t: &Test, name: &str) -> Client {
        t.client.with_token(self.secret(name))
    }
}
