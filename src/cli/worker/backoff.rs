//! How long to wait before sending the same again.

use std::time::Duration;

use crate::cli::ambient::chance;

/// The first wait, before jitter.
const FIRST: Duration = Duration::from_millis(250);

/// The longest wait of our own choosing.
const LONGEST: Duration = Duration::from_secs(10);

/// The longest wait that is accepted from an answer: whoever names a longer one is mistaken or will say so again.
const LONGEST_ASKED: Duration = Duration::from_mins(1);

/// Doubling waits with jitter. One back-off belongs to one thing that is tried again and again.
#[derive(Debug)]
pub(super) struct Backoff {
    failures: u32,
    longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::up_to(LONGEST)
    }
}

impl Backoff {
    /// A back-off whose own waits stay below `longest`.
    pub(super) fn up_to(longest: Duration) -> Self {
        Self { failures: 0, longest: longest.min(LONGEST) }
    }

    /// The wait after one more failure. `asked` is what the answer asked for.
    pub(super) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let wait = wait(self.failures, self.longest, asked, chance());
        self.failures = self.failures.saturating_add(1);
        wait
    }
}

/// Half of the wait is certain and half is chance, so that workers cut off together do not come back together. For the
/// same reason a wait that was asked for is kept and a little is added.
fn wait(failures: u32, longest: Duration, asked: Option<Duration>, chance: f64) -> Duration {
    let doubled = FIRST.saturating_mul(1 << failures.min(16)).min(longest);
    let own = doubled.mul_f64(0.5 + chance / 2.0);
    match asked {
        Some(asked) => own.max(asked.min(LONGEST_ASKED) + FIRST.mul_f64(chance)),
        None => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let waits: Vec<_> = (0..4).map(|failures| wait(failures, LONGEST, None, 0.0).as_millis()).collect();
        assert_eq!(waits, [125, 250, 500, 1000]);
        assert_eq!(wait(u32::MAX, LONGEST, None, 0.999), LONGEST.mul_f64(0.9995));
        assert_eq!(wait(9, Duration::from_secs(1), None, 0.0), Duration::from_millis(500));
    }

    #[test]
    fn a_wait_that_was_asked_for_is_kept() {
        let asked = Duration::from_secs(20);
        assert_eq!(wait(0, LONGEST, Some(asked), 0.0), asked);
        assert!(wait(0, LONGEST, Some(asked), 0.9) > asked);
        assert_eq!(wait(6, LONGEST, Some(Duration::ZERO), 0.0), Duration::from_secs(5));
    }

    #[test]
    fn ten_years_are_not_believed() {
        assert_eq!(wait(0, LONGEST, Some(Duration::from_hours(87_600)), 0.0), LONGEST_ASKED);
    }

    #[test]
    fn failures_are_counted() {
        let mut backoff = Backoff::default();
        for _ in 0..5 {
            backoff.next(None);
        }
        assert!(backoff.next(None) >= Duration::from_secs(4));
    }
}
