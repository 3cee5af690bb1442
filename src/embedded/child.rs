//! Waiting for child processes, without ever waiting longer than the owner wants.

use std::convert::Infallible;
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long a polite signal is given, and then a firm one.
const POLITE: Duration = Duration::from_secs(30);
const FIRM: Duration = Duration::from_secs(10);
/// The pause between two looks at a process that is about to end.
const LOOK: Duration = Duration::from_millis(10);

/// The owner's wish that Postgres run. It ends when the owner drops the other end of the channel, by intent or not.
#[derive(Debug)]
pub(super) struct Wish(pub(super) Receiver<Infallible>);

impl Wish {
    /// Waits for `pause`, or less when the wish ends: then true.
    pub(super) fn ends_within(&self, pause: Duration) -> bool {
        match self.0.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        }
    }
}

/// A moment on the clock that no one sets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Instant);

impl Deadline {
    pub(super) fn after(pause: Duration) -> Self {
        Self(Instant::now() + pause)
    }

    pub(super) fn passed(self) -> bool {
        Instant::now() >= self.0
    }
}

/// Ends a child: `polite` first, SIGQUIT after 30 s, SIGKILL after 10 s more. Returns when it is gone and reaped.
pub(super) fn end(child: &mut Child, polite: Signal) {
    end_by(polite, |signal| {
        // Until it is reaped, which only we do, the number cannot belong to another process.
        if let Some(signal) = signal {
            send(child.id(), signal);
        }
        !matches!(child.try_wait(), Ok(None))
    });
}

/// Ends a process that is not a child of ours the same way, as long as `lives` says that it is the one meant.
pub(super) fn end_stranger(pid: u32, lives: impl Fn() -> bool) {
    end_by(Signal::SIGINT, |signal| {
        let gone = !lives();
        if let Some(signal) = signal.filter(|_| !gone) {
            send(pid, signal);
        }
        gone
    });
}

/// Calls `step` with each signal in turn, and without one in between, until it says that the process is gone.
fn end_by(polite: Signal, mut step: impl FnMut(Option<Signal>) -> bool) {
    for (signal, patience) in [(polite, POLITE), (Signal::SIGQUIT, FIRM), (Signal::SIGKILL, FIRM)] {
        let deadline = Deadline::after(patience);
        let mut gone = step(Some(signal));
        while !gone && !deadline.passed() {
            std::thread::sleep(LOOK);
            gone = step(None);
        }
        if gone {
            return;
        }
    }
}

fn send(pid: u32, signal: Signal) {
    // A number beyond the range of process ids names nobody; a process that is gone needs no signal.
    if let Ok(pid) = i32::try_from(pid) {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}
