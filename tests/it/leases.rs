//! Leases: a session that gives signs of life keeps what it runs, one that does not loses it, by the database's clock.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::client::reason;
use crate::harness::{Test, Worker, settings, spawn, until, with, with_settings};

/// More than a lease.
const LEASE_OVER: Duration = Duration::from_secs(61);

/// A worker that has acknowledged the run, which is dispatched for it.
async fn running(t: &Test, worker: &Worker, run_id: &str) -> Value {
    t.client.dispatch(run_id, json!({})).await.ok();
    let task = worker.take().await;
    worker.ack(&task).await.ok();
    task
}

/// B11: a worker acknowledges and dies before its first word. The run fails, naming it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lapsed_lease_fails_the_run_naming_the_worker() {
    with(async |t| {
        t.stop_clock().await;
        let dead = Worker::register(&t.client, "dead", json!({})).await;
        let task = running(t, &dead, "r").await;
        t.advance_forgetting(Duration::from_secs(58), Some("dead")).await;
        t.swept().await;
        assert_eq!(t.client.run("r").await["status"], "running", "not before its time");
        t.advance_forgetting(Duration::from_secs(3), Some("dead")).await;
        let failed = t.client.finished("r").await;
        assert_eq!(failed["error"], "worker dead was lost: its session ended");
        assert_eq!(
            (&failed["failure"]["reason"], &failed["failure"]["worker_id"]),
            (&json!("lease_lost"), &json!("dead"))
        );
        assert_eq!(t.client.get("/v1/workers/dead").await.ok()["state"], "ended");
        assert_eq!(dead.report(&task, "succeeded").await.problem(409, "lease-lost")["action"], "stop_attempt");
        assert_eq!(dead.poll_reply(0.0).await.problem(409, "unknown-session")["action"], "register");
    })
    .await;
}

/// Rule 7: until the sweep has ended it, a silent session is revived by any sign of life with the right token.
#[tokio::test(flavor = "multi_thread")]
async fn every_word_with_the_right_token_is_a_sign_of_life() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 2})).await;
        let task = running(t, &worker, "r").await;
        t.client.dispatch("unacked", json!({})).await.ok();
        for verb in ["report", "ack", "beat", "poll", "renew"] {
            t.advance_forgetting(Duration::from_secs(50), Some("")).await;
            match verb {
                "beat" => drop(worker.beat(json!({})).await.ok()),
                "poll" => drop(worker.poll(0.0).await),
                "report" => drop(worker.report(&task, "running").await.ok()),
                verb => {
                    let lease = worker.say(&task, verb, json!({})).await.ok();
                    assert_eq!(lease["lease_seconds"], 60.0);
                    let until = t.json("SELECT to_jsonb(last_seen + lease_ttl) FROM worker_session").await;
                    assert_eq!(parsed(&lease["lease_until"]), parsed(&until), "after {verb}");
                }
            }
            let silent = t.count("SELECT extract(epoch FROM roadstead_now() - last_seen)::bigint FROM worker_session");
            assert!(silent.await < 5, "{verb} is a sign of life");
        }
        worker.report(&task, "succeeded").await.ok();
        assert_eq!(t.client.run("r").await["status"], "succeeded");
    })
    .await;
}

fn parsed(time: &Value) -> chrono::DateTime<chrono::Utc> {
    time.as_str().unwrap().parse().unwrap()
}

/// A wrong token keeps nobody alive, whatever it is said with.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_may_be_as_long_as_its_worker_asks_and_ends_then() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"lease_seconds": 300})).await;
        let task = running(t, &worker, "r").await;
        assert_eq!(worker.say(&task, "renew", json!({})).await.ok()["lease_seconds"], 300.0);
        t.advance_forgetting(Duration::from_secs(290), Some("w")).await;
        t.swept().await;
        assert_eq!(t.client.run("r").await["status"], "running");
        worker
            .say(&json!({"attempt_id": task["attempt_id"], "token": "x"}), "renew", json!({}))
            .await
            .problem(409, "lease-lost");
        t.advance_forgetting(Duration::from_secs(11), Some("w")).await;
        assert_eq!(t.client.finished("r").await["failure"]["reason"], "lease_lost");
    })
    .await;
}

/// B13: the sweep has found the silent session and waits for its lock while the success is reported.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_commits_while_the_sweep_waits_stays() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        let task = running(t, &worker, "r").await;
        let mut psql = t.pool.begin().await.unwrap();
        // Keeps the session from being ended, and from nothing else.
        sqlx::query("SELECT FROM worker_session FOR KEY SHARE").execute(&mut *psql).await.unwrap();
        t.advance_forgetting(LEASE_OVER, Some("w")).await;
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                       AND wait_event_type = 'Lock' AND query LIKE '%store::session::lock %'";
        until("the sweep waits for the session", async || t.count(waiting).await == 1).await;
        worker.report(&task, "succeeded").await.ok();
        psql.rollback().await.unwrap();
        t.swept().await;
        let run = t.client.run("r").await;
        assert_eq!((&run["status"], &run["version"]), (&json!("succeeded"), &json!(3)));
        assert_eq!(t.client.get("/v1/workers/w").await.ok()["state"], "healthy", "the report was a sign of life");
    })
    .await;
}

/// B13, the other way: the run's row is locked, a report waits for it, and the sweep, which comes after, waits for
/// the report.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_waits_for_its_run_is_not_overtaken_by_the_sweep() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        let task = running(t, &worker, "r").await;
        let mut psql = t.pool.begin().await.unwrap();
        sqlx::query("SELECT FROM run FOR UPDATE").execute(&mut *psql).await.unwrap();
        let report = spawn({
            let (worker, task) = (worker.clone(), task.clone());
            async move { worker.report(&task, "succeeded").await }
        });
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                       AND wait_event_type = 'Lock' AND query LIKE '%store::lock::run %'";
        until("the report waits for its run", async || t.count(waiting).await == 1).await;
        t.advance_forgetting(LEASE_OVER, Some("w")).await;
        let sweeping = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                        AND wait_event_type = 'Lock' AND query LIKE '%store::session::lock %'";
        until("the sweep waits for the session", async || t.count(sweeping).await == 1).await;
        psql.rollback().await.unwrap();
        assert_eq!(report.await.unwrap().ok()["status"], "succeeded");
        t.swept().await;
        assert_eq!(t.client.event_types("r").await, ["dag.run.queued", "dag.run.running", "dag.run.succeeded"]);
    })
    .await;
}

/// B16: the same name does not keep the attempt of an earlier process alive: not by polls, not by beats.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_worker_of_the_same_name_does_not_make_dead_work_look_alive() {
    with(async |t| {
        let before = Worker::register(&t.client, "pod-1", json!({})).await;
        let task = running(t, &before, "r").await;
        let after = Worker::register(&t.client, "pod-1", json!({})).await;
        let lost = t.client.run("r").await;
        assert_eq!(lost["error"], "worker pod-1 was lost: its session ended");
        let named = json!({"attempts": [{"attempt_id": task["attempt_id"], "token": task["token"]}]});
        assert_eq!(after.beat(named).await.ok()["lost"], json!([task["attempt_id"]]));
        assert_eq!(t.client.get("/v1/workers/pod-1").await.ok()["running"], 0);
    })
    .await;
}

/// B16, second variant: the rows of a worker are gone before the sweep looks. What it held is found all the same.
#[tokio::test(flavor = "multi_thread")]
async fn purging_a_worker_hides_nothing_that_it_held() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 2})).await;
        running(t, &worker, "runs").await;
        t.client.dispatch("claimed", json!({})).await.ok();
        worker.take().await;
        let clocks = t.clocks("claimed").await;
        sqlx::raw_sql("DELETE FROM worker_session; DELETE FROM worker").execute(&t.pool).await.unwrap();
        assert_eq!(t.client.finished("runs").await["failure"]["worker_id"], "w");
        t.advance(Duration::from_secs(16)).await;
        until("the claim is back", async || t.count("SELECT count(*) FROM task WHERE claim_until IS NULL").await == 1)
            .await;
        assert_eq!(t.clocks("claimed").await, clocks);
        let other = Worker::register(&t.client, "other", json!({})).await;
        other.work_one().await;
    })
    .await;
}

/// B17: the name comes back within a second of the kill. Claims return at once, and belong to nobody but the queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_used_again_at_once_gets_back_what_its_predecessor_was_given() {
    with(async |t| {
        let mut pod = Worker::register_with(&t.client, "pod-1", json!({"slots": 5})).await;
        for n in 0..5 {
            t.client.dispatch(&format!("{n}"), json!({})).await.ok();
        }
        for fence in 1..=4 {
            let answer = pod.poll_with(json!({"max_tasks": 5, "wait_seconds": 5})).await.ok();
            let tasks = answer["tasks"].as_array().unwrap();
            assert_eq!(tasks.len(), 5);
            assert!(tasks.iter().all(|task| task["fence"] == fence && task["attempt_number"] == 1));
            pod = Worker::register_with(&t.client, "pod-1", json!({"slots": 5})).await;
            assert_eq!(t.count("SELECT count(*) FROM task WHERE claim_until IS NULL").await, 5);
        }
        for _ in 0..5 {
            pod.work_one().await;
        }
    })
    .await;
}

/// B29: the database's clock is five minutes ahead of the replicas', and five behind: every deadline is its own.
#[tokio::test(flavor = "multi_thread")]
async fn no_deadline_is_judged_by_the_clock_of_a_replica() {
    for skew in [300, -300] {
        with(async |t| {
            t.skew(skew).await;
            t.stop_clock().await;
            let (server, client) = t.replica().await;
            let held = t.client.dispatch("held", json!({"worker_selector": {"zone": "x"}})).await.ok();
            let wait = parsed(&held["hold"]["until"]) - parsed(&held["queued_at"]);
            assert_eq!(wait.num_seconds(), 120);
            let ahead = t.count("SELECT extract(epoch FROM queued_at - clock_timestamp())::bigint FROM run").await;
            assert!((ahead - skew).abs() < 60, "written by the database's clock");

            let worker = Worker::register_with(&client, "w", json!({"slots": 2})).await;
            let task = running(t, &worker, "r").await;
            let lease = worker.ack(&task).await.ok();
            let expected = t.json("SELECT to_jsonb(roadstead_now() + interval '60 seconds')").await;
            assert_eq!(parsed(&expected), parsed(&lease["lease_until"]));
            t.client.dispatch("claimed", json!({})).await.ok();
            let claimed = worker.take().await;
            assert_eq!(claimed["ack_within_seconds"], 15.0);

            // Nothing is early …
            t.tick(14).await;
            t.swept().await;
            assert_eq!(reason(&client.run("claimed").await).1, "ClaimPending");
            worker.ack(&claimed).await.ok();
            t.tick(59).await;
            t.swept().await;
            assert_eq!(client.run("r").await["status"], "running");
            assert_eq!(client.run("held").await["status"], "queued");
            // … and nothing is late: the lease ends 60 s after the last sign of life, the hold 120 s after its dispatch.
            t.tick(1).await;
            assert_eq!(client.finished("r").await["failure"]["reason"], "lease_lost");
            assert_eq!(client.finished("claimed").await["failure"]["reason"], "lease_lost");
            t.tick(45).await;
            t.swept().await;
            assert_eq!(client.run("held").await["status"], "queued");
            t.tick(1).await;
            assert_eq!(client.finished("held").await["failure"]["reason"], "hold_expired");
            server.stop().await;
        })
        .await;
    }
}

/// A parked poll is a sign of life: its session outlives its staleness and its lease by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_parked_poll_keeps_its_session_alive() {
    let mut config = settings();
    config.coordinator.heartbeat_interval = Duration::from_millis(150);
    config.coordinator.stale_after = Duration::from_millis(400);
    config.coordinator.lease_ttl = Duration::from_millis(600);
    with_settings(config, async |t| {
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let registered = parsed(&json!(worker.last_seen().await));
        let parked = spawn({
            let worker = worker.clone();
            async move { worker.take().await }
        });
        until("it has been parked for three leases", async || {
            parsed(&json!(worker.last_seen().await)) - registered > chrono::Duration::milliseconds(1_800)
        })
        .await;
        assert_eq!(t.client.get("/v1/workers/w").await.ok()["state"], "healthy");
        assert_eq!(t.count("SELECT count(*) FROM presence").await, 0, "without a break");
        t.client.dispatch("r", json!({"worker_selector": {"zone": "b"}, "worker_wait_timeout_seconds": 0})).await.ok();
        let task = parked.await.unwrap();
        worker.ack(&task).await.ok();
        worker.report(&task, "succeeded").await.ok();
        // Once it is silent it ends like any other.
        until("its lease is over", async || t.client.get("/v1/workers/w").await.ok()["state"] == "ended").await;
    })
    .await;
}

/// What a heartbeat is told of what it names: what it holds is its own, what it does not hold is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_is_told_what_is_lost_and_what_to_cancel() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 4})).await;
        let runs = running(t, &worker, "runs").await;
        let done = running(t, &worker, "done").await;
        worker.report(&done, "succeeded").await.ok();
        t.client.dispatch("claimed", json!({})).await.ok();
        let claimed = worker.take().await;
        let named = |tasks: &[&Value]| {
            let attempts: Vec<_> =
                tasks.iter().map(|task| json!({"attempt_id": task["attempt_id"], "token": task["token"]})).collect();
            json!({"attempts": attempts})
        };
        let answer = worker.beat(named(&[&runs, &done, &claimed])).await.ok();
        assert_eq!((&answer["lost"], &answer["cancel"]), (&json!([done["attempt_id"]]), &json!([])));
        assert_eq!((&answer["lease_seconds"], &answer["drain"]), (&json!(60.0), &json!(false)));
        let stranger = json!({"attempt_id": runs["attempt_id"], "token": claimed["token"]});
        assert_eq!(worker.beat(named(&[&stranger])).await.ok()["lost"], json!([runs["attempt_id"]]));

        t.client.cancel("runs").await.ok();
        t.client.cancel("claimed").await.ok();
        let answer = worker.beat(named(&[&runs, &claimed])).await.ok();
        assert_eq!(answer["cancel"], json!([runs["attempt_id"]]));
        assert_eq!(answer["lost"], json!([claimed["attempt_id"]]));
        let silent = worker.beat(json!({})).await.ok();
        assert_eq!((&silent["cancel"], &silent["lost"]), (&json!([runs["attempt_id"]]), &json!([])));
        assert_eq!(worker.report(&runs, "aborted").await.ok()["status"], "aborted");
    })
    .await;
}
