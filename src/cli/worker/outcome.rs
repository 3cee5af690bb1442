//! What the end of a command means for its run.

use std::io;

use super::{process::Process, watch::Stopped};

/// What is to be reported.
pub(super) struct Outcome {
    /// `succeeded`, `failed` or `aborted`.
    pub(super) status: &'static str,
    /// How a failure looked: the way the command ended and the end of its standard error.
    pub(super) error: Option<String>,
    /// The end of its standard output.
    pub(super) output: Option<String>,
}

impl Outcome {
    /// What the end of the command means; `None` if nothing may be said about it.
    pub(super) async fn of(stopped: Stopped, process: Process) -> Option<Self> {
        let (status, how) = match stopped {
            Stopped::Lost => return None,
            Stopped::Cancelled => ("aborted", None),
            Stopped::Exited(Ok(status)) if status.success() => ("succeeded", None),
            Stopped::Exited(Ok(status)) => ("failed", Some(status.to_string())),
            Stopped::Exited(Err(error)) => ("failed", Some(error.to_string())),
        };
        let output = process.output().await;
        let error = how.map(|how| error_text(&how, &output.stderr));
        Some(Self { status, error, output: Some(output.stdout).filter(|text| !text.is_empty()) })
    }

    /// The outcome of a command that never was.
    pub(super) fn not_started(error: &io::Error) -> Self {
        Self { status: "failed", error: Some(format!("the command could not be started: {error}")), output: None }
    }
}

/// How the command ended, and its last words about it.
fn error_text(how: &str, stderr: &str) -> String {
    if stderr.is_empty() { how.to_owned() } else { format!("{how}\n{stderr}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn ended(script: &str) -> Process {
        Process::start(&["sh", "-c", script].map(OsString::from), String::new(), &[]).expect("sh is there")
    }

    async fn outcome_of(script: &str) -> Outcome {
        let mut process = ended(script);
        let status = process.ended().await;
        Outcome::of(Stopped::Exited(status), process).await.expect("it ended by itself")
    }

    #[tokio::test]
    async fn the_exit_status_decides() {
        let good = outcome_of("echo 42; echo chatter >&2").await;
        assert_eq!((good.status, good.error, good.output.as_deref()), ("succeeded", None, Some("42")));
        let bad = outcome_of("echo 7 rows; echo 'no such table' >&2; exit 3").await;
        assert_eq!((bad.status, bad.output.as_deref()), ("failed", Some("7 rows")));
        assert_eq!(bad.error.as_deref(), Some("exit status: 3\nno such table"));
        let silent = outcome_of("exit 1").await;
        assert_eq!((silent.error.as_deref(), silent.output), (Some("exit status: 1"), None));
    }

    #[tokio::test]
    async fn a_cancelled_command_is_aborted_even_if_it_ends_well() {
        let outcome = Outcome::of(Stopped::Cancelled, ended("exit 0")).await.expect("it is ours to report");
        assert_eq!(outcome.status, "aborted");
    }

    #[tokio::test]
    async fn nothing_is_said_about_a_lost_attempt() {
        assert!(Outcome::of(Stopped::Lost, ended("exit 0")).await.is_none());
    }
}
