//! The tests of the change this project grew from: a dispatch that no worker matches is held, in every way that
//! matters to the one who sent it.

use std::time::Duration;

use serde_json::json;

use crate::harness::client::reason;
use crate::harness::{Worker, settings, until, with, with_settings};

#[tokio::test(flavor = "multi_thread")]
async fn held_until_a_matching_worker_polls() {
    with(async |t| {
        let other = Worker::register(&t.client, "worker-a", json!({"zone": "a"})).await;
        let run = t.client.dispatch("r", json!({"worker_selector": {"zone": "b"}})).await;
        assert_eq!(run.status, 201);
        assert_eq!(run.headers["location"], "/v1/dags/dag/runs/r");
        let run = run.ok();
        assert_eq!(run["status"], "queued");
        assert_eq!(reason(&run), ("False".into(), "NoMatchingWorker".into()));
        assert_eq!(run["hold"]["wait_timeout_seconds"], 120.0);
        assert!(run["hold"]["until"].is_string());
        assert!(other.poll(0.0).await.is_empty(), "zone a gets nothing");

        let worker = Worker::register(&t.client, "worker-b", json!({"zone": "b"})).await;
        let task = worker.take().await;
        assert_eq!((&task["run_id"], &task["attempt_number"], &task["fence"]), (&json!("r"), &json!(1), &json!(1)));
        assert_eq!(reason(&t.client.run("r").await), ("False".into(), "ClaimPending".into()));
        worker.ack(&task).await.ok();
        let running = t.client.run("r").await;
        assert_eq!((&running["status"], &running["worker_id"]), (&json!("running"), &json!("worker-b")));
        assert!(running.get("conditions").is_none() && running.get("hold").is_none());
        worker.report(&task, "succeeded").await.ok();
        assert_eq!(t.client.finished("r").await["status"], "succeeded");
        assert_eq!(t.client.event_types("r").await, ["dag.run.queued", "dag.run.running", "dag.run.succeeded"]);
        let queued = &t.client.events("r").await[0]["data"];
        assert_eq!(queued["worker_selector"], json!({"zone": "b"}));
        assert_eq!(reason(&queued["run"]), ("False".into(), "NoMatchingWorker".into()));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn held_with_no_worker_at_all() {
    with(async |t| {
        let run = t.client.dispatch("r", json!({"worker_selector": {"zone": "b"}})).await.ok();
        assert_eq!(reason(&run), ("False".into(), "NoAvailableWorker".into()));
        let worker = Worker::register(&t.client, "worker-b", json!({"zone": "b"})).await;
        assert_eq!(worker.work_one().await["run_id"], "r");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_fails_the_run_naming_the_selector_and_the_task_is_gone() {
    with(async |t| {
        t.stop_clock().await;
        t.client.dispatch("r", json!({"worker_selector": {"zone": "b"}})).await.ok();
        t.client.dispatch("any", json!({})).await.ok();
        t.tick(119).await;
        t.swept().await;
        assert_eq!(t.client.run("r").await["status"], "queued");
        t.tick(1).await;
        let failed = t.client.finished("r").await;
        assert_eq!(failed["status"], "failed");
        assert_eq!(failed["error"], "no worker matched the selector {zone: b} within 2m0s");
        assert_eq!(failed["failure"]["reason"], "hold_expired");
        assert_eq!(failed["failure"]["worker_selector"], json!({"zone": "b"}));
        assert!(failed["failure"]["waited_seconds"].as_f64().unwrap() >= 120.0);
        assert_eq!(t.client.finished("any").await["error"], "no worker was available within 2m0s");
        assert_eq!(t.count("SELECT count(*) FROM task").await, 0);
        assert_eq!(t.client.event_types("r").await, ["dag.run.queued", "dag.run.failed"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_claimed_in_time_is_left_alone() {
    with(async |t| {
        t.stop_clock().await;
        t.client.dispatch("r", json!({"worker_selector": {"zone": "b"}, "worker_wait_timeout_seconds": 5})).await.ok();
        let worker = Worker::register(&t.client, "worker-b", json!({"zone": "b"})).await;
        let task = worker.take().await;
        t.tick(10).await;
        worker.ack(&task).await.ok();
        t.tick(59).await;
        t.swept().await;
        worker.report(&task, "succeeded").await.ok();
        assert_eq!(t.client.run("r").await["status"], "succeeded");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_of_zero_refuses_and_records_nothing() {
    with(async |t| {
        let body = json!({"worker_selector": {"zone": "b"}, "worker_wait_timeout_seconds": 0});
        t.client.dispatch("r", body.clone()).await.problem(409, "no-available-worker");
        Worker::register(&t.client, "worker-a", json!({"zone": "a"})).await;
        let problem = t.client.dispatch("r", body.clone()).await.problem(409, "no-matching-worker");
        assert_eq!(problem["detail"], "no healthy worker matches the selector {zone: b}");
        t.client.get("/v1/dags/dag/runs/r").await.problem(404, "not-found");
        assert_eq!(t.count("SELECT count(*) FROM run").await, 0);

        let worker = Worker::register(&t.client, "worker-b", json!({"zone": "b"})).await;
        let run = t.client.dispatch("r", body).await.ok();
        assert_eq!(reason(&run), ("True".into(), "AwaitingPoll".into()));
        worker.work_one().await;
    })
    .await;
}

/// A wait of 0 decides only at dispatch; once accepted, the run fails when its last match goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_of_zero_ends_with_its_last_match() {
    with(async |t| {
        let worker = Worker::register(&t.client, "worker-b", json!({"zone": "b"})).await;
        t.client.dispatch("r", json!({"worker_selector": {"zone": "b"}, "worker_wait_timeout_seconds": 0})).await.ok();
        worker.leave().await.ok();
        let failed = t.client.finished("r").await;
        assert_eq!(failed["error"], "no worker matches the selector {zone: b} any more");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_to_zero_it_refuses_by_default() {
    let mut config = settings();
    config.coordinator.worker_wait_timeout = Duration::ZERO;
    with_settings(config, async |t| {
        t.client.dispatch("r", json!({})).await.problem(409, "no-available-worker");
        t.client.dispatch("r", json!({"worker_wait_timeout_seconds": 60})).await.ok();
    })
    .await;
}

/// Also B34: one terminal event, no leftover conditions, and a second cancel changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn cancel_aborts_and_drops_and_a_later_worker_gets_nothing() {
    with(async |t| {
        t.client.dispatch("r", json!({"worker_selector": {"zone": "b"}})).await.ok();
        let aborted = t.client.cancel("r").await.ok();
        assert_eq!(aborted["status"], "aborted");
        assert!(aborted.get("conditions").is_none());
        assert_eq!(t.count("SELECT count(*) FROM task").await, 0);
        let worker = Worker::register(&t.client, "worker-b", json!({"zone": "b"})).await;
        assert!(worker.poll(0.3).await.is_empty());
        assert_eq!(t.client.cancel("r").await.ok()["version"], aborted["version"]);
        assert_eq!(t.client.event_types("r").await, ["dag.run.queued", "dag.run.aborted"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_task_outlives_what_recycles_claims() {
    with(async |t| {
        t.client
            .dispatch("r", json!({"worker_selector": {"zone": "b"}, "worker_wait_timeout_seconds": 3600}))
            .await
            .ok();
        let before = t.client.run("r").await;
        t.advance(t.config.coordinator.ack_timeout * 3 + t.config.coordinator.lease_ttl * 3).await;
        // A sweep that began after the move has come and gone when a second one has stamped.
        let stamped = "SELECT (extract(epoch FROM stamped_at) * 1000)::bigint FROM sweep_stamp";
        let now = "SELECT (extract(epoch FROM roadstead_now()) * 1000)::bigint";
        let moved = t.count(now).await;
        until("a sweep after the move", async || t.count(stamped).await > moved).await;
        let second = t.count(stamped).await;
        until("another sweep", async || t.count(stamped).await > second).await;
        let after = t.client.run("r").await;
        assert_eq!((&after["version"], &after["hold"]), (&before["version"], &before["hold"]));
        assert_eq!(Worker::register(&t.client, "w", json!({"zone": "b"})).await.work_one().await["run_id"], "r");
    })
    .await;
}
