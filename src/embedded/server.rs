//! The thread that starts Postgres, watches over it, starts it again and stops it.
//!
//! A thread of its own, and not a task: the kernel ties the parent-death signal to the thread that forked, so this one
//! must live exactly as long as the child. It alone holds the child, so no signal can go to a process that took over
//! its number.

use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::sync::{oneshot, watch};

use super::account::Account;
use super::child::{Deadline, Wish, end};
use super::error::{EmbeddedError, io};
use super::find::{Binaries, find};
use super::folder::{Folder, Notes, clear_socket_dir, remove_socket_dir};
use super::lock::Lock;
use super::{Settings, cluster, pidfile};

/// A server that ran this long had no trouble in starting: its end begins a new count.
const STEADY: Duration = Duration::from_mins(1);
/// The pause before the first new start; it doubles with each further one.
const BACK_OFF: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(10);
/// The pause between two looks: at a server that starts, and at one that runs.
const LOOK_AT_START: Duration = Duration::from_millis(20);
const LOOK: Duration = Duration::from_millis(100);

/// How Postgres fares.
#[derive(Debug, Clone)]
pub(super) enum State {
    /// Being started, for the first time or again.
    Down,
    /// Accepting connections, with this process id.
    Up(u32),
    /// Stopped by its owner; the data folder is free.
    Stopped,
    /// Given up.
    Failed(Arc<EmbeddedError>),
}

/// What the owner is told when Postgres is up for the first time.
#[derive(Debug)]
pub(super) struct Booted {
    pub(super) folder: Folder,
    pub(super) socket_dir: PathBuf,
    pub(super) version: String,
}

/// Runs Postgres until the wish ends or it cannot be kept up. To be called on a thread of its own.
pub(super) fn run(
    settings: Settings,
    wish: Wish,
    states: &watch::Sender<State>,
    booted: oneshot::Sender<Result<Booted, EmbeddedError>>,
) {
    let mut booted = Some(booted);
    let ended = Server::prepare(settings, wish).and_then(|server| server.supervise(states, &mut booted));
    // By now the server is dropped and with it the lock: whoever is told next may start anew at once.
    match ended {
        Ok(()) => drop(states.send_replace(State::Stopped)),
        Err(error) => match booted {
            // Nobody may be waiting any more; then nobody wants to know.
            Some(booted) => drop(booted.send(Err(error))),
            None => drop(states.send_replace(State::Failed(Arc::new(error)))),
        },
    }
}

struct Server {
    settings: Settings,
    wish: Wish,
    folder: Folder,
    account: Account,
    binaries: Binaries,
    socket_dir: PathBuf,
    _lock: Lock,
}

enum End {
    Stopped,
    Died { how: String, after: Duration },
}

impl Server {
    /// All that comes before Postgres itself: the lock, the programs, the cluster.
    fn prepare(settings: Settings, wish: Wish) -> Result<Self, EmbeddedError> {
        let folder = Folder::open(&settings.data_dir)?;
        let lock = Lock::take(folder.root())?;
        let needed = folder.major()?;
        let cluster = folder.cluster();
        let account = Account::choose(&cluster)?;
        let notes = folder.notes();
        let last = Some(notes.bin_dir.as_path()).filter(|path| path.is_absolute());
        let binaries =
            find(settings.bin_dir.as_deref(), last, (&cluster, needed), settings.cache_dir.as_deref(), &account)?;
        enter(&folder, &binaries, &account)?;
        if needed.is_none() {
            tracing::info!(folder = %cluster.display(), version = binaries.version, "creating the embedded database");
            cluster::create(&folder, &binaries, &account, &wish)?;
        }
        let socket_dir = folder.fresh_socket_dir(&notes.socket_dir, &account)?;
        folder.note(&Notes { bin_dir: binaries.folder.clone(), socket_dir: socket_dir.clone() })?;
        Ok(Self { settings, wish, folder, account, binaries, socket_dir, _lock: lock })
    }

    /// Starts Postgres, and starts it again when it ends by itself, until the wish ends.
    fn supervise(
        self,
        states: &watch::Sender<State>,
        booted: &mut Option<oneshot::Sender<Result<Booted, EmbeddedError>>>,
    ) -> Result<(), EmbeddedError> {
        let mut strikes = 0;
        loop {
            let recovers = pidfile::make_way(&self.folder.cluster())?;
            if recovers {
                tracing::info!("the embedded Postgres was not stopped in good order and recovers its data");
            }
            let ended = self.live(|pid| {
                states.send_replace(State::Up(pid));
                if let Some(booted) = booted.take() {
                    let _ = booted.send(Ok(self.booted()));
                }
            });
            states.send_replace(State::Down);
            let last = match ended {
                Ok(End::Stopped) => return Ok(()),
                Ok(End::Died { how, after }) => {
                    if after >= STEADY {
                        strikes = 0;
                    }
                    how
                }
                // Only after an unclean end is there hope that a first start, refused now, is not refused later: when
                // the last children of the old server are gone.
                Err(error) if booted.is_some() && !(recovers && strikes < 3) => return Err(error),
                Err(error) => error.to_string(),
            };
            strikes += 1;
            if strikes > self.settings.restarts {
                return Err(EmbeddedError::GaveUp { times: strikes, last });
            }
            let pause = BACK_OFF.saturating_mul(1 << (strikes - 1).min(10)).min(BACK_OFF_MAX);
            tracing::warn!(last, strikes, ?pause, "the embedded Postgres ended and is started again");
            if self.wish.ends_within(pause) {
                return Ok(());
            }
        }
    }

    fn booted(&self) -> Booted {
        Booted {
            folder: self.folder.clone(),
            socket_dir: self.socket_dir.clone(),
            version: self.binaries.version.clone(),
        }
    }

    /// One life of Postgres, from its start to its end. `up` is called when it accepts connections.
    fn live(&self, up: impl FnOnce(u32)) -> Result<End, EmbeddedError> {
        clear_socket_dir(&self.socket_dir);
        let (mut child, log_begin) = self.spawn()?;
        let failed = |reason: String| EmbeddedError::Start {
            reason,
            path: self.folder.log_path(),
            log: self.folder.log_since(log_begin),
        };
        let deadline = Deadline::after(self.settings.start_timeout);
        while !pidfile::is_ready(&self.folder.cluster(), child.id()) {
            if let Some(how) = gone(&mut child) {
                return Err(failed(how));
            }
            if deadline.passed() {
                end(&mut child, Signal::SIGINT);
                return Err(failed(format!("not ready after {:?}", self.settings.start_timeout)));
            }
            if self.wish.ends_within(LOOK_AT_START) {
                end(&mut child, Signal::SIGINT);
                return Ok(End::Stopped);
            }
        }
        let since = Instant::now();
        up(child.id());
        loop {
            if let Some(how) = gone(&mut child) {
                return Ok(End::Died { how, after: since.elapsed() });
            }
            if self.wish.ends_within(LOOK) {
                end(&mut child, Signal::SIGINT);
                return Ok(End::Stopped);
            }
        }
    }

    fn spawn(&self) -> Result<(Child, u64), EmbeddedError> {
        let (log, begin) = self.folder.log()?;
        let errors = log.try_clone().map_err(io("open", &self.folder.log_path()))?;
        let program = self.binaries.folder.join("postgres");
        let mut command = self.account.command(&program, Signal::SIGINT);
        command.arg("-D").arg(self.folder.cluster());
        for (name, value) in self.settings.parameters(&self.socket_dir.to_string_lossy()) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let child = command.stdout(log).stderr(errors).spawn().map_err(io("run", &program))?;
        Ok((child, begin))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        remove_socket_dir(&self.socket_dir);
    }
}

/// Proves that the user Postgres runs as can pass through the data folder, before `initdb` says so in its own words.
fn enter(folder: &Folder, binaries: &Binaries, account: &Account) -> Result<(), EmbeddedError> {
    let mut command = account.command(&binaries.folder.join("postgres"), Signal::SIGKILL);
    match command.arg("--version").current_dir(folder.root()).output() {
        Ok(_) => Ok(()),
        // find() has run the same program from elsewhere, so it is the folder that is closed.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(EmbeddedError::Closed { folder: folder.root().to_owned(), account: account.name.clone() })
        }
        Err(error) => Err(io("enter", folder.root())(error)),
    }
}

/// How the child ended; `None` while it runs.
fn gone(child: &mut Child) -> Option<String> {
    match child.try_wait() {
        Ok(None) => None,
        Ok(Some(status)) => Some(status.to_string()),
        // Where SIGCHLD is ignored the system reaps it, and forgets how it ended.
        Err(_) => Some("its exit status is unknown".to_owned()),
    }
}
