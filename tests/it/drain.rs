//! Drain: an operator's outlives sessions, a session's own does not, and neither costs what is running.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::client::reason;
use crate::harness::{Test, Worker, spawn, until, with};

async fn drain(t: &Test, body: Value) -> Value {
    t.client.post("/v1/workers/w/drain", &body).await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_worker_finishes_what_it_has_and_is_given_nothing_in_any_session() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 4})).await;
        t.client.dispatch("first", json!({})).await.ok();
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        let parked = {
            let worker = worker.clone();
            spawn(async move { worker.poll_reply(50.0).await })
        };
        until("it polls", async || t.client.get("/v1/workers/w").await.ok()["running"] == 1).await;
        let drained = drain(t, json!({"drain": true, "comment": "new kernel"})).await;
        assert_eq!((&drained["state"], &drained["drain"]), (&json!("draining"), &json!(true)), "{drained:#}");
        assert_eq!(drained["drain_comment"], "new kernel");
        assert_eq!(parked.await.unwrap().ok()["drain"], true, "its poll returns at once");

        let queued = t.client.dispatch("second", json!({})).await.ok();
        assert_eq!(reason(&queued).1, "WorkersDraining");
        assert!(queued["hold"]["until"].is_string(), "a draining worker is no match: the clock runs");
        assert_eq!(worker.poll_reply(0.0).await.ok()["tasks"], json!([]));
        assert_eq!(
            worker.beat(json!({"draining": false})).await.ok()["drain"],
            true,
            "it is not the session's to undo"
        );
        worker.report(&task, "succeeded").await.ok();
        assert_eq!(t.client.run("first").await["status"], "succeeded", "what it has it may finish");

        let again = Worker::register(&t.client, "w", json!({})).await;
        assert_eq!(again.poll_reply(0.0).await.ok()["drain"], true, "also in a later session");
        assert_eq!(t.client.get("/v1/workers?state=draining").await.ok()["workers"].as_array().unwrap().len(), 1);

        let undone = drain(t, json!({"drain": false})).await;
        assert_eq!((&undone["state"], &undone["drain_comment"]), (&json!("healthy"), &Value::Null), "{undone:#}");
        assert_eq!(again.take().await["run_id"], "second");
        t.client.post("/v1/workers/nobody/drain", &json!({"drain": true})).await.problem(404, "not-found");
    })
    .await;
}

/// What a session says of itself is neither undone by an operator nor by silence of the next beat.
#[tokio::test(flavor = "multi_thread")]
async fn a_sessions_own_drain_is_its_own() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        worker.beat(json!({"draining": true})).await.ok();
        drain(t, json!({"drain": true})).await;
        let undone = drain(t, json!({"drain": false})).await;
        assert_eq!(undone["state"], "draining", "the session wants no more itself");
        assert_eq!(
            worker.beat(json!({"labels": {"zone": "b"}})).await.ok()["drain"],
            true,
            "and did not say otherwise"
        );
        assert_eq!(worker.beat(json!({"draining": false})).await.ok()["drain"], false);
        assert_eq!(Worker::register(&t.client, "w", json!({})).await.beat(json!({})).await.ok()["drain"], false);
    })
    .await;
}

/// The hold clock runs from the drain on, and stands still from its end on; the drain is no sign of life.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_is_the_end_of_a_match() {
    with(async |t| {
        t.stop_clock().await;
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let asked = json!({"worker_selector": {"zone": "b"}, "worker_wait_timeout_seconds": 20});
        for run_id in ["expires", "is-saved"] {
            t.client.dispatch(run_id, asked.clone()).await.ok();
        }
        t.tick(10).await;
        let seen = worker.last_seen().await;
        drain(t, json!({"drain": true})).await;
        assert_eq!(worker.last_seen().await, seen, "no sign of life");
        t.tick(19).await;
        worker.beat(json!({})).await.ok();
        t.swept().await;
        assert_eq!(t.client.run("expires").await["status"], "queued", "19 s without a match");
        drain(t, json!({"drain": false})).await;
        let saved = worker.take().await;
        assert_eq!(saved["run_id"], "expires");
        t.tick(5).await;
        drain(t, json!({"drain": true})).await;
        t.tick(20).await;
        worker.beat(json!({})).await.ok();
        t.swept().await;
        let failed = t.client.run("is-saved").await;
        assert_eq!(failed["error"], "no worker matched the selector {zone: b} within 20s", "{failed:#}");
        t.advance(Duration::from_secs(1)).await;
    })
    .await;
}
