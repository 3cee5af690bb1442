//! Text that must not be shown.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A credential or a claim's token. It goes over the wire and nowhere else: `Debug` hides it and there is no `Display`.
#[derive(Clone, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Takes the text into keeping.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for a header of a request.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}
