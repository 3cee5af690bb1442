//! Whether the database is there. While it is not, nobody waits for it: whoever asks is told at once, and one watcher
//! looks for its return.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::sync::{Notify, watch};

/// How long connecting may take. Twice in a row too long means that nobody is there.
const CONNECT: Duration = Duration::from_secs(1);

/// Pause between two looks while the database is away, and between two doubts.
const PAUSE: Duration = Duration::from_millis(100);

/// What is known of the database.
#[derive(Debug)]
pub(super) struct Health {
    away: watch::Sender<bool>,
    doubted: Notify,
    trusted_from: Mutex<Option<Instant>>,
}

/// What came of a look.
enum Look {
    There,
    Away,
    Slow,
}

impl Health {
    pub(super) fn new() -> Self {
        Self { away: watch::Sender::new(false), doubted: Notify::new(), trusted_from: Mutex::default() }
    }

    /// Something failed that would not have if the database were well.
    pub(super) fn doubt(&self) {
        self.doubted.notify_one();
    }

    /// A connection turned out to be dead: what ended it has ended others, so that none opened before is used again.
    pub(super) fn distrust(&self) {
        self.trust_only_new_ones();
        self.doubt();
    }

    fn trust_only_new_ones(&self) {
        *self.trusted_from.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Completes when the database is away; at once if it is.
    pub(super) async fn away(&self) {
        // The sender cannot be gone: it is ours.
        let _ = self.away.subscribe().wait_for(|away| *away).await;
    }

    /// Whether a connection of this age was opened before the database was last away, or before another one was found
    /// dead: so is it, or may be.
    pub(super) fn outlived(&self, age: Duration) -> bool {
        let trusted_from = *self.trusted_from.lock().unwrap_or_else(PoisonError::into_inner);
        trusted_from.is_some_and(|from| age > from.elapsed())
    }

    /// Looks when in doubt, and while the database is away until it is back. Runs for ever.
    pub(super) async fn watch(&self, options: &PgConnectOptions) {
        loop {
            self.doubted.notified().await;
            let mut slow = 0;
            loop {
                match look(options).await {
                    Look::There => break self.is_there(),
                    Look::Slow if slow == 0 => slow += 1,
                    Look::Away | Look::Slow => self.is_away(),
                }
                tokio::time::sleep(PAUSE).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn is_away(&self) {
        if !self.away.send_replace(true) {
            tracing::warn!("the database is away");
        }
    }

    fn is_there(&self) {
        if *self.away.borrow() {
            self.trust_only_new_ones();
            self.away.send_replace(false);
            tracing::info!("the database is back");
        }
    }
}

async fn look(options: &PgConnectOptions) -> Look {
    match tokio::time::timeout(CONNECT, options.connect()).await {
        Err(_) => Look::Slow,
        Ok(Ok(connection)) => {
            let _ = tokio::time::timeout(CONNECT, connection.close()).await;
            Look::There
        }
        // It says no, which it could not if it were away: full, or our password is wrong. Not so when it starts or stops.
        Ok(Err(sqlx::Error::Database(error))) if !error.code().is_some_and(|code| code.starts_with("57P")) => {
            Look::There
        }
        Ok(Err(_)) => Look::Away,
    }
}
