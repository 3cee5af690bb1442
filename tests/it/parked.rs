//! Parked polls cost nothing while nothing waits for them, however many there are.

use serde_json::json;

use crate::harness::{Worker, until, with};

const LOOK: &str = "store::claim::look";
const LOOK_FOR_ALL: &str = "store::claim::claimable";

/// Forty groups share one statement an interval, and a group looks by itself only when it finds something: here, what
/// was dispatched at another replica.
#[tokio::test(flavor = "multi_thread")]
async fn parked_polls_share_one_look_whatever_their_labels() {
    with(async |t| {
        // Known before anybody polls: a selector that is new is learned of by a look of each group.
        t.client.dispatch("first", json!({"worker_selector": {"zone": "z7"}})).await.ok();
        t.client.cancel("first").await.ok();
        let (tap, server, client) = t.tapped().await;
        let mut polls = tokio::task::JoinSet::new();
        for number in 0..40 {
            let worker = Worker::register(&client, &format!("w{number}"), json!({"zone": format!("z{number}")})).await;
            polls.spawn(async move { (worker.poll(30.0).await, worker) });
        }
        let rounds = async |more: u64| {
            let before = tap.count(LOOK_FOR_ALL);
            until("more rounds", async || tap.count(LOOK_FOR_ALL) >= before + more).await;
        };
        until("each has looked", async || tap.count(LOOK) >= 40).await;
        // A round that began before the last of them had looked may have woken it.
        rounds(2).await;
        let looks = tap.count(LOOK);
        rounds(4).await;
        assert_eq!(tap.count(LOOK), looks, "nobody looks for whom nothing waits");

        t.client.dispatch("r", json!({"worker_selector": {"zone": "z7"}})).await.ok();
        let (tasks, worker) = polls.join_next().await.unwrap().unwrap();
        assert_eq!((tasks.len(), worker.worker_id.as_str()), (1, "w7"));
        assert!(tap.count(LOOK) <= looks + 4, "only its group looked: {} times", tap.count(LOOK) - looks);
        worker.ack(&tasks[0]).await.ok();
        worker.report(&tasks[0], "succeeded").await.ok();
        polls.shutdown().await;
        server.stop().await;
    })
    .await;
}

/// A poll whose client has gone is dropped within a round, and its session is no longer kept alive for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_whose_client_has_gone_is_forgotten_though_nobody_wakes_its_group() {
    with(async |t| {
        let (tap, server, client) = t.tapped().await;
        let worker = Worker::register(&client, "w", json!({})).await;
        let poll = worker.poll_raw(30.0).await;
        until("its group is looked for", async || tap.count(LOOK_FOR_ALL) > 0).await;
        drop(poll);
        let quiet = async || {
            let (looks, sweeps) = (tap.count(LOOK_FOR_ALL), tap.count("store::sweep::next_due"));
            // Twenty sweeps take two intervals at the least.
            until("twenty sweeps", async || tap.count("store::sweep::next_due") >= sweeps + 20).await;
            tap.count(LOOK_FOR_ALL) == looks
        };
        until("there is no group left to look for", quiet).await;
        server.stop().await;
    })
    .await;
}
