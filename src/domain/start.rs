//! The start clock: how long a run may be queued in all, whatever matches meanwhile.
//!
//! It runs from where the hold began, through busy workers, claims that return and the delay of a release; only an
//! outage stops it. It never cuts a claim: what was given out in time may be acknowledged in time, and the clock is
//! looked at again when the claim returns.

use std::time::Duration;

use super::Timestamp;
use super::hold::{Stretch, gaps};

/// A task's start clock: since when, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartClock {
    /// Where it began: the dispatch, or the end of its back-off.
    pub from: Timestamp,
    /// The longest wait in all, more than zero.
    pub timeout: Duration,
}

impl StartClock {
    /// A clock that begins then; none when the timeout is zero, which is off.
    #[must_use]
    pub fn of(timeout: Duration, from: Timestamp) -> Option<Self> {
        (!timeout.is_zero()).then_some(Self { from, timeout })
    }

    /// `from` plus the timeout: it does not run out before.
    #[must_use]
    pub fn until(&self) -> Timestamp {
        self.from + self.timeout
    }

    /// When it runs out, or has run out: the moment at which it has run for the whole timeout outside of these outages.
    #[must_use]
    pub fn ends_at(&self, outages: &[Stretch]) -> Timestamp {
        let mut left = self.timeout;
        for ran in gaps(outages.to_vec(), self.from, Timestamp::MAX_UTC) {
            let lasted = (ran.until - ran.from).to_std().unwrap_or_default();
            if left <= lasted {
                return ran.from + left;
            }
            left -= lasted;
        }
        Timestamp::MAX_UTC
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(tick: i64) -> Timestamp {
        Timestamp::from_timestamp(1_000_000 + tick, 0).unwrap()
    }

    fn outage(from: i64, until: i64) -> Stretch {
        Stretch { from: at(from), until: at(until) }
    }

    fn clock(from: i64, seconds: u64) -> StartClock {
        StartClock { from: at(from), timeout: Duration::from_secs(seconds) }
    }

    #[test]
    fn it_runs_from_its_beginning_whatever_matches() {
        assert_eq!(clock(3, 10).ends_at(&[]), at(13));
        assert_eq!(clock(3, 10).until(), at(13));
        assert_eq!(StartClock::of(Duration::ZERO, at(3)), None, "zero is off");
    }

    #[test]
    fn an_outage_lets_it_run_longer_by_what_it_takes_of_it() {
        assert_eq!(clock(0, 10).ends_at(&[outage(4, 7)]), at(13));
        assert_eq!(clock(0, 10).ends_at(&[outage(-5, 2)]), at(12), "begun before it");
        assert_eq!(clock(0, 10).ends_at(&[outage(8, 11), outage(12, 15)]), at(16), "the second by the first");
        assert_eq!(clock(0, 10).ends_at(&[outage(4, 8), outage(6, 9)]), at(15), "twice the same time is once");
    }

    #[test]
    fn an_outage_before_or_after_it_is_nothing_to_it() {
        assert_eq!(clock(0, 10).ends_at(&[outage(-9, 0)]), at(10));
        assert_eq!(clock(0, 10).ends_at(&[outage(10, 99)]), at(10), "it had run out when the outage began");
        assert_eq!(clock(0, 10).ends_at(&[outage(9, 99)]), at(100));
    }

    proptest! {
        #[test]
        fn agrees_with_a_stopwatch(
            from in 0i64..20,
            timeout in 1i64..20,
            outages in proptest::collection::vec((0i64..60, 1i64..12), 0..5),
        ) {
            let (mut now, mut ran) = (from, 0);
            while ran < timeout {
                ran += i64::from(!outages.iter().any(|(from, length)| (*from..from + length).contains(&now)));
                now += 1;
            }
            let outages: Vec<_> = outages.iter().map(|(from, length)| outage(*from, from + length)).collect();
            prop_assert_eq!(clock(from, timeout.unsigned_abs()).ends_at(&outages), at(now));
        }
    }
}
