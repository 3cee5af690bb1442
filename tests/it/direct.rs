//! Direct delivery: a run is handed to a poll that is parked at this replica right now, or refused. It never queues.

use serde_json::{Value, json};

use crate::harness::client::reason;
use crate::harness::{Client, Reply, Test, Worker, spawn, until, with};

/// A dispatch body: a run for `zone` that is handed over.
fn direct(zone: &str) -> Value {
    json!({"worker_selector": {"zone": zone}, "delivery": "direct"})
}

async fn recorded(t: &Test) -> i64 {
    t.count("SELECT (SELECT count(*) FROM run) + (SELECT count(*) FROM event) + (SELECT count(*) FROM idempotency_key)")
        .await
}

/// A poll of this worker that waits for its one task.
fn parked(worker: &Worker) -> tokio::task::JoinHandle<Value> {
    let worker = worker.clone();
    spawn(async move { worker.take().await })
}

/// Dispatches it until the poll that is about to be parked can have it; refused meanwhile.
async fn delivered(client: &Client, run_id: &str, body: Value) -> Value {
    let mut run = Value::Null;
    until("a poll can have it", async || {
        let reply: Reply = client.dispatch(run_id, body.clone()).await;
        if reply.status == 201 {
            run = reply.ok();
            return true;
        }
        let code = reply.body["code"].as_str().unwrap().to_owned();
        assert!(["no-parked-poll"].contains(&code.as_str()), "{code}");
        false
    })
    .await;
    run
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_handed_to_the_poll_that_is_parked() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let poll = parked(&worker);
        let run = delivered(&t.client, "r", direct("b")).await;
        assert_eq!(
            (&run["status"], &run["delivery"], &run["version"]),
            (&json!("queued"), &json!("direct"), &json!(1))
        );
        assert_eq!((reason(&run), &run["worker_id"]), (("False".into(), "ClaimPending".into()), &json!("w")));
        let task = poll.await.unwrap();
        assert_eq!((&task["run_id"], &task["attempt_number"], &task["fence"]), (&json!("r"), &json!(1), &json!(1)));
        assert_eq!(t.client.dispatch("r", direct("b")).await.headers["idempotent-replayed"], "true");
        worker.ack(&task).await.ok();
        worker.report(&task, "succeeded").await.ok();
        assert_eq!(t.client.event_types("r").await, ["dag.run.queued", "dag.run.running", "dag.run.succeeded"]);
    })
    .await;
}

/// Whatever it would wait: nothing of a refused one is left, its key included.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_poll_it_is_refused_and_nothing_is_recorded() {
    with(async |t| {
        let dispatch = |zone: &str| {
            let mut body = json!({"dag_name": "dag", "run_id": "r", "worker_wait_timeout_seconds": 600});
            body.as_object_mut().unwrap().extend(direct(zone).as_object().unwrap().clone());
            let request =
                t.client.request(reqwest::Method::POST, "/v1/runs").header("idempotency-key", "k").json(&body);
            t.client.send(request)
        };
        dispatch("b").await.problem(409, "no-available-worker");
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        dispatch("c").await.problem(409, "no-matching-worker");
        let problem = dispatch("b").await.problem(409, "no-parked-poll");
        assert_eq!(problem["action"], "give_up");
        assert_eq!(
            problem["detail"],
            "no poll of a worker with a free slot that matches the selector {zone: b} is parked here"
        );
        // It polls, at another replica.
        let (server, replica) = t.replica().await;
        let poll = parked(&worker.through(&replica));
        let held = delivered(&replica, "there", direct("b")).await;
        dispatch("b").await.problem(409, "no-parked-poll");
        let task = poll.await.unwrap();
        assert_eq!(task["run_id"], held["run_id"]);
        worker.ack(&task).await.ok();
        // It is busy, and polls nevertheless.
        let poll = parked(&worker);
        dispatch("b").await.problem(409, "no-parked-poll");
        assert_eq!(recorded(t).await, 3, "the run that was given, and its two events");
        worker.report(&task, "succeeded").await.ok();
        let run = {
            let mut run = Value::Null;
            until("the poll can have it", async || {
                let reply = dispatch("b").await;
                let done = reply.status == 201;
                run = reply.body;
                done
            })
            .await;
            run
        };
        assert_eq!(run["run_id"], "r");
        let task = poll.await.unwrap();
        worker.ack(&task).await.ok();
        worker.report(&task, "succeeded").await.ok();
        server.stop().await;
    })
    .await;
}

/// What became of the session elsewhere is seen by the statement: then nothing is recorded either.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_has_changed_elsewhere_is_given_nothing() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        // Matches, and does not poll.
        Worker::register(&t.client, "other", json!({"zone": "b"})).await;
        let poll = spawn({
            let worker = worker.clone();
            async move { worker.poll_reply(20.0).await }
        });
        // Somebody has its session locked, so that it is passed over, and nobody at this replica knows.
        until("it is parked", async || t.client.get("/v1/workers/w").await.ok()["state"] == "healthy").await;
        let mut tx = t.pool.begin().await.unwrap();
        sqlx::query("SELECT FROM worker_session WHERE worker_id = 'w' FOR UPDATE").execute(&mut *tx).await.unwrap();
        for _ in 0..20 {
            t.client.dispatch("r", direct("b")).await.problem(409, "no-parked-poll");
        }
        assert_eq!(recorded(t).await, 0);
        tx.rollback().await.unwrap();
        delivered(&t.client, "r", direct("b")).await;
        let task = poll.await.unwrap().ok()["tasks"][0].clone();
        worker.ack(&task).await.ok();
        worker.report(&task, "succeeded").await.ok();
    })
    .await;
}

/// Not acknowledged, or given back, it fails: nobody else is given it.
#[tokio::test(flavor = "multi_thread")]
async fn what_its_worker_does_not_take_fails() {
    with(async |t| {
        t.stop_clock().await;
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        for how in ["lapsed", "released", "left"] {
            let worker = Worker::register(&t.client, how, json!({"zone": how})).await;
            let poll = parked(&worker);
            delivered(&t.client, how, direct(how)).await;
            let task = poll.await.unwrap();
            match how {
                "lapsed" => t.tick(16).await,
                "released" => {
                    for _ in 0..2 {
                        let released = worker.say(&task, "release", json!({"reason": "not mine"})).await.ok();
                        assert_eq!(released["status"], "failed");
                    }
                }
                _ => _ = worker.leave().await.ok(),
            }
            let failed = t.client.finished(how).await;
            assert_eq!(
                (&failed["status"], &failed["failure"]["reason"]),
                (&json!("failed"), &json!("delivery_failed"))
            );
            assert_eq!(failed["failure"]["worker_id"], how);
            let cause =
                if how == "released" { "released it: not mine" } else { "did not take the run that was handed to it" };
            assert_eq!(failed["error"], format!("worker {how} {cause}"));
            assert_eq!(t.client.event_types(how).await, ["dag.run.queued", "dag.run.failed"]);
            worker.ack(&task).await.problem(409, "run-finished");
        }
        assert_eq!(t.count("SELECT count(*) FROM task").await, 0);
        assert!(worker.poll(0.0).await.is_empty());
    })
    .await;
}

/// Once it was acknowledged it is a run as any other: what follows it waits for its worker.
#[tokio::test(flavor = "multi_thread")]
async fn the_attempt_after_it_queues() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let poll = parked(&worker);
        let mut body = direct("b");
        body["max_attempts"] = json!(2);
        delivered(&t.client, "r", body).await;
        let task = poll.await.unwrap();
        worker.ack(&task).await.ok();
        worker.leave().await.ok();
        let queued = t.client.run("r").await;
        assert_eq!((&queued["status"], &queued["attempt"]["number"]), (&json!("queued"), &json!(2)));
        assert_eq!((queued.get("delivery"), reason(&queued).1), (None, "NoAvailableWorker".into()));
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        assert_eq!(worker.work_one().await["attempt_number"], 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_asked_of_it_is_refused() {
    with(async |t| {
        for (body, pointer) in [
            (json!({"delivery": "direct", "park": true}), "/delivery"),
            (json!({"delivery": "direct", "not_before": "2100-01-01T00:00:00Z"}), "/not_before"),
            (json!({"delivery": "soon"}), "/delivery"),
        ] {
            let problem = t.client.dispatch("r", body).await.problem(422, "invalid-request");
            assert_eq!(problem["errors"][0]["pointer"], pointer);
        }
        let queued = t.client.dispatch("r", json!({"delivery": "queue"})).await.ok();
        assert_eq!((queued.get("delivery"), &queued["status"]), (None, &json!("queued")));
    })
    .await;
}
