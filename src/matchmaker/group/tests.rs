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
    let outcome = tokio::time::timeout(Duration::from_secs(10), free.outcome).await.expect("it is offered the task");
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

/// A dispatch may have a poll only while nothing is left for its group: after a look that found nothing, until it is woken.
#[tokio::test]
async fn a_poll_is_reserved_only_when_nothing_is_left_for_it() {
    let matchmaker = Arc::new(Matchmaker::default());
    let reserve = || matchmaker.reserve(NamespaceId::DEFAULT, &[1]);
    let first = matchmaker.park(KEY, session("w"), 1, Some("p".to_owned()));
    assert!(reserve().is_none(), "nobody has looked for it");
    let tracker = run(&matchmaker, first.fresh.unwrap(), Arc::default());
    while reserve().is_none() {
        tokio::task::yield_now().await;
    }
    let given_back = reserve();
    assert!(given_back.is_none(), "the one before was given back, and woke the group");
    while reserve().is_none() {
        tokio::task::yield_now().await;
    }
    matchmaker.wake(NamespaceId::DEFAULT, &[1]);
    assert!(reserve().is_none(), "something may have come that is older");
    let reservation = loop {
        match reserve() {
            Some(reservation) => break reservation,
            None => tokio::task::yield_now().await,
        }
    };
    assert_eq!((&reservation.session, reservation.poll_id.as_deref()), (&session("w"), Some("p")));
    assert_eq!(reservation.label_set_no, KEY.1);
    assert!(reserve().is_none(), "it is in hand");
    assert_eq!(reservation.give(vec![5]), [0; 0]);
    assert_eq!(given(first.outcome.await), [5]);
    tracker.wait().await;
}

#[tokio::test]
async fn what_a_reserved_poll_is_told_meanwhile_it_hears_unless_it_is_given_something() {
    let matchmaker = Arc::new(Matchmaker::default());
    let polls = ["w", "v"].map(|name| matchmaker.park(KEY, session(name), 1, None));
    let [first, second] = polls;
    let tracker = run(&matchmaker, first.fresh.unwrap(), Arc::default());
    let mut reserved = Vec::new();
    while reserved.len() < 2 {
        reserved.extend(matchmaker.reserve(NamespaceId::DEFAULT, &[1]));
        tokio::task::yield_now().await;
    }
    matchmaker.draining(NamespaceId::DEFAULT, &session("w"));
    matchmaker.draining(NamespaceId::DEFAULT, &session("v"));
    drop(reserved.remove(0));
    assert!(matches!(first.outcome.await, Ok(Outcome::Draining)));
    drop(second.outcome);
    assert_eq!(reserved.remove(0).give(vec![6]), [6], "its client has gone");
    tracker.wait().await;
}
