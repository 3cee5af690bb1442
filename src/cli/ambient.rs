//! The only doors of the command line to the clock and to chance, so that both are easy to find.

use tokio::time::Instant;

/// The monotonic clock. Leases are counted on it, because the wall clock may be set back under a running worker.
pub(super) fn now() -> Instant {
    Instant::now()
}

/// A number from 0 (included) to 1 (excluded), for jitter.
pub(super) fn chance() -> f64 {
    // Jitter is a courtesy: without a source of randomness the middle serves as well.
    let bits = getrandom::u32().unwrap_or(u32::MAX / 2);
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}
