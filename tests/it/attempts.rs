//! Attempts: retries and resumes pass through the same hold as a first dispatch, and each attempt is its own.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::client::reason;
use crate::harness::{Client, Reply, Test, Worker, spawn, with};

/// Asks for the next attempt of run `r`.
async fn again(client: &Client, verb: &str, after: &Value, rest: Value) -> Reply {
    let mut body = json!({"after_attempt_id": after});
    body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    client.post(&format!("/v1/dags/dag/runs/r/{verb}"), &body).await
}

/// Dispatches run `r` and lets the worker end it with this status; answers its task.
async fn ended(t: &Test, worker: &Worker, request: Value, report: Value) -> Value {
    t.client.dispatch("r", request).await.ok();
    let task = worker.take().await;
    worker.ack(&task).await.ok();
    worker.say(&task, "report", report).await.ok();
    task
}

async fn attempts(client: &Client) -> Vec<Value> {
    client.get("/v1/dags/dag/runs/r/attempts").await.ok()["attempts"].as_array().unwrap().clone()
}

/// A retry waits for its worker like a first dispatch: conditions, event, hold, hand-over, and failure when nobody comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_held_and_taken_and_told_what_came_before() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let asked = json!({"worker_selector": {"zone": "b"}, "params": {"n": 12_345_678_901_234_567_890_u64}});
        let report = json!({"status": "failed", "error": "disk \"full\"", "output": {"at": 3}, "log_url": "https://l/1"});
        let first = ended(t, &worker, asked, report).await;
        worker.leave().await.ok();

        let run = again(&t.client, "retry", &first["attempt_id"], json!({})).await.ok();
        assert_eq!((&run["status"], &run["attempt"]["number"]), (&json!("queued"), &json!(2)), "{run:#}");
        assert_eq!((&run["attempt"]["operation"], reason(&run).1.as_str()), (&json!("retry"), "NoAvailableWorker"));
        assert!(run["hold"]["until"].is_string(), "{run:#}");
        for gone in ["error", "failure", "log_url", "finished_at", "started_at", "worker_id"] {
            assert!(run[gone].is_null(), "{gone} is of the attempt before: {run:#}");
        }
        let event = t.client.events("r").await.pop().unwrap();
        assert_eq!(event["type"], "dag.run.queued");
        assert_eq!(event["data"]["worker_selector"], json!({"zone": "b"}), "{event:#}");
        assert_eq!(event["data"]["run"]["conditions"][0]["reason"], "NoAvailableWorker");

        let other = Worker::register(&t.client, "other", json!({"zone": "b"})).await;
        let second = other.take().await;
        assert_eq!((&second["attempt_number"], &second["operation"]), (&json!(2), &json!("retry")));
        assert_eq!(second["params"], json!({"n": 12_345_678_901_234_567_890_u64}));
        let previous = json!({"attempt_id": first["attempt_id"], "status": "failed", "error": "disk \"full\"", "output": {"at": 3}});
        assert_eq!(second["previous"], previous);
        assert!(second["fence"].as_i64() > first["fence"].as_i64());
        let detail = t.client.get("/v1/dags/dag/runs/r?include=payload").await.ok();
        assert_eq!((&detail["previous"], &detail["output"]), (&previous, &Value::Null), "{detail:#}");

        // The late word of the first attempt is answered from its own record and touches nothing.
        let late = worker.say(&first, "report", json!({"status": "failed"})).await.ok();
        assert_eq!(late["status"], "failed");
        worker.report(&first, "succeeded").await.problem(409, "attempt-superseded");
        assert_eq!(t.client.run("r").await["status"], "queued");

        other.ack(&second).await.ok();
        other.report(&second, "succeeded").await.ok();
        let listed = attempts(&t.client).await;
        let told: Vec<_> = listed.iter().map(|a| (a["number"].clone(), a["status"].clone())).collect();
        assert_eq!(told, [(json!(1), json!("failed")), (json!(2), json!("succeeded"))]);
        assert_eq!(listed[0]["error"], "disk \"full\"");
        assert_eq!((&listed[0]["log_url"], &listed[0]["worker_id"]), (&json!("https://l/1"), &json!("w")));
        assert_eq!(listed[1]["after_attempt_id"], first["attempt_id"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_nobody_takes_fails_naming_what_it_waited_for() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let first = ended(t, &worker, json!({"worker_selector": {"zone": "b"}}), json!({"status": "succeeded"})).await;
        let other = json!({"worker_selector": {"zone": "c"}, "worker_wait_timeout_seconds": 30});
        let run = again(&t.client, "retry", &first["attempt_id"], other).await.ok();
        assert_eq!((&run["worker_selector"], reason(&run).1.as_str()), (&json!({"zone": "c"}), "NoMatchingWorker"));
        assert_eq!(worker.poll(0.0).await.len(), 0, "it is not for this one any more");
        t.advance(Duration::from_secs(31)).await;
        let failed = t.client.finished("r").await;
        assert_eq!(failed["error"], "no worker matched the selector {zone: c} within 30s");
        let many: serde_json::Map<_, _> = (0..16).map(|n| (format!("k{n}"), json!("v"))).collect();
        let too_many = json!({"worker_selector": many, "target_worker_id": "w"});
        let refused = again(&t.client, "retry", &failed["attempt"]["attempt_id"], too_many).await;
        refused.problem(422, "invalid-request");
        let without_wait = json!({"worker_wait_timeout_seconds": 0});
        let refused = again(&t.client, "retry", &failed["attempt"]["attempt_id"], without_wait).await;
        refused.problem(409, "no-matching-worker");
        assert_eq!(t.client.run("r").await, failed, "a refusal changes nothing");
    })
    .await;
}

/// Whoever asks, and however often: one attempt follows one.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_makes_no_second_attempt() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        let first = ended(t, &worker, json!({}), json!({"status": "failed"})).await;
        let (_second_replica, other) = t.replica().await;
        let mut asked = Vec::new();
        for n in 0..20 {
            let (client, after) = ([&t.client, &other][n % 2].clone(), first["attempt_id"].clone());
            asked.push(spawn(async move { again(&client, "retry", &after, json!({"priority": 5})).await }));
        }
        for asked in asked {
            assert_eq!(asked.await.unwrap().ok()["attempt"]["number"], 2);
        }
        assert_eq!(t.count("SELECT count(*) FROM attempt").await, 2);
        let otherwise = again(&t.client, "retry", &first["attempt_id"], json!({"priority": 6})).await;
        assert_eq!(otherwise.problem(409, "attempt-superseded")["action"], "give_up");
        let unknown = json!("00000000-0000-7000-8000-000000000000");
        assert_eq!(
            again(&t.client, "retry", &unknown, json!({})).await.problem(404, "not-found")["action"],
            "fix_request"
        );

        // Also when the run has gone on since.
        let second = worker.take().await;
        worker.ack(&second).await.ok();
        worker.report(&second, "failed").await.ok();
        again(&t.client, "retry", &second["attempt_id"], json!({})).await.ok();
        let replayed = again(&t.client, "retry", &first["attempt_id"], json!({"priority": 5})).await.ok();
        assert_eq!(replayed["attempt"]["number"], 3, "the run as it is now");
        assert_eq!(t.count("SELECT count(*) FROM attempt").await, 3);
        let again_as_dispatched = t.client.dispatch("r", json!({})).await;
        assert_eq!(again_as_dispatched.headers["idempotent-replayed"], "true");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_run_is_resumed_with_what_it_left() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        let paused = ended(t, &worker, json!({}), json!({"status": "waiting", "output": {"ask": "ok?"}})).await;
        again(&t.client, "retry", &paused["attempt_id"], json!({})).await.problem(409, "run-not-finished");
        let run = again(&t.client, "resume", &paused["attempt_id"], json!({"context": {"answer": "yes"}})).await.ok();
        assert_eq!((&run["status"], &run["attempt"]["operation"]), (&json!("queued"), &json!("resume")));
        let task = worker.take().await;
        assert_eq!((&task["operation"], &task["context"]), (&json!("resume"), &json!({"answer": "yes"})));
        assert_eq!(
            (&task["previous"]["status"], &task["previous"]["output"]),
            (&json!("waiting"), &json!({"ask": "ok?"}))
        );
        worker.ack(&task).await.ok();
        again(&t.client, "resume", &task["attempt_id"], json!({})).await.problem(409, "run-not-waiting");
        worker.report(&task, "succeeded").await.ok();
        again(&t.client, "resume", &task["attempt_id"], json!({})).await.problem(409, "run-not-waiting");
    })
    .await;
}

/// A run with attempts left goes over to the next when its worker is lost, and never shows that it failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_worker_costs_an_attempt_and_not_the_run() {
    with(async |t| {
        t.stop_clock().await;
        let asked = json!({"max_attempts": 2, "retry": {"delay_seconds": 30}});
        t.client.dispatch("r", asked).await.ok();
        let doomed = Worker::register(&t.client, "doomed", json!({})).await;
        let first = doomed.take().await;
        doomed.ack(&first).await.ok();
        doomed.say(&first, "report", json!({"status": "running", "progress": 40})).await.ok();
        let heir = Worker::register(&t.client, "doomed", json!({})).await;
        let queued = t.client.run("r").await;
        assert_eq!((&queued["status"], reason(&queued).1.as_str()), (&json!("queued"), "BackingOff"), "{queued:#}");
        assert_eq!(queued["attempt"]["number"], 2);
        doomed.report(&first, "succeeded").await.problem(409, "attempt-superseded");
        assert_eq!(heir.poll(0.0).await.len(), 0, "it backs off");
        t.tick(30).await;
        let second = heir.take().await;
        assert_eq!(second["previous"]["status"], "lost");
        assert_eq!(second["previous"]["progress"], 40);
        assert_eq!(second["previous"]["error"], "worker doomed was lost: its session ended");
        heir.ack(&second).await.ok();
        Worker::register(&t.client, "doomed", json!({})).await;
        let failed = t.client.finished("r").await;
        assert_eq!(failed["error"], "worker doomed was lost: its session ended");
        let told = t.client.event_types("r").await;
        let expected = ["queued", "running", "queued", "running", "failed"];
        assert_eq!(told, expected.map(|what| format!("dag.run.{what}")));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reported_failure_is_tried_again_where_that_was_asked_for() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        let asked = json!({"max_attempts": 3, "retry": {"on": ["failed"]}});
        let first = ended(t, &worker, asked, json!({"status": "failed", "error": "flaky", "output": 1})).await;
        let second = worker.take().await;
        assert_eq!((&second["attempt_number"], &second["previous"]["output"]), (&json!(2), &json!(1)));
        assert_eq!(second["previous"]["attempt_id"], first["attempt_id"]);
        let repeated = worker.report(&first, "failed").await.ok();
        assert_eq!((&repeated["status"], &repeated["version"]), (&json!("queued"), &json!(3)), "as the first time");
        worker.ack(&second).await.ok();
        worker.say(&second, "report", json!({"status": "failed", "retryable": false})).await.ok();
        assert_eq!(t.client.run("r").await["status"], "failed", "its worker says that it is of no use");
        // A retry counts anew.
        again(&t.client, "retry", &second["attempt_id"], json!({})).await.ok();
        for number in 3..=5 {
            let task = worker.take().await;
            assert_eq!(task["attempt_number"], number);
            worker.ack(&task).await.ok();
            worker.report(&task, "failed").await.ok();
        }
        assert_eq!(t.client.run("r").await["status"], "failed");
    })
    .await;
}

/// A run that had its earlier attempts elsewhere, and one that must not begin yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_never_seen_comes_in_as_a_retry_and_waits_for_its_time() {
    with(async |t| {
        t.stop_clock().await;
        let worker = Worker::register(&t.client, "w", json!({})).await;
        let at = t.json("SELECT to_jsonb(roadstead_now() + interval '1 hour')").await;
        let asked = json!({"operation": "retry", "previous": {"steps": [1, 2]}, "not_before": at});
        let run = t.client.dispatch("r", asked).await.ok();
        assert_eq!((reason(&run).1.as_str(), &run["hold"]["until"]), ("BackingOff", &Value::Null), "{run:#}");
        let from = &run["hold"]["from"];
        assert!((crate::harness::seconds(from) - crate::harness::seconds(&at)).abs() < 0.001, "{run:#}");
        assert_eq!(worker.poll(0.0).await.len(), 0);
        t.tick(3_600).await;
        let worker = Worker::register(&t.client, "w", json!({})).await;
        assert!(t.client.run("r").await["hold"]["from"].is_null(), "it is over");
        let task = worker.take().await;
        assert_eq!((&task["operation"], &task["previous"]), (&json!("retry"), &json!({"steps": [1, 2]})));
        assert_eq!(task["attempt_number"], 1);
        let refused = t.client.dispatch("s", json!({"previous": 1})).await.problem(422, "invalid-request");
        assert_eq!(refused["errors"][0]["pointer"], "/previous");
    })
    .await;
}

/// The labels that a retry asks for are those it is listed by.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_may_be_listed_otherwise() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        let labels = json!({"labels": {"team": "a", "tier": "1"}});
        let first = ended(t, &worker, labels, json!({"status": "failed"})).await;
        let relabelled = json!({"labels": {"team": "b", "tier": "1"}});
        again(&t.client, "retry", &first["attempt_id"], relabelled).await.ok();
        let listed = async |label: &str| {
            let page = t.client.get(&format!("/v1/runs?label={label}")).await.ok();
            page["runs"].as_array().unwrap().len()
        };
        assert_eq!((listed("team%3Da").await, listed("team%3Db").await, listed("tier%3D1").await), (0, 1, 1));
        let second = worker.take().await;
        worker.ack(&second).await.ok();
        worker.report(&second, "failed").await.ok();
        again(&t.client, "retry", &second["attempt_id"], json!({"priority": 1})).await.ok();
        assert_eq!(listed("team%3Db").await, 1, "what is not said stays");
    })
    .await;
}
