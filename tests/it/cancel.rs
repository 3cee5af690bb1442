//! Cancel: against everything it can meet on its way.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::{Test, Worker, spawn, until, with};

/// B31: a cancel and a report of success at the same moment, many times. What came first is what counts, and the
/// answers agree with the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_and_a_report_agree_on_the_end() {
    const RACES: usize = 500;
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 20})).await;
        let mut races = Races::default();
        while races.cancelled + races.reported < RACES {
            races.run(t, &worker, 20).await;
        }
        assert!(races.cancelled > RACES / 20 && races.reported > RACES / 20, "no race: {races:?}");
    })
    .await;
}

/// How the races between a cancel and a report went, and how much later the cancel is sent: whoever wins too often is
/// held back, so that they stay races on any machine.
#[derive(Debug, Default)]
struct Races {
    cancelled: usize,
    reported: usize,
    lead_micros: i64,
}

impl Races {
    async fn run(&mut self, t: &Test, worker: &Worker, count: usize) {
        let mut dispatches = JoinSet::new();
        let first = self.cancelled + self.reported;
        for n in first..first + count {
            let client = t.client.clone();
            dispatches.spawn(async move { client.dispatch(&n.to_string(), json!({})).await.ok() });
        }
        dispatches.join_all().await;
        let mut racing = JoinSet::new();
        let mut tasks = Vec::new();
        while tasks.len() < count {
            let answer = worker.poll_with(json!({"max_tasks": count, "wait_seconds": 5})).await.ok();
            tasks.extend(answer["tasks"].as_array().unwrap().clone());
        }
        for task in tasks {
            let (worker, lead) = (worker.clone(), Duration::from_micros(self.lead_micros.unsigned_abs()));
            let (cancel_waits, report_waits) =
                if self.lead_micros > 0 { (lead, Duration::ZERO) } else { (Duration::ZERO, lead) };
            racing.spawn(async move {
                worker.ack(&task).await.ok();
                let run_id = task["run_id"].as_str().unwrap().to_owned();
                let cancel = async {
                    tokio::time::sleep(cancel_waits).await;
                    worker.client.cancel(&run_id).await.ok()
                };
                let report = async {
                    tokio::time::sleep(report_waits).await;
                    worker.report(&task, "succeeded").await.ok()
                };
                let (cancel, report) = tokio::join!(cancel, report);
                (run_id, cancel, report)
            });
        }
        for (run_id, cancel, report) in racing.join_all().await {
            self.judge(&t.client.run(&run_id).await, &cancel, &report);
        }
    }

    fn judge(&mut self, run: &Value, cancel: &Value, report: &Value) {
        assert_eq!(report["status"], run["status"], "what the worker was told");
        if run["status"] == "aborted" {
            self.cancelled += 1;
            self.lead_micros += 300;
            // The cancel was told that it came in time, or of the end that it made.
            assert!(["running", "aborted"].contains(&cancel["status"].as_str().unwrap()), "{cancel:#}");
            assert!(cancel["cancel_requested_at"].is_string());
        } else {
            self.reported += 1;
            self.lead_micros -= 300;
            assert_eq!((&run["status"], &cancel["status"]), (&json!("succeeded"), &json!("succeeded")));
            assert!(run.get("cancel_requested_at").is_none());
        }
    }
}

/// B33: between the poll and the ack. The ack is refused, and there is no lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_before_the_ack_refuses_the_ack() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        t.client.dispatch("r", json!({})).await.ok();
        let task = worker.take().await;
        assert_eq!(t.client.cancel("r").await.ok()["status"], "aborted");
        assert_eq!(worker.ack(&task).await.problem(409, "run-finished")["action"], "stop_attempt");
        assert_eq!(worker.report(&task, "succeeded").await.problem(409, "run-finished")["action"], "stop_attempt");
        let run = t.client.run("r").await;
        assert!(run.get("started_at").is_none() && run.get("worker_id").is_none());
        let view = t.client.get("/v1/workers/w").await.ok();
        assert_eq!((&view["claimed"], &view["running"]), (&json!(0), &json!(0)), "its slot is free");
        assert_eq!(t.client.event_types("r").await, ["dag.run.queued", "dag.run.aborted"]);
    })
    .await;
}

/// P6: acks and cancels at the same moment: either the run never ran, or the cancel reaches its worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_and_an_ack_agree_as_well() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        for n in 0..60 {
            let run_id = n.to_string();
            t.client.dispatch(&run_id, json!({})).await.ok();
            let task = worker.take().await;
            let (ack, cancel) = tokio::join!(worker.ack(&task), t.client.cancel(&run_id));
            let cancel = cancel.ok();
            if ack.status == 200 {
                assert_eq!(cancel["status"], "running");
                assert_eq!(worker.say(&task, "renew", json!({})).await.ok()["cancel_requested"], true);
                assert_eq!(worker.report(&task, "aborted").await.ok()["status"], "aborted");
            } else {
                ack.problem(409, "run-finished");
                assert_eq!(cancel["status"], "aborted");
                assert!(!t.client.event_types(&run_id).await.contains(&"dag.run.running".to_owned()));
            }
        }
    })
    .await;
}

/// B34: the end is the cancel's own transaction: one event, no condition left, nothing for a worker that comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_held_run_ends_with_its_cancel() {
    with(async |t| {
        t.client.dispatch("r", json!({"worker_selector": {"zone": "b"}})).await.ok();
        let path = "/v1/dags/dag/runs/r/cancel";
        let aborted = t.client.post(path, &json!({"reason": "no longer needed"})).await.ok();
        assert_eq!((&aborted["status"], &aborted["version"]), (&json!("aborted"), &json!(2)));
        assert_eq!(aborted["cancel_reason"], "no longer needed");
        assert_eq!(t.client.run("r").await, aborted);
        for gone in ["conditions", "hold", "started_at", "failure", "error"] {
            assert!(aborted.get(gone).is_none(), "{gone} is left");
        }
        let event = &t.client.events("r").await[1];
        assert_eq!((&event["type"], &event["data"]["run"]["status"]), (&json!("dag.run.aborted"), &json!("aborted")));
        assert!(event["data"]["run"].get("conditions").is_none());
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        assert!(worker.poll(0.0).await.is_empty());
        assert_eq!(t.client.post(path, &json!({"reason": "again"})).await.ok(), aborted);
    })
    .await;
}

/// B35: no poll answers with a cancelled task once the cancel has been answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_is_offered_to_nobody() {
    with(async |t| {
        let workers: Vec<_> = (0..5)
            .map(|n| {
                let client = t.client.clone();
                spawn(async move {
                    let worker = Worker::register_with(&client, &format!("w{n}"), json!({"slots": 100})).await;
                    let mut given = Vec::new();
                    loop {
                        let asked = Instant::now();
                        for task in worker.poll(0.2).await {
                            let run_id = task["run_id"].as_str().unwrap().to_owned();
                            if run_id == "end" {
                                worker.ack(&task).await.ok();
                                worker.report(&task, "succeeded").await.ok();
                                return given;
                            }
                            given.push((run_id, asked));
                        }
                    }
                })
            })
            .collect();
        let mut answered = std::collections::HashMap::new();
        for n in 0..60 {
            let run_id = n.to_string();
            t.client.dispatch(&run_id, json!({})).await.ok();
            t.client.cancel(&run_id).await.ok();
            answered.insert(run_id, Instant::now());
        }
        // One for each, of the same name: whoever had it stops.
        for n in 0..5 {
            let body = json!({"dag_name": format!("end-{n}"), "run_id": "end"});
            t.client.post("/v1/runs", &body).await.ok();
        }
        for worker in workers {
            for (run_id, asked) in worker.await.unwrap() {
                assert!(asked < answered[&run_id], "{run_id} was given to a poll that came after its cancel");
            }
        }
        assert_eq!(t.count("SELECT count(*) FROM run WHERE status = 'aborted'").await, 60);
        assert_eq!(t.count("SELECT count(*) FROM task").await, 0);
    })
    .await;
}

/// B41: the worker of a running run is dead. The cancel ends it when the lease lapses, with a handful of events.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_of_a_dead_workers_run_ends_with_its_lease() {
    with(async |t| {
        t.stop_clock().await;
        let worker = Worker::register(&t.client, "dead", json!({})).await;
        t.client.dispatch("r", json!({})).await.ok();
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        let asked = t.client.cancel("r").await.ok();
        assert_eq!(asked["status"], "running");
        assert!(asked["cancel_requested_at"].is_string());
        assert_eq!(t.client.cancel("r").await.ok()["version"], asked["version"], "asked for once");
        t.advance_forgetting(Duration::from_secs(58), Some("dead")).await;
        t.swept().await;
        assert_eq!(t.client.run("r").await["status"], "running");
        t.advance_forgetting(Duration::from_secs(3), Some("dead")).await;
        let aborted = t.client.finished("r").await;
        assert_eq!((&aborted["status"], &aborted["version"]), (&json!("aborted"), &json!(4)));
        let kinds = ["dag.run.queued", "dag.run.running", "dag.run.updated", "dag.run.aborted"];
        assert_eq!(t.client.event_types("r").await, kinds);
        worker.report(&task, "succeeded").await.problem(409, "lease-lost");
    })
    .await;
}

/// Rule 6: the request is stored and reaches the worker by whatever it asks next.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_told_by_the_answer_to_every_word() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 2})).await;
        t.client.dispatch("r", json!({})).await.ok();
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        let progress = json!({"status": "running", "progress": {"step": 1}});
        assert_eq!(worker.say(&task, "renew", json!({})).await.ok()["cancel_requested"], false);
        assert_eq!(worker.say(&task, "report", progress.clone()).await.ok()["cancel_requested"], false);
        t.client.cancel("r").await.ok();
        let id = json!([task["attempt_id"]]);
        assert_eq!(worker.say(&task, "renew", json!({})).await.ok()["cancel_requested"], true);
        assert_eq!(worker.say(&task, "report", progress).await.ok()["cancel_requested"], true);
        assert_eq!(worker.beat(json!({})).await.ok()["cancel"], id);
        let asked = Instant::now();
        let poll = worker.poll_reply(20.0).await.ok();
        assert_eq!(poll["cancel"], id);
        assert!(asked.elapsed() < Duration::from_secs(1), "a poll does not sit on it");
        assert!(poll["poll_after_seconds"].as_f64().unwrap() >= 1.0, "so that nobody spins");
        // Whatever its worker says at the end: the cancel came first.
        assert_eq!(worker.report(&task, "failed").await.ok()["status"], "aborted");
    })
    .await;
}

/// Rule 6: a worker that takes its time over a cancel is given tasks for its other slots meanwhile, and reminded.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_under_way_does_not_starve_the_other_slots() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 2})).await;
        t.client.dispatch("slow", json!({})).await.ok();
        let slow = worker.take().await;
        worker.ack(&slow).await.ok();
        t.client.cancel("slow").await.ok();
        t.client.dispatch("next", json!({})).await.ok();
        let answer = worker.poll_with(json!({"wait_seconds": 5, "poll_id": "p"})).await.ok();
        let tasks = answer["tasks"].as_array().unwrap();
        assert_eq!(tasks.len(), 1);
        assert_eq!(answer["cancel"], json!([slow["attempt_id"]]));
        let again = worker.poll_with(json!({"wait_seconds": 5, "poll_id": "p"})).await.ok();
        assert_eq!(again["cancel"], json!([slow["attempt_id"]]), "also with what is given again");
        let next: Value = again["tasks"][0].clone();
        worker.ack(&next).await.ok();
        worker.report(&next, "succeeded").await.ok();
        worker.report(&slow, "aborted").await.ok();
        until("both have ended", async || t.count("SELECT count(*) FROM run WHERE finished_at IS NULL").await == 0)
            .await;
    })
    .await;
}

/// Rule 6: by force the attempt ends now, and its token with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_by_force_ends_the_attempt_and_its_token() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        t.client.dispatch("r", json!({})).await.ok();
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        t.client.cancel("r").await.ok();
        let forced = t.client.post("/v1/dags/dag/runs/r/cancel", &json!({"force": true})).await.ok();
        assert_eq!(forced["status"], "aborted");
        for (verb, rest) in [("renew", json!({})), ("report", json!({"status": "aborted"}))] {
            assert_eq!(worker.say(&task, verb, rest).await.problem(409, "run-finished")["action"], "stop_attempt");
        }
        let named = json!({"attempts": [{"attempt_id": task["attempt_id"], "token": task["token"]}]});
        assert_eq!(worker.beat(named).await.ok()["lost"], json!([task["attempt_id"]]));
        t.client.dispatch("next", json!({})).await.ok();
        assert_eq!(worker.work_one().await["run_id"], "next", "its slot is free");
    })
    .await;
}

/// A worker with a free slot hears of a cancel at once: its parked poll brings it.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_the_parked_poll_of_the_worker_that_runs_it() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 2})).await;
        t.client.dispatch("r", json!({})).await.ok();
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        let parked = tokio::spawn({
            let worker = worker.clone();
            async move { (worker.poll_reply(20.0).await.ok(), Instant::now()) }
        });
        t.client.cancel("r").await.ok();
        let cancelled = Instant::now();
        let (answer, at) = parked.await.unwrap();
        assert_eq!(answer["cancel"], json!([task["attempt_id"]]));
        assert!(answer["poll_after_seconds"].as_f64().unwrap() >= 1.0);
        assert!(at.saturating_duration_since(cancelled) < Duration::from_secs(2));
        worker.report(&task, "aborted").await.ok();
    })
    .await;
}
