//! What can go wrong with the database, sorted by what the caller can do about it.

/// A database error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be reached or gave up; the same may work later.
    #[error("the database is unavailable: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// Somebody else kept locked what is needed; the same may work later.
    #[error("somebody keeps a row locked: {0}")]
    Locked(#[source] sqlx::Error),
    /// It was away a moment ago and has not been seen again; the same may work later.
    #[error("the database is away")]
    Away,
    /// Too many wait for a connection; the same may work later.
    #[error("too many wait for the database")]
    Full,
    /// Two transactions stood in each other's way; the whole transaction may be tried again at once.
    #[error("the transaction has to be tried again: {0}")]
    Conflict(#[source] sqlx::Error),
    /// A statement of ours was refused: a fault of ours.
    #[error("a statement failed: {0}")]
    Statement(#[source] sqlx::Error),
    /// A row does not say what the schema promises.
    #[error("a row cannot be read: {0}")]
    Unreadable(String),
    /// A write did not touch the rows it had locked: a fault of ours.
    #[error("{statement} wrote {wrote} rows in place of {expected}")]
    RowCount {
        /// Which.
        statement: &'static str,
        /// How many it should have written.
        expected: i64,
        /// How many it wrote.
        wrote: i64,
    },
}

/// What store functions answer.
pub type Result<T> = std::result::Result<T, Error>;

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(|database| database.code().map(std::borrow::Cow::into_owned));
        match (code.as_deref(), &error) {
            // serialization_failure, deadlock_detected
            (Some("40001" | "40P01"), _) => Self::Conflict(error),
            // lock_not_available
            (Some("55P03"), _) => Self::Locked(error),
            // connection exceptions, too many connections, out of resources, shutdown and crash of the server,
            // statement timeouts, a server that is read-only because it is not the primary (any more)
            (Some(code), _)
                if ["08", "53", "57"].iter().any(|class| code.starts_with(class))
                    || ["25006", "25P03"].contains(&code) =>
            {
                Self::Unavailable(error)
            }
            (Some(_), _) => Self::Statement(error),
            (None, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::RowNotFound) => {
                Self::Unreadable(error.to_string())
            }
            (None, _) => Self::Unavailable(error),
        }
    }
}

/// Checks that a write touched as many rows as its caller had locked.
///
/// # Errors
/// [`Error::RowCount`]; the transaction must be rolled back.
pub fn expect_rows(statement: &'static str, expected: usize, wrote: i64) -> Result<()> {
    let expected = i64::try_from(expected).unwrap_or(i64::MAX);
    if wrote == expected { Ok(()) } else { Err(Error::RowCount { statement, expected, wrote }) }
}
