//! Names and numbers that identify things, each its own type, each valid by construction.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// Why a name was refused: a sentence that follows the field's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidName(pub String);

/// The tenant. Comes from the caller's token only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceId(pub i64);

impl NamespaceId {
    /// The namespace of callers when no tokens are configured.
    pub const DEFAULT: Self = Self(1);
}

/// Declares a text id: a newtype over `String` that only `parse` can make.
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $check:path) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Takes the text if the rules of names allow it.
            ///
            /// # Errors
            /// [`InvalidName`] says which rule is broken.
            pub fn parse(text: impl Into<String>) -> Result<Self, InvalidName> {
                let text = text.into();
                $check(&text)?;
                Ok(Self(text))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                Self::parse(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }
    };
}

text_id!(
    /// A DAG's name: 1 to 250 printable characters, neither `.` nor `..`.
    DagName,
    check_dag_name
);
text_id!(
    /// A run's id within its DAG: 1 to 255 of `A-Z a-z 0-9 . _ : @ + ~ = -`, neither `.` nor `..`.
    RunId,
    check_id
);
text_id!(
    /// A worker's name, under the rules of [`RunId`].
    WorkerId,
    check_id
);
text_id!(
    /// One life of a worker's process, under the rules of [`RunId`]. Unique within its worker.
    SessionId,
    check_id
);

fn check_dag_name(text: &str) -> Result<(), InvalidName> {
    let length = text.chars().count();
    if !(1..=250).contains(&length) {
        return Err(InvalidName(format!("must have 1 to 250 characters, has {length}")));
    }
    if let Some(bad) = text.chars().find(|c| is_invisible(*c)) {
        return Err(InvalidName(format!("must be printable, has {bad:?}")));
    }
    not_dots(text)
}

fn check_id(text: &str) -> Result<(), InvalidName> {
    if !(1..=255).contains(&text.len()) {
        return Err(InvalidName(format!("must have 1 to 255 characters, has {}", text.len())));
    }
    if let Some(bad) = text.chars().find(|c| !(c.is_ascii_alphanumeric() || "._:@+~=-".contains(*c))) {
        return Err(InvalidName(format!("may contain A-Z a-z 0-9 . _ : @ + ~ = - only, has {bad:?}")));
    }
    not_dots(text)
}

/// Clients resolve these in a path, and so end up elsewhere.
fn not_dots(text: &str) -> Result<(), InvalidName> {
    if text == "." || text == ".." { Err(InvalidName(format!("must not be {text:?}"))) } else { Ok(()) }
}

/// Whether a character shows nothing of itself: control characters, and those that join, hide or turn round what is
/// beside them, so that two names look the same or one looks like another. Not the two
/// joiners that some scripts are written with.
pub(crate) fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A run's identity: its DAG's name and its run id together, as DAG tools know it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RunRef)]
pub struct RunKey {
    /// The DAG's name.
    #[schema(value_type = String, min_length = 1, max_length = 250)]
    pub dag_name: DagName,
    /// The run's id within the DAG.
    #[schema(value_type = String, min_length = 1, max_length = 255)]
    pub run_id: RunId,
}

impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.dag_name, self.run_id)
    }
}

/// A session and the worker whose life it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey {
    /// The worker.
    pub worker_id: WorkerId,
    /// Its session.
    pub session_id: SessionId,
}

/// One attempt of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptId(pub Uuid);

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of an interned selector. Numbers rise in commit order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SelectorNo(pub i64);

/// The number of an interned label set. Numbers rise in commit order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelSetNo(pub i64);

/// SHA-256 of something: all that is kept of a token, and how requests and canonical forms are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of these bytes.
    #[must_use]
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        Self(Sha256::digest(bytes.as_ref()).into())
    }
}

/// A claim's token: 256 random bits in hex. The one who shows it holds the claim, and later the lease.
///
/// Shown once, to the worker; the database keeps its [`Digest`]. Comparing digests of 256 random bits leaks nothing
/// useful through time, so no constant-time compare is needed. `Debug` hides it, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Draws a token from the operating system.
    ///
    /// # Panics
    /// When the operating system has no randomness, which it has once it has booted.
    #[must_use]
    pub fn draw() -> Self {
        let mut bytes = [0u8; 32];
        getrandom::fill(&mut bytes).expect("the operating system has randomness once it has booted");
        let mut hex = String::with_capacity(2 * bytes.len());
        for byte in bytes {
            hex.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or_default());
            hex.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or_default());
        }
        Self(hex)
    }

    /// Takes what a worker sent, whatever it is: a wrong token is answered like an old one.
    #[must_use]
    pub const fn received(text: String) -> Self {
        Self(text)
    }

    /// The token itself, for the worker it is given to.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(self.0.as_bytes())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl SessionId {
    /// A session id of our choice.
    #[must_use]
    pub fn draw() -> Self {
        Self(new_uuid().to_string())
    }
}

/// Draws a new id whose first bits are the time, so that index pages fill in order.
#[must_use]
pub fn new_uuid() -> Uuid {
    Uuid::now_v7()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_take_the_characters_of_the_contract_and_no_others() {
        for good in ["a", "A-z.0_9:@+~=-", &"x".repeat(255)] {
            assert!(RunId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a b", "a/b", "ä", "a\n", &"x".repeat(256)] {
            assert!(RunId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn dag_names_are_printable() {
        for good in ["etl", "täglich / Bericht", "...", "\u{1f468}\u{1f3fd}", &"ä".repeat(250)] {
            assert!(DagName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a\u{0}b", "a\nb", "a\u{200b}", "\u{202e}a", "\u{feff}", &"ä".repeat(251)] {
            assert!(DagName::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_token_never_shows_itself() {
        let token = Token::draw();
        assert_eq!(token.reveal().len(), 64);
        assert!(!format!("{token:?}").contains(token.reveal()));
        assert_ne!(token, Token::draw());
    }
}
