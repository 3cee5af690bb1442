//! The loops: each runs one idempotent pass again and again, is safe on every replica, and goes on after a failure.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::coordinator::{Coordinator, Error, sweep::SweepMemory};

/// How soon to look again whether a stamper on another replica has left something out.
const BEHIND_ANOTHER: Duration = Duration::from_millis(5);

/// How often readers of the feed learn what other replicas stamped; nothing is asked while nobody reads.
const FOLLOW: Duration = Duration::from_millis(25);

/// How long a pass may take before it is spoken of, and how often then.
const SLOW_PASS: Duration = Duration::from_secs(10);

/// How long a sweep may take: longer than any does whose database answers, but for one that finds very much, of which the
/// next one does the rest.
const LONGEST_SWEEP: Duration = Duration::from_secs(60);

/// The same for the passes of the other loops, which do little at a time.
const LONGEST_PASS: Duration = Duration::from_secs(15);

/// The longest pause after failures in a row.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Starts all loops. They end when `closing` is cancelled, after the pass under way.
#[must_use]
pub fn start(coordinator: &Coordinator, closing: &CancellationToken) -> TaskTracker {
    let tracker = TaskTracker::new();
    tracker.spawn(sweeper(coordinator.clone(), closing.clone()));
    tracker.spawn(keeper(coordinator.clone(), closing.clone()));
    tracker.spawn(watcher(coordinator.clone(), closing.clone()));
    tracker.spawn(sequencer(coordinator.clone(), closing.clone()));
    tracker.spawn(follower(coordinator.clone(), closing.clone()));
    let (watched, stop) = (coordinator.clone(), closing.clone());
    tracker.spawn(async move { stop.run_until_cancelled(watched.watch_database()).await });
    tracker.close();
    tracker
}

/// Sweeps when something is due, and every `sweep_interval` at least.
async fn sweeper(coordinator: Coordinator, closing: CancellationToken) {
    let mut memory = SweepMemory::default();
    let interval = coordinator.settings().sweep_interval;
    let mut failures = 0;
    while !closing.is_cancelled() {
        let pass = observed("sweep", Box::pin(coordinator.sweep(&mut memory)));
        let pause = match bounded(&coordinator, LONGEST_SWEEP, pass).await {
            Ok(swept) => {
                failures = 0;
                // Not before what is due is due: a wake-up a moment too soon would be for nothing.
                swept.next.map_or(interval, |next| (next + Duration::from_millis(1)).min(interval))
            }
            Err(error) => after_failure("sweep", &mut failures, &error),
        };
        let wait = async {
            if failures == 0 {
                coordinator.something_due(pause).await;
            } else {
                tokio::time::sleep(pause).await;
            }
        };
        closing.run_until_cancelled(wait).await;
    }
}

/// A pass that is given up when it takes too long: the network may have swallowed what it waits for, without a word. What
/// it had committed stays, and the next one goes on.
async fn bounded<T>(
    coordinator: &Coordinator,
    longest: Duration,
    pass: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(longest, pass).await {
        Ok(done) => done,
        Err(_) => Err(coordinator.unanswered(longest)),
    }
}

/// Waits for a pass and says so when it takes long: a database that does not answer is silent, and so would we be.
async fn observed<T>(name: &str, pass: impl Future<Output = T>) -> T {
    tokio::pin!(pass);
    let begun = tokio::time::Instant::now();
    loop {
        tokio::select! {
            done = &mut pass => return done,
            () = tokio::time::sleep(SLOW_PASS) => {
                tracing::warn!(seconds = begun.elapsed().as_secs(), "the {name} is still under way");
            }
        }
    }
}

/// Keeps the sessions of parked polls alive: a parked poll is a sign of life.
async fn keeper(coordinator: Coordinator, closing: CancellationToken) {
    let interval = coordinator.settings().heartbeat_interval / 3;
    let mut failures = 0;
    while pause(interval, failures, &closing).await {
        match bounded(&coordinator, LONGEST_PASS, coordinator.keep_parked_alive()).await {
            Ok(()) => failures = 0,
            Err(error) => drop(after_failure("keeper", &mut failures, &error)),
        }
    }
}

/// Looks for changes that other replicas made: to runs that somebody here waits for, to sessions whose polls are parked
/// here, and of what those could take.
async fn watcher(coordinator: Coordinator, closing: CancellationToken) {
    let interval = coordinator.settings().fallback_interval;
    let mut failures = 0;
    while pause(interval, failures, &closing).await {
        let looked = async {
            coordinator.look_for_changes().await?;
            coordinator.tell_parked().await?;
            coordinator.look_for_parked().await
        };
        match bounded(&coordinator, LONGEST_PASS, looked).await {
            Ok(()) => failures = 0,
            Err(error) => drop(after_failure("watcher", &mut failures, &error)),
        }
    }
}

/// Gives events their positions in the feed: when something was committed here, and every `fallback_interval` for what
/// other replicas committed and did not live to stamp.
async fn sequencer(coordinator: Coordinator, closing: CancellationToken) {
    let interval = coordinator.settings().fallback_interval;
    let mut failures = 0;
    while !closing.is_cancelled() {
        let pause = match bounded(&coordinator, LONGEST_PASS, coordinator.stamp_events()).await {
            Ok(all) => {
                failures = 0;
                if all { interval } else { BEHIND_ANOTHER }
            }
            Err(error) => after_failure("sequencer", &mut failures, &error),
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = coordinator.something_unstamped(), if failures == 0 => {}
            () = closing.cancelled() => {}
        }
    }
}

/// Tells readers of the feed what other replicas have stamped.
async fn follower(coordinator: Coordinator, closing: CancellationToken) {
    let interval = FOLLOW.min(coordinator.settings().fallback_interval);
    let mut failures = 0;
    while pause(interval, failures, &closing).await {
        match bounded(&coordinator, LONGEST_PASS, coordinator.follow_feeds()).await {
            Ok(()) => failures = 0,
            Err(error) => drop(after_failure("follower", &mut failures, &error)),
        }
    }
}

/// Waits for the next pass, sooner after a failure; false when the loop is to end.
async fn pause(interval: Duration, failures: u32, closing: &CancellationToken) -> bool {
    let pause = if failures == 0 { interval } else { interval.min(back_off(failures)) };
    tokio::select! {
        () = tokio::time::sleep(pause) => true,
        () = closing.cancelled() => false,
    }
}

/// Logs a failed pass and says how long to wait before the next.
fn after_failure(name: &str, failures: &mut u32, error: &Error) -> Duration {
    *failures = failures.saturating_add(1);
    tracing::warn!(%error, failures, "the {name} failed and will try again");
    back_off(*failures)
}

/// 50 ms, doubling up to the longest pause.
fn back_off(failures: u32) -> Duration {
    (Duration::from_millis(50) * 2u32.saturating_pow(failures.saturating_sub(1).min(8))).min(LONGEST_PAUSE)
}
