//! Scopes: what a token is good for.

use std::fmt;

use serde::Serialize;

/// One kind of request. Each route names those that open it; none includes another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// To dispatch and cancel runs.
    Dispatch,
    /// To be a worker: register, poll, beat, acknowledge, report.
    Work,
    /// To read runs, workers and events.
    Read,
    /// To read how much waits, and nothing that it carries.
    Demand,
    /// To operate: cancel and drain.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 5] = [Self::Dispatch, Self::Work, Self::Read, Self::Demand, Self::Admin];

    /// Its word in the configuration and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dispatch => "dispatch",
            Self::Work => "work",
            Self::Read => "read",
            Self::Demand => "demand",
            Self::Admin => "admin",
        }
    }

    /// The scope of this word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == word)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
