//! JSON as text: what a body may hold before anyone reads it, and what is kept of it as it was sent.
//!
//! Values that are not ours (`params`, `context`, `output`, `progress`) are never turned into numbers and back: an
//! integer of 30 digits goes out as it came in. So they are checked, mended and compared as text.

mod canonical;
mod mend;
mod strict;
mod tokens;

pub use canonical::canonical;
pub use mend::mend;
pub use strict::{MAX_DEPTH, check, depth};
pub use tokens::Tokens;

/// Where a text stops being what it should be, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defect {
    /// Bytes before it.
    pub at: usize,
    /// A sentence that follows the place.
    pub what: String,
}

impl Defect {
    fn new(at: usize, what: impl Into<String>) -> Self {
        Self { at, what: what.into() }
    }

    /// The defect with its line and column in the text, both counted from 1, the column in characters.
    #[must_use]
    pub fn in_text(&self, text: &[u8]) -> String {
        let before = &text[..self.at.min(text.len())];
        let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        let line = before.split(|byte| *byte == b'\n').count();
        let column = 1 + String::from_utf8_lossy(&before[line_start..]).chars().count();
        format!("line {line}, column {column}: {}", self.what)
    }
}
