//! The program as its users start it: a process with arguments, signals, an exit status and a log.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};

use super::{Client, until};

/// A running `roadstead`, killed when the test drops it.
pub struct Program {
    child: Child,
    log: Arc<Mutex<String>>,
}

/// What a command that has come to its end said.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// The program with these arguments, in an environment that holds no setting but these.
fn command(args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadstead"));
    clean(&mut command).args(args).envs(env.iter().copied());
    command
}

/// Takes every setting out of the environment that a command would inherit.
fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("ROADSTEAD_") || name.ends_with("WORKER_WAIT_TIMEOUT") || name == "DATABASE_URL" {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null()).kill_on_drop(true)
}

/// Runs a command to its end, which must come within a minute.
pub async fn run(args: &[&str], env: &[(&str, &str)]) -> Said {
    let ended = tokio::time::timeout(Duration::from_mins(1), command(args, env).output());
    let output = ended.await.unwrap_or_else(|_| panic!("{args:?} did not end")).unwrap();
    Said {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Program {
    pub fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    pub fn start_with(args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::spawn(&mut command(args, env))
    }

    /// With what a shell does before it, such as lowering a limit.
    pub fn start_after(preparation: &str, args: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{preparation}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_roadstead")]).args(args);
        Self::spawn(clean(&mut shell))
    }

    /// With nobody at the other end of its standard error: whatever it says there fails.
    pub fn start_unheard(args: &[&str]) -> Self {
        let mut command = command(args, &[]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stderr.take());
        Self { child, log: Arc::default() }
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (kept, mut lines) = (Arc::clone(&log), BufReader::new(child.stderr.take().unwrap()).lines());
        #[expect(clippy::disallowed_methods, reason = "it ends with the process whose log it keeps")]
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let mut log = kept.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self { child, log }
    }

    /// A service on a free port of its own.
    pub fn serve(args: &[&str]) -> Self {
        Self::start(&[&["serve", "--listen", "127.0.0.1:0"], args].concat())
    }

    /// A client of the service, once it listens.
    pub async fn client(&mut self) -> Client {
        Client::new(&self.address().await)
    }

    /// Where the service says it listens; fails the test when it ends before it does.
    pub async fn address(&mut self) -> String {
        let said = "roadstead: listening on ";
        until("the service listens", async || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("it ended with {status}: {}", self.log());
            }
            self.log().contains(said)
        })
        .await;
        self.log().lines().find_map(|line| line.strip_prefix(said)).unwrap().to_owned()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().expect("it runs").try_into().unwrap())
    }

    /// The bytes of memory it has in use.
    pub fn memory(&self) -> usize {
        let pages = std::fs::read_to_string(format!("/proc/{}/statm", self.pid())).unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// `kill -9`, and waits until it is gone.
    pub async fn kill_hard(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().await.unwrap();
    }

    /// Waits for its end, which must come within this time.
    pub async fn ended_within(&mut self, patience: Duration) -> ExitStatus {
        let ended = tokio::time::timeout(patience, self.child.wait()).await;
        ended.unwrap_or_else(|_| panic!("it did not end within {patience:?}: {}", self.log())).unwrap()
    }

    /// Asks it to stop, as a process manager does, and expects a clean end in time.
    pub async fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.ended_within(Duration::from_secs(10)).await;
        assert_eq!(status.code(), Some(0), "{}", self.log());
    }

    /// All that it has written so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub async fn logged(&self, text: &str) {
        until(&format!("it logs {text:?}"), async || self.log().contains(text)).await;
    }

    /// The lines of its log that are JSON.
    pub fn log_lines(&self) -> Vec<Value> {
        self.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// A listener that takes connections and never answers: a database that is there and does nothing.
pub async fn mute_listener() -> (std::net::SocketAddr, tokio::task::JoinSet<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut held = tokio::task::JoinSet::new();
    held.spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.flush().await;
            kept.push(socket);
        }
    });
    (address, held)
}
