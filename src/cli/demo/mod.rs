//! The service shown at work: runs that wait for their worker, find it, wait in vain, and are cancelled.
//!
//! The demo is an ordinary client of a running service. It checks what it tells: whatever differs is an error.

mod crew;
mod dags;
mod story;
mod timeline;

use std::{io, path::Path, time::Duration};

use tokio::time::timeout;

use self::story::Story;
use super::client::Problem;

/// The longest that the demo may take; it needs about a third of it.
const LONGEST: Duration = Duration::from_secs(30);

/// Why the demo did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The service refused a request or could not be reached.
    #[error("the service answered otherwise: {0}")]
    Problem(#[from] Problem),
    /// The service did something else than was told.
    #[error("{what}: expected {expected}, found {found}")]
    Differs {
        /// Of what.
        what: String,
        /// What was told.
        expected: String,
        /// What was seen.
        found: String,
    },
    /// A worker did not end well.
    #[error("worker {worker_id} ended with {how}; its last words:\n{log}")]
    Worker {
        /// Its name.
        worker_id: &'static str,
        /// Its exit status.
        how: String,
        /// The end of its log.
        log: String,
    },
    /// A worker process could not be started or waited for.
    #[error("a worker process: {0}")]
    Process(#[source] io::Error),
    /// The timeline could not be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
    /// The story took too long.
    #[error("the demo was not over after {} seconds", LONGEST.as_secs())]
    TooLong,
}

/// Plays the demo against the service at `url`, with workers that are processes of `exe`, and prints it as a timeline.
///
/// The service should be idle: the first scene shows a run that waits because there is no worker at all. Dropping this
/// before its end kills the workers.
///
/// # Errors
///
/// When anything differs from what is told, or a part of it cannot be played.
pub async fn play(url: &str, exe: &Path) -> Result<(), DemoError> {
    let story = Story::begin(url, exe, io::stdout())?;
    timeout(LONGEST, story.tell()).await.map_err(|_| DemoError::TooLong)?
}
