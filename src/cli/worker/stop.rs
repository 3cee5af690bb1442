//! The two ways of being told to stop.

use std::time::Duration;

use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::cli::client::{Action, Problem};

/// Softly: take nothing more and finish what runs. Hard: kill it and go. Hard includes softly.
#[derive(Clone, Debug, Default)]
pub(super) struct Stop {
    soft: CancellationToken,
    hard: CancellationToken,
}

impl Stop {
    /// Asks to stop softly.
    pub(super) fn softly(&self) {
        self.soft.cancel();
    }

    /// Asks to stop hard.
    pub(super) fn hard(&self) {
        self.soft.cancel();
        self.hard.cancel();
    }

    /// Whether either stop was asked for.
    pub(super) fn is_soft(&self) -> bool {
        self.soft.is_cancelled()
    }

    /// Whether the hard stop was asked for.
    pub(super) fn is_hard(&self) -> bool {
        self.hard.is_cancelled()
    }

    /// Ends when either stop is asked for.
    pub(super) async fn soft_asked(&self) {
        self.soft.cancelled().await;
    }

    /// Ends when the hard stop is asked for.
    pub(super) async fn hard_asked(&self) {
        self.hard.cancelled().await;
    }

    /// Waits, but not beyond a stop.
    pub(super) async fn or_elapsed(&self, pause: Duration) {
        tokio::select! {
            () = self.soft.cancelled() => {}
            () = sleep(pause) => {}
        }
    }

    /// From now on the first SIGTERM or SIGINT stops softly and the second hard, for as long as the answer is kept.
    ///
    /// # Errors
    ///
    /// If the system refuses to deliver signals.
    pub(super) fn on_signals(&self) -> Result<JoinSet<()>, Problem> {
        let refused = |error: std::io::Error| Problem::local("no-signals", Action::GiveUp, error.to_string());
        let mut terminate = signal(SignalKind::terminate()).map_err(refused)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(refused)?;
        let stop = self.clone();
        let mut listener = JoinSet::new();
        listener.spawn(async move {
            let mut next = async || {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            };
            next().await;
            info!("asked to stop: finishing what runs");
            stop.softly();
            next().await;
            warn!("asked to stop again: killing what runs");
            stop.hard();
        });
        Ok(listener)
    }
}
