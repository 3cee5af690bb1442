//! Families: who has a parent needs it alive, and a cancel covers all descendants, whenever they come.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Client, Test, Worker, spawn, until, with, with_process};

/// The request for a child of this run.
fn child_of(parent: &str) -> Value {
    let parent = json!({"dag_name": "dag", "run_id": parent});
    json!({"parent": parent, "root": {"dag_name": "dag", "run_id": "root"}})
}

async fn running(t: &Test, worker: &Worker, run_id: &str, request: Value) -> Value {
    t.client.dispatch(run_id, request).await.ok();
    let task = worker.take().await;
    assert_eq!(task["run_id"], run_id);
    worker.ack(&task).await.ok();
    task
}

async fn statuses(client: &Client, run_ids: &[&str]) -> Vec<String> {
    let mut statuses = Vec::new();
    for run_id in run_ids {
        let run = client.run(run_id).await;
        let asked = if run["status"] == "running" && run["cancel_requested_at"].is_string() { ", asked" } else { "" };
        statuses.push(format!("{}{asked}", run["status"].as_str().unwrap()));
    }
    statuses
}

/// Rule 6: what waits of the descendants is aborted, what runs is asked, and with force ended; others stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_covers_all_descendants_and_nobody_else() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 9})).await;
        let root = running(t, &worker, "root", json!({})).await;
        let child = running(t, &worker, "child", child_of("root")).await;
        let nowhere = |parent: &str| {
            let mut request = child_of(parent);
            request["worker_selector"] = json!({"zone": "nowhere"});
            request
        };
        t.client.dispatch("grandchild", nowhere("child")).await.ok();
        t.client.dispatch("waits", nowhere("root")).await.ok();
        t.client.dispatch("of-another", nowhere("unseen")).await.ok();
        let done = running(t, &worker, "done", child_of("root")).await;
        worker.report(&done, "succeeded").await.ok();
        let of_done = json!({"parent": {"dag_name": "dag", "run_id": "done"}});
        t.client.dispatch("too-late", of_done).await.problem(409, "parent-finished");

        let body = json!({"reason": "wrong data"});
        t.client.post("/v1/dags/dag/runs/root/cancel", &body).await.ok();
        let family = ["root", "child", "grandchild", "waits", "of-another", "done"];
        let expected = ["running, asked", "running, asked", "aborted", "aborted", "queued", "succeeded"];
        assert_eq!(statuses(&t.client, &family).await, expected);
        assert_eq!(t.client.run("grandchild").await["cancel_reason"], "wrong data");
        let told = worker.beat(json!({})).await.ok();
        let mut cancel: Vec<&str> = told["cancel"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        cancel.sort_unstable();
        let mut both = [&root, &child].map(|task| task["attempt_id"].as_str().unwrap());
        both.sort_unstable();
        assert_eq!(cancel, both);
        t.client.dispatch("another", child_of("root")).await.problem(409, "parent-finished");
        t.client.dispatch("grandson", child_of("child")).await.problem(409, "parent-finished");

        t.client.post("/v1/dags/dag/runs/root/cancel", &json!({"force": true})).await.ok();
        assert_eq!(statuses(&t.client, &["root", "child"]).await, ["aborted", "aborted"]);
        assert_eq!(t.count("SELECT count(*) FROM run WHERE cascade_since IS NOT NULL").await, 0);
    })
    .await;
}

/// A repeat of a dispatch that was accepted is answered although its parent has ended since.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_is_answered_although_the_parent_has_ended() {
    with(async |t| {
        t.client.dispatch("root", json!({})).await.ok();
        t.client.dispatch("child", child_of("root")).await.ok();
        t.client.cancel("root").await.ok();
        let again = t.client.dispatch("child", child_of("root")).await;
        assert_eq!(again.headers["idempotent-replayed"], "true");
        assert_eq!(again.ok()["status"], "aborted");
    })
    .await;
}

/// B38 and B39: children are dispatched through both replicas while their parent is cancelled; each is refused, or
/// aborted with it. None outlives it.
#[tokio::test(flavor = "multi_thread")]
async fn no_child_in_flight_escapes_the_cancel() {
    with(async |t| {
        let (_replica, other) = t.replica().await;
        for round in 0..15 {
            let root = format!("root{round}");
            t.client.dispatch(&root, json!({})).await.ok();
            let mut dispatches = Vec::new();
            for n in 0..12 {
                let client = [&t.client, &other][n % 2].clone();
                let request = json!({"parent": {"dag_name": "dag", "run_id": root}});
                let run_id = format!("child{round}-{n}");
                dispatches.push(spawn(async move { client.dispatch(&run_id, request).await }));
                if n == 5 {
                    let (client, root) = (other.clone(), root.clone());
                    dispatches.push(spawn(async move { client.cancel(&root).await }));
                }
            }
            for sent in dispatches {
                let reply = sent.await.unwrap();
                assert!(reply.status < 300 || reply.body["code"] == "parent-finished", "{reply:#?}");
            }
            let alive = "SELECT count(*) FROM run WHERE parent_run_id IS NOT NULL AND finished_at IS NULL";
            until("none of them lives", async || t.count(alive).await == 0).await;
        }
        assert_ne!(t.count("SELECT count(*) FROM run WHERE parent_run_id IS NOT NULL").await, 0, "some were in time");
    })
    .await;
}

/// A family of 1,000 in one cancel, some of its members locked by somebody else meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_family_is_cancelled_in_batches() {
    with(async |t| {
        t.client.dispatch("root", json!({})).await.ok();
        let slots = std::sync::Arc::new(tokio::sync::Semaphore::new(32));
        let mut sent = tokio::task::JoinSet::new();
        for n in 0..1_000 {
            let (client, slots) = (t.client.clone(), slots.clone());
            sent.spawn(async move {
                let _slot = slots.acquire().await.unwrap();
                client.dispatch(&format!("child{n:04}"), child_of("root")).await.ok()
            });
        }
        sent.join_all().await;
        let mut tx = t.pool.begin().await.unwrap();
        sqlx::query("SELECT FROM run WHERE run_id IN ('child0007', 'child0900') FOR UPDATE")
            .execute(&mut *tx)
            .await
            .unwrap();
        let client = t.client.clone();
        let cancel = spawn(async move { client.cancel("root").await });
        let aborted = async || t.count("SELECT count(*) FROM run WHERE status = 'aborted'").await;
        until("all that nobody has locked are aborted", async || aborted().await >= 500).await;
        assert!(aborted().await <= 999);
        tx.rollback().await.unwrap();
        cancel.await.unwrap().ok();
        until("the rest as well", async || aborted().await == 1_001).await;
    })
    .await;
}

/// A crash between two levels: the mark is durable, and the next service finishes what it says.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_a_crash_cut_is_finished_by_the_sweep() {
    with_process(async |t, service| {
        t.client.dispatch("root", json!({})).await.ok();
        t.client.dispatch("child", child_of("root")).await.ok();
        t.client.dispatch("grandchild", child_of("child")).await.ok();
        // The child is locked, so that the cancel gets no further than its root.
        let mut tx = t.pool.begin().await.unwrap();
        sqlx::query("SELECT FROM run WHERE run_id = 'child' FOR UPDATE").execute(&mut *tx).await.unwrap();
        let client = t.client.clone();
        let cancel = spawn(async move {
            let request = client.request(reqwest::Method::POST, "/v1/dags/dag/runs/root/cancel").json(&json!({}));
            client.try_send(request).await
        });
        let marked = "SELECT count(*) FROM run WHERE run_id = 'root' AND cascade_since IS NOT NULL";
        until("the root is cancelled", async || t.count(marked).await == 1).await;
        service.kill_hard().await;
        assert!(cancel.await.unwrap().is_err(), "nobody was told");
        tx.rollback().await.unwrap();
        let (_replica, other) = t.replica().await;
        until("all are aborted", async || statuses(&other, &["root", "child", "grandchild"]).await == ["aborted"; 3])
            .await;
        assert_eq!(t.count("SELECT count(*) FROM run WHERE cascade_since IS NOT NULL").await, 0);
    })
    .await;
}

/// What a cancelled run had as children is no business of its next attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_retried_root_has_children_of_its_own() {
    with(async |t| {
        let root = t.client.dispatch("root", json!({})).await.ok();
        t.client.dispatch("child", child_of("root")).await.ok();
        t.client.cancel("root").await.ok();
        let retry = json!({"after_attempt_id": root["attempt"]["attempt_id"]});
        t.client.post("/v1/dags/dag/runs/root/retry", &retry).await.ok();
        t.client.dispatch("child2", child_of("root")).await.ok();
        t.advance(Duration::from_secs(2)).await;
        t.swept().await;
        assert_eq!(statuses(&t.client, &["root", "child", "child2"]).await, ["queued", "aborted", "queued"]);
    })
    .await;
}

/// What lives below a member that has ended is reached through it, and so is what lives below a root that has.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_goes_on_through_those_that_have_ended() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 9})).await;
        let root = running(t, &worker, "root", json!({})).await;
        let middle = running(t, &worker, "middle", child_of("root")).await;
        running(t, &worker, "leaf", child_of("middle")).await;
        worker.report(&middle, "succeeded").await.ok();
        t.client.cancel("root").await.ok();
        assert_eq!(
            statuses(&t.client, &["root", "middle", "leaf"]).await,
            ["running, asked", "succeeded", "running, asked"]
        );
        worker.report(&root, "failed").await.ok();
        let force = json!({"force": true});
        t.client.post("/v1/dags/dag/runs/root/cancel", &force).await.ok();
        assert_eq!(statuses(&t.client, &["root", "middle", "leaf"]).await, ["aborted", "succeeded", "aborted"]);
    })
    .await;
}

/// Who is locked by somebody keeps nobody waiting, is told by the sweep, and is not forgotten for a retry; also when the
/// run that was cancelled had ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_child_is_told_later() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        let root = running(t, &worker, "root", json!({})).await;
        t.client.dispatch("child", child_of("root")).await.ok();
        worker.report(&root, "failed").await.ok();
        let mut tx = t.pool.begin().await.unwrap();
        sqlx::query("SELECT FROM run WHERE run_id = 'child' FOR UPDATE").execute(&mut *tx).await.unwrap();
        t.client.cancel("root").await.ok();
        t.swept().await;
        let marked = "SELECT count(*) FROM run WHERE run_id = 'root' AND cascade_since IS NOT NULL";
        assert_eq!(t.count(marked).await, 1, "the sweep passes it over as well");
        let retry = json!({"after_attempt_id": root["attempt_id"]});
        t.client.post("/v1/dags/dag/runs/root/retry", &retry).await.problem(503, "overloaded");
        tx.rollback().await.unwrap();
        until("the child is aborted", async || t.client.run("child").await["status"] == "aborted").await;
        until("the mark is gone", async || t.count(marked).await == 0).await;
        t.client.post("/v1/dags/dag/runs/root/retry", &retry).await.ok();
    })
    .await;
}

/// A family that leads back to where it began is cancelled once.
#[tokio::test(flavor = "multi_thread")]
async fn a_circle_is_cancelled_once() {
    with(async |t| {
        let of = |parent: &str| json!({"parent": {"dag_name": "dag", "run_id": parent}});
        t.client.dispatch("a", of("b")).await.ok();
        t.client.dispatch("b", of("a")).await.ok();
        t.client.dispatch("c", of("c")).await.problem(422, "invalid-request");
        t.client.cancel("a").await.ok();
        assert_eq!(statuses(&t.client, &["a", "b"]).await, ["aborted", "aborted"]);
    })
    .await;
}
