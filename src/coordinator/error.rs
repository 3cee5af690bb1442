//! Why a verb did not do what was asked.

use crate::domain::refusal::Refusal;

/// A verb's error. HTTP translates it in one exhaustive match.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state of things forbids it.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// The service is full, or shutting down: the same request may be sent again.
    #[error("overloaded")]
    Overloaded,
    /// The database cannot be reached, or gave up: the same request may be sent again.
    #[error("the database is unavailable: {0}")]
    Unavailable(String),
    /// A fault of ours. The text is for the log, never for the answer.
    #[error("internal: {0}")]
    Internal(String),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
