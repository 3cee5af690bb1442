//! One group of parked polls: those of one label set.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::{GroupKey, Outcome, Parked};
use crate::ids::SessionKey;

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
    polls: Mutex<Polls<T>>,
    wake: Notify,
}

struct Polls<T> {
    waiting: VecDeque<Waiting<T>>,
    /// Whether it was offered a task that it has not looked for yet.
    offered: bool,
    /// The groups that the task is for if this one leaves it.
    next: Vec<GroupKey>,
    /// Those that are being looked for at this moment, by number.
    looking: HashMap<u64, InHand<T>>,
}

struct Waiting<T> {
    poll: Parked<T>,
    /// Whether it has been looked for since it came.
    looked: bool,
    /// Whether its wait is over, so that it leaves with the next look.
    leaving: bool,
}

/// A poll in the hands of a look: what it will be told instead of going back, if that came up meanwhile.
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
    pub(super) fn new(key: GroupKey) -> Self {
        let polls =
            Mutex::new(Polls { waiting: VecDeque::new(), offered: false, next: Vec::new(), looking: HashMap::new() });
        Self { key, polls, wake: Notify::new() }
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
            woken.as_mut().enable();
            let (polls, next) = self.take_present();
            if polls.is_empty() {
                pass_on(&next);
                if retire() {
                    return;
                }
                continue;
            }
            let Looked { polls, end, more } = look(polls).await;
            let gone = self.settle(polls);
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

    pub(super) fn wake(&self) {
        self.wake.notify_one();
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
        self.wake();
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
        let Polls { waiting, offered, next, looking } = &mut *polls;
        *offered = false;
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
    fn settle(&self, looked: Vec<(Parked<T>, Vec<T>)>) -> Vec<T> {
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
                    Looked { polls: polls.into_iter().map(give).collect(), end: LookEnd::Done, more: false }
                }
            };
            let pass_on = |next: &[GroupKey]| matchmaker.pass_on(next);
            group.run(look, async |_| (), pass_on, || matchmaker.retire(KEY, &group)).await;
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
        assert!(!Matchmaker::withdraw(&ticket), "it is owed a look");
        let tracker = run(&matchmaker, fresh.unwrap(), Arc::new(AtomicU32::new(7)));
        assert_eq!(given(outcome.await), [7]);
        tracker.wait().await;
    }

    #[tokio::test]
    async fn a_poll_that_leaves_is_answered_after_a_look_that_found_nothing() {
        let matchmaker = Arc::new(Matchmaker::default());
        let Place { ticket, outcome, fresh } = matchmaker.park(KEY, session("w"), 1, None);
        assert!(!Matchmaker::withdraw(&ticket));
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

    /// A client that sends its poll again does not listen to the earlier one any more.
    #[tokio::test]
    async fn the_same_poll_again_ends_the_earlier_one() {
        let matchmaker = Matchmaker::<u32>::default();
        let earlier = matchmaker.park(KEY, session("w"), 1, Some("p".into()));
        let other = matchmaker.park(KEY, session("w"), 1, Some("q".into()));
        let again = matchmaker.park(KEY, session("w"), 1, Some("p".into()));
        assert_eq!(given(earlier.outcome.await), [0; 0]);
        assert!(!other.outcome.is_terminated() && !again.outcome.is_terminated());
        assert_eq!(matchmaker.parked()[&NamespaceId::DEFAULT].len(), 2);
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

    /// A group of one poll that takes the one task, if there is one, or leaves it; how often it looked.
    fn offered(
        matchmaker: &Arc<Matchmaker<u32>>,
        no: i64,
        takes: bool,
        task: &Arc<AtomicU32>,
        tracker: &tokio_util::task::TaskTracker,
    ) -> (Place<u32>, Arc<AtomicU32>) {
        let key = (NamespaceId::DEFAULT, LabelSetNo(no));
        let mut place = matchmaker.park(key, session(&format!("w{no}")), 1, None);
        let (group, looks) = (place.fresh.take().unwrap(), Arc::new(AtomicU32::new(0)));
        let (matchmaker, count, task) = (Arc::clone(matchmaker), Arc::clone(&looks), Arc::clone(task));
        tracker.spawn(async move {
            let look = |polls: Vec<Parked<u32>>| {
                count.fetch_add(1, Ordering::SeqCst);
                let more = task.load(Ordering::SeqCst) > 0 && !takes;
                let found = if takes { task.swap(0, Ordering::SeqCst) } else { 0 };
                let give = |poll| (poll, if found > 0 { vec![found] } else { Vec::new() });
                let polls = polls.into_iter().map(give).collect();
                async move { Looked { polls, end: LookEnd::Done, more } }
            };
            let pass_on = |next: &[GroupKey]| matchmaker.pass_on(next);
            group.run(look, async |_| (), pass_on, || matchmaker.retire(key, &group)).await;
        });
        (place, looks)
    }

    /// Lets every task go on until none can.
    async fn settled() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn an_offer_goes_to_the_one_that_waits_longest_and_on_from_whoever_leaves_it() {
        let (matchmaker, tracker) = (Arc::new(Matchmaker::default()), tokio_util::task::TaskTracker::new());
        let task = Arc::new(AtomicU32::new(0));
        let (_busy, busy_looks) = offered(&matchmaker, 1, false, &task, &tracker);
        let (free, free_looks) = offered(&matchmaker, 2, true, &task, &tracker);
        let (_spare, spare_looks) = offered(&matchmaker, 3, true, &task, &tracker);
        settled().await;
        let looks = || [&busy_looks, &free_looks, &spare_looks].map(|looks| looks.load(Ordering::SeqCst));
        let before = looks();
        task.store(7, Ordering::SeqCst);
        matchmaker.offer(NamespaceId::DEFAULT, &[1, 2, 3]);
        settled().await;
        let outcome =
            tokio::time::timeout(Duration::from_secs(10), free.outcome).await.expect("it is offered the task");
        assert_eq!(given(outcome), [7]);
        let more: Vec<u32> = looks().iter().zip(before).map(|(now, before)| now - before).collect();
        assert_eq!(more, [1, 1, 0], "the first leaves it, the second takes it, the third is left alone");
    }

    /// A group that nobody waits in any more ends, whichever way its last poll went; else there would be one for every
    /// worker that ever came.
    #[tokio::test]
    async fn a_group_ends_with_its_last_poll() {
        for way in ["withdrawn", "told", "given"] {
            let matchmaker = Arc::new(Matchmaker::default());
            let given = Arc::new(AtomicU32::new(0));
            let Place { ticket, outcome, fresh } = matchmaker.park(KEY, session("w"), 1, None);
            let tracker = run(&matchmaker, fresh.unwrap(), Arc::clone(&given));
            settled().await;
            match way {
                "withdrawn" => assert!(Matchmaker::withdraw(&ticket)),
                "told" => matchmaker.draining(NamespaceId::DEFAULT, &session("w")),
                _ => {
                    given.store(3, Ordering::SeqCst);
                    matchmaker.wake(NamespaceId::DEFAULT, &[1]);
                }
            }
            tokio::time::timeout(Duration::from_secs(10), tracker.wait()).await.unwrap_or_else(|_| panic!("{way}"));
            assert!(!matchmaker.has_parked(NamespaceId::DEFAULT));
            drop(outcome);
        }
    }
}
