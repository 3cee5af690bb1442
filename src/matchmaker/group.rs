//! One group of parked polls: those of one label set.

use std::collections::{HashSet, VecDeque};
use std::mem;
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
    polls: Mutex<Polls<T>>,
    wake: Notify,
}

struct Polls<T> {
    /// Those that wait for the next look.
    parked: VecDeque<Parked<T>>,
    /// Those that are being looked for at this moment.
    looking: Vec<(u64, SessionKey)>,
    /// Those that will not wait for another look.
    leaving: HashSet<u64>,
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
        let polls = Polls { parked: VecDeque::new(), looking: Vec::new(), leaving: HashSet::new() };
        Self { key, polls: Mutex::new(polls), wake: Notify::new() }
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
            // Between nine and eleven tenths of the interval, so that groups do not look in step.
            let tenths = 9 * 128 + (rounds.wrapping_mul(2_654_435_769) >> 24);
            let pause = if beaten { BEATEN } else { fallback / 1_280 * tenths };
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
        self.polls().parked.push_back(poll);
        self.wake();
    }

    /// Takes a poll out if it has been looked for; otherwise it leaves after the look that it is owed.
    pub(super) fn withdraw(&self, number: u64) -> bool {
        let mut polls = self.polls();
        if let Some(at) = polls.parked.iter().position(|poll| poll.number == number && poll.looked) {
            return polls.parked.remove(at).is_some();
        }
        polls.leaving.insert(number);
        false
    }

    /// Takes out the polls of a session; those being looked for leave after that look.
    pub(super) fn take(&self, session: &SessionKey) -> Vec<Parked<T>> {
        let mut polls = self.polls();
        let leaving: Vec<u64> =
            polls.looking.iter().filter(|(_, of)| of == session).map(|(number, _)| *number).collect();
        polls.leaving.extend(leaving);
        let (taken, kept) = mem::take(&mut polls.parked).into_iter().partition(|poll| poll.session == *session);
        polls.parked = kept;
        Vec::from(taken)
    }

    /// The sessions with a poll here whose client is still there.
    pub(super) fn sessions(&self) -> Vec<SessionKey> {
        let polls = self.polls();
        let parked = polls.parked.iter().filter(|poll| !poll.answer.is_closed()).map(|poll| &poll.session);
        parked.chain(polls.looking.iter().map(|(_, session)| session)).cloned().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        let polls = self.polls();
        polls.parked.is_empty() && polls.looking.is_empty()
    }

    /// Takes all polls whose clients are there; drops the others.
    fn take_present(&self) -> Vec<Parked<T>> {
        let mut polls = self.polls();
        let present: Vec<Parked<T>> = polls.parked.drain(..).filter(|poll| !poll.answer.is_closed()).collect();
        polls.looking = present.iter().map(|poll| (poll.number, poll.session.clone())).collect();
        present
    }

    /// Puts polls back before those that came meanwhile, and lets go of those that leave.
    fn put_back(&self, back: Vec<Parked<T>>) {
        let mut polls = self.polls();
        polls.looking.clear();
        let leaving = mem::take(&mut polls.leaving);
        for mut poll in back.into_iter().rev() {
            poll.looked = true;
            if leaving.contains(&poll.number) {
                let _ = poll.answer.send(Outcome::Given(Vec::new()));
            } else {
                polls.parked.push_front(poll);
            }
        }
        // Whoever came during the look and leaves already is owed the next one.
        let owed: Vec<u64> = polls.parked.iter().map(|poll| poll.number).filter(|n| leaving.contains(n)).collect();
        polls.leaving.extend(owed);
    }

    fn polls(&self) -> MutexGuard<'_, Polls<T>> {
        self.polls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::{Matchmaker, Place};
    use super::*;
    use crate::ids::{LabelSetNo, NamespaceId, SessionId, WorkerId};

    const KEY: GroupKey = (NamespaceId::DEFAULT, LabelSetNo(1));

    fn session(name: &str) -> SessionKey {
        SessionKey { worker_id: WorkerId::parse(name).unwrap(), session_id: SessionId::parse("s").unwrap() }
    }

    /// Runs the group with looks that give each poll a number once `given` says so.
    fn run(
        matchmaker: &Arc<Matchmaker<u32>>,
        group: Arc<Group<u32>>,
        given: Arc<AtomicU32>,
    ) -> tokio_util::task::TaskTracker {
        let tracker = tokio_util::task::TaskTracker::new();
        let matchmaker = Arc::clone(matchmaker);
        tracker.spawn(async move {
            let look = |polls: Vec<Parked<u32>>| {
                let given = given.load(Ordering::SeqCst);
                async move {
                    tokio::task::yield_now().await;
                    let give = |poll| (poll, if given > 0 { vec![given] } else { Vec::new() });
                    Looked { polls: polls.into_iter().map(give).collect(), beaten: false }
                }
            };
            group.run(Duration::from_secs(3_600), look, async |_| (), || matchmaker.retire(KEY, &group)).await;
        });
        tracker.close();
        tracker
    }

    fn given(outcome: Result<Outcome<u32>, tokio::sync::oneshot::error::RecvError>) -> Vec<u32> {
        match outcome {
            Ok(Outcome::Given(tasks)) => tasks,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_poll_that_leaves_at_once_is_looked_for_first() {
        let matchmaker = Arc::new(Matchmaker::default());
        let Place { ticket, outcome, fresh } = matchmaker.park(KEY, session("w"), 1, None);
        assert!(!matchmaker.withdraw(&ticket), "it is owed a look");
        let tracker = run(&matchmaker, fresh.unwrap(), Arc::new(AtomicU32::new(7)));
        assert_eq!(given(outcome.await), [7]);
        tracker.wait().await;
    }

    #[tokio::test]
    async fn a_poll_that_leaves_is_answered_after_a_look_that_found_nothing() {
        let matchmaker = Arc::new(Matchmaker::default());
        let Place { ticket, outcome, fresh } = matchmaker.park(KEY, session("w"), 1, None);
        assert!(!matchmaker.withdraw(&ticket));
        let tracker = run(&matchmaker, fresh.unwrap(), Arc::default());
        assert_eq!(given(outcome.await), [0; 0]);
        matchmaker.wake(NamespaceId::DEFAULT, &[1]);
        tracker.wait().await;
    }

    #[tokio::test]
    async fn a_wake_up_is_not_lost_and_polls_share_the_look() {
        let matchmaker = Arc::new(Matchmaker::default());
        let count = Arc::new(AtomicU32::new(0));
        let first = matchmaker.park(KEY, session("w"), 1, None);
        let second = matchmaker.park(KEY, session("v"), 1, None);
        assert!(second.fresh.is_none(), "one group");
        let tracker = run(&matchmaker, first.fresh.unwrap(), Arc::clone(&count));
        tokio::task::yield_now().await;
        count.store(3, Ordering::SeqCst);
        matchmaker.wake(NamespaceId::DEFAULT, &[1]);
        assert_eq!((given(first.outcome.await), given(second.outcome.await)), (vec![3], vec![3]));
        tracker.wait().await;
    }

    #[tokio::test]
    async fn the_polls_of_a_session_that_ended_are_told() {
        let matchmaker = Matchmaker::<u32>::default();
        let ended = matchmaker.park(KEY, session("w"), 1, None);
        let other = matchmaker.park(KEY, session("v"), 1, None);
        matchmaker.ended(NamespaceId::DEFAULT, &session("w"), crate::domain::session::EndReason::Replaced);
        assert!(matches!(ended.outcome.await, Ok(Outcome::Ended(_))));
        assert!(!other.outcome.is_terminated(), "the other still waits");
        assert_eq!(matchmaker.parked()[&NamespaceId::DEFAULT], [session("v")]);
    }
}
