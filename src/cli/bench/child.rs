//! The service as a process of the bench's own, so that its memory and its processor time are its alone.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{self, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::BenchError;

/// How long it may take to start, its migrations included.
const START: Duration = Duration::from_secs(60);

/// How long it may take to stop, which it promises to do in ten seconds.
const STOP: Duration = Duration::from_secs(15);

/// How much of its log is kept to be shown when it does not start.
const LAST_WORDS: usize = 20;

/// What it says once it serves.
const LISTENS: &str = "roadstead: listening on ";

/// A running service. Killed when dropped.
pub(super) struct Child {
    process: process::Child,
    url: String,
    /// Reads on what it logs: it would stand still on a full pipe.
    _reader: JoinSet<()>,
}

impl Child {
    /// Starts `exe serve` on a free port and this database, with the settings that the environment gives.
    ///
    /// # Errors
    ///
    /// When it does not listen in time.
    pub(super) async fn start(exe: &Path, database_url: &str) -> Result<Self, BenchError> {
        let mut command = Command::new(exe);
        // In the environment, since a command line is visible to the whole machine.
        command.args(["serve", "--listen", "127.0.0.1:0"]).env("DATABASE_URL", database_url);
        command.env_remove("ROADSTEAD_DATABASE__URL");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn()?;
        let log = process.stderr.take().ok_or_else(|| BenchError::NotStarted(String::new()))?;
        let mut lines = BufReader::new(log).lines();
        let mut last = VecDeque::new();
        let url = timeout(START, async {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(url) = line.strip_prefix(LISTENS) {
                    return Some(url.to_owned());
                }
                if last.len() == LAST_WORDS {
                    last.pop_front();
                }
                last.push_back(line);
            }
            None
        });
        let url = url.await.ok().flatten();
        let url = url.ok_or_else(|| BenchError::NotStarted(Vec::from(last).join("\n")))?;
        let mut reader = JoinSet::new();
        reader.spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { process, url, _reader: reader })
    }

    /// Where it serves.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Its process id, while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// Asks it to stop, and waits for that.
    pub(super) async fn stop(mut self) {
        if let Some(pid) = self.process.id().and_then(|pid| i32::try_from(pid).ok()) {
            // Gone already: then there is nothing to wait for, either.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let _ = timeout(STOP, self.process.wait()).await;
    }
}

/// The memory that a process has resident, in MiB; none where the system does not tell.
pub(super) fn resident_mebibytes(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    resident(&status)
}

fn resident(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_what_linux_tells() {
        assert_eq!(resident("Name:\troadstead\nVmPeak:\t  900 kB\nVmRSS:\t   26624 kB\nThreads:\t4\n"), Some(26.0));
        assert_eq!(resident("Name:\tzombie\n"), None);
    }
}
