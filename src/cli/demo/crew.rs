//! The demo's workers: the reference worker, each in a process of its own.

use std::{ffi::OsString, io, path::Path, time::Duration};

use super::DemoError;
use crate::cli::worker::Process;

/// What the workers run: it counts the steps in the task it is given and takes a moment over them.
const WORK: &str = r#"
steps=$(grep -o ' command: ' | wc -l)
sleep 0.2
echo "$((steps)) steps of $ROADSTEAD_DAG_NAME done"
"#;

/// How long a worker with nothing to do may take to say farewell.
const PATIENCE: Duration = Duration::from_secs(10);

/// A worker process.
pub(super) struct Hand {
    /// The worker's name.
    pub(super) worker_id: &'static str,
    process: Process,
}

impl Hand {
    /// Starts `exe worker` with one label.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub(super) fn start(exe: &Path, url: &str, worker_id: &'static str, label: &str) -> io::Result<Self> {
        let mut command = vec![OsString::from(exe)];
        command.extend(["worker", "--url", url, "--worker-id", worker_id, "--label", label].map(OsString::from));
        command.extend(["--", "sh", "-c", WORK].map(OsString::from));
        Ok(Self { worker_id, process: Process::start(&command, String::new(), &[])? })
    }

    /// Asks it to stop, as a process manager would, and expects a clean end.
    ///
    /// # Errors
    ///
    /// If it ended otherwise, or had ended before.
    pub(super) async fn stop(mut self) -> Result<(), DemoError> {
        self.process.stop(PATIENCE).await;
        let ended = self.process.ended().await.map_err(DemoError::Process)?;
        if ended.success() {
            return Ok(());
        }
        let log = self.process.output().await.stderr;
        Err(DemoError::Worker { worker_id: self.worker_id, how: ended.to_string(), log })
    }
}
