//! Retry: whether a run that lost an attempt has another, and how long that one backs off.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::run::words;

/// The longest back-off, which is the longest hold by default.
pub const LONGEST_DELAY: Duration = Duration::from_hours(7 * 24);

words!(
    /// What an attempt must have come to for there to be another.
    RetryOn {
        /// The session that ran it ended or fell silent, or gave it back.
        LeaseLost = "lease_lost",
        /// Its worker reported that it failed, and did not say that another would do no better.
        Failed = "failed",
    }
);

/// When a run is tried again by itself, and how long it waits before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Retry)]
pub struct Retry {
    /// What must have happened. `lease_lost` when absent; more may be added.
    #[schema(value_type = Vec<String>, example = json!(["lease_lost", "failed"]))]
    pub on: Vec<RetryOn>,
    /// How long the second attempt waits before it may be taken.
    #[schema(minimum = 0, maximum = 604_800)]
    pub delay_seconds: f64,
    /// By how much each further one waits longer.
    #[schema(minimum = 1, maximum = 100)]
    pub factor: f64,
    /// The longest that one waits.
    #[schema(minimum = 0, maximum = 604_800)]
    pub max_delay_seconds: f64,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            on: vec![RetryOn::LeaseLost],
            delay_seconds: 0.0,
            factor: 1.0,
            max_delay_seconds: LONGEST_DELAY.as_secs_f64(),
        }
    }
}

impl Retry {
    /// How long the attempt waits that follows so many failed ones in a row; 1 is the first.
    #[must_use]
    pub fn delay(&self, failed: i32) -> Duration {
        if self.delay_seconds <= 0.0 {
            return Duration::ZERO;
        }
        let delay = self.delay_seconds * self.factor.powi(failed.max(1) - 1);
        let most = self.max_delay_seconds.min(LONGEST_DELAY.as_secs_f64());
        // Beyond any number of attempts the power is infinite, and the most is what counts.
        Duration::try_from_secs_f64(delay.min(most)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(delay_seconds: f64, factor: f64, max_delay_seconds: f64) -> Retry {
        Retry { delay_seconds, factor, max_delay_seconds, ..Retry::default() }
    }

    #[test]
    fn delays_grow_up_to_their_bound() {
        let growing = retry(2.0, 3.0, 30.0);
        let delays: Vec<u64> = (1..=5).map(|failed| growing.delay(failed).as_secs()).collect();
        assert_eq!(delays, [2, 6, 18, 30, 30]);
        assert_eq!(growing.delay(i32::MAX), Duration::from_secs(30), "however many");
        assert_eq!(Retry::default().delay(7), Duration::ZERO);
        assert_eq!(retry(0.0, 100.0, 30.0).delay(i32::MAX), Duration::ZERO, "nothing times infinity");
    }
}
