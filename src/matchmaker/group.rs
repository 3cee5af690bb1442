//! One group of parked polls: those of one label set.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::{GroupKey, Outcome, Parked};
use crate::ids::{SessionKey, WorkerId};

/// How soon a look that was beaten to what it saw is repeated.
const BEATEN: Duration = Duration::from_millis(20);

/// How soon a look that failed is repeated; doubled with each further failure, up to the next.
const FAILED: Duration = Duration::from_millis(50);

/// How often a look that goes on failing is repeated.
const FAILING: Duration = Duration::from_secs(1);

/// The polls of one label set, in the order in which they came.
pub struct Group<T> {
    /// Whose polls.
    pub key: GroupKey,
    /// The worker whose label set that is.
    pub(super) worker: WorkerId,
    polls: Mutex<Polls<T>>,
    wake: Notify,
}

struct Polls<T> {
    waiting: VecDeque<Waiting<T>>,
    /// Whether it was offered a task that it has not looked for yet.
    offered: bool,
    /// The groups that the task is for if this one leaves it.
    next: Vec<GroupKey>,
    /// Those that are being looked for at this moment, or that a dispatch has taken out for its own task, by number.
    looking: HashMap<u64, InHand<T>>,
    /// Whether it was woken since it began to look last.
    woken: bool,
    /// Whether there was nothing for it when it looked last, and it was not woken since: what is dispatched now is first.
    idle: bool,
}

struct Waiting<T> {
    poll: Parked<T>,
    /// Whether it has been looked for since it came.
    looked: bool,
    /// Whether its wait is over, so that it leaves with the next look.
    leaving: bool,
}

impl<T> Waiting<T> {
    /// Whether there was nothing for it when it was looked for, and its client waits.
    fn is_ready(&self) -> bool {
        self.looked && !self.leaving && !self.poll.answer.is_closed()
    }
}

/// A poll in the hands of a look, or of a dispatch: what it will be told instead of going back, if that came up meanwhile.
struct InHand<T> {
    session: SessionKey,
    verdict: Option<Outcome<T>>,
}

/// What came of a look.
#[derive(Debug)]
pub struct Looked<T> {
    /// The polls that were looked for, each with what it is given; those given nothing go back.
    pub polls: Vec<(Parked<T>, Vec<T>)>,
    /// How it went, and so how soon it is repeated.
    pub end: LookEnd,
    /// Whether it saw, or may have missed, something that it left for others.
    pub more: bool,
}

/// How a look went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LookEnd {
    /// There is nothing more for these polls.
    #[default]
    Done,
    /// Others were faster, so that a look at once may find what this one missed.
    Beaten,
    /// It failed, and nothing is known of what there is.
    Failed,
}

impl<T> Group<T> {
    pub(super) fn new(key: GroupKey, worker: WorkerId) -> Self {
        let polls = Polls {
            waiting: VecDeque::new(),
            offered: false,
            next: Vec::new(),
            looking: HashMap::new(),
            woken: false,
            idle: false,
        };
        Self { key, worker, polls: Mutex::new(polls), wake: Notify::new() }
    }

    /// Looks again and again until no poll is left or `retire` agrees that none has come.
    ///
    /// `look` is given all polls and gives them back; `undelivered` is given what a poll that has gone was given; `pass_on`
    /// tells those groups of an offer that this one has left. Between looks the group waits to be woken.
    pub async fn run<L, F, U, V>(
        &self,
        look: L,
        undelivered: U,
        pass_on: impl Fn(&[GroupKey]),
        retire: impl Fn() -> bool,
    ) where
        L: Fn(Vec<Parked<T>>) -> F,
        F: Future<Output = Looked<T>>,
        U: Fn(Vec<T>) -> V,
        V: Future<Output = ()>,
    {
        let mut failures: u32 = 0;
        loop {
            // Armed before the look: what is dispatched from here on is either seen by the look or wakes the wait.
            let woken = self.wake.notified();
            tokio::pin!(woken);
            if woken.as_mut().enable() {
                // It was woken before: this look is the answer to that.
                woken.set(self.wake.notified());
                woken.as_mut().enable();
            }
            let (polls, next) = self.take_present();
            if polls.is_empty() {
                pass_on(&next);
                if retire() {
                    return;
                }
                // A poll has come, and woke it; or a dispatch has one, and wakes it when it gives it back.
                woken.await;
                continue;
            }
            let Looked { polls, end, more } = look(polls).await;
            let gone = self.settle(polls);
            self.looked(end == LookEnd::Done && !more);
            if more {
                pass_on(&next);
            }
            if self.is_empty() {
                // Nobody would wake it any more: it ends, or goes on with whoever came at this moment.
                continue;
            }
            if !gone.is_empty() {
                undelivered(gone).await;
                continue;
            }
            failures = if end == LookEnd::Failed { failures + 1 } else { 0 };
            let again = match end {
                LookEnd::Done => None,
                LookEnd::Beaten => Some(BEATEN),
                LookEnd::Failed => Some((FAILED * 2u32.pow((failures - 1).min(16))).min(FAILING)),
            };
            tokio::select! {
                () = &mut woken => {}
                () = tokio::time::sleep(again.unwrap_or_default()), if again.is_some() => {}
            }
        }
    }

    /// Wakes it because there may be something to take.
    pub(super) fn wake(&self) {
        let mut polls = self.polls();
        polls.woken = true;
        polls.idle = false;
        drop(polls);
        self.wake.notify_one();
    }

    /// The number of the poll that a dispatch may take out now, the one that has waited the longest: none unless whatever
    /// is dispatched now is first in its line.
    pub(super) fn ready(&self) -> Option<u64> {
        let polls = self.polls();
        polls.waiting.iter().find(|waiting| polls.idle && waiting.is_ready()).map(|waiting| waiting.poll.number)
    }

    /// Takes that poll out, in the hands of a dispatch until it is [settled](Self::settle).
    pub(super) fn take_ready(&self) -> Option<Parked<T>> {
        let mut polls = self.polls();
        let at = polls.waiting.iter().position(Waiting::is_ready).filter(|_| polls.idle)?;
        let poll = polls.waiting.remove(at)?.poll;
        polls.looking.insert(poll.number, InHand { session: poll.session.clone(), verdict: None });
        Some(poll)
    }

    /// Remembers how a look went, for dispatches that come now.
    fn looked(&self, nothing_left: bool) {
        let mut polls = self.polls();
        polls.idle = nothing_left && !polls.woken;
    }

    /// Wakes it for a task that is for these other groups if it leaves it.
    pub(super) fn offer(&self, others: impl IntoIterator<Item = GroupKey>) {
        let mut polls = self.polls();
        polls.offered = true;
        for other in others {
            if !polls.next.contains(&other) {
                polls.next.push(other);
            }
        }
        drop(polls);
        self.wake();
    }

    /// When it is its turn to be offered something, the lowest first: those that nothing is offered to before the others,
    /// and then those whose polls have waited the longest.
    pub(super) fn turn(&self) -> (bool, u64) {
        let polls = self.polls();
        (polls.offered, polls.waiting.front().map_or(u64::MAX, |waiting| waiting.poll.number))
    }

    /// Parks a poll. The same poll again ends the earlier one, whose client will not hear of it any more.
    pub(super) fn push(&self, poll: Parked<T>) {
        let mut polls = self.polls();
        if poll.poll_id.is_some() {
            let same = |other: &Waiting<T>| other.poll.poll_id == poll.poll_id && other.poll.session == poll.session;
            let (ended, kept) = polls.waiting.drain(..).partition::<Vec<_>, _>(same);
            polls.waiting.extend(kept);
            for earlier in ended {
                let _ = earlier.poll.answer.send(Outcome::Given(Vec::new()));
            }
        }
        polls.waiting.push_back(Waiting { poll, looked: false, leaving: false });
        drop(polls);
        // It is to be looked for; there is no more to take than before.
        self.wake.notify_one();
    }

    /// Takes a poll out whose wait is over. False when its outcome is still to come: it is being looked for, or has
    /// not been looked for even once.
    pub(super) fn withdraw(&self, number: u64) -> bool {
        let mut polls = self.polls();
        if let Some(in_hand) = polls.looking.get_mut(&number) {
            in_hand.verdict.get_or_insert_with(|| Outcome::Given(Vec::new()));
            return false;
        }
        let Some(at) = polls.waiting.iter().position(|waiting| waiting.poll.number == number) else { return false };
        if polls.waiting[at].looked {
            polls.waiting.remove(at);
            let emptied = polls.waiting.is_empty();
            drop(polls);
            if emptied {
                self.wake();
            }
            return true;
        }
        polls.waiting[at].leaving = true;
        false
    }

    /// Ends the polls of a session with this outcome; one in the hands of a look, unless it is given something.
    pub(super) fn tell(&self, session: &SessionKey, outcome: impl Fn() -> Outcome<T>) {
        let mut polls = self.polls();
        let (told, kept) = polls.waiting.drain(..).partition::<Vec<_>, _>(|waiting| waiting.poll.session == *session);
        polls.waiting.extend(kept);
        for waiting in told {
            let _ = waiting.poll.answer.send(outcome());
        }
        for in_hand in polls.looking.values_mut().filter(|in_hand| in_hand.session == *session) {
            in_hand.verdict = Some(outcome());
        }
        let emptied = polls.waiting.is_empty();
        drop(polls);
        if emptied {
            self.wake();
        }
    }

    pub(super) fn sessions(&self) -> Vec<SessionKey> {
        let polls = self.polls();
        let waiting = polls.waiting.iter().filter(|waiting| !waiting.poll.answer.is_closed());
        let looking = polls.looking.values().map(|in_hand| in_hand.session.clone());
        waiting.map(|waiting| waiting.poll.session.clone()).chain(looking).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        let polls = self.polls();
        polls.waiting.is_empty() && polls.looking.is_empty()
    }

    /// Whether a poll waits here whose client has gone.
    pub(super) fn has_gone(&self) -> bool {
        self.polls().waiting.iter().any(|waiting| waiting.poll.answer.is_closed())
    }

    /// Takes all polls whose clients are there into the hands of a look, with the groups that what is offered is for if
    /// they leave it; drops the others.
    fn take_present(&self) -> (Vec<Parked<T>>, Vec<GroupKey>) {
        let mut polls = self.polls();
        let Polls { waiting, offered, next, looking, woken, idle: _ } = &mut *polls;
        *offered = false;
        *woken = false;
        let next = std::mem::take(next);
        let present = waiting.drain(..).filter(|waiting| !waiting.poll.answer.is_closed());
        let taken = present.map(|Waiting { poll, leaving, .. }| {
            let verdict = leaving.then(|| Outcome::Given(Vec::new()));
            looking.insert(poll.number, InHand { session: poll.session.clone(), verdict });
            poll
        });
        (taken.collect(), next)
    }

    /// Answers the polls that a look was for: with what they are given, or with what came up meanwhile. The others go
    /// back, before those that came since. Returns what could not be delivered.
    pub(super) fn settle(&self, looked: Vec<(Parked<T>, Vec<T>)>) -> Vec<T> {
        let mut polls = self.polls();
        let mut gone = Vec::new();
        for (poll, tasks) in looked.into_iter().rev() {
            let verdict = polls.looking.remove(&poll.number).and_then(|in_hand| in_hand.verdict);
            if !tasks.is_empty() {
                if let Err(Outcome::Given(tasks)) = poll.answer.send(Outcome::Given(tasks)) {
                    gone.extend(tasks);
                }
            } else if let Some(verdict) = verdict {
                let _ = poll.answer.send(verdict);
            } else {
                polls.waiting.push_front(Waiting { poll, looked: true, leaving: false });
            }
        }
        gone
    }

    fn polls(&self) -> MutexGuard<'_, Polls<T>> {
        self.polls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
