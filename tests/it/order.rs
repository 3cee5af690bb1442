//! Order: what is handed out, what is not, and what comes first.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Test, Worker, with};

/// Dispatches many runs, a batch for each thousand.
async fn dispatch(t: &Test, runs: &[Value]) {
    for some in runs.chunks(1_000) {
        let answer = t.client.post("/v1/batch/runs", &json!({"runs": some})).await.ok();
        let made = answer["results"].as_array().unwrap().iter().filter(|result| result["status"] == 201).count();
        assert_eq!(made, some.len());
    }
}

/// B119: beside one that is due, one of each kind that must not be handed out; each then comes when it may, and not before.
#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_due_is_handed_out() {
    with(async |t| {
        t.stop_clock().await;
        let worker = Worker::register_with(&t.client, "w", json!({"labels": {"zone": "b"}, "slots": 20})).await;
        let claimer = Worker::register_with(&t.client, "claimer", json!({"labels": {"zone": "b"}, "slots": 20})).await;
        // What it is given, which it acknowledges.
        let given = async || -> Vec<String> {
            let answer = worker.poll_with(json!({"max_tasks": 20, "wait_seconds": 0})).await.ok();
            let mut run_ids = Vec::new();
            for task in answer["tasks"].as_array().unwrap() {
                worker.ack(task).await.ok();
                run_ids.push(task["run_id"].as_str().unwrap().to_owned());
            }
            run_ids
        };
        let b = |rest: Value| {
            let mut request = json!({"worker_selector": {"zone": "b"}});
            request.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            request
        };
        // Its hold has run out, and no sweep has come to it: it is somebody's who holds its row.
        t.client
            .dispatch("expired", json!({"worker_selector": {"zone": "c"}, "worker_wait_timeout_seconds": 1}))
            .await
            .ok();
        let mut lock = t.pool.begin().await.unwrap();
        sqlx::query("SELECT FROM run WHERE run_id = 'expired' FOR UPDATE").execute(&mut *lock).await.unwrap();
        t.tick(2).await;
        worker.beat(json!({"labels": {"zone": "b", "more": "c"}})).await.ok();
        t.client.dispatch("claimed", b(json!({}))).await.ok();
        assert_eq!(claimer.take().await["run_id"], "claimed");
        t.client.dispatch("retried", b(json!({"max_attempts": 2, "retry": {"delay_seconds": 60}}))).await.ok();
        let task = claimer.take().await;
        claimer.ack(&task).await.ok();
        claimer.say(&task, "release", json!({})).await.ok();
        t.client.dispatch("elsewhere", json!({"worker_selector": {"zone": "c"}})).await.ok();
        t.client.dispatch("more-terms", b(json!({"worker_selector": {"zone": "b", "gpu": "1"}}))).await.ok();
        t.client.dispatch("targeted", b(json!({"target_worker_id": "claimer"}))).await.ok();
        t.client.dispatch("cancelled", b(json!({}))).await.ok();
        t.client.cancel("cancelled").await.ok();
        t.client.dispatch("released", b(json!({}))).await.ok();
        let task = worker.take().await;
        assert_eq!(task["run_id"], "released");
        worker.say(&task, "release", json!({"delay_seconds": 40})).await.ok();
        let later: String = sqlx::query_scalar("SELECT to_jsonb(roadstead_now() + interval '50 s') #>> '{}'")
            .fetch_one(&t.pool)
            .await
            .unwrap();
        t.client.dispatch("later", b(json!({"not_before": later}))).await.ok();
        t.client.dispatch("due", b(json!({}))).await.ok();

        assert_eq!(given().await, ["due"]);
        let nothing: [&str; 0] = [];
        for (seconds, expected, why) in [
            (0, &nothing[..], "that was all"),
            (16, &["claimed"], "its claim has lapsed"),
            (23, &nothing, "39 s are not 40"),
            (1, &["released"], "its delay is over"),
            (9, &nothing, "49 s are not 50"),
            (1, &["later"], "its time has come"),
            (9, &nothing, "59 s are not 60"),
            (1, &["retried"], "its back-off is over"),
        ] {
            t.tick(seconds).await;
            worker.beat(json!({})).await.ok();
            t.swept().await;
            assert_eq!(given().await, expected, "{why}");
        }
        lock.rollback().await.unwrap();
        assert_eq!(t.client.finished("expired").await["failure"]["reason"], "hold_expired");
    })
    .await;
}

/// B121: higher goes first, none is 0, ties by age; what is out of range is refused and named.
#[tokio::test(flavor = "multi_thread")]
async fn a_higher_priority_goes_first() {
    with(async |t| {
        let dispatch = async |run_id: &str, rest: Value| t.client.dispatch(run_id, rest).await;
        for (run_id, priority) in [("low", -5), ("zero", 0), ("high", 5), ("highest", 100), ("lowest", -100)] {
            dispatch(run_id, json!({"priority": priority})).await.ok();
        }
        dispatch("none", json!({})).await.ok();
        dispatch("high-too", json!({"priority": 5})).await.ok();
        for out in [json!(101), json!(-101), json!(1.5), json!("5"), json!(1e9)] {
            let refused = dispatch("out", json!({"priority": out})).await.problem(422, "invalid-request");
            assert_eq!(refused["errors"][0]["pointer"], "/priority", "{out}");
        }
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 9})).await;
        let answer = worker.poll_with(json!({"max_tasks": 9, "wait_seconds": 0})).await.ok();
        let order: Vec<&str> =
            answer["tasks"].as_array().unwrap().iter().map(|task| task["run_id"].as_str().unwrap()).collect();
        assert_eq!(order, ["highest", "high", "high-too", "zero", "none", "low", "lowest"]);
        let document = t.client.get("/openapi.json").await.ok();
        let said = &document["components"]["schemas"]["DispatchRequest"]["properties"]["priority"]["description"];
        assert_eq!(said, "Higher goes first; ties by age. 0 when absent.");
    })
    .await;
}

/// Rule 4: one poll takes at once all there is, up to what it asked for and what its session has room for.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_takes_what_there_is_and_does_not_wait_for_more() {
    with(async |t| {
        let runs: Vec<Value> = (0..5).map(|n| json!({"dag_name": "dag", "run_id": format!("r{n}")})).collect();
        dispatch(t, &runs).await;
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 4})).await;
        let begun = std::time::Instant::now();
        for (most, expected) in [(3, 3), (100, 1)] {
            let answer = worker.poll_with(json!({"max_tasks": most, "wait_seconds": 50})).await.ok();
            assert_eq!(answer["tasks"].as_array().unwrap().len(), expected, "of {most}");
        }
        assert!(begun.elapsed() < Duration::from_secs(25), "half of one wait: {:?}", begun.elapsed());
    })
    .await;
}
