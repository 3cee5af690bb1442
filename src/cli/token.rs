//! Makes a token: the secret for its owner, and the entry for the service's configuration.

use std::collections::BTreeSet;

use crate::access::{self, DEFAULT_NAMESPACE, Entry, Scope, Secret};

/// What a new token is to be good for.
#[derive(Debug, clap::Args)]
pub struct NewToken {
    /// What it is called in logs and refusals
    #[arg(long, value_parser = name)]
    name: String,
    /// The tenant it belongs to
    #[arg(long, default_value = DEFAULT_NAMESPACE, value_parser = name)]
    namespace: String,
    /// What it is good for: dispatch, work, read, demand, admin; may be given more than once
    #[arg(long, required = true, value_delimiter = ',', value_parser = scope)]
    scope: Vec<Scope>,
    /// A label that its workers must offer; may be given more than once
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
    /// From when on it is good for nothing, such as 2030-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    expires_at: Option<String>,
}

impl NewToken {
    /// Draws the token. The text is for its owner's eyes: the token, a blank line, and the entry, which holds the
    /// token's hash and nothing else of it. Nothing is stored.
    ///
    /// # Errors
    /// What does not fit together.
    pub fn make(self) -> Result<String, String> {
        let scopes: BTreeSet<Scope> = self.scope.into_iter().collect();
        if !self.label.is_empty() && !scopes.contains(&Scope::Work) {
            return Err(format!("--label binds workers: give the token the scope {} too", Scope::Work));
        }
        let count = self.label.len();
        let labels: access::Labels = self.label.into_iter().collect();
        if labels.len() < count {
            return Err("--label names a key twice".to_owned());
        }
        if let Err(invalid) = access::check_labels(&labels) {
            let text =
                |(key, detail): (Option<String>, String)| format!("--label {}: {detail}", key.unwrap_or_default());
            return Err(invalid.into_iter().map(text).collect::<Vec<_>>().join("\n"));
        }
        let expires_at = self.expires_at.as_deref().map(access::read_time).transpose()?;
        let secret = Secret::draw();
        let entry =
            Entry { name: self.name, digest: secret.digest(), namespace: self.namespace, scopes, labels, expires_at };
        Ok(format!("{}\n\n{}", secret.reveal(), entry.to_toml()))
    }
}

fn name(text: &str) -> Result<String, String> {
    access::check_name(text).map(|()| text.to_owned())
}

fn scope(text: &str) -> Result<Scope, String> {
    Scope::parse(text).ok_or_else(|| format!("must be one of {}", Scope::ALL.map(Scope::as_str).join(", ")))
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn time(text: &str) -> Result<String, String> {
    access::read_time(text).map(|_| text.to_owned())
}
