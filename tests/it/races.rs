//! The race matrix: every verb against every other from every start where both have a say, while the first one's commit is
//! under way: it commits, it rolls back, it stalls.
//!
//! Two replicas on one database. The first verb goes through one whose way to the database has a gate: its transaction stops
//! there, with all its locks, before its COMMIT. The second goes through the other, until it waits for a lock or is
//! answered. What comes of both must be what comes of them one after the other, which is tried before: the first and then
//! the second if the second had to wait for a first that committed, else in either order.
//!
//! No replica has a loop of its own: time is moved by moving a case's own rows, and sweeps are called.

mod case;
mod verbs;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use self::case::{Case, Lane, Outcome};
use self::verbs::{APART, Start, VERBS, Verb};
use crate::harness::{settings, spawn};

/// How many databases with two replicas each there are at a time.
const LANES: usize = 16;

/// What becomes of the first one's transaction.
#[derive(Debug, Clone, Copy)]
enum First {
    Commits,
    RollsBack,
    /// Until the second is answered, whatever with.
    Stalls,
}

/// A start with the first and the second verb.
type Pair = (Start, Verb, Verb);

fn pairs() -> Vec<Pair> {
    let both = |start: &Start, verb: &Verb| verb.starts().contains(start);
    let starts = Start::ALL.into_iter().flat_map(|start| VERBS.map(|first| (start, first)));
    let all = starts.flat_map(|(start, first)| VERBS.map(|second| (start, first, second)));
    let meet = |(start, first, second): &Pair| {
        both(start, first) && both(start, second) && why_apart(*first, *second).is_none()
    };
    all.filter(meet).collect()
}

/// Why these two cannot meet, if they cannot.
fn why_apart(one: Verb, other: Verb) -> Option<&'static str> {
    let are = |verb: Verb, others: &[Verb], a, b| verb == a && others.contains(&b);
    APART
        .iter()
        .find(|(verb, others, _)| are(*verb, others, one, other) || are(*verb, others, other, one))
        .map(|row| row.2)
}

/// Every two verbs meet somewhere, or it is said why they cannot.
#[test]
fn every_two_verbs_meet_or_it_is_said_why_not() {
    let meet: BTreeSet<(Verb, Verb)> = pairs().into_iter().map(|(_, first, second)| (first, second)).collect();
    for one in VERBS {
        for other in VERBS {
            assert!(meet.contains(&(one, other)) != why_apart(one, other).is_some(), "{one:?} and {other:?}");
        }
    }
}

/// One after the other.
async fn serial(lane: &Lane, (start, first, second): Pair) -> Outcome {
    let case = Case::begin(lane, start, first == second).await;
    let one = case.say(first, &lane.gated, true).await;
    let other = case.say(second, &lane.free, second != first).await;
    case.outcome(lane, [one, other]).await
}

/// Both at once; nothing if the first comes to no commit.
async fn race(lane: &Lane, (start, first, second): Pair, mode: First) -> Option<(Outcome, bool)> {
    let case = Case::begin(lane, start, first == second).await;
    let arrives = lane.tap.gate(first.writes());
    let (one, through) = (case.clone(), lane.gated.clone());
    let mut one = spawn(async move { one.say(first, &through, true).await });
    let gate = tokio::select! {
        gate = arrives => gate.unwrap(),
        _ = &mut one => return None,
    };
    let (other, through) = (case.clone(), lane.free.clone());
    let other = spawn(async move { other.say(second, &through, second != first).await });
    let met = async {
        loop {
            match lane.someone_waits().await {
                false if !other.is_finished() => tokio::time::sleep(Duration::from_millis(2)).await,
                waits => break waits,
            }
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), met).await.expect("the second waits or is answered");
    let (mut one_said, mut other_said) = match mode {
        First::Commits => {
            gate.through();
            (one.await.unwrap(), other.await.unwrap())
        }
        First::RollsBack => {
            gate.cut();
            (one.await.unwrap(), other.await.unwrap())
        }
        First::Stalls => {
            let other = tokio::time::timeout(Duration::from_secs(15), other).await;
            gate.through();
            (one.await.unwrap(), other.expect("nobody waits for ever").unwrap())
        }
    };
    // Who is told to send the same again does; so does a poll of which nothing came, whose claim was rolled back.
    if case::is_to_be_said_again(&one_said) || matches!(mode, First::RollsBack) && one_said == case::NOTHING_TAKEN {
        one_said = case.say(first, &lane.gated, true).await;
    }
    if case::is_to_be_said_again(&other_said) {
        other_said = case.say(second, &lane.free, second != first).await;
    }
    Some((case.outcome(lane, [one_said, other_said]).await, waited && matches!(mode, First::Commits)))
}

/// All pairs, dealt out to the lanes.
async fn on_all_lanes<T, F>(lanes: &[Arc<Lane>], of_one: impl Fn(Arc<Lane>, Pair) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let (mut left, mut done, mut working) = (pairs(), Vec::new(), tokio::task::JoinSet::new());
    let mut idle: Vec<Arc<Lane>> = lanes.to_vec();
    loop {
        while !idle.is_empty()
            && let Some(pair) = left.pop()
        {
            let lane = idle.pop().unwrap();
            let work = of_one(Arc::clone(&lane), pair);
            working.spawn(async move { (lane, work.await) });
        }
        let Some(next) = working.join_next().await else { break };
        let (lane, result) = next.unwrap();
        idle.push(lane);
        done.push(result);
    }
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn every_two_verbs_at_once_are_as_one_after_the_other() {
    let mut config = settings();
    // What a case leaves behind stays as it is: nothing of it falls due in the sweeps of the next.
    config.coordinator.heartbeat_interval = Duration::from_hours(1);
    config.coordinator.stale_after = Duration::from_hours(1);
    config.coordinator.lease_ttl = Duration::from_hours(1);
    let lanes = Lane::open(LANES, &config).await;
    let serial: BTreeMap<Pair, Outcome> =
        on_all_lanes(&lanes, |lane, pair| async move { (pair, serial(&lane, pair).await) }).await.into_iter().collect();
    let found = on_all_lanes(&lanes, |lane, pair| async move {
        let mut found = Vec::new();
        // A first that comes to no commit in this start has nothing to lose; and a second that did not wait for it was
        // answered while it stalled.
        let committed = race(&lane, pair, First::Commits).await;
        let other_modes: &[First] = match committed {
            None => &[],
            Some((_, false)) => &[First::RollsBack],
            Some((_, true)) => &[First::RollsBack, First::Stalls],
        };
        found.push((pair, First::Commits, committed));
        for mode in other_modes {
            found.push((pair, *mode, race(&lane, pair, *mode).await));
        }
        found
    })
    .await;
    let (mut wrong, mut met) = (Vec::new(), BTreeSet::new());
    for ((start, first, second), mode, came) in found.into_iter().flatten() {
        let Some((outcome, in_order)) = came else { continue };
        met.insert((first, second));
        let (after, before) = (&serial[&(start, first, second)], serial[&(start, second, first)].turned());
        let as_after = outcome.is_as(after, (start, first, second));
        if !as_after && (in_order || !outcome.is_as(&before, (start, first, second))) {
            let what = if in_order { "after it" } else { "in either order" };
            wrong.push(format!(
                "{start:?}: {first:?} {mode:?}, {second:?} {what}\n  came      {outcome:?}\n  {first:?} first  {after:?}\n  \
                 {second:?} first {before:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of the races end otherwise:\n{}", wrong.len(), wrong.join("\n"));
    // A first that is refused comes to no commit; but of every two, one does in some start that it shares with the other.
    let never: BTreeSet<_> = pairs().into_iter().map(|(_, one, other)| (one.min(other), one.max(other))).collect();
    let never: Vec<_> =
        never.into_iter().filter(|(a, b)| !met.contains(&(*a, *b)) && !met.contains(&(*b, *a))).collect();
    assert!(never.is_empty(), "neither ever came to its commit: {never:?}");
    for lane in lanes {
        Arc::into_inner(lane).expect("nobody uses it any more").close().await;
    }
}
