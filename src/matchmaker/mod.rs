//! Parked polls, grouped by what they could take.
//!
//! A group is all polls of one label set. It arms its wake-up *before* it looks, looks with one statement for all its
//! polls, and looks again when it is woken. Whoever makes a task claimable wakes; and once in a fallback interval one
//! statement for all groups finds those that have something to take, and they are woken: a wake-up that is lost costs
//! one interval, never a task. A parked poll holds no connection; one whose client has gone is dropped before it is
//! given anything.

mod group;
mod reservation;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::domain::session::EndReason;
use crate::ids::{LabelSetNo, NamespaceId, SessionKey, WorkerId};

pub use group::{Group, LookEnd, Looked};
pub use reservation::Reservation;

/// What becomes of a parked poll.
#[derive(Debug)]
pub enum Outcome<T> {
    /// It is given these.
    Given(Vec<T>),
    /// Its session has ended.
    Ended(EndReason),
    /// Its session wants no more tasks.
    Draining,
    /// There is something that its session should hear.
    News,
    /// Its session offers other labels by now: it is to be parked where it belongs.
    Relabelled,
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
}

/// What makes a group: the tenant and the label set.
pub type GroupKey = (NamespaceId, LabelSetNo);

/// All groups of this replica.
pub struct Matchmaker<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    groups: HashMap<GroupKey, Arc<Group<T>>>,
    /// The groups of each worker: a label set is one worker's, and it has another whenever its labels change.
    of_worker: HashMap<(NamespaceId, WorkerId), Vec<GroupKey>>,
    next: u64,
}

impl<T> Default for Matchmaker<T> {
    fn default() -> Self {
        Self { state: Mutex::new(State { groups: HashMap::new(), of_worker: HashMap::new(), next: 0 }) }
    }
}

impl<T> Matchmaker<T> {
    /// Parks a poll.
    pub fn park(&self, key: GroupKey, session: SessionKey, max_tasks: usize, poll_id: Option<String>) -> Place<T> {
        let (answer, outcome) = oneshot::channel();
        let mut state = self.state();
        state.next += 1;
        let number = state.next;
        let (group, fresh) = Self::group(&mut state, key, &session.worker_id);
        group.push(Parked { number, session, max_tasks, poll_id, answer });
        let ticket = Ticket { group: Arc::clone(&group), number };
        Place { ticket, outcome, fresh: fresh.then_some(group) }
    }

    /// Takes a poll out again whose wait is over; false when its outcome is about to come: it is being looked for
    /// right now, or is yet to be, for every poll is looked for once.
    #[must_use]
    pub fn withdraw(ticket: &Ticket<T>) -> bool {
        ticket.group.withdraw(ticket.number)
    }

    /// Wakes the groups of these label sets.
    pub fn wake(&self, namespace: NamespaceId, label_sets: &[i64]) {
        Self::of_label_sets(&self.state(), namespace, label_sets).for_each(|group| group.wake());
    }

    /// Wakes the groups of a worker, which has a slot more than before.
    pub fn freed(&self, namespace: NamespaceId, worker: &WorkerId) {
        let state = self.state();
        let groups = state.of_worker.get(&(namespace, worker.clone())).into_iter().flatten();
        groups.filter_map(|key| state.groups.get(key)).for_each(|group| group.wake());
    }

    /// Wakes one of the groups of these label sets, for a task that each of them may take: were all woken, all would look,
    /// and all but one in vain. If it leaves the task, it passes the word on.
    pub fn offer(&self, namespace: NamespaceId, label_sets: &[i64]) {
        let state = self.state();
        let fitting: Vec<_> = Self::of_label_sets(&state, namespace, label_sets).collect();
        if let Some(first) = fitting.iter().min_by_key(|group| group.turn()) {
            first.offer(fitting.iter().map(|group| group.key).filter(|key| *key != first.key));
        }
    }

    /// Takes out a parked poll of one of the groups of these label sets, for a task that is not saved yet; of those that
    /// may be given it before all else, the one that has waited the longest.
    pub fn reserve(&self, namespace: NamespaceId, label_sets: &[i64]) -> Option<Reservation<T>> {
        let group = {
            let state = self.state();
            let ready = Self::of_label_sets(&state, namespace, label_sets);
            let ready = ready.filter_map(|group| Some((group.ready()?, group)));
            Arc::clone(ready.min_by_key(|(number, _)| *number)?.1)
        };
        Reservation::of(group)
    }

    /// Offers what one group has left to that of these whose turn it is.
    pub fn pass_on(&self, to: &[GroupKey]) {
        let state = self.state();
        let there = to.iter().filter_map(|key| state.groups.get(key));
        if let Some(next) = there.min_by_key(|group| group.turn()) {
            next.offer(to.iter().copied().filter(|key| *key != next.key));
        }
    }

    fn of_label_sets<'a>(
        state: &'a State<T>,
        namespace: NamespaceId,
        label_sets: &'a [i64],
    ) -> Box<dyn Iterator<Item = &'a Arc<Group<T>>> + 'a> {
        if label_sets.len() < state.groups.len() {
            Box::new(label_sets.iter().filter_map(move |no| state.groups.get(&(namespace, LabelSetNo(*no)))))
        } else {
            let fits = move |key: &GroupKey| key.0 == namespace && label_sets.binary_search(&key.1.0).is_ok();
            Box::new(state.groups.iter().filter(move |(key, _)| fits(key)).map(|(_, group)| group))
        }
    }

    /// The label sets of the groups of each namespace. Groups in which a client has gone are woken, and drop its poll.
    pub fn groups(&self) -> HashMap<NamespaceId, Vec<LabelSetNo>> {
        let mut by_namespace: HashMap<_, Vec<_>> = HashMap::new();
        for ((namespace, no), group) in &self.state().groups {
            if group.has_gone() {
                group.wake();
            }
            by_namespace.entry(*namespace).or_default().push(*no);
        }
        by_namespace
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
        self.tell(namespace, session, None, || Outcome::Ended(reason));
    }

    /// Tells the polls of a session that it is given no more tasks.
    pub fn draining(&self, namespace: NamespaceId, session: &SessionKey) {
        self.tell(namespace, session, None, || Outcome::Draining);
    }

    /// Ends the polls of a session that should hear something: they answer empty, and tell.
    pub fn news(&self, namespace: NamespaceId, session: &SessionKey) {
        self.tell(namespace, session, None, || Outcome::News);
    }

    /// Ends the polls of a session whose label set is another now, so that they are looked for by what it offers now.
    pub fn offers(&self, namespace: NamespaceId, session: &SessionKey, label_set_no: LabelSetNo) {
        self.tell(namespace, session, Some(label_set_no), || Outcome::Relabelled);
    }

    /// Forgets a group that has no polls; false when one was parked meanwhile.
    pub fn retire(&self, key: GroupKey, group: &Group<T>) -> bool {
        let mut state = self.state();
        let empty = group.is_empty();
        if empty {
            state.groups.remove(&key);
            let worker = (key.0, group.worker.clone());
            if let Some(of_worker) = state.of_worker.get_mut(&worker) {
                of_worker.retain(|other| *other != key);
                if of_worker.is_empty() {
                    state.of_worker.remove(&worker);
                }
            }
        }
        empty
    }

    /// Ends the polls of a session in all groups but the one of `except`.
    fn tell(
        &self,
        namespace: NamespaceId,
        session: &SessionKey,
        except: Option<LabelSetNo>,
        outcome: impl Fn() -> Outcome<T>,
    ) {
        let state = self.state();
        let others = state.groups.iter().filter(|((of, no), _)| *of == namespace && Some(*no) != except);
        others.for_each(|(_, group)| group.tell(session, &outcome));
    }

    /// The group of a key, and whether it is new.
    fn group(state: &mut State<T>, key: GroupKey, worker: &WorkerId) -> (Arc<Group<T>>, bool) {
        if let Some(group) = state.groups.get(&key) {
            return (Arc::clone(group), false);
        }
        let group = Arc::new(Group::new(key, worker.clone()));
        state.groups.insert(key, Arc::clone(&group));
        state.of_worker.entry((key.0, worker.clone())).or_default().push(key);
        (group, true)
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A parked poll's place, with which it can be taken out again.
pub struct Ticket<T> {
    group: Arc<Group<T>>,
    number: u64,
}

/// What a poll holds while it is parked.
pub struct Place<T> {
    /// Takes it out again.
    pub ticket: Ticket<T>,
    /// Brings its outcome.
    pub outcome: oneshot::Receiver<Outcome<T>>,
    /// Its group, if that is new and needs somebody to run it.
    pub fresh: Option<Arc<Group<T>>>,
}
