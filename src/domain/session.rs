//! Sessions: one life of a worker's process, its signs of life and its lease.

use std::time::Duration;

use super::Timestamp;
use super::hold::Stretch;
use super::run::words;
use crate::ids::{LabelSetNo, SessionKey};

words!(
    /// Why a session ended.
    EndReason {
        /// Another session of the same worker registered.
        Replaced = "replaced",
        /// It said goodbye.
        Left = "left",
        /// It gave no sign of life for its whole lease.
        Lapsed = "lapsed",
    }
);

words!(
    /// What a worker is to the matcher.
    WorkerState {
        /// It gives signs of life and may be given tasks.
        Healthy = "healthy",
        /// It finishes what it has and is given nothing.
        Draining = "draining",
        /// It has been silent for `stale_after`: no match, though its lease still holds.
        Stale = "stale",
        /// It is gone.
        Ended = "ended",
    }
);

/// One session, as its row has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// Whose, and which.
    pub key: SessionKey,
    /// What it offers.
    pub label_set_no: LabelSetNo,
    /// How many tasks it may have at a time.
    pub slots: i32,
    /// How long without a sign of life until it is stale.
    pub stale_after: Duration,
    /// How long without a sign of life until it is lost.
    pub lease_ttl: Duration,
    /// Its last sign of life.
    pub last_seen: Timestamp,
    /// Since when it has been present without a break; none while it is draining or has ended.
    pub present_from: Option<Timestamp>,
    /// Whether it said that it wants no more tasks.
    pub draining: bool,
    /// Why it ended, if it has.
    pub ended: Option<EndReason>,
}

impl Session {
    /// What it is to the matcher at this moment.
    #[must_use]
    pub fn state(&self, now: Timestamp) -> WorkerState {
        if self.ended.is_some() {
            WorkerState::Ended
        } else if now >= self.last_seen + self.stale_after {
            WorkerState::Stale
        } else if self.present_from.is_none() {
            WorkerState::Draining
        } else {
            WorkerState::Healthy
        }
    }

    /// When its lease ends if it stays silent.
    #[must_use]
    pub fn lease_until(&self) -> Timestamp {
        self.last_seen + self.lease_ttl
    }

    /// Whether its lease has lapsed at this moment, outside of an amnesty.
    #[must_use]
    pub fn lapsed(&self, now: Timestamp, amnesty_until: Option<Timestamp>) -> bool {
        self.ended.is_none() && now >= self.lease_until() && amnesty_until.is_none_or(|until| now >= until)
    }
}

/// A session after a change, with the stretch of presence that the change closed.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionChange {
    /// The session as it is now.
    pub session: Session,
    /// The label set it offered until now, and when it did.
    pub closed: Option<(LabelSetNo, Stretch)>,
}

impl Session {
    /// A sign of life that may bring other labels, other slots, or a wish to drain. A presence that was already over
    /// is closed where it ended and another is opened; a change of labels closes and opens at one instant.
    #[must_use]
    pub fn beat(&self, offer: &Offer, now: Timestamp) -> SessionChange {
        let mut session = self.clone();
        session.last_seen = now.max(self.last_seen);
        session.slots = offer.slots;
        session.label_set_no = offer.label_set_no;
        session.draining = offer.draining;
        let over = now >= self.last_seen + self.stale_after;
        let other = offer.label_set_no != self.label_set_no;
        let away = offer.draining || offer.drained;
        let closed = if over || other || away { self.close(now) } else { None };
        session.present_from = match (away, closed.is_some(), self.present_from) {
            (true, ..) => None,
            (false, false, Some(since)) => Some(since),
            (false, ..) => Some(now),
        };
        SessionChange { session, closed }
    }

    /// An operator's drain of its worker, or the end of one, which is no sign of life: presence ends now, or begins.
    #[must_use]
    pub fn turn(&self, drained: bool, now: Timestamp) -> SessionChange {
        let mut session = self.clone();
        let away = drained || self.draining;
        session.present_from = if away { None } else { self.present_from.or(Some(now)) };
        SessionChange { session, closed: if away { self.close(now) } else { None } }
    }

    /// Its end: presence ends now, or where it already had.
    #[must_use]
    pub fn end(&self, reason: EndReason, now: Timestamp) -> SessionChange {
        let mut session = self.clone();
        session.ended = Some(reason);
        session.present_from = None;
        SessionChange { session, closed: self.close(now) }
    }

    /// The open stretch of presence, closed now or where it was over.
    fn close(&self, now: Timestamp) -> Option<(LabelSetNo, Stretch)> {
        let from = self.present_from?;
        let until = now.min(self.last_seen + self.stale_after).max(from);
        Some((self.label_set_no, Stretch { from, until }))
    }
}

/// What a session offers with a sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Its label set.
    pub label_set_no: LabelSetNo,
    /// Its slots.
    pub slots: i32,
    /// Whether it wants no more tasks.
    pub draining: bool,
    /// Whether an operator wants its worker given none.
    pub drained: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{SessionId, WorkerId};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_timestamp(1_700_000_000 + second, 0).unwrap()
    }

    fn session() -> Session {
        Session {
            key: SessionKey { worker_id: WorkerId::parse("w").unwrap(), session_id: SessionId::parse("s").unwrap() },
            label_set_no: LabelSetNo(1),
            slots: 4,
            stale_after: Duration::from_secs(30),
            lease_ttl: Duration::from_secs(60),
            last_seen: at(0),
            present_from: Some(at(-10)),
            draining: false,
            ended: None,
        }
    }

    fn offer(label_set_no: i64, draining: bool) -> Offer {
        Offer { label_set_no: LabelSetNo(label_set_no), slots: 4, draining, drained: false }
    }

    #[test]
    fn states_by_the_clock() {
        assert_eq!(session().state(at(29)), WorkerState::Healthy);
        assert_eq!(session().state(at(30)), WorkerState::Stale);
        assert!(!session().lapsed(at(59), None));
        assert!(session().lapsed(at(60), None));
        assert!(!session().lapsed(at(60), Some(at(70))), "an amnesty is on");
        let ended = session().end(EndReason::Left, at(5)).session;
        assert_eq!((ended.state(at(5)), ended.lapsed(at(99), None)), (WorkerState::Ended, false));
    }

    #[test]
    fn a_beat_in_time_goes_on_with_the_same_presence() {
        let change = session().beat(&offer(1, false), at(10));
        assert_eq!((change.closed, change.session.present_from), (None, Some(at(-10))));
        assert_eq!(change.session.last_seen, at(10));
    }

    #[test]
    fn a_late_beat_closes_the_presence_where_it_was_over() {
        let change = session().beat(&offer(1, false), at(45));
        assert_eq!(change.closed, Some((LabelSetNo(1), Stretch { from: at(-10), until: at(30) })));
        assert_eq!(change.session.present_from, Some(at(45)));
    }

    #[test]
    fn other_labels_close_and_open_at_one_instant() {
        let change = session().beat(&offer(2, false), at(10));
        assert_eq!(change.closed, Some((LabelSetNo(1), Stretch { from: at(-10), until: at(10) })));
        assert_eq!((change.session.label_set_no, change.session.present_from), (LabelSetNo(2), Some(at(10))));
    }

    #[test]
    fn draining_ends_the_presence_until_it_is_undone() {
        let drained = session().beat(&offer(1, true), at(10));
        assert_eq!(drained.closed, Some((LabelSetNo(1), Stretch { from: at(-10), until: at(10) })));
        assert_eq!(drained.session.state(at(11)), WorkerState::Draining);
        let undone = drained.session.beat(&offer(1, false), at(20));
        assert_eq!((undone.closed, undone.session.present_from), (None, Some(at(20))));
    }

    #[test]
    fn an_operators_drain_outlives_what_the_session_says_and_the_other_way_round() {
        let turned = session().turn(true, at(10));
        assert_eq!(turned.closed, Some((LabelSetNo(1), Stretch { from: at(-10), until: at(10) })));
        assert_eq!((turned.session.last_seen, turned.session.present_from), (at(0), None), "no sign of life");
        let drained = Offer { drained: true, ..offer(1, false) };
        assert_eq!(turned.session.beat(&drained, at(11)).session.present_from, None);
        let undone = turned.session.turn(false, at(12));
        assert_eq!((undone.closed, undone.session.present_from), (None, Some(at(12))));
        let of_its_own = session().beat(&offer(1, true), at(10)).session;
        assert_eq!(of_its_own.turn(false, at(12)).session.present_from, None, "it wants no more itself");
        assert_eq!(session().turn(false, at(12)).session, session(), "nothing was to be undone");
    }
}
