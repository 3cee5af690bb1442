//! One group of parked polls: those of one label set.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::{GroupKey, Outcome, Parked};
use crate::ids::SessionKey;

/// How soon a look that was beaten to what it saw is repeated.
const BEATEN: Duration = Duration::from_millis(20);

/// The polls of one label set, in the order in which they came.
pub struct Group<T> {
    /// Whose polls.
    pub key: GroupKey,
    polls: Mutex<VecDeque<Parked<T>>>,
    wake: Notify,
}

/// What came of a look.
#[derive(Debug)]
pub struct Looked<T> {
    /// The polls that were looked for, each with what it is given; those given nothing go back.
    pub polls: Vec<(Parked<T>, Vec<T>)>,
    /// Whether others were faster, so that a look at once may find what this one missed.
    pub beaten: bool,
}

impl<T> Group<T> {
    pub(super) fn new(key: GroupKey) -> Self {
        Self { key, polls: Mutex::default(), wake: Notify::new() }
    }

    /// Looks again and again until no poll is left or `retire` agrees that none has come.
    ///
    /// `look` is given all polls and gives them back; `undelivered` is given what a poll that has gone was given.
    pub async fn run<L, F, U, V>(&self, fallback: Duration, look: L, undelivered: U, retire: impl Fn() -> bool)
    where
        L: Fn(Vec<Parked<T>>) -> F,
        F: Future<Output = Looked<T>>,
        U: Fn(Vec<T>) -> V,
        V: Future<Output = ()>,
    {
        let mut rounds: u32 = 0;
        loop {
            // Armed before the look: what is dispatched from here on is either seen by the look or wakes the wait.
            let woken = self.wake.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            let polls = self.take_present();
            if polls.is_empty() {
                if retire() {
                    return;
                }
                continue;
            }
            let Looked { polls, beaten } = look(polls).await;
            let mut back = Vec::new();
            let mut gone = Vec::new();
            for (poll, tasks) in polls {
                if tasks.is_empty() {
                    back.push(poll);
                } else if let Err(Outcome::Given(tasks)) = poll.answer.send(Outcome::Given(tasks)) {
                    gone.extend(tasks);
                }
            }
            self.put_back(back);
            if !gone.is_empty() {
                undelivered(gone).await;
                continue;
            }
            rounds = rounds.wrapping_add(1);
            // Spread over a fifth of the interval, so that groups do not look in step.
            let jitter = fallback / 5 * (rounds.wrapping_mul(2_654_435_769) >> 24) / 256;
            let pause = if beaten { BEATEN } else { fallback - fallback / 10 + jitter };
            tokio::select! {
                () = &mut woken => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(super) fn push(&self, poll: Parked<T>) {
        self.polls().push_back(poll);
        self.wake();
    }

    /// Takes a poll out if it has been looked for and is not being looked for now.
    pub(super) fn remove_looked(&self, number: u64) -> Option<Parked<T>> {
        let mut polls = self.polls();
        let at = polls.iter().position(|poll| poll.number == number && poll.looked)?;
        polls.remove(at)
    }

    pub(super) fn take(&self, session: &SessionKey) -> Vec<Parked<T>> {
        let mut polls = self.polls();
        let (taken, kept) = polls.drain(..).partition::<Vec<_>, _>(|poll| poll.session == *session);
        polls.extend(kept);
        taken
    }

    pub(super) fn sessions(&self) -> Vec<SessionKey> {
        self.polls().iter().filter(|poll| !poll.answer.is_closed()).map(|poll| poll.session.clone()).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.polls().is_empty()
    }

    /// Takes all polls whose clients are there; drops the others.
    fn take_present(&self) -> Vec<Parked<T>> {
        self.polls().drain(..).filter(|poll| !poll.answer.is_closed()).collect()
    }

    /// Puts polls back before those that came meanwhile; those whose wait ended during the look are answered.
    fn put_back(&self, back: Vec<Parked<T>>) {
        let mut polls = self.polls();
        for mut poll in back.into_iter().rev() {
            poll.looked = true;
            // Judged under the lock that a withdrawal takes after it has raised the flag: one of both sees the other.
            if poll.leaving.load(Ordering::SeqCst) {
                let _ = poll.answer.send(Outcome::Given(Vec::new()));
            } else {
                polls.push_front(poll);
            }
        }
    }

    fn polls(&self) -> MutexGuard<'_, VecDeque<Parked<T>>> {
        self.polls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
