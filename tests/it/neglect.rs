//! Neglect: the session lives and an attempt of it does not, since its heartbeats or renewals no longer say that it does.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Test, Worker, until, with};

/// A worker of many slots, with a run for each of these that it has acknowledged, in their order.
async fn at_work(t: &Test, run_ids: &[&str]) -> (Worker, Vec<Value>) {
    let worker = Worker::register_with(&t.client, "w", json!({"slots": 9})).await;
    let mut tasks = Vec::new();
    for run_id in run_ids {
        t.client.dispatch(run_id, json!({})).await.ok();
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        tasks.push(task);
    }
    (worker, tasks)
}

/// A heartbeat that names these and no others.
async fn beat_with(worker: &Worker, tasks: &[&Value]) -> Value {
    let name = |task: &&Value| json!({"attempt_id": task["attempt_id"], "token": task["token"]});
    worker.beat(json!({"attempts": tasks.iter().map(name).collect::<Vec<_>>()})).await.ok()
}

/// Where the runs stand after a sweep.
async fn standing(t: &Test, run_ids: &[&str]) -> Vec<String> {
    t.swept().await;
    let mut found = Vec::new();
    for run_id in run_ids {
        found.push(t.client.run(run_id).await["status"].as_str().unwrap().to_owned());
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn what_heartbeats_leave_out_is_lost_after_two_intervals() {
    with(async |t| {
        t.stop_clock().await;
        let runs = ["named", "left-out", "again"];
        let (worker, tasks) = at_work(t, &runs).await;
        // Says nothing of attempts, however often and long it is said.
        for _ in 0..5 {
            t.tick(20).await;
            worker.beat(json!({})).await.ok();
            assert_eq!(standing(t, &runs).await, ["running"; 3]);
        }
        beat_with(&worker, &[&tasks[0]]).await;
        t.tick(10).await;
        beat_with(&worker, &[&tasks[0], &tasks[2]]).await;
        t.tick(9).await;
        beat_with(&worker, &[&tasks[0]]).await;
        assert_eq!(standing(t, &runs).await, ["running"; 3], "not before its time, however many beats there were");
        t.tick(1).await;
        assert_eq!(standing(t, &runs).await, ["running", "failed", "running"], "it was named again in between");
        let lost = t.client.run("left-out").await;
        assert_eq!(lost["error"], "worker w was lost: the worker's heartbeats no longer name it");
        assert_eq!((&lost["failure"]["reason"], &lost["failure"]["worker_id"]), (&json!("lease_lost"), &json!("w")));
        t.tick(18).await;
        worker.beat(json!({})).await.ok();
        assert_eq!(standing(t, &["again"]).await, ["running"]);
        t.tick(1).await;
        assert_eq!(standing(t, &["named", "again"]).await, ["running", "failed"]);

        // Its process is told, if it is there after all.
        let told = beat_with(&worker, &[&tasks[0], &tasks[1]]).await;
        assert_eq!(told["lost"], json!([tasks[1]["attempt_id"]]));
        assert_eq!(worker.report(&tasks[1], "succeeded").await.problem(409, "lease-lost")["action"], "stop_attempt");
        worker.report(&tasks[0], "succeeded").await.ok();
    })
    .await;
}

/// An empty list says that none is running; who has attempts left is tried again.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_without_any_attempts_loses_them_all_to_their_next() {
    with(async |t| {
        t.stop_clock().await;
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 9})).await;
        t.client.dispatch("r", json!({"max_attempts": 2})).await.ok();
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        // A wrong token names nothing.
        let wrong = json!({"attempt_id": task["attempt_id"], "token": "wrong"});
        beat_with(&worker, &[&wrong]).await;
        t.tick(20).await;
        beat_with(&worker, &[]).await;
        assert_eq!(standing(t, &["r"]).await, ["queued"]);
        let next = worker.take().await;
        assert_eq!((&next["attempt_number"], &next["previous"]["status"]), (&json!(2), &json!("lost")));
        worker.ack(&next).await.ok();
        // The beat that had left the first out says nothing of the second, which was acknowledged after it.
        t.tick(15).await;
        beat_with(&worker, &[]).await;
        t.tick(15).await;
        assert_eq!(standing(t, &["r"]).await, ["running"]);
        worker.report(&next, "succeeded").await.ok();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_renewed_singly_lives_from_renewal_to_renewal() {
    with(async |t| {
        t.stop_clock().await;
        let runs = ["renewed", "reported", "given-up"];
        let (worker, tasks) = at_work(t, &runs).await;
        for task in &tasks {
            worker.say(task, "renew", json!({})).await.ok();
        }
        for _ in 0..2 {
            t.tick(29).await;
            worker.say(&tasks[0], "renew", json!({})).await.ok();
            worker.report(&tasks[1], "running").await.ok();
            // It has no list of what runs elsewhere, and what is renewed singly needs none.
            beat_with(&worker, &[]).await;
        }
        assert_eq!(standing(t, &runs).await, ["running"; 3], "58 s are no lease");
        t.tick(2).await;
        assert_eq!(standing(t, &runs).await, ["running", "running", "failed"]);
        assert_eq!(t.client.run("given-up").await["error"], "worker w was lost: it was not renewed");
        t.tick(57).await;
        worker.beat(json!({})).await.ok();
        assert_eq!(standing(t, &runs[..2]).await, ["running"; 2]);
        t.tick(1).await;
        assert_eq!(standing(t, &runs[..2]).await, ["failed"; 2]);
    })
    .await;
}

/// Heartbeats that name an attempt rule, if there were any: renewals beside them neither keep it nor lose it.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_that_name_an_attempt_rule() {
    with(async |t| {
        t.stop_clock().await;
        let runs = ["kept", "left-out"];
        let (worker, tasks) = at_work(t, &runs).await;
        for task in &tasks {
            worker.say(task, "renew", json!({})).await.ok();
        }
        beat_with(&worker, &[&tasks[0], &tasks[1]]).await;
        for _ in 0..2 {
            t.tick(50).await;
            beat_with(&worker, &[&tasks[0], &tasks[1]]).await;
            assert_eq!(standing(t, &runs).await, ["running"; 2], "no renewal is asked of it any more");
        }
        beat_with(&worker, &[&tasks[0]]).await;
        t.tick(20).await;
        worker.say(&tasks[1], "renew", json!({})).await;
        assert_eq!(standing(t, &runs).await, ["running", "failed"]);
        worker.report(&tasks[0], "succeeded").await.ok();
    })
    .await;
}

/// Rule 8: in an outage nothing is lost; what nobody cares for after it is.
#[tokio::test(flavor = "multi_thread")]
async fn neglect_is_not_judged_across_an_outage() {
    with(async |t| {
        let runs = ["left-out", "renewed"];
        let (worker, tasks) = at_work(t, &runs).await;
        worker.say(&tasks[1], "renew", json!({})).await.ok();
        beat_with(&worker, &[]).await;
        sqlx::raw_sql("UPDATE sweep_stamp SET stamped_at = stamped_at - interval '30 seconds'")
            .execute(&t.pool)
            .await
            .unwrap();
        until("the outage is on record", async || t.count("SELECT count(*) FROM outage").await == 1).await;
        t.advance(Duration::from_secs(50)).await;
        assert_eq!(standing(t, &runs).await, ["running"; 2], "the amnesty lasts for a lease");
        t.advance(Duration::from_secs(11)).await;
        assert_eq!(standing(t, &runs).await, ["failed"; 2]);
    })
    .await;
}
