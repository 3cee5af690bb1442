//! What this session holds: its claims and attempts, and what has been heard about each.
//!
//! Polls, heartbeats and renewals write here what the answers said; the task that carries an attempt listens.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use crate::cli::client::{NamedAttempt, Secret};

/// What is wanted of an attempt. It only ever rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    /// Go on.
    Work,
    /// Stop, and report that it was stopped.
    Cancel,
    /// Stop, and report nothing: it is somebody else's now, or nobody's.
    Lost,
}

/// The right to go on working. Counted from before the request that renewed it was sent, so that it never seems longer
/// here than it is at the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    /// When it was last renewed.
    pub(super) renewed_at: Instant,
    /// When it lapses unless it is renewed again.
    pub(super) until: Instant,
}

impl Lease {
    /// A lease of this length, asked for at `asked_at`.
    pub(super) fn granted(asked_at: Instant, length: Duration) -> Self {
        Self { renewed_at: asked_at, until: asked_at + length }
    }
}

/// What is known about one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// What is wanted of it.
    pub(super) order: Order,
    /// Its lease; none before the ack was answered.
    pub(super) lease: Option<Lease>,
}

struct Held {
    token: Secret,
    known: watch::Sender<Known>,
}

/// The table of everything held, by attempt id.
#[derive(Default)]
pub(super) struct Holdings {
    held: Mutex<HashMap<String, Held>>,
}

/// One entry of the table, for as long as this is kept.
pub(super) struct Holding<'a> {
    holdings: &'a Holdings,
    attempt_id: String,
    known: watch::Receiver<Known>,
}

impl Holdings {
    /// Enters a claim. It is entered before its ack, so that a cancel that comes in meanwhile is not missed.
    pub(super) fn enter(&self, attempt_id: &str, token: &Secret) -> Holding<'_> {
        let (sender, receiver) = watch::channel(Known { order: Order::Work, lease: None });
        self.lock().insert(attempt_id.to_owned(), Held { token: token.clone(), known: sender });
        Holding { holdings: self, attempt_id: attempt_id.to_owned(), known: receiver }
    }

    /// The attempts that a heartbeat names: those acked and not yet reported.
    pub(super) fn named(&self) -> Vec<NamedAttempt> {
        self.lock()
            .iter()
            .filter(|(_, held)| held.known.borrow().lease.is_some())
            .map(|(id, held)| NamedAttempt { attempt_id: id.clone(), token: held.token.clone() })
            .collect()
    }

    /// Gives a lease, or a longer one. A lease never becomes shorter: answers may overtake each other.
    pub(super) fn renew<'i>(&self, attempt_ids: impl IntoIterator<Item = &'i str>, lease: Lease) {
        self.update(attempt_ids, |known| {
            if known.lease.is_none_or(|old| old.until < lease.until) {
                known.lease = Some(lease);
            }
        });
    }

    /// Raises the order for attempts that are held; others are none of ours and are passed over.
    pub(super) fn order<'i>(&self, attempt_ids: impl IntoIterator<Item = &'i str>, order: Order) {
        self.update(attempt_ids, |known| known.order = known.order.max(order));
    }

    /// Gives up everything: the session is over.
    pub(super) fn lose_all(&self) {
        for held in self.lock().values() {
            held.known.send_modify(|known| known.order = Order::Lost);
        }
    }

    fn update<'i>(&self, attempt_ids: impl IntoIterator<Item = &'i str>, change: impl Fn(&mut Known)) {
        let held = self.lock();
        for held in attempt_ids.into_iter().filter_map(|id| held.get(id)) {
            held.known.send_if_modified(|known| {
                let before = *known;
                change(known);
                *known != before
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Held>> {
        // Each change is one insertion, removal or assignment: a panic cannot have left the table half changed.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holding<'_> {
    /// What is known now.
    pub(super) fn known(&self) -> Known {
        *self.known.borrow()
    }

    /// Ends when something has become known since the last look or change. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        // The sender lives in the table until this is dropped; were it gone, there would be nothing more to hear.
        if self.known.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends when the attempt is lost.
    pub(super) async fn lost(&mut self) {
        while self.known().order != Order::Lost {
            self.changed().await;
        }
    }

    /// A second pair of ears for the same entry.
    pub(super) fn listener(&self) -> watch::Receiver<Known> {
        self.known.clone()
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.holdings.lock().remove(&self.attempt_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::ambient::now;

    fn names(holdings: &Holdings) -> Vec<String> {
        holdings.named().into_iter().map(|named| named.attempt_id).collect()
    }

    #[test]
    fn a_claim_is_named_only_once_it_has_a_lease_and_until_it_is_let_go() {
        let holdings = Holdings::default();
        let holding = holdings.enter("a1", &Secret::new("t"));
        assert!(names(&holdings).is_empty());
        holdings.renew(["a1"], Lease::granted(now(), Duration::from_mins(1)));
        assert_eq!(names(&holdings), ["a1"]);
        drop(holding);
        assert!(names(&holdings).is_empty());
    }

    #[test]
    fn an_order_never_falls() {
        let holdings = Holdings::default();
        let holding = holdings.enter("a1", &Secret::new("t"));
        holdings.order(["a1", "unknown"], Order::Lost);
        holdings.order(["a1"], Order::Cancel);
        assert_eq!(holding.known().order, Order::Lost);
    }

    #[test]
    fn a_lease_never_shrinks() {
        let holdings = Holdings::default();
        let holding = holdings.enter("a1", &Secret::new("t"));
        let long = Lease::granted(now(), Duration::from_mins(1));
        holdings.renew(["a1"], long);
        holdings.renew(["a1"], Lease::granted(now(), Duration::from_secs(5)));
        assert_eq!(holding.known().lease, Some(long));
    }

    #[tokio::test]
    async fn the_end_of_a_session_loses_all() {
        let holdings = Holdings::default();
        let (mut one, mut two) = (holdings.enter("a1", &Secret::new("t")), holdings.enter("a2", &Secret::new("t")));
        holdings.lose_all();
        one.lost().await;
        two.lost().await;
    }
}
