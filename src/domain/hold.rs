//! The hold clock: how long a task may be without a match.
//!
//! The clock stands still while something matches and starts anew when the last match goes. So what decides is not
//! how long a task has waited but the *gaps*: maximal stretches without a match. The same arithmetic serves the claim,
//! the sweep and what people read.

use std::time::Duration;

use super::Timestamp;

/// A half-open stretch of time, `[from, until)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stretch {
    /// Its first moment.
    pub from: Timestamp,
    /// The moment after its last.
    pub until: Timestamp,
}

/// A task's hold: since when, for how long, and the earliest moment it can expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The dispatch, or whatever else last started the clock from the beginning.
    pub from: Timestamp,
    /// The longest time without a match.
    pub wait: Duration,
}

impl Hold {
    /// `from` plus the wait: nothing expires before it.
    #[must_use]
    pub fn until(&self) -> Timestamp {
        self.from + self.wait
    }

    /// Whether the hold ran its full wait within one of these gaps.
    #[must_use]
    pub fn expired(&self, gaps: &[Stretch]) -> bool {
        self.expired_at(gaps).is_some()
    }

    /// When it expired: the first moment at which a gap had lasted the whole wait since `from`.
    ///
    /// A gap `[g1, g2)` counts from the later of `g1` and `from`; it must not be empty, and it must reach that moment.
    #[must_use]
    pub fn expired_at(&self, gaps: &[Stretch]) -> Option<Timestamp> {
        gaps.iter()
            .filter_map(|gap| {
                let from = gap.from.max(self.from);
                let at = from + self.wait;
                (gap.until > from && at <= gap.until).then_some(at)
            })
            .min()
    }

    /// When it will expire if nothing comes: the end of the wait that began with the gap that is still open.
    #[must_use]
    pub fn expires_at(&self, gap_from: Timestamp) -> Timestamp {
        gap_from.max(self.from) + self.wait
    }
}

/// The gaps in `[from, now)`: what the stretches in which something matched leave uncovered.
///
/// `matched` need not be sorted and may overlap; an empty stretch interrupts nothing.
#[must_use]
pub fn gaps(mut matched: Vec<Stretch>, from: Timestamp, now: Timestamp) -> Vec<Stretch> {
    matched.sort_unstable();
    let mut gaps = Vec::new();
    let mut covered = from;
    for stretch in matched {
        if stretch.until <= covered || stretch.until <= stretch.from {
            continue;
        }
        if stretch.from >= now {
            break;
        }
        if stretch.from > covered {
            gaps.push(Stretch { from: covered, until: stretch.from });
        }
        covered = stretch.until;
    }
    if covered < now {
        gaps.push(Stretch { from: covered, until: now });
    }
    gaps
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(tick: i64) -> Timestamp {
        Timestamp::from_timestamp(1_000_000 + tick, 0).unwrap()
    }

    fn stretch(from: i64, until: i64) -> Stretch {
        Stretch { from: at(from), until: at(until) }
    }

    fn hold(from: i64, wait: u64) -> Hold {
        Hold { from: at(from), wait: Duration::from_secs(wait) }
    }

    #[test]
    fn a_hold_without_any_match_expires_when_its_wait_is_over() {
        assert!(!hold(0, 5).expired(&gaps(vec![], at(0), at(4))));
        assert!(hold(0, 5).expired(&gaps(vec![], at(0), at(5))));
    }

    #[test]
    fn the_clock_stands_still_while_something_matches_and_starts_anew() {
        let matched = vec![stretch(2, 6)];
        assert!(!hold(0, 5).expired(&gaps(matched.clone(), at(0), at(10))), "4 ticks since the last match went");
        assert_eq!(hold(0, 5).expired_at(&gaps(matched, at(0), at(12))), Some(at(11)));
    }

    #[test]
    fn a_wait_of_zero_ends_with_its_last_match() {
        assert!(!hold(0, 0).expired(&gaps(vec![stretch(0, 9)], at(0), at(9))), "present to this moment");
        assert!(hold(0, 0).expired(&gaps(vec![stretch(0, 9)], at(0), at(10))));
        assert!(
            !hold(3, 0).expired(&gaps(vec![stretch(3, 9)], at(0), at(8))),
            "the gap before it began is not its own"
        );
    }

    #[test]
    fn a_relabel_in_one_instant_leaves_no_gap() {
        assert!(gaps(vec![stretch(0, 4), stretch(4, 9)], at(0), at(9)).is_empty());
    }

    /// Steps through time second by second, as someone with a stopwatch would.
    fn by_stopwatch(hold_from: i64, wait: i64, matched: &[(i64, i64)], now: i64) -> bool {
        let mut without = 0;
        for tick in hold_from..now {
            if matched.iter().any(|(from, until)| (*from..*until).contains(&tick)) {
                without = 0;
            } else {
                without += 1;
                if without >= wait {
                    return true;
                }
            }
        }
        false
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn agrees_with_a_stopwatch(
            hold_from in 0i64..40,
            wait in 0i64..15,
            matched in proptest::collection::vec((0i64..60, 0i64..12), 0..6),
            ahead in 0i64..60,
        ) {
            let now = hold_from + ahead;
            let matched: Vec<(i64, i64)> = matched.into_iter().map(|(from, length)| (from, from + length)).collect();
            let stretches = matched.iter().map(|(from, until)| stretch(*from, *until)).collect();
            let gaps = gaps(stretches, at(hold_from.min(5)), at(now));
            prop_assert_eq!(
                hold(hold_from, wait.unsigned_abs()).expired(&gaps),
                by_stopwatch(hold_from, wait, &matched, now)
            );
        }
    }
}
