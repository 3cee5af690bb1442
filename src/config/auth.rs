//! The tokens that open the service, read as tables with key names for everything that is wrong. A hash is never in a
//! problem: what stands in its place may be the token itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use figment::value::{Dict, Value};
use serde::Serialize;

use super::source::{Given, read_toml, scalar};
use crate::access::{self, DEFAULT_NAMESPACE, Entry, Scope};

const TOKENS: &str = "auth.tokens";
const TOKENS_FILE: &str = "auth.tokens_file";

/// The most tokens: each request is compared with every one.
const MAX_TOKENS: usize = 1_000;

/// Settings under `auth`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Auth {
    /// `auth.tokens_file`: another file that holds `[[auth.tokens]]`, to keep them apart. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_file: Option<PathBuf>,
    /// `auth.tokens`: the tokens, in a file only. Default: none, which lets everyone in and is for loopback.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<Entry>,
}

impl Auth {
    /// Whether nothing is set.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn take(given: &mut Given) -> Self {
        let tokens_file = given.take(TOKENS_FILE, None, |text| super::folder(text).map(Some));
        let here = given.take_value(TOKENS);
        let tokens = match (&tokens_file, here) {
            (None, None) => Vec::new(),
            (None, Some((value, origin))) => entries(given, &value, &origin),
            (Some(path), None) => match tokens_of(path) {
                Ok(value) => entries(given, &value, &path.display().to_string()),
                Err(problem) => {
                    given.refuse(TOKENS_FILE, problem);
                    Vec::new()
                }
            },
            (Some(_), Some((_, origin))) => {
                let problem =
                    format!("{TOKENS} (from {origin}) and {TOKENS_FILE} are both set; keep the tokens in one");
                given.refuse(TOKENS, problem);
                Vec::new()
            }
        };
        Self { tokens_file, tokens }
    }

    /// Whether a problem was met with any of it.
    pub(super) fn was_refused(given: &Given) -> bool {
        given.was_refused(TOKENS) || given.was_refused(TOKENS_FILE)
    }
}

/// The tokens of a file of their own, which holds nothing else.
fn tokens_of(path: &Path) -> Result<Value, String> {
    let shown = path.display();
    let mut file = read_toml(path).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{TOKENS_FILE}: {error}{cause}")
    })?;
    let mut auth = match file.remove("auth") {
        Some(Value::Dict(_, auth)) => auth,
        _ => Dict::new(),
    };
    let tokens = auth.remove("tokens");
    match (tokens, file.keys().chain(auth.keys()).next()) {
        (Some(tokens), None) => Ok(tokens),
        (_, Some(other)) => Err(format!("{TOKENS_FILE} names {shown}, which may hold {TOKENS} only and has {other}")),
        (None, None) => Err(format!("{TOKENS_FILE} names {shown}, which holds no [[{TOKENS}]]")),
    }
}

fn entries(given: &mut Given, value: &Value, origin: &str) -> Vec<Entry> {
    let Value::Array(_, tables) = value else {
        given.refuse(TOKENS, format!("{TOKENS} (from {origin}) is no list; write tables of a file, [[{TOKENS}]]"));
        return Vec::new();
    };
    // An empty list would let everyone in, which nobody says in this way.
    if tables.is_empty() || tables.len() > MAX_TOKENS {
        let found = tables.len();
        given.refuse(TOKENS, format!("{TOKENS} (from {origin}) must have 1 to {MAX_TOKENS} entries, has {found}"));
        return Vec::new();
    }
    let mut entries: Vec<Entry> = Vec::new();
    for (at, value) in tables.iter().enumerate() {
        let mut table = Table { at: format!("{TOKENS}[{at}]"), origin, given };
        let Value::Dict(_, dict) = value else {
            table.refuse("", "is no table");
            continue;
        };
        let Some(entry) = table.entry(dict.clone()) else { continue };
        if entries.iter().any(|other| other.name == entry.name) {
            table.refuse(".name", "is another token's too");
        } else if entries.iter().any(|other| other.digest == entry.digest) {
            table.refuse(".sha256", "is another token's too");
        }
        entries.push(entry);
    }
    entries
}

/// One table under judgement.
struct Table<'a> {
    at: String,
    origin: &'a str,
    given: &'a mut Given,
}

impl Table<'_> {
    /// The entry, if nothing is wrong with it; else every problem is noted.
    fn entry(&mut self, mut dict: Dict) -> Option<Entry> {
        let name = self.text(&mut dict, "name", |text| access::check_name(text).map(|()| text.to_owned()));
        let digest = self.text(&mut dict, "sha256", access::read_digest);
        let namespace = if dict.contains_key("namespace") {
            self.text(&mut dict, "namespace", |text| access::check_name(text).map(|()| text.to_owned()))
        } else {
            Some(DEFAULT_NAMESPACE.to_owned())
        };
        let expires_at = if dict.contains_key("expires_at") {
            self.text(&mut dict, "expires_at", access::read_time).map(Some)
        } else {
            Some(None)
        };
        let scopes = self.scopes(dict.remove("scopes"));
        let labels = self.labels(dict.remove("labels"), scopes.as_ref());
        for key in dict.keys() {
            self.refuse(&format!(".{key}"), "is not the name of a setting");
        }
        let whole = (name?, digest?, namespace?, scopes?, labels?, expires_at?);
        let (name, digest, namespace, scopes, labels, expires_at) = whole;
        dict.is_empty().then_some(Entry { name, digest, namespace, scopes, labels, expires_at })
    }

    fn text<T>(&mut self, dict: &mut Dict, key: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let read = match dict.remove(key) {
            None => Err("is missing".to_owned()),
            Some(value) => match date(&value).or_else(|| scalar(&value)) {
                None => Err("must be a text".to_owned()),
                Some(text) => read(&text),
            },
        };
        read.map_err(|problem| self.refuse(&format!(".{key}"), &problem)).ok()
    }

    fn scopes(&mut self, value: Option<Value>) -> Option<BTreeSet<Scope>> {
        let words = Scope::ALL.map(Scope::as_str).join(", ");
        let read = match value {
            Some(Value::Array(_, values)) if !values.is_empty() => {
                values.iter().map(|value| Scope::parse(value.as_str()?)).collect::<Option<BTreeSet<_>>>()
            }
            _ => None,
        };
        if read.is_none() {
            self.refuse(".scopes", &format!("must be a list of one or more of {words}"));
        }
        read
    }

    fn labels(&mut self, value: Option<Value>, scopes: Option<&BTreeSet<Scope>>) -> Option<BTreeMap<String, String>> {
        let labels: Option<BTreeMap<_, _>> = match value {
            None => return Some(BTreeMap::new()),
            Some(Value::Dict(_, dict)) => {
                dict.into_iter().map(|(key, value)| Some((key, value.as_str()?.to_owned()))).collect()
            }
            Some(_) => None,
        };
        let Some(labels) = labels else {
            self.refuse(".labels", "must be a table of texts");
            return None;
        };
        let mut checked = access::check_labels(&labels).err().unwrap_or_default();
        if scopes.is_some_and(|scopes| !scopes.contains(&Scope::Work)) {
            checked.push((None, format!("binds workers, and the token has not the scope {}", Scope::Work)));
        }
        for (key, detail) in &checked {
            self.refuse(&key.as_ref().map_or(".labels".to_owned(), |key| format!(".labels.{key}")), detail);
        }
        checked.is_empty().then_some(labels)
    }

    fn refuse(&mut self, key: &str, problem: &str) {
        let Self { at, origin, given } = self;
        given.refuse(TOKENS, format!("{at}{key} (from {origin}) {problem}"));
    }
}

/// A date that TOML knows as such, as text.
fn date(value: &Value) -> Option<String> {
    let Value::Dict(_, dict) = value else { return None };
    let (_, date) = dict.iter().next().filter(|(key, _)| key.starts_with("$__toml"))?;
    Some(date.as_str()?.to_owned())
}
