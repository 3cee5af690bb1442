//! Why a verb did not do what was asked.

use crate::domain::refusal::Refusal;
use crate::store;

/// A verb's error. HTTP translates it in one exhaustive match.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The state of things forbids it.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// The service is full, or shutting down: the same request may be sent again.
    #[error("overloaded")]
    Overloaded,
    /// The database cannot be reached, or gave up: the same request may be sent again.
    #[error("{0}")]
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

/// What a verb's transaction may end with, before it is known whether to try it again.
///
/// Logged by its `Display`: the `Debug` of a database error may hold the values of a row, and so a payload.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// A rule said no; nothing was written.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// The database did not do its part.
    #[error("{0}")]
    Store(store::Error),
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<store::Error> for Fault {
    fn from(error: store::Error) -> Self {
        Self::Store(error)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Refused(refusal) => Self::Refused(refusal),
            Fault::Store(store::Error::Full) => Self::Overloaded,
            Fault::Store(
                error @ (store::Error::Unavailable(_)
                | store::Error::Locked(_)
                | store::Error::Away
                | store::Error::Conflict(_)),
            ) => Self::Unavailable(error.to_string()),
            Fault::Store(
                error @ (store::Error::Statement(_) | store::Error::Unreadable(_) | store::Error::RowCount { .. }),
            ) => Self::Internal(error.to_string()),
        }
    }
}
