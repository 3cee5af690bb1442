//! The text of a token: `rst_`, 32 random bytes in hex, and a checksum by which a typo is told from a token that
//! nobody knows. The prefix lets scanners of secrets find one that has leaked.

use std::fmt::{self, Write as _};

use crate::ids::Digest;

const PREFIX: &str = "rst_";
const RANDOM: usize = 64;
const CHECKSUM: usize = 8;

/// A token as its owner has it. `Debug` hides it, and there is no `Display`.
#[derive(Clone)]
pub struct Secret(String);

/// What a text looks like that is no token we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A whole token: revoked, or of another service.
    Whole,
    /// The beginning of a token and not the rest of it: mistyped, or cut short.
    Broken,
    /// No token of this kind.
    Foreign,
}

impl Secret {
    /// Draws a token from the operating system.
    ///
    /// # Panics
    /// When the operating system has no randomness, which it has once it has booted.
    #[must_use]
    pub fn draw() -> Self {
        let mut bytes = [0u8; RANDOM / 2];
        getrandom::fill(&mut bytes).expect("the operating system has randomness once it has booted");
        let text = format!("{PREFIX}{}", hex(&bytes));
        Self(format!("{text}{}", checksum(&text)))
    }

    /// The token itself, for the one it is made for.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

impl Form {
    /// The form of a text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        if !text.starts_with(PREFIX) {
            return Self::Foreign;
        }
        let body = PREFIX.len() + RANDOM;
        let whole = text.len() == body + CHECKSUM && text.is_ascii() && checksum(&text[..body]) == text[body..];
        if whole { Self::Whole } else { Self::Broken }
    }
}

fn checksum(text: &str) -> String {
    hex(&Digest::of(text).0[..CHECKSUM / 2])
}

/// Bytes as lower-case hex.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_told_from_a_typo_and_from_other_text() {
        let secret = Secret::draw();
        let text = secret.reveal();
        assert_eq!((text.len(), Form::of(text)), (76, Form::Whole));
        assert_ne!(text, Secret::draw().reveal());
        for at in PREFIX.len()..text.len() {
            let mut typo = text.to_owned();
            typo.replace_range(at..=at, if text[at..].starts_with('0') { "1" } else { "0" });
            assert_eq!(Form::of(&typo), Form::Broken, "{typo}");
        }
        for broken in [&text[..75], &format!("{text}0"), "rst_", "rst_ä"] {
            assert_eq!(Form::of(broken), Form::Broken, "{broken}");
        }
        for foreign in ["", "hunter2", "ghp_0123", &text[1..]] {
            assert_eq!(Form::of(foreign), Form::Foreign, "{foreign}");
        }
    }

    #[test]
    fn a_token_never_shows_itself() {
        let secret = Secret::draw();
        assert!(!format!("{secret:?}").contains(&secret.reveal()[4..]));
    }
}
