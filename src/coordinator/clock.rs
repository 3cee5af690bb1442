//! What time it is by the database, known between two looks at it.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::Coordinator;
use crate::domain::Timestamp;

/// The database's clock as it was last read. Every sweep reads it.
#[derive(Default)]
pub(super) struct Clock(Mutex<Option<(Timestamp, Instant)>>);

impl Clock {
    /// The database said that it is this time, just now.
    pub fn read(&self, time: Timestamp) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((time, Instant::now()));
    }
}

impl Coordinator {
    /// The time by the database's clock, right to about one pass of the sweep: for what may end a moment too late.
    /// Goes on while the database is away. The beginning of time before the first sweep.
    #[must_use]
    pub fn about_now(&self) -> Timestamp {
        match *self.0.clock.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((time, read)) => time + read.elapsed(),
            None => Timestamp::MIN_UTC,
        }
    }
}
