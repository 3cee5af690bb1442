//! Many workers at once, and what goes wrong among them: each task is claimed once and none is lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Client, Test, Worker, settings, spawn, until, with, with_settings};

async fn dispatch(t: &Test, count: usize) {
    let mut dispatches = tokio::task::JoinSet::new();
    for n in 0..count {
        let client = t.client.clone();
        dispatches.spawn(async move { drop(client.dispatch(&n.to_string(), json!({})).await.ok()) });
    }
    dispatches.join_all().await;
}

async fn all_succeeded(t: &Test, count: usize) {
    let succeeded = "SELECT count(*) FROM run WHERE status = 'succeeded'";
    let count = i64::try_from(count).unwrap();
    until("all have succeeded", async || t.count(succeeded).await == count).await;
    let started = "SELECT count(*) FROM event WHERE type = 'dag.run.running'";
    assert_eq!(t.count(started).await, count, "each started exactly once");
    assert_eq!(t.count("SELECT count(*) FROM task").await, 0);
    assert_eq!(t.count("SELECT count(*) FROM attempt WHERE number > 1").await, 0);
}

/// P3: two replicas, twenty workers, two hundred tasks: each is claimed by one poll, once.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_workers_on_two_replicas_one_has_each_task() {
    with(async |t| {
        let (server, client) = t.replica().await;
        dispatch(t, 200).await;
        let done = Arc::new(AtomicUsize::new(0));
        let workers: Vec<_> = (0..20)
            .map(|n| {
                let client = if n % 2 == 0 { t.client.clone() } else { client.clone() };
                let done = Arc::clone(&done);
                spawn(async move {
                    let worker = Worker::register_with(&client, &format!("w{n}"), json!({"slots": 3})).await;
                    let mut given: Vec<Value> = Vec::new();
                    while done.load(Ordering::Relaxed) < 200 {
                        let answer = worker.poll_with(json!({"max_tasks": 3, "wait_seconds": 0.2})).await.ok();
                        for task in answer["tasks"].as_array().unwrap() {
                            worker.ack(task).await.ok();
                            worker.report(task, "succeeded").await.ok();
                            done.fetch_add(1, Ordering::Relaxed);
                            given.push(task.clone());
                        }
                    }
                    given
                })
            })
            .collect();
        let mut times: HashMap<String, usize> = HashMap::new();
        for worker in workers {
            for task in worker.await.unwrap() {
                assert_eq!(task["fence"], 1, "claimed once");
                *times.entry(task["run_id"].to_string()).or_default() += 1;
            }
        }
        assert_eq!((times.len(), times.values().max()), (200, Some(&1)));
        all_succeeded(t, 200).await;
        server.stop().await;
    })
    .await;
}

/// A worker that polls, acknowledges and reports without a pause until it is told to stop; what goes wrong on the way
/// is tried again, as every worker does.
async fn persist(client: Client, name: String, stop: Arc<AtomicBool>) {
    let mut session = None;
    while !stop.load(Ordering::Relaxed) {
        let Some(worker) = session.clone() else {
            let put = client.request(reqwest::Method::PUT, &format!("/v1/workers/{name}")).json(&json!({"slots": 2}));
            if let Ok(reply) = client.try_send(put).await
                && reply.status == 200
            {
                let session_id = reply.body["session_id"].as_str().unwrap().to_owned();
                session = Some(Worker { client: client.clone(), worker_id: name.clone(), session_id });
            }
            continue;
        };
        let reply = worker.poll_with(json!({"max_tasks": 2, "wait_seconds": 0.3})).await;
        match reply.body["action"].as_str() {
            Some("register") => session = None,
            Some(_) | None if reply.status != 200 => assert!(reply.status >= 500, "{reply:#?}"),
            _ => {
                for task in reply.body["tasks"].as_array().unwrap() {
                    if insist(&worker, task, "ack", json!({})).await {
                        assert!(
                            insist(&worker, task, "report", json!({"status": "succeeded"})).await,
                            "it holds a lease"
                        );
                    }
                }
            }
        }
    }
}

/// Says it until it is answered; whether it was taken.
async fn insist(worker: &Worker, task: &Value, verb: &str, rest: Value) -> bool {
    loop {
        let reply = worker.say(task, verb, rest.clone()).await;
        match reply.status {
            200 => return true,
            409 => {
                assert_eq!(reply.body["action"], "stop_attempt");
                return false;
            }
            503 => assert_eq!(reply.body["action"], "retry"),
            other => panic!("{verb} was answered {other}: {reply:#?}"),
        }
    }
}

/// B03: workers stop and come back under their names while their polls are open. Each task is acknowledged once.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_survive_workers_that_restart_with_their_polls_open() {
    with(async |t| {
        let stop = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = (0..6)
            .map(|n| {
                let (client, stop) = (t.client.clone(), Arc::clone(&stop));
                spawn(async move {
                    let mut life = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        let worker = Worker::register_with(&client, &format!("w{n}"), json!({"slots": 2})).await;
                        for polls in 0..2 {
                            // The second poll of a life is cut at some moment, and the process starts anew.
                            life = life.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(n + 1);
                            let patience = if polls == 1 { Duration::from_micros(life >> 48) } else { Duration::MAX };
                            let poll = worker.poll_with(json!({"max_tasks": 2, "wait_seconds": 0.1}));
                            let Ok(answer) = tokio::time::timeout(patience, poll).await else { break };
                            for task in answer.ok()["tasks"].as_array().unwrap() {
                                worker.ack(task).await.ok();
                                worker.report(task, "succeeded").await.ok();
                            }
                        }
                    }
                })
            })
            .collect();
        dispatch(t, 100).await;
        all_succeeded(t, 100).await;
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.await.unwrap();
        }
    })
    .await;
}

/// B07: the service's connections to its database are ended at random moments while workers drain the queue.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_survive_the_end_of_every_connection_to_the_database() {
    let mut config = settings();
    // A claim whose commit was cut off comes back when it lapses.
    config.coordinator.ack_timeout = Duration::from_secs(1);
    with_settings(config, async |t| {
        dispatch(t, 50).await;
        let stop = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> =
            (0..4).map(|n| spawn(persist(t.client.clone(), format!("w{n}"), Arc::clone(&stop)))).collect();
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE datname = current_database() AND application_name = 'roadstead' AND random() < 0.5";
        let mut killed = 0;
        for _ in 0..12 {
            killed += t.count(kill).await;
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        assert!(killed > 10, "only {killed} connections were ended");
        all_succeeded(t, 50).await;
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.await.unwrap();
        }
        let used = "SELECT (SELECT count(*) FROM attempt WHERE status = 'running') + (SELECT count(*) FROM task)";
        assert_eq!(t.count(used).await, 0, "no slot is left in use");
    })
    .await;
}
