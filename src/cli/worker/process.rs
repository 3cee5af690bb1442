//! The command that does the work of one task.

use std::{
    ffi::OsString,
    io,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};

use super::{Tail, args::TOKEN_VARIABLE};

/// How long to go on reading after the command has ended: a process that it left behind may hold its output open.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A running command, in a process group of its own.
///
/// The group never outlives this: what is left of it is killed when this is dropped.
pub(in crate::cli) struct Process {
    child: Child,
    group: Pid,
    pipes: JoinSet<()>,
    stdout: Arc<Mutex<Tail>>,
    stderr: Arc<Mutex<Tail>>,
}

/// The ends of what a command wrote.
#[derive(Debug)]
pub(in crate::cli) struct Output {
    /// The end of its standard output.
    pub(in crate::cli) stdout: String,
    /// The end of its standard error.
    pub(in crate::cli) stderr: String,
}

impl Process {
    /// Starts the command with `input` on its standard input and `variables` added to this process's environment.
    ///
    /// # Errors
    ///
    /// If the command cannot be started.
    pub(in crate::cli) fn start(command: &[OsString], input: String, variables: &[(&str, &str)]) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut child = Command::new(program)
            .args(arguments)
            .envs(variables.iter().copied())
            // The worker's own credentials are no business of the work.
            .env_remove(TOKEN_VARIABLE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own: it can be stopped with all it started, and a terminal's Ctrl-C goes to the worker alone.
            .process_group(0)
            .spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok()).ok_or(io::ErrorKind::NotFound)?;
        let mut pipes = JoinSet::new();
        if let Some(mut stdin) = child.stdin.take() {
            pipes.spawn(async move {
                // A command need not read its task; that it did not is no failure.
                let _ = stdin.write_all(input.as_bytes()).await;
            });
        }
        let stdout = child.stdout.take().map(|pipe| keep_tail(pipe, &mut pipes)).unwrap_or_default();
        let stderr = child.stderr.take().map(|pipe| keep_tail(pipe, &mut pipes)).unwrap_or_default();
        Ok(Self { child, group: Pid::from_raw(id), pipes, stdout, stderr })
    }

    /// Ends when the command has. Cancel-safe.
    ///
    /// # Errors
    ///
    /// If the system cannot tell.
    pub(in crate::cli) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Asks the whole group to end, kills what is left of it after `patience`, and ends when the command has.
    pub(in crate::cli) async fn stop(&mut self, patience: Duration) {
        self.signal(Signal::SIGTERM);
        if timeout(patience, self.child.wait()).await.is_err() {
            self.signal(Signal::SIGKILL);
            // Nothing survives SIGKILL; an error here would only repeat that there is no child any more.
            let _ = self.child.wait().await;
        }
    }

    /// What the command wrote, to be asked after its end.
    pub(in crate::cli) async fn output(mut self) -> Output {
        let all_read = async { while self.pipes.join_next().await.is_some() {} };
        // Out of time is in order: then somebody else holds the pipes, and what was read is what counts.
        let _ = timeout(LAST_WORDS, all_read).await;
        Output { stdout: text(&self.stdout), stderr: text(&self.stderr) }
    }

    /// Sends a signal to the whole group.
    fn signal(&self, signal: Signal) {
        // The group may be gone, which is what was wanted. Its number is not taken again while a member lives, and the
        // moment between the last member's end and this call is too short for the system to come round to it.
        let _ = killpg(self.group, signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

/// Reads a pipe to its end in the background.
fn keep_tail(mut pipe: impl AsyncRead + Send + Unpin + 'static, pipes: &mut JoinSet<()>) -> Arc<Mutex<Tail>> {
    let tail = Arc::new(Mutex::new(Tail::default()));
    let kept = Arc::clone(&tail);
    pipes.spawn(async move {
        let mut buffer = vec![0; 8 * 1024];
        while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..length]);
        }
    });
    tail
}

fn text(tail: &Mutex<Tail>) -> String {
    tail.lock().unwrap_or_else(PoisonError::into_inner).text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn shell(script: &str, input: &str) -> Process {
        let command = ["sh", "-c", script].map(OsString::from);
        Process::start(&command, input.to_owned(), &[("ROADSTEAD_RUN_ID", "r1")]).expect("sh is there")
    }

    #[tokio::test]
    async fn the_task_goes_in_and_the_tail_comes_out() {
        let mut process = shell("cat; echo \" $ROADSTEAD_RUN_ID\"; echo oops >&2; exit 3", "{}");
        assert_eq!(process.ended().await.expect("a status").code(), Some(3));
        let output = process.output().await;
        assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("{} r1", "oops"));
    }

    #[tokio::test]
    async fn a_command_that_does_not_read_its_task_does_not_fail() {
        let mut process = shell("echo done", &"x".repeat(1 << 20));
        assert!(process.ended().await.expect("a status").success());
        assert_eq!(process.output().await.stdout, "done");
    }

    #[tokio::test]
    async fn a_command_told_to_stop_may_tidy_up() {
        let mut process = shell("trap 'echo tidy; exit 0' TERM; echo up; while :; do read x; done", "");
        while text(&process.stdout).is_empty() {
            tokio::task::yield_now().await;
        }
        process.stop(Duration::from_secs(30)).await;
        assert_eq!(process.output().await.stdout, "up\ntidy");
    }

    #[tokio::test]
    async fn a_command_that_will_not_stop_is_killed() {
        let mut process = shell("trap '' TERM; echo up; while :; do read x; done", "");
        while text(&process.stdout).is_empty() {
            tokio::task::yield_now().await;
        }
        process.stop(Duration::from_millis(1)).await;
        assert_eq!(process.ended().await.expect("a status").signal(), Some(9));
    }

    #[tokio::test]
    async fn what_the_command_left_behind_is_killed_with_its_group() {
        let mut process = shell("tail -f /dev/null & echo $!", "");
        assert!(process.ended().await.expect("a status").success());
        let group = process.group;
        let left: i32 = process.output().await.stdout.parse().expect("a process id");
        while killpg(group, None).is_ok() && !is_zombie(left) {
            tokio::task::yield_now().await;
        }
    }

    /// An orphan is reaped by whoever runs as the first process, in its own time.
    fn is_zombie(id: i32) -> bool {
        std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    }

    #[tokio::test]
    async fn a_command_that_is_not_there_cannot_be_started() {
        assert!(Process::start(&["/nowhere/at/all".into()], String::new(), &[]).is_err());
    }
}
