//! Parked polls, grouped by what they could take.
//!
//! A group is all polls of one label set. It arms its wake-up *before* it looks, looks with one statement for all its
//! polls, and looks again on a wake-up or after the fallback interval: a wake-up that is lost costs one interval,
//! never a task. A parked poll holds no connection; one whose client has gone is dropped before it is given anything.

mod group;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::domain::session::EndReason;
use crate::ids::{LabelSetNo, NamespaceId, SessionKey};

pub use group::{Group, Looked};

/// What becomes of a parked poll.
#[derive(Debug)]
pub enum Outcome<T> {
    /// It is given these.
    Given(Vec<T>),
    /// Its session has ended.
    Ended(EndReason),
    /// Its session wants no more tasks.
    Draining,
}

/// A poll that waits.
#[derive(Debug)]
pub struct Parked<T> {
    /// Its place among all that were parked here.
    pub number: u64,
    /// Whose.
    pub session: SessionKey,
    /// How many tasks it takes at the most.
    pub max_tasks: usize,
    /// Its client's name for it.
    pub poll_id: Option<String>,
    /// Where its answer goes; closed when its client has gone.
    pub answer: oneshot::Sender<Outcome<T>>,
    /// Whether a look was made for it.
    looked: bool,
    /// Whether its wait is over: it is answered after the look that it is in or that it still has a right to.
    leaving: Arc<AtomicBool>,
}

/// What makes a group: the tenant and the label set.
pub type GroupKey = (NamespaceId, LabelSetNo);

/// All groups of this replica.
pub struct Matchmaker<T = crate::coordinator::poll::GivenTask> {
    state: Mutex<State<T>>,
}

struct State<T> {
    groups: HashMap<GroupKey, Arc<Group<T>>>,
    next: u64,
}

impl<T> Default for Matchmaker<T> {
    fn default() -> Self {
        Self { state: Mutex::new(State { groups: HashMap::new(), next: 0 }) }
    }
}

impl<T> Matchmaker<T> {
    /// Parks a poll. The group is new, and needs somebody to run it, when it is answered.
    pub fn park(
        &self,
        key: GroupKey,
        session: SessionKey,
        max_tasks: usize,
        poll_id: Option<String>,
    ) -> (Ticket, oneshot::Receiver<Outcome<T>>, Option<Arc<Group<T>>>) {
        let (answer, outcome) = oneshot::channel();
        let mut state = self.state();
        state.next += 1;
        let number = state.next;
        let leaving = Arc::new(AtomicBool::new(false));
        let ticket = Ticket { number, leaving: Arc::clone(&leaving) };
        let poll = Parked { number, session, max_tasks, poll_id, answer, looked: false, leaving };
        let fresh = Self::insert(&mut state, key, poll);
        (ticket, outcome, fresh)
    }

    /// Takes a poll out whose wait is over. False when a look for it is under way or still to come, for every poll is
    /// looked for once, however short its wait: its outcome comes with the end of that look.
    pub fn withdraw(&self, ticket: &Ticket) -> bool {
        ticket.leaving.store(true, Ordering::SeqCst);
        self.state().groups.values().any(|group| group.remove_looked(ticket.number).is_some())
    }

    /// Wakes the groups of these label sets.
    pub fn wake(&self, namespace: NamespaceId, label_sets: &[i64]) {
        let state = self.state();
        if label_sets.len() < state.groups.len() {
            for no in label_sets {
                if let Some(group) = state.groups.get(&(namespace, LabelSetNo(*no))) {
                    group.wake();
                }
            }
        } else {
            for ((of, no), group) in &state.groups {
                if *of == namespace && label_sets.binary_search(&no.0).is_ok() {
                    group.wake();
                }
            }
        }
    }

    /// Whether any poll of a namespace is parked here.
    pub fn has_parked(&self, namespace: NamespaceId) -> bool {
        self.state().groups.keys().any(|(of, _)| *of == namespace)
    }

    /// The sessions with a poll parked here whose client is still there, by namespace.
    pub fn parked(&self) -> HashMap<NamespaceId, Vec<SessionKey>> {
        let mut by_namespace: HashMap<_, Vec<_>> = HashMap::new();
        for ((namespace, _), group) in &self.state().groups {
            by_namespace.entry(*namespace).or_default().extend(group.sessions());
        }
        by_namespace
    }

    /// Tells the polls of a session that it has ended.
    pub fn ended(&self, namespace: NamespaceId, session: &SessionKey, reason: EndReason) {
        for poll in self.take(namespace, session, None) {
            let _ = poll.answer.send(Outcome::Ended(reason));
        }
    }

    /// Tells the polls of a session that it is given no more tasks.
    pub fn draining(&self, namespace: NamespaceId, session: &SessionKey) {
        for poll in self.take(namespace, session, None) {
            let _ = poll.answer.send(Outcome::Draining);
        }
    }

    /// Moves the polls of a session whose label set is another now to that set's group: they answer empty, and their
    /// worker, which polls again at once, is looked for by what it offers now.
    pub fn offers(&self, namespace: NamespaceId, session: &SessionKey, label_set_no: LabelSetNo) {
        for poll in self.take(namespace, session, Some(label_set_no)) {
            let _ = poll.answer.send(Outcome::Given(Vec::new()));
        }
    }

    /// Forgets a group that has no polls; false when one was parked meanwhile.
    pub fn retire(&self, key: GroupKey, group: &Group<T>) -> bool {
        let mut state = self.state();
        let empty = group.is_empty();
        if empty {
            state.groups.remove(&key);
        }
        empty
    }

    /// Takes the polls of a session out of all groups but the one of `except`.
    fn take(&self, namespace: NamespaceId, session: &SessionKey, except: Option<LabelSetNo>) -> Vec<Parked<T>> {
        let state = self.state();
        let others = state.groups.iter().filter(|((of, no), _)| *of == namespace && Some(*no) != except);
        others.flat_map(|(_, group)| group.take(session)).collect()
    }

    fn insert(state: &mut State<T>, key: GroupKey, poll: Parked<T>) -> Option<Arc<Group<T>>> {
        if let Some(group) = state.groups.get(&key) {
            group.push(poll);
            return None;
        }
        let group = Arc::new(Group::new(key));
        group.push(poll);
        state.groups.insert(key, Arc::clone(&group));
        Some(group)
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A parked poll's place, with which it can be taken out again.
#[derive(Debug)]
pub struct Ticket {
    number: u64,
    leaving: Arc<AtomicBool>,
}
