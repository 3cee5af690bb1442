//! Parked runs: a scheduler keeps a queue of its own, and dispatches each run again when its turn has come.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::client::reason;
use crate::harness::{Client, Reply, Test, Worker, seconds, settings_with_fallback, until, with, with_settings};

/// Records a parked run for zone b with what else the body says.
async fn park(client: &Client, run_id: &str, rest: Value) -> Value {
    let mut body = json!({"worker_selector": {"zone": "b"}, "park": true});
    body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    client.dispatch(run_id, body).await.ok()
}

/// Dispatches a run again under the attempt that this answer says it is at.
async fn redispatch(client: &Client, run: &Value) -> Reply {
    let path = format!("/v1/dags/dag/runs/{}/dispatch", run["run_id"].as_str().unwrap());
    client.post(&path, &json!({"attempt_id": run["attempt"]["attempt_id"]})).await
}

async fn tasks(t: &Test) -> i64 {
    t.count("SELECT count(*) FROM task").await
}

/// The test of the change this project grew from: the queue's re-dispatch is still refused, the run still queued with both
/// conditions, and a stale attempt is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_queues_re_dispatch_is_still_refused_and_its_run_still_queued() {
    with(async |t| {
        // It would wait for two minutes as a dispatch of its own.
        let run = park(&t.client, "r", json!({})).await;
        redispatch(&t.client, &run).await.problem(409, "no-available-worker");
        let still = t.client.run("r").await;
        assert_eq!((&still["status"], &still["version"]), (&json!("queued"), &json!(1)));
        assert_eq!(reason(&still), ("False".into(), "NoAvailableWorker".into()));
        Worker::register(&t.client, "w-a", json!({"zone": "a"})).await;
        let problem = redispatch(&t.client, &run).await.problem(409, "no-matching-worker");
        assert_eq!(problem["detail"], "no healthy worker matches the selector {zone: b}");
        let still = t.client.run("r").await;
        assert_eq!((&still["status"], &still["version"]), (&json!("queued"), &json!(1)));
        assert_eq!(reason(&still), ("False".into(), "NoMatchingWorker".into()));
        assert_eq!((tasks(t).await, t.client.event_types("r").await), (0, vec!["dag.run.queued".to_owned()]));

        Worker::register(&t.client, "w-b", json!({"zone": "b"})).await;
        let other = json!({"run_id": "r", "attempt": {"attempt_id": "00000000-0000-0000-0000-000000000000"}});
        redispatch(&t.client, &other).await.problem(409, "stale-dispatch");
        let cancelled = t.client.cancel("r").await.ok();
        let retry = json!({"after_attempt_id": cancelled["attempt"]["attempt_id"], "park": true});
        let second = t.client.post("/v1/dags/dag/runs/r/retry", &retry).await.ok();
        assert_eq!((&second["park"], &second["attempt"]["number"]), (&json!(true), &json!(2)));
        let problem = redispatch(&t.client, &run).await.problem(409, "stale-dispatch");
        assert_eq!(problem["action"], "give_up");
        assert_eq!((tasks(t).await, t.client.run("r").await), (0, second));
    })
    .await;
}

/// It is nobody's until it is dispatched again, however well somebody matches; then the poll that waits has it at once.
#[tokio::test(flavor = "multi_thread")]
async fn parked_it_is_offered_to_nobody_until_it_is_dispatched_again() {
    with_settings(settings_with_fallback(Duration::from_hours(1)), async |t| {
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let body = json!({"worker_selector": {"zone": "b"}, "park": true, "worker_wait_timeout_seconds": 0});
        let run = t.client.dispatch("r", body.clone()).await.ok();
        assert_eq!((&run["status"], &run["park"], &run["version"]), (&json!("queued"), &json!(true), &json!(1)));
        assert_eq!(reason(&run), ("False".into(), "Parked".into()));
        assert!(run.get("hold").is_none() && run.get("start_until").is_none(), "{run:#}");
        assert_eq!(tasks(t).await, 0);
        let event = t.client.events("r").await[0].clone();
        assert_eq!((&event["type"], reason(&event["data"]["run"]).1), (&json!("dag.run.queued"), "Parked".into()));
        let listed = t.client.get("/v1/runs?reason=Parked").await.ok()["runs"].clone();
        assert_eq!(listed, json!([run]));
        assert_eq!(t.client.dispatch("r", body).await.headers["idempotent-replayed"], "true");
        assert!(worker.poll(0.0).await.is_empty());

        let poll = tokio::spawn({
            let worker = worker.clone();
            async move { worker.take().await }
        });
        until("it is parked", async || t.client.get("/v1/workers/w").await.ok()["state"] == "healthy").await;
        let queued = redispatch(&t.client, &run).await.ok();
        assert_eq!((&queued["status"], &queued["version"]), (&json!("queued"), &json!(2)));
        assert_eq!(reason(&queued), ("True".into(), "AwaitingPoll".into()));
        assert_eq!(queued["hold"]["wait_timeout_seconds"], 0.0);
        assert_eq!(queued["attempt"], run["attempt"]);
        let task = poll.await.unwrap();
        assert_eq!((&task["attempt_number"], &task["fence"]), (&json!(1), &json!(1)));
        // Claimed or running, it is answered as it is.
        let claimed = redispatch(&t.client, &run).await.ok();
        assert_eq!((reason(&claimed).1, &claimed["version"]), ("ClaimPending".into(), &json!(2)));
        worker.ack(&task).await.ok();
        let running = redispatch(&t.client, &run).await.ok();
        assert_eq!((&running["status"], &running["version"]), (&json!("running"), &json!(3)));
        worker.report(&task, "waiting").await.ok();
        assert_eq!(redispatch(&t.client, &run).await.ok()["status"], "waiting");
        t.client.cancel("r").await.ok();
        redispatch(&t.client, &run).await.problem(409, "run-finished");
        let types = ["dag.run.queued", "dag.run.queued", "dag.run.running", "dag.run.waiting", "dag.run.aborted"];
        assert_eq!(t.client.event_types("r").await, types);
    })
    .await;
}

/// A run whose last match goes before it is taken parks again, and may be dispatched once more.
#[tokio::test(flavor = "multi_thread")]
async fn without_its_last_match_it_parks_again() {
    with(async |t| {
        t.stop_clock().await;
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let run = park(&t.client, "r", json!({"max_attempts": 3})).await;
        redispatch(&t.client, &run).await.ok();
        let task = worker.take().await;
        worker.say(&task, "release", json!({})).await.ok();
        t.swept().await;
        assert_eq!(reason(&t.client.run("r").await).1, "AwaitingPoll", "somebody matches it");
        worker.leave().await.ok();
        t.tick(1).await;
        until("it is parked again", async || t.client.run("r").await["version"] == 4).await;
        let parked = t.client.run("r").await;
        assert_eq!((&parked["status"], &parked["park"]), (&json!("queued"), &json!(true)));
        assert_eq!(reason(&parked).1, "NoAvailableWorker");
        assert!(parked.get("hold").is_none() && parked.get("error").is_none(), "{parked:#}");
        assert_eq!(tasks(t).await, 0);
        redispatch(&t.client, &run).await.problem(409, "no-available-worker");

        let next = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        assert_eq!(reason(&t.client.run("r").await).1, "Parked");
        redispatch(&t.client, &run).await.ok();
        let task = next.take().await;
        assert_eq!((&task["fence"], &task["attempt_number"]), (&json!(2), &json!(1)), "fences rise through it");
        // It comes back to nobody: from the claim it parks, too.
        next.leave().await.ok();
        t.tick(1).await;
        until("it is parked again", async || t.client.run("r").await["version"] == 7).await;
        let queued = "dag.run.queued".to_owned();
        let updated = "dag.run.updated".to_owned();
        let types = [&queued, &queued, &updated, &updated, &queued, &updated, &updated];
        assert_eq!(t.client.event_types("r").await.iter().collect::<Vec<_>>(), types);
        assert_eq!(tasks(t).await, 0);
    })
    .await;
}

/// Its hold is over with the match, whoever looks first: an expired task is not given to who comes next.
#[tokio::test(flavor = "multi_thread")]
async fn what_parks_again_is_not_claimed_meanwhile() {
    with(async |t| {
        t.stop_clock().await;
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let run = park(&t.client, "r", json!({})).await;
        redispatch(&t.client, &run).await.ok();
        // Held here, it cannot be parked by the sweep.
        let mut tx = t.pool.begin().await.unwrap();
        sqlx::query("SELECT FROM run FOR UPDATE").execute(&mut *tx).await.unwrap();
        worker.leave().await.ok();
        t.tick(1).await;
        let next = Worker::register(&t.client, "next", json!({"zone": "b"})).await;
        assert!(next.poll(0.3).await.is_empty());
        tx.rollback().await.unwrap();
        until("it is parked", async || t.client.run("r").await["version"] == 3).await;
        assert_eq!(reason(&t.client.run("r").await).1, "Parked");
        assert!(next.poll(0.1).await.is_empty());
    })
    .await;
}

/// Draining workers are no match for it either.
#[tokio::test(flavor = "multi_thread")]
async fn parked_it_tells_why_nobody_would_have_it() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let run = park(&t.client, "r", json!({})).await;
        worker.beat(json!({"draining": true})).await.ok();
        assert_eq!(reason(&t.client.run("r").await), ("False".into(), "WorkersDraining".into()));
        redispatch(&t.client, &run).await.problem(409, "no-available-worker");
        worker.beat(json!({"draining": false})).await.ok();
        t.client.dispatch("busy", json!({"worker_selector": {"zone": "b"}})).await.ok();
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        assert_eq!(reason(&t.client.run("r").await), ("False".into(), "Parked".into()), "busy or not");
        let queued = redispatch(&t.client, &run).await.ok();
        assert_eq!(reason(&queued), ("False".into(), "WorkersBusy".into()));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_aborts_what_is_parked_and_so_does_a_family() {
    with(async |t| {
        let run = park(&t.client, "r", json!({})).await;
        let aborted = t.client.cancel("r").await.ok();
        assert_eq!((&aborted["status"], &aborted["version"]), (&json!("aborted"), &json!(2)));
        assert_eq!(t.client.event_types("r").await, ["dag.run.queued", "dag.run.aborted"]);
        redispatch(&t.client, &run).await.problem(409, "run-finished");

        t.client.dispatch("parent", json!({})).await.ok();
        let parent = json!({"parent": {"dag_name": "dag", "run_id": "parent"}});
        for child in ["one", "two"] {
            park(&t.client, child, parent.clone()).await;
        }
        t.client.cancel("parent").await.ok();
        for child in ["one", "two"] {
            assert_eq!(t.client.run(child).await["status"], "aborted");
        }
    })
    .await;
}

/// A child whose parent has ended meanwhile is not begun any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_parked_child_needs_its_parent() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        t.client.dispatch("parent", json!({})).await.ok();
        let child = park(&t.client, "child", json!({"parent": {"dag_name": "dag", "run_id": "parent"}})).await;
        worker.work_one().await;
        redispatch(&t.client, &child).await.problem(409, "parent-finished");
        assert_eq!(t.client.run("child").await["version"], 1);
    })
    .await;
}

/// Neither a retry nor an attempt that the run makes by itself is parked, unless a retry asks for it.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_attempt_is_not_parked() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let run = park(&t.client, "r", json!({"max_attempts": 2})).await;
        redispatch(&t.client, &run).await.ok();
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        worker.say(&task, "release", json!({})).await.ok();
        let again = t.client.run("r").await;
        assert_eq!((&again["attempt"]["number"], again.get("park")), (&json!(2), None));
        assert_eq!(again["hold"]["wait_timeout_seconds"], 120.0, "what was asked for at first");
        redispatch(&t.client, &run).await.problem(409, "stale-dispatch");
        assert_eq!(redispatch(&t.client, &again).await.ok()["version"], again["version"]);
        t.client.cancel("r").await.ok();
        let retry = json!({"after_attempt_id": again["attempt"]["attempt_id"]});
        let retried = t.client.post("/v1/dags/dag/runs/r/retry", &retry).await.ok();
        assert_eq!((&retried["attempt"]["number"], retried.get("park")), (&json!(3), None));
        worker.work_one().await;
    })
    .await;
}

/// Both clocks begin at the accepted re-dispatch; the start clock fails the run as it fails others.
#[tokio::test(flavor = "multi_thread")]
async fn its_start_clock_begins_when_it_is_dispatched_again() {
    with(async |t| {
        t.stop_clock().await;
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let busy = json!({"worker_selector": {"zone": "b"}});
        t.client.dispatch("busy", busy).await.ok();
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        let run = park(&t.client, "r", json!({"start_timeout_seconds": 60})).await;
        assert_eq!((&run["start_timeout_seconds"], run.get("start_until")), (&json!(60.0), None));
        t.advance(Duration::from_mins(5)).await;
        t.swept().await;
        let queued = redispatch(&t.client, &run).await.ok();
        let ends = Duration::from_secs_f64(seconds(&queued["start_until"]) - seconds(&queued["queued_at"]));
        assert_eq!(ends, Duration::from_mins(6));
        t.advance(Duration::from_mins(1)).await;
        let failed = t.client.finished("r").await;
        assert_eq!(failed["error"], "run was not started within 1m0s");
    })
    .await;
}

/// P2: however many schedulers ask at once, on whatever replicas, it is dispatched once.
#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_dispatch_it_once() {
    with(async |t| {
        let (server, replica) = t.replica().await;
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        for number in 0..10 {
            let run = park(&t.client, &format!("r{number}"), json!({})).await;
            let mut asking = tokio::task::JoinSet::new();
            for asked in 0..10 {
                let (client, run) = ([&t.client, &replica][asked % 2].clone(), run.clone());
                asking.spawn(async move { redispatch(&client, &run).await.ok() });
            }
            while let Some(asked) = asking.join_next().await {
                assert_eq!(asked.unwrap()["version"], 2);
            }
            worker.work_one().await;
        }
        assert_eq!(t.count("SELECT count(*) FROM event WHERE type = 'dag.run.queued'").await, 20);
        server.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_asked_of_a_parked_run_is_refused() {
    with(async |t| {
        let body = json!({"park": true, "not_before": "2100-01-01T00:00:00Z"});
        let problem = t.client.dispatch("r", body).await.problem(422, "invalid-request");
        assert_eq!(problem["errors"][0]["pointer"], "/not_before");
        let run = json!({"run_id": "none", "attempt": {"attempt_id": "00000000-0000-0000-0000-000000000000"}});
        redispatch(&t.client, &run).await.problem(404, "not-found");
        let problem = t.client.post("/v1/dags/dag/runs/r/dispatch", &json!({})).await.problem(422, "invalid-request");
        assert_eq!(problem["errors"][0]["pointer"], "/attempt_id");
        // What was never parked is as it is.
        let queued = t.client.dispatch("q", json!({})).await.ok();
        assert_eq!(redispatch(&t.client, &queued).await.ok()["version"], 1);
    })
    .await;
}
