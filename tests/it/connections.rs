//! Connections, on both sides: clients that go away in the middle, polls that wait in great number, and the pool that
//! must stay whole through it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::client::reason;
use crate::harness::{Client, Dice, Raw, Test, Worker, settings, until, with, with_settings};

/// Sessions that are in a transaction and do nothing.
const IDLE_IN_TRANSACTION: &str = "SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'";

/// Locks that somebody else has and that keep others from writing.
const LOCKS: &str = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
     WHERE datname = current_database() AND pid <> pg_backend_pid() AND mode <> 'AccessShareLock'";

/// What the service holds of the pool's connections.
const CONNECTIONS: &str = "SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND application_name = 'roadstead'";

fn poll_path(worker: &Worker) -> String {
    format!("/v1/workers/{}/poll", worker.worker_id)
}

/// Fails the test when this takes as long as a request that finds no connection, which is 2 s. In the field it is
/// milliseconds; here all tests share the machine.
async fn at_once<T>(what: &str, call: impl Future<Output = T>) -> T {
    let asked = Instant::now();
    let done = call.await;
    assert!(asked.elapsed() < Duration::from_millis(1_900), "{what} took {:?}", asked.elapsed());
    done
}

/// Everything that people and workers do, each at once.
async fn ordinary_traffic(t: &Test, zone: &str) {
    let client = &t.client;
    let selector = json!({"worker_selector": {"zone": zone}});
    at_once("health", async { assert_eq!(client.get("/readyz").await.status, 200) }).await;
    let worker = at_once("register", Worker::register(client, &format!("w-{zone}"), json!({"zone": zone}))).await;
    let run_id = format!("r-{zone}");
    at_once("dispatch", client.dispatch(&run_id, selector.clone())).await.ok();
    let task = at_once("poll", worker.poll(10.0)).await.remove(0);
    at_once("ack", worker.ack(&task)).await.ok();
    at_once("renew", worker.say(&task, "renew", json!({}))).await.ok();
    at_once("heartbeat", worker.beat(json!({}))).await.ok();
    at_once("report", worker.report(&task, "succeeded")).await.ok();
    let other = format!("{run_id}-cancelled");
    at_once("dispatch", client.dispatch(&other, selector)).await.ok();
    at_once("cancel", client.cancel(&other)).await.ok();
    at_once("read", client.run(&other)).await;
    at_once("list", client.get("/v1/runs?limit=10")).await.ok();
}

/// B98: requests that are dropped at any moment leave no connection in a transaction and no row locked.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_aborted_requests_leave_the_pool_whole() {
    with(async |t| {
        let mut workers = Vec::new();
        for number in 0..20 {
            workers.push(Worker::register(&t.client, &format!("w{number}"), json!({"zone": "b"})).await);
        }
        let mut dice = Dice::new(98);
        let mut clients = JoinSet::new();
        for number in 0..2_000 {
            let (patience, politely) = (Duration::from_micros(dice.below(50_000)), dice.below(2) == 0);
            let worker = workers[usize::try_from(dice.below(20)).unwrap()].clone();
            let client = t.client.clone();
            clients.spawn(async move {
                let sent = if number % 3 == 0 {
                    let body =
                        json!({"dag_name": "dag", "run_id": format!("r{number}"), "worker_selector": {"zone": "b"}});
                    Raw::send(&client, "/v1/runs", &body, 0).await
                } else {
                    let body = json!({"session_id": worker.session_id, "wait_seconds": 5});
                    Raw::send(&client, &poll_path(&worker), &body, 0).await
                };
                sent.vanish_after(patience, politely).await;
            });
            if clients.len() >= 64 {
                clients.join_next().await.unwrap().unwrap();
            }
        }
        while let Some(done) = clients.join_next().await {
            done.unwrap();
        }
        // What those who have gone had asked for is still being done, or given up, for a moment.
        let quiet = Instant::now();
        until("it is ready", async || t.client.get("/readyz").await.status == 200).await;
        until("nobody is idle in a transaction", async || t.count(IDLE_IN_TRANSACTION).await == 0).await;
        until("nothing is locked", async || t.count(LOCKS).await == 0).await;
        assert!(quiet.elapsed() < Duration::from_secs(5), "it took {:?} to come to rest", quiet.elapsed());
        println!("at rest after {:?}", quiet.elapsed());
        assert!(t.count(CONNECTIONS).await <= 16);
        ordinary_traffic(t, "a").await;

        // What was handed to clients that had gone comes back, and all that was dispatched can be had.
        t.advance(t.config.coordinator.ack_timeout * 2).await;
        let queued = "SELECT count(*) FROM task WHERE claim_until IS NULL";
        let all = "SELECT count(*) FROM task";
        until("every claim has come back", async || t.count(queued).await == t.count(all).await).await;
        assert!(t.count(all).await > 100, "dispatches were recorded although nobody waited for the answer");
        let fast = Worker::register_with(&t.client, "fast", json!({"labels": {"zone": "b"}, "slots": 10_000})).await;
        let mut taken = 0;
        while t.count(queued).await > 0 {
            let answer = fast.poll_with(json!({"max_tasks": 100, "wait_seconds": 1})).await.ok();
            taken += answer["tasks"].as_array().unwrap().len();
        }
        assert_eq!(i64::try_from(taken).unwrap(), t.count(all).await);
    })
    .await;
}

/// Moments between the arrival of a request and its answer, and beyond.
fn moments() -> impl Iterator<Item = (usize, Duration)> {
    (0..40).map(|number| (number, Duration::from_micros(u64::try_from(number).unwrap() * 400)))
}

async fn cut(client: &Client, path: &str, body: &Value, patience: Duration) {
    Raw::send(client, path, body, 0).await.vanish_after(patience, false).await;
}

/// B99: a client that is cut off in the middle of a dispatch has made one run or none, and its repeat makes it one.
#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_that_is_cut_off_is_made_once() {
    with(async |t| {
        for (number, patience) in moments() {
            let run_id = format!("r{number}");
            let body = json!({"dag_name": "dag", "run_id": run_id, "params": {"n": number}});
            cut(&t.client, "/v1/runs", &body, patience).await;
            let run = t.client.post("/v1/runs", &body).await.ok();
            assert_eq!((&run["run_id"], &run["version"]), (&json!(run_id), &json!(1)));
        }
        assert_eq!(t.count("SELECT count(*) FROM run").await, 40);
        // Half a request is none.
        let body = json!({"dag_name": "dag", "run_id": "half"});
        Raw::send(&t.client, "/v1/runs", &body, 1).await.vanish_after(Duration::from_millis(20), true).await;
        t.client.get("/v1/dags/dag/runs/half").await.problem(404, "not-found");
    })
    .await;
}

/// B99: one that has a key and no name of its own as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_that_is_cut_off_is_made_once_by_its_key() {
    with(async |t| {
        let dispatch = async |key: &str| {
            let body = json!({"dag_name": "dag", "params": {"key": key}, "labels": {"a": "b"}});
            let request = t.client.request(reqwest::Method::POST, "/v1/runs").header("idempotency-key", key);
            t.client.send(request.json(&body)).await.ok()
        };
        for (number, patience) in moments() {
            let key = format!("k{number}");
            let cut = tokio::time::timeout(patience, dispatch(&key)).await;
            let run = dispatch(&key).await;
            assert_eq!(run["version"], 1);
            assert!(cut.is_err() || cut.unwrap()["run_id"] == run["run_id"]);
        }
        // Together or not at all: that there is one of each, the autopsy sees.
        for table in ["SELECT count(*) FROM run", "SELECT count(*) FROM idempotency_key", "SELECT count(*) FROM task"] {
            assert_eq!(t.count(table).await, 40, "{table}");
        }
    })
    .await;
}

/// B99: the same for the words of a worker and for a cancel.
#[tokio::test(flavor = "multi_thread")]
async fn an_ack_a_report_or_a_cancel_that_is_cut_off_counts_once() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"labels": {"zone": "b"}, "slots": 100})).await;
        for (number, patience) in moments() {
            let run_id = format!("r{number}");
            t.client.dispatch(&run_id, json!({"worker_selector": {"zone": "b"}})).await.ok();
            let task = worker.take().await;
            let attempt = format!("/v1/attempts/{}", task["attempt_id"].as_str().unwrap());
            let token = json!({"token": task["token"]});
            cut(&t.client, &format!("{attempt}/ack"), &token, patience).await;
            worker.ack(&task).await.ok();
            let report = json!({"token": task["token"], "status": "succeeded", "output": number});
            cut(&t.client, &format!("{attempt}/report"), &report, patience).await;
            let standing = worker.say(&task, "report", report).await.ok();
            assert_eq!((&standing["status"], &standing["version"]), (&json!("succeeded"), &json!(3)));
            assert_eq!(t.client.run(&run_id).await["output"], number);

            let run_id = format!("c{number}");
            t.client.dispatch(&run_id, json!({"worker_selector": {"zone": "c"}})).await.ok();
            cut(&t.client, &format!("/v1/dags/dag/runs/{run_id}/cancel"), &json!({}), patience).await;
            let run = t.client.cancel(&run_id).await.ok();
            assert_eq!((&run["status"], &run["version"]), (&json!("aborted"), &json!(2)));
        }
    })
    .await;
}

/// Parks a poll of this worker and goes away.
async fn park_and_vanish(t: &Test, worker: &Worker, politely: bool) {
    let seen = json!({"session_id": worker.session_id, "wait_seconds": 0});
    // Answered at once: whatever is parked afterwards has been looked for by the time the next one is.
    t.client.post(&poll_path(worker), &seen).await.ok();
    let body = json!({"session_id": worker.session_id, "wait_seconds": 30});
    let parked = Raw::send(&t.client, &poll_path(worker), &body, 0).await;
    parked.vanish_after(Duration::from_millis(100), politely).await;
    // The service is told by its system, and there is nothing to see of it from outside.
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// B01, B03: a poll whose client has gone is given nothing; the fence tells that nobody had the task before.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_vanishes_while_parked_costs_the_next_poll_nothing() {
    with(async |t| {
        let gone = Worker::register(&t.client, "gone", json!({"zone": "b"})).await;
        let next = Worker::register(&t.client, "next", json!({"zone": "b"})).await;
        let mut number = 0;
        for worker in [&next, &gone] {
            for (politely, parked_before) in [(true, true), (false, true), (true, false), (false, false)] {
                number += 1;
                let run_id = format!("r{number}");
                let selector = json!({"worker_selector": {"zone": "b"}});
                park_and_vanish(t, &gone, politely).await;
                if !parked_before {
                    t.client.dispatch(&run_id, selector.clone()).await.ok();
                    assert_ne!(reason(&t.client.run(&run_id).await).1, "ClaimPending");
                }
                let mut waiting = JoinSet::new();
                let other = worker.clone();
                waiting.spawn(async move { other.take().await });
                if parked_before {
                    t.client.dispatch(&run_id, selector).await.ok();
                }
                let task = at_once("the hand-over", async { waiting.join_next().await.unwrap().unwrap() }).await;
                let given = (&task["run_id"], &task["fence"], &task["attempt_number"]);
                assert_eq!(given, (&json!(run_id), &json!(1), &json!(1)));
                worker.ack(&task).await.ok();
                worker.report(&task, "succeeded").await.ok();
            }
        }
    })
    .await;
}

/// B101: parked polls hold no connection of the pool, however many there are.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_parked_polls_slow_nobody_down() {
    let mut config = settings();
    config.database.max_connections = 10;
    with_settings(config, async |t| {
        let mut polls = JoinSet::new();
        for number in 0..100 {
            let labels = json!({"zone": format!("z{}", number % 10)});
            let worker = Worker::register_with(&t.client, &format!("w{number}"), json!({"labels": labels})).await;
            for _ in 0..10 {
                let worker = worker.clone();
                polls.spawn(async move { worker.poll_reply(50.0).await });
            }
        }
        let polled = "SELECT count(*) FROM worker_session WHERE last_seen > started_at";
        until("everybody has polled", async || t.count(polled).await == 100).await;
        for zone in ["a", "b", "c", "d", "e"] {
            ordinary_traffic(t, zone).await;
        }
        assert!(t.count(CONNECTIONS).await <= 10);
        // One of the thousand gets what it waits for, at once.
        t.client.dispatch("r", json!({"worker_selector": {"zone": "z7"}})).await.ok();
        let reply = at_once("the hand-over", async { polls.join_next().await.unwrap().unwrap() }).await;
        assert_eq!(reply.ok()["tasks"][0]["run_id"], "r");
        assert_eq!(polls.len(), 999, "nobody was answered for nothing");
        polls.abort_all();
    })
    .await;
}
