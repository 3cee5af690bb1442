//! Old attempts: a worker that works on what is no longer its own is told so, changes nothing, and costs nobody a slot.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::client::reason;
use crate::harness::{Reply, Test, Worker, with};

/// Enough for a lease to lapse whose worker is silent.
const LEASE_OVER: Duration = Duration::from_secs(61);

async fn retry(t: &Test, run_id: &str, after: &Value) -> Reply {
    t.client.post(&format!("/v1/dags/dag/runs/{run_id}/retry"), &json!({"after_attempt_id": after})).await
}

/// Dispatches a run, of which this worker has an acknowledged attempt then.
async fn running(t: &Test, worker: &Worker, run_id: &str, request: Value) -> Value {
    t.client.dispatch(run_id, request).await.ok();
    let task = worker.take().await;
    worker.ack(&task).await.ok();
    task
}

/// B23: the lease lapses while its worker works on, and another has the next attempt: only that one's result counts.
/// B15: what the first says frees no slot of the second's.
#[tokio::test(flavor = "multi_thread")]
async fn who_was_too_late_changes_nothing_and_frees_nothing() {
    with(async |t| {
        let late = Worker::register(&t.client, "late", json!({})).await;
        let first = running(t, &late, "r", json!({"max_attempts": 2})).await;
        t.advance_forgetting(LEASE_OVER, Some("late")).await;
        let other = Worker::register(&t.client, "other", json!({})).await;
        let second = other.take().await;
        assert_eq!((&second["run_id"], &second["attempt_number"]), (&json!("r"), &json!(2)));
        other.ack(&second).await.ok();
        for n in 0..3 {
            t.client.dispatch(&format!("more-{n}"), json!({})).await.ok();
        }

        let before = t.state().await;
        for (verb, rest) in [
            ("renew", json!({})),
            ("report", json!({"status": "running", "progress": {"at": 1}})),
            ("report", json!({"status": "succeeded", "output": "of the first"})),
            ("ack", json!({})),
        ] {
            let refused = late.say(&first, verb, rest).await.problem(409, "attempt-superseded");
            assert_eq!(refused["action"], "stop_attempt", "{verb}");
        }
        // To give back what is lost is to say what is so.
        assert_eq!(late.say(&first, "release", json!({})).await.ok()["status"], "running");
        assert_eq!(t.state().await, before, "no row has moved, nor its session's");
        assert_eq!(other.poll(0.0).await, Vec::<Value>::new(), "its one slot is in use");
        let worker = t.client.get("/v1/workers/other").await.ok();
        assert_eq!((&worker["running"], &worker["claimed"]), (&json!(1), &json!(0)));

        other.say(&second, "report", json!({"status": "succeeded", "output": "of the second"})).await.ok();
        let run = t.client.get("/v1/dags/dag/runs/r").await.ok();
        assert_eq!((&run["worker_id"], &run["output"]), (&json!("other"), &json!("of the second")));
        assert_eq!(other.take().await["run_id"], "more-0", "one slot is free, and is used once");
        assert_eq!(other.poll(0.0).await, Vec::<Value>::new());
    })
    .await;
}

/// B21: a run is retried while its old attempt is still renewed: the answer says that the run has gone on, which is not
/// what is said of an attempt that never was.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_of_what_was_retried_is_told_why_to_stop() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 2})).await;
        let first = running(t, &worker, "r", json!({})).await;
        t.client.post("/v1/dags/dag/runs/r/cancel", &json!({"force": true})).await.ok();
        assert_eq!(worker.say(&first, "renew", json!({})).await.problem(409, "run-finished")["action"], "stop_attempt");
        let run = retry(t, "r", &first["attempt_id"]).await.ok();
        let refused = worker.say(&first, "renew", json!({})).await.problem(409, "attempt-superseded");
        assert_eq!(refused["action"], "stop_attempt");
        let (old, new) = (first["attempt_id"].as_str().unwrap(), run["attempt"]["attempt_id"].as_str().unwrap());
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.contains(old) && detail.contains(new), "{detail}");
        let never = json!({"attempt_id": "00000000-0000-0000-0000-000000000000", "token": first["token"]});
        worker.say(&never, "renew", json!({})).await.problem(404, "not-found");
        assert_eq!(worker.take().await["attempt_number"], 2);
    })
    .await;
}

/// B51: a retry has a whole window of its own, however long ago the first one ran out.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_what_expired_long_ago_waits_as_long_as_a_new_one() {
    with(async |t| {
        let waits = json!({"worker_selector": {"zone": "b"}, "worker_wait_timeout_seconds": 120});
        let first = t.client.dispatch("r", waits.clone()).await.ok();
        t.advance(Duration::from_secs(121)).await;
        assert_eq!(t.client.finished("r").await["failure"]["reason"], "hold_expired");
        t.advance(Duration::from_secs(600)).await;
        // In between: it is younger than this one, whatever its name.
        t.client.dispatch("between", waits).await.ok();
        let again = retry(t, "r", &first["attempt"]["attempt_id"]).await.ok();
        assert_eq!((&again["status"], reason(&again).1.as_str()), (&json!("queued"), "NoAvailableWorker"));
        assert!(again["queued_at"].as_str() > first["queued_at"].as_str());
        let left: i64 =
            t.count("SELECT extract(epoch FROM hold_until - hold_from)::bigint FROM task WHERE run_id = 'r'").await;
        assert_eq!(left, 120);
        t.advance(Duration::from_secs(30)).await;
        t.swept().await;
        let worker = Worker::register_with(&t.client, "w", json!({"labels": {"zone": "b"}, "slots": 2})).await;
        assert_eq!(worker.take().await["run_id"], "between", "its place in the line is of its retry");
        let task = worker.take().await;
        assert_eq!((&task["run_id"], &task["attempt_number"]), (&json!("r"), &json!(2)));
        assert_ne!(task["attempt_id"], first["attempt"]["attempt_id"]);
    })
    .await;
}

/// B43: the retry of a failed child, and the resumption of a paused one, are of that child: its name, its parent, what was
/// asked for, and a new attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_is_tried_again_as_the_child_it_was() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 3})).await;
        running(t, &worker, "parent", json!({})).await;
        let parent = json!({"dag_name": "dag", "run_id": "parent"});
        let child = json!({"parent": parent, "root": parent, "params": {"part": 1}});
        let first = running(t, &worker, "child", child).await;
        worker.say(&first, "report", json!({"status": "failed", "error": "e"})).await.ok();

        retry(t, "child", &first["attempt_id"]).await.ok();
        let second = worker.take().await;
        for (field, expected) in [
            ("run_id", json!("child")),
            ("operation", json!("retry")),
            ("attempt_number", json!(2)),
            ("parent", parent.clone()),
            ("root", parent.clone()),
            ("params", json!({"part": 1})),
        ] {
            assert_eq!(second[field], expected, "{field}");
        }
        worker.ack(&second).await.ok();
        worker.say(&second, "report", json!({"status": "waiting", "output": {"page": 7}})).await.ok();
        let resume = json!({"after_attempt_id": second["attempt_id"]});
        t.client.post("/v1/dags/dag/runs/child/resume", &resume).await.ok();
        let third = worker.take().await;
        assert_eq!((&third["operation"], &third["attempt_number"]), (&json!("resume"), &json!(3)));
        assert_eq!(third["previous"]["output"], json!({"page": 7}));

        let attempts = t.client.get("/v1/dags/dag/runs/child/attempts").await.ok();
        let read: Vec<_> =
            attempts["attempts"].as_array().unwrap().iter().map(|a| (&a["operation"], &a["status"])).collect();
        let (start, retried, resumed) = (json!("start"), json!("retry"), json!("resume"));
        assert_eq!(read, [(&start, &json!("failed")), (&retried, &json!("waiting")), (&resumed, &json!("queued"))]);
        assert_eq!(t.count("SELECT count(*) FROM run").await, 2, "no new child was made");
    })
    .await;
}
