//! What keeps a running attempt beside its session's signs of life: beats that name it, or renewals of its own.

use std::time::Duration;

use super::Timestamp;

/// What is known of the care for a running attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kept {
    /// The first beat that left it out since it was acknowledged, or last named.
    pub omitted_since: Option<Timestamp>,
    /// When its holder last renewed it by itself, if it does so and no beat has named it.
    pub renewed_at: Option<Timestamp>,
}

impl Kept {
    /// Why it is lost at this moment though its session lives, as what follows the worker's name; none if it is not.
    ///
    /// Left out by beats, it is after two intervals between them, by the clock and however many beats there were. Renewed
    /// singly, it is when the last renewal is as old as a lease. Never named and never renewed, it is kept by the
    /// session alone.
    #[must_use]
    pub fn neglect(&self, heartbeat_interval: Duration, lease_ttl: Duration, now: Timestamp) -> Option<&'static str> {
        if let Some(renewed_at) = self.renewed_at {
            return (now >= renewed_at + lease_ttl).then_some("was lost: it was not renewed");
        }
        let since = self.omitted_since?;
        (now >= since + 2 * heartbeat_interval).then_some("was lost: the worker's heartbeats no longer name it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_timestamp(1_700_000_000 + second, 0).unwrap()
    }

    fn lost(kept: Kept, now: i64) -> bool {
        kept.neglect(Duration::from_secs(10), Duration::from_secs(60), at(now)).is_some()
    }

    #[test]
    fn what_nobody_spoke_of_is_kept_by_its_session() {
        assert!(!lost(Kept::default(), 1_000_000));
    }

    #[test]
    fn what_beats_leave_out_is_lost_after_two_intervals() {
        let omitted = Kept { omitted_since: Some(at(0)), renewed_at: None };
        assert_eq!((lost(omitted, 19), lost(omitted, 20)), (false, true));
    }

    #[test]
    fn what_is_renewed_singly_is_lost_a_lease_after_the_last_renewal() {
        let renewed = Kept { omitted_since: None, renewed_at: Some(at(0)) };
        assert_eq!((lost(renewed, 59), lost(renewed, 60)), (false, true));
    }
}
