//! One token as the configuration lists it: everything about it but itself.

use std::collections::BTreeSet;
use std::fmt;

use chrono::DateTime;
use serde::{Serialize, Serializer};

use super::scope::Scope;
use super::secret::hex;
use crate::domain::Timestamp;
use crate::domain::labels::{self, Labels};
use crate::ids::Digest;

/// The namespace of a token that names none, and of every caller when there are no tokens.
pub const DEFAULT_NAMESPACE: &str = "default";

/// A token's entry. Serialised and shown without its hash.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is called in logs and refusals.
    pub name: String,
    /// SHA-256 of the token.
    pub digest: Digest,
    /// The tenant it belongs to.
    pub namespace: String,
    /// What it is good for.
    pub scopes: BTreeSet<Scope>,
    /// What its workers must offer.
    pub labels: Labels,
    /// From when on it is good for nothing.
    pub expires_at: Option<Timestamp>,
}

impl Entry {
    /// The entry as the configuration file takes it, hash included.
    ///
    /// # Panics
    /// Never: tables of texts are TOML.
    #[must_use]
    pub fn to_toml(&self) -> String {
        #[derive(Serialize)]
        struct File<'a> {
            auth: Auth<'a>,
        }
        #[derive(Serialize)]
        struct Auth<'a> {
            tokens: [Written<'a>; 1],
        }
        let file = File { auth: Auth { tokens: [self.written(hex(&self.digest.0))] } };
        toml::to_string(&file).expect("tables of texts are TOML")
    }

    fn written(&self, sha256: String) -> Written<'_> {
        Written {
            name: &self.name,
            sha256,
            namespace: &self.namespace,
            scopes: &self.scopes,
            expires_at: self.expires_at.map(|time| time.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)),
            labels: &self.labels,
        }
    }
}

/// What stands in a file. Tables come after values, as TOML wants it.
#[derive(Serialize)]
struct Written<'a> {
    name: &'a str,
    sha256: String,
    namespace: &'a str,
    scopes: &'a BTreeSet<Scope>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    labels: &'a Labels,
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.written("set".to_owned()).serialize(serializer)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, digest: _, namespace, scopes, labels, expires_at } = self;
        f.debug_struct("Entry")
            .field("name", name)
            .field("namespace", namespace)
            .field("scopes", scopes)
            .field("labels", labels)
            .field("expires_at", expires_at)
            .finish_non_exhaustive()
    }
}

/// Checks the name of a token or of a namespace: 1 to 63 of `A-Z a-z 0-9 . _ -`.
///
/// # Errors
/// The rule that is broken.
pub fn check_name(text: &str) -> Result<(), String> {
    if !(1..=63).contains(&text.len()) {
        return Err(format!("must have 1 to 63 characters, has {}", text.len()));
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || "._-".contains(*c))) {
        Some(bad) => Err(format!("may contain A-Z a-z 0-9 . _ - only, has {bad:?}")),
        None => Ok(()),
    }
}

/// Reads a SHA-256 in hex. What was read is in no error: it may be the token itself, put there by mistake.
///
/// # Errors
/// The rule that is broken.
pub fn read_digest(text: &str) -> Result<Digest, String> {
    let rule = || "must be the SHA-256 of the token, 64 digits in hex (not the token itself)".to_owned();
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(rule());
    }
    let mut digest = [0; 32];
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| rule())?;
    }
    Ok(Digest(digest))
}

/// Reads a point in time (RFC 3339, with its offset).
///
/// # Errors
/// The rule that is broken.
pub fn read_time(text: &str) -> Result<Timestamp, String> {
    DateTime::parse_from_rfc3339(text)
        .map(Into::into)
        .map_err(|_| "must be a time with its offset, such as 2030-01-31T12:00:00Z".to_owned())
}

/// Checks the labels that a token's workers must offer, under the rules of a registration.
///
/// # Errors
/// Which entry breaks which rule; of none in particular when there are too many.
pub fn check_labels(labels: &Labels) -> Result<(), Vec<(Option<String>, String)>> {
    labels::check(labels, labels::MAX_LABELS)
        .map_err(|invalid| invalid.into_iter().map(|invalid| (invalid.key, invalid.detail)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            name: "ci".into(),
            digest: Digest::of("swordfish"),
            namespace: "team-a".into(),
            scopes: [Scope::Read, Scope::Dispatch].into(),
            labels: Labels::from([("zone".into(), "b".into())]),
            expires_at: Some(read_time("2030-01-31T13:00:00+01:00").unwrap()),
        }
    }

    #[test]
    fn is_written_with_its_hash_only_for_the_file() {
        let hash = "b9f195c5cc7ef6afadbfbc42892ad47d3b24c6bc94bb510c4564a90a14e8b799";
        let expected = format!(
            "[[auth.tokens]]\nname = \"ci\"\nsha256 = \"{hash}\"\nnamespace = \"team-a\"\nscopes = [\"dispatch\", \
             \"read\"]\nexpires_at = \"2030-01-31T12:00:00Z\"\n\n[auth.tokens.labels]\nzone = \"b\"\n"
        );
        assert_eq!(entry().to_toml(), expected);
        assert_eq!(read_digest(hash).unwrap(), entry().digest);
        for shown in [format!("{:?}", entry()), toml::to_string(&entry()).unwrap()] {
            assert!(shown.contains("team-a") && !shown.contains("b9f195"), "{shown}");
        }
    }

    #[test]
    fn what_is_no_digest_name_or_time_is_refused_and_a_digest_not_repeated() {
        for bad in ["", "swordfish", &"g".repeat(64), &"a".repeat(63), &"ä".repeat(32)] {
            let said = read_digest(bad).unwrap_err();
            assert!(bad.is_empty() || !said.contains(bad), "{said}");
        }
        for bad in ["", "a b", "a/b", "ä", &"x".repeat(64)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        for bad in ["", "tomorrow", "2030-01-31", "2030-01-31T12:00:00"] {
            assert!(read_time(bad).is_err(), "{bad}");
        }
    }
}
