//! Holds: when they run, when they stand still, how they end, and the sweep that ends them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::client::reason;
use crate::harness::{Client, Test, Worker, seconds, settings, until, with, with_settings};

/// No sweep but those that somebody asks for.
const HOUR: Duration = Duration::from_secs(3_600);

/// A dispatch body: a run for `zone` that waits so long.
fn waits(zone: &str, wait: f64) -> Value {
    json!({"worker_selector": {"zone": zone}, "worker_wait_timeout_seconds": wait})
}

/// Dispatches runs `r0` and so on, many at a time.
async fn dispatch_many(client: &Client, count: usize, body: impl Fn(usize) -> Value) {
    let slots = std::sync::Arc::new(tokio::sync::Semaphore::new(32));
    let mut sending = tokio::task::JoinSet::new();
    for number in 0..count {
        let (client, body, slots) = (client.clone(), body(number), slots.clone());
        sending.spawn(async move {
            let _slot = slots.acquire().await.unwrap();
            client.dispatch(&format!("r{number}"), body).await.ok();
        });
    }
    while let Some(sent) = sending.join_next().await {
        sent.unwrap();
    }
}

async fn unfinished(t: &Test) -> i64 {
    t.count("SELECT count(*) FROM run WHERE finished_at IS NULL").await
}

/// B45, P7: a run that no worker ever polls for fails when its wait is over, by real time, at most a sweep later.
#[tokio::test(flavor = "multi_thread")]
async fn the_failure_follows_the_deadline_by_a_sweep_at_most() {
    let mut config = settings();
    config.coordinator.sweep_interval = Duration::from_millis(500);
    with_settings(config, async |t| {
        let queued = t.client.dispatch("r", waits("b", 0.7)).await.ok();
        let failed = t.client.finished("r").await;
        let late = seconds(&failed["finished_at"]) - seconds(&queued["hold"]["until"]);
        assert!((0.0..0.6).contains(&late), "it failed {late} s after its deadline");
        assert_eq!(failed["error"], "no worker matched the selector {zone: b} within 700ms");
        let waited = failed["failure"]["waited_seconds"].as_f64().unwrap();
        assert!((0.7..1.3).contains(&waited), "{waited}");
        assert_eq!(t.client.event_types("r").await, ["dag.run.queued", "dag.run.failed"]);
    })
    .await;
}

/// P7: a wait that ends before the sweep would look by itself ends when it is over all the same: counted from the dispatch,
/// or from the moment that the last match went; or in all.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_shorter_than_the_sweep_is_not_made_longer_by_it() {
    let mut config = settings();
    (config.coordinator.sweep_interval, config.coordinator.heartbeat_interval) = (HOUR, HOUR);
    with_settings(config, async |t| {
        t.client.dispatch("alone", waits("b", 0.3)).await.ok();
        assert_eq!(t.client.finished("alone").await["failure"]["reason"], "hold_expired");

        let worker = Worker::register_with(&t.client, "w", json!({"labels": {"zone": "b"}, "slots": 1})).await;
        t.client.dispatch("first", waits("b", 0.3)).await.ok();
        worker.ack(&worker.take().await).await.ok();
        let bounded = json!({"worker_selector": {"zone": "b"}, "start_timeout_seconds": 0.3});
        t.client.dispatch("bounded", bounded).await.ok();
        assert_eq!(t.client.finished("bounded").await["failure"]["reason"], "start_timeout");
        t.client.dispatch("behind", waits("b", 0.3)).await.ok();
        until("its wait would be over", async || {
            t.count("SELECT count(*) FROM task WHERE hold_until < roadstead_now() AND claim_until IS NULL").await == 1
        })
        .await;
        worker.beat(json!({"draining": true})).await.ok();
        assert_eq!(t.client.finished("behind").await["failure"]["reason"], "hold_expired");
    })
    .await;
}

/// B47: past its deadline a task is not handed out, whether or not the sweep has come to it.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_task_is_not_claimed_before_it_is_failed() {
    let mut config = settings();
    config.coordinator.sweep_interval = Duration::from_hours(1);
    with_settings(config, async |t| {
        t.client.dispatch("late", waits("b", 60.0)).await.ok();
        t.client.dispatch("in-time", waits("b", 600.0)).await.ok();
        t.advance(Duration::from_secs(61)).await;
        // Whoever finds it expired tells the sweep; held here, the sweep cannot fail it yet.
        let mut tx = t.pool.begin().await.unwrap();
        sqlx::query("SELECT FROM run WHERE run_id = 'late' FOR UPDATE").execute(&mut *tx).await.unwrap();
        let worker = Worker::register_with(&t.client, "w", json!({"labels": {"zone": "b"}, "slots": 5})).await;
        let tasks = worker.poll_with(json!({"max_tasks": 5, "wait_seconds": 2})).await.ok()["tasks"].clone();
        assert_eq!(tasks.as_array().unwrap().len(), 1, "{tasks:#}");
        assert_eq!(tasks[0]["run_id"], "in-time");
        assert!(worker.poll(0.6).await.is_empty());
        assert_eq!(t.client.run("late").await["status"], "queued");
        tx.rollback().await.unwrap();
        // Nothing is due by the sweep's own reckoning for an hour: the next poll tells it.
        assert!(worker.poll(0.6).await.is_empty());
        let failed = t.client.finished("late").await;
        assert_eq!(failed["error"], "no worker matched the selector {zone: b} within 1m0s");
        assert_eq!(t.client.event_types("late").await, ["dag.run.queued", "dag.run.failed"]);
        worker.ack(&tasks[0]).await.ok();
    })
    .await;
}

/// B47: at the very edge, exactly one of claim and failure wins, 320 times.
#[tokio::test(flavor = "multi_thread")]
async fn at_the_edge_either_the_claim_or_the_failure_wins() {
    with(async |t| {
        let mut trying = tokio::task::JoinSet::new();
        let database = std::sync::Arc::new(tokio::sync::Semaphore::new(8));
        for number in 0..320_u64 {
            let (client, pool, database) = (t.client.clone(), t.pool.clone(), database.clone());
            trying.spawn(async move {
                let slot = database.acquire_owned().await.unwrap();
                let (run_id, zone) = (format!("edge-{number}"), format!("z{number}"));
                let run = client.dispatch(&run_id, waits(&zone, 0.12)).await.ok();
                let until = run["hold"]["until"].as_str().unwrap();
                let left: f64 =
                    sqlx::query_scalar("SELECT extract(epoch FROM $1::timestamptz - roadstead_now())::float8")
                        .bind(until.parse::<roadstead::domain::Timestamp>().unwrap())
                        .fetch_one(&pool)
                        .await
                        .unwrap();
                // Fired around the deadline: what counts is when the registration, some milliseconds long, is on
                // record.
                let spread = Duration::from_micros(number * 7_919 % 30_000);
                let left = Duration::from_secs_f64(left.max(0.0)) + spread;
                tokio::time::sleep(left.saturating_sub(Duration::from_millis(25))).await;
                let worker = Worker::register(&client, &format!("edge-{number}"), json!({"zone": zone})).await;
                let tasks = worker.poll(0.3).await;
                drop(slot);
                if let Some(task) = tasks.first() {
                    worker.ack(task).await.ok();
                    worker.report(task, "succeeded").await.ok();
                    assert_eq!(client.run(&run_id).await["status"], "succeeded");
                    return 1;
                }
                let failed = client.finished(&run_id).await;
                assert_eq!(failed["failure"]["reason"], "hold_expired", "{failed:#}");
                assert!(worker.poll(0.05).await.is_empty());
                0
            });
        }
        let mut claimed = 0;
        while let Some(tried) = trying.join_next().await {
            claimed += tried.unwrap();
        }
        println!("{claimed} of 320 were claimed, {} failed", 320 - claimed);
        assert_eq!(t.count("SELECT count(*) FROM event WHERE type = 'dag.run.failed'").await, 320 - claimed);
    })
    .await;
}

/// B49: the wait of the dispatch, not the default, stands in answer, list and event, and decides.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_of_its_own_is_carried_through() {
    with(async |t| {
        t.stop_clock().await;
        let run = t.client.dispatch("r", waits("b", 600.0)).await.ok();
        let from_to = |run: &Value| seconds(&run["hold"]["until"]) - seconds(&run["queued_at"]);
        let listed = t.client.get("/v1/runs").await.ok()["runs"][0].clone();
        let event = t.client.events("r").await[0]["data"].clone();
        for shown in [&run, &t.client.run("r").await, &listed, &event["run"]] {
            assert!((from_to(shown) - 600.0).abs() < 1e-3, "{shown:#}");
            assert_eq!(shown["hold"]["wait_timeout_seconds"], 600.0);
            assert_eq!(shown["worker_wait_timeout_seconds"], 600.0);
        }
        assert_eq!(event["hold"], run["hold"]);
        t.advance(Duration::from_secs(598)).await;
        t.swept().await;
        assert_eq!(t.client.run("r").await["status"], "queued");
        t.advance(Duration::from_secs(3)).await;
        assert_eq!(t.client.finished("r").await["error"], "no worker matched the selector {zone: b} within 10m0s");
    })
    .await;
}

/// B53, B55: durations that are huge, negative or no numbers are refused by name and never become an instant failure.
#[tokio::test(flavor = "multi_thread")]
async fn impossible_durations_are_refused_with_their_names() {
    with(async |t| {
        t.stop_clock().await;
        let worker = Worker::register(&t.client, "w", json!({})).await;
        let (dag, session) = (r#""dag_name": "dag", "run_id": "r""#, &worker.session_id);
        let huge = ["9223372036854775807", "9223372036854775807000", "1e308", "1e999", "604800.1", "\"1000000h\""];
        let negative = ["-1", "-0.001", "-1e308", "-9223372036854775808"];
        for bad in huge.iter().chain(&negative) {
            let places = [
                (
                    "/v1/runs",
                    format!(r#"{{{dag}, "worker_wait_timeout_seconds": {bad}}}"#),
                    "/worker_wait_timeout_seconds",
                ),
                ("/v1/workers/w", format!(r#"{{"lease_seconds": {bad}}}"#), "/lease_seconds"),
            ];
            for (path, body, pointer) in places {
                let method = if path == "/v1/runs" { reqwest::Method::POST } else { reqwest::Method::PUT };
                let request = t.client.request(method, path).header("content-type", "application/json").body(body);
                let problem = t.client.send(request).await.problem(422, "invalid-request");
                assert_eq!(problem["errors"][0]["pointer"], pointer, "{bad}");
            }
            let poll = format!(r#"{{"session_id": "{session}", "wait_seconds": {bad}}}"#);
            let request = t.client.request(reqwest::Method::POST, "/v1/workers/w/poll");
            let request = request.header("content-type", "application/json").body(poll);
            if negative.contains(bad) || bad.starts_with('"') {
                t.client.send(request).await.problem(422, "invalid-request");
                if !bad.starts_with('"') {
                    let path = format!("/v1/dags/dag/runs/r?wait_seconds={bad}");
                    t.client.get(&path).await.problem(422, "invalid-request");
                }
            }
        }
        for nan in ["NaN", "Infinity"] {
            let body = format!(r#"{{{dag}, "worker_wait_timeout_seconds": {nan}}}"#);
            let request =
                t.client.request(reqwest::Method::POST, "/v1/runs").header("content-type", "application/json");
            t.client.send(request.body(body)).await.problem(400, "malformed-json");
        }
        assert_eq!(t.count("SELECT count(*) FROM run").await, 0);
        // The largest and the least that are allowed; -0 is 0.
        assert_eq!(t.client.dispatch("long", waits("b", 604_800.0)).await.status, 201);
        let body = json!({"worker_selector": {"zone": "b"}, "worker_wait_timeout_seconds": -0.0});
        t.client.dispatch("none", body).await.problem(409, "no-matching-worker");
        t.advance(Duration::from_secs(604_799)).await;
        t.swept().await;
        assert_eq!(t.client.run("long").await["status"], "queued");
        t.advance(Duration::from_secs(2)).await;
        t.client.finished("long").await;
    })
    .await;
}

/// B57: rows that somebody has locked do not keep the sweep from the others.
#[tokio::test(flavor = "multi_thread")]
async fn locked_rows_do_not_hide_the_rest() {
    with(async |t| {
        dispatch_many(&t.client, 2_000, |_| waits("b", 300.0)).await;
        let mut tx = t.pool.begin().await.unwrap();
        sqlx::query("SELECT FROM task ORDER BY hold_until, attempt_id LIMIT 100 FOR UPDATE")
            .execute(&mut *tx)
            .await
            .unwrap();
        t.advance(Duration::from_secs(301)).await;
        until("the others to fail", async || unfinished(t).await == 100).await;
        t.swept().await;
        assert_eq!(unfinished(t).await, 100);
        tx.rollback().await.unwrap();
        until("the rest to fail", async || unfinished(t).await == 0).await;
    })
    .await;
}

/// P7: a thousand expiries at once, each exactly one event (which the autopsy counts).
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_expire_at_once() {
    with(async |t| {
        dispatch_many(&t.client, 1_000, |number| waits(if number % 2 == 0 { "b" } else { "c" }, 300.0)).await;
        let moved = std::time::Instant::now();
        t.advance(Duration::from_secs(301)).await;
        until("all to fail", async || unfinished(t).await == 0).await;
        println!("1,000 holds expired within {:?}", moved.elapsed());
        assert!(moved.elapsed() < Duration::from_secs(2), "{:?}", moved.elapsed());
        assert_eq!(t.count("SELECT count(*) FROM event WHERE type = 'dag.run.failed'").await, 1_000);
    })
    .await;
}

/// B59: two replicas return the same lapsed claim while a worker polls: one delivery.
#[tokio::test(flavor = "multi_thread")]
async fn two_sweeps_of_one_claim_deliver_it_once() {
    with(async |t| {
        let (server, replica) = t.replica().await;
        let idle = Worker::register(&t.client, "idle", json!({"zone": "b"})).await;
        for number in 0..8 {
            let run_id = format!("r{number}");
            t.client.dispatch(&run_id, waits("b", 3_600.0)).await.ok();
            let lapsing = idle.take().await;
            let mut polling = Vec::new();
            for (client, name) in [(&t.client, "one"), (&replica, "two"), (&replica, "three")] {
                let worker = Worker::register(client, name, json!({"zone": "b"})).await;
                polling.push(tokio::spawn(async move { (worker.poll(0.8).await, worker) }));
            }
            t.advance(t.config.coordinator.ack_timeout).await;
            let mut given = Vec::new();
            for polled in polling {
                let (tasks, worker) = polled.await.unwrap();
                given.extend(tasks.into_iter().map(|task| (worker.clone(), task)));
            }
            let told: Vec<_> = given.iter().map(|(worker, task)| (&worker.worker_id, &task["fence"])).collect();
            assert_eq!(given.len(), 1, "{run_id} was given to {told:?}: {:#?}", t.client.events(&run_id).await);
            let (worker, task) = &given[0];
            assert_eq!((&task["fence"], &task["attempt_number"]), (&json!(2), &json!(1)));
            worker.ack(task).await.ok();
            worker.report(task, "succeeded").await.ok();
            idle.ack(&lapsing).await.problem(409, "run-finished");
            assert_eq!(t.client.event_types(&run_id).await.len(), 4, "queued, returned, running, succeeded");
        }
        server.stop().await;
    })
    .await;
}

/// Rule 3: a run that cannot be read keeps its task for later; the others are failed, and given, in the meantime.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_be_read_stops_nobody_else() {
    with(async |t| {
        t.client.dispatch("bad-labels", json!({"worker_selector": {"zone": "b"}, "labels": {"a": "1"}})).await.ok();
        t.client.dispatch("bad-selector", waits("x", 120.0)).await.ok();
        t.client.dispatch("good", waits("b", 120.0)).await.ok();
        t.client.dispatch("other", waits("c", 120.0)).await.ok();
        t.client.dispatch("lasting", waits("b", 3_600.0)).await.ok();
        t.client.dispatch("lasting-bad", waits("x", 3_600.0)).await.ok();
        for damage in [
            "UPDATE run SET labels = '[1]' WHERE run_id = 'bad-labels'",
            "UPDATE selector SET canonical = '{' WHERE canonical LIKE '%\"x\"%'",
        ] {
            sqlx::query(damage).execute(&t.pool).await.unwrap();
        }
        // A replica that has never read the selector has to read it now.
        let (server, replica) = t.replica().await;
        t.advance(Duration::from_secs(121)).await;
        replica.finished("good").await;
        replica.finished("other").await;
        t.swept().await;
        let left = "SELECT count(*) FROM task WHERE run_id IN ('bad-labels', 'bad-selector', 'lasting', 'lasting-bad')";
        assert_eq!(t.count(left).await, 4);
        assert_eq!(t.count("SELECT count(*) FROM task").await, 4);
        let able = json!({"labels": {"zone": "b"}});
        let worker = Worker::register_with(&replica, "w", able).await;
        assert_eq!(worker.work_one().await["run_id"], "lasting");
        for repair in [
            "UPDATE run SET labels = '{\"a\": \"1\"}' WHERE run_id = 'bad-labels'",
            "UPDATE selector SET canonical = '{\"equal\":{\"zone\":\"x\"}}' WHERE canonical = '{'",
        ] {
            sqlx::query(repair).execute(&t.pool).await.unwrap();
        }
        t.advance(Duration::from_secs(10)).await;
        t.client.finished("bad-labels").await;
        t.client.finished("bad-selector").await;
        server.stop().await;
    })
    .await;
}

/// A row that cannot be read at the head of the queue is passed over by those who ask for work.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_be_read_is_passed_over_by_a_poll() {
    with(async |t| {
        t.client.dispatch("bad", waits("b", 3_600.0)).await.ok();
        t.client.dispatch("gone", waits("b", 3_600.0)).await.ok();
        t.client.dispatch("good", waits("b", 3_600.0)).await.ok();
        sqlx::query("UPDATE run SET labels = '[1]' WHERE run_id = 'bad'").execute(&t.pool).await.unwrap();
        forget(t, "gone").await;
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        assert_eq!(worker.work_one().await["run_id"], "good");
        assert!(worker.poll(0.1).await.is_empty());
        sqlx::query("UPDATE run SET labels = '{}' WHERE run_id = 'bad'").execute(&t.pool).await.unwrap();
        assert_eq!(worker.work_one().await["run_id"], "bad");
        forget_task(t, "gone").await;
    })
    .await;
}

/// Takes a run away, as a hand in the database might: all but its task.
async fn forget(t: &Test, run_id: &str) {
    for statement in [
        "DELETE FROM run WHERE run_id = $1",
        "DELETE FROM attempt WHERE run_id = $1",
        "DELETE FROM payload WHERE run_id = $1",
        "DELETE FROM event WHERE run_id = $1",
    ] {
        sqlx::query(statement).bind(run_id).execute(&t.pool).await.unwrap();
    }
}

async fn forget_task(t: &Test, run_id: &str) {
    sqlx::query("DELETE FROM task WHERE run_id = $1").bind(run_id).execute(&t.pool).await.unwrap();
}

/// Rule 3: only a run that no longer exists loses its task without a word.
#[tokio::test(flavor = "multi_thread")]
async fn the_task_of_a_run_that_is_gone_is_dropped() {
    with(async |t| {
        t.client.dispatch("gone", waits("b", 60.0)).await.ok();
        t.client.dispatch("there", waits("b", 60.0)).await.ok();
        forget(t, "gone").await;
        t.advance(Duration::from_secs(61)).await;
        t.client.finished("there").await;
        until("its task is dropped", async || t.count("SELECT count(*) FROM task").await == 0).await;
        t.client.get("/v1/dags/dag/runs/gone").await.problem(404, "not-found");
        assert_eq!(t.count("SELECT count(*) FROM event WHERE run_id = 'gone'").await, 0);
    })
    .await;
}

/// The hold clock stands still while there is a match, idle or busy, and starts anew when the last one goes.
#[tokio::test(flavor = "multi_thread")]
async fn the_clock_stands_still_while_something_matches() {
    with(async |t| {
        t.stop_clock().await;
        let first = Worker::register(&t.client, "first", json!({"zone": "b"})).await;
        let second = Worker::register(&t.client, "second", json!({"zone": "b", "more": "yes"})).await;
        for worker in [&first, &second] {
            t.client.dispatch(&worker.worker_id, json!({"target_worker_id": worker.worker_id})).await.ok();
            let task = worker.take().await;
            worker.ack(&task).await.ok();
        }
        let run = t.client.dispatch("r", waits("b", 60.0)).await.ok();
        assert_eq!(reason(&run), ("False".into(), "WorkersBusy".into()));
        assert!(run["hold"].get("until").is_none(), "{run:#}");
        t.advance(Duration::from_mins(10)).await;
        t.swept().await;
        first.leave().await.ok();
        t.advance(Duration::from_mins(10)).await;
        t.swept().await;
        let run = t.client.run("r").await;
        assert_eq!(reason(&run), ("False".into(), "WorkersBusy".into()));
        assert!(run["hold"].get("until").is_none(), "{run:#}");
        let before = t.now().await;
        second.leave().await.ok();
        let run = t.client.run("r").await;
        let left = seconds(&run["hold"]["until"]) - before;
        assert!((59.9..61.0).contains(&left), "the clock starts anew with {left} s");
        t.advance(Duration::from_secs(58)).await;
        t.swept().await;
        assert_eq!(t.client.run("r").await["status"], "queued");
        t.advance(Duration::from_secs(3)).await;
        assert_eq!(t.client.finished("r").await["error"], "no worker matched the selector {zone: b} within 1m0s");
    })
    .await;
}

/// A worker that comes and goes starts the clock anew each time.
#[tokio::test(flavor = "multi_thread")]
async fn a_flapping_worker_starts_the_clock_anew_each_time() {
    with(async |t| {
        t.client.dispatch("r", waits("b", 60.0)).await.ok();
        t.client.dispatch("never-matched", waits("c", 150.0)).await.ok();
        for _ in 0..4 {
            t.advance(Duration::from_secs(50)).await;
            t.swept().await;
            assert_eq!(t.client.run("r").await["status"], "queued");
            Worker::register(&t.client, "flapping", json!({"zone": "b"})).await.leave().await.ok();
        }
        t.client.finished("never-matched").await;
        t.advance(Duration::from_secs(61)).await;
        t.client.finished("r").await;
    })
    .await;
}

/// A worker with other labels is another match from that moment; what it no longer fits has its clock started.
#[tokio::test(flavor = "multi_thread")]
async fn a_relabelled_worker_starts_one_clock_and_stops_the_other() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({"zone": "a", "kept": "yes"})).await;
        t.client.dispatch("a", waits("a", 60.0)).await.ok();
        t.client.dispatch("b", waits("b", 60.0)).await.ok();
        t.client
            .dispatch("both", json!({"worker_selector": {"kept": "yes"}, "worker_wait_timeout_seconds": 0}))
            .await
            .ok();
        t.advance(Duration::from_secs(40)).await;
        worker.beat(json!({"labels": {"zone": "b", "kept": "yes"}})).await.ok();
        assert!(t.client.run("a").await["hold"]["until"].is_string());
        assert!(t.client.run("b").await["hold"].get("until").is_none());
        t.advance(Duration::from_secs(61)).await;
        t.client.finished("a").await;
        t.swept().await;
        assert_eq!(t.client.run("b").await["status"], "queued");
        assert_eq!(t.client.run("both").await["status"], "queued", "it was matched without a break");
    })
    .await;
}

/// A stale worker is no match from where its presence was over, also when it comes back later with other labels.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_stale_was_away_since_then() {
    with(async |t| {
        let body = json!({"labels": {"zone": "a"}, "lease_seconds": 600});
        let worker = Worker::register_with(&t.client, "stale", body.clone()).await;
        let back =
            Worker::register_with(&t.client, "stale-too", json!({"labels": {"zone": "c"}, "lease_seconds": 600})).await;
        t.client.dispatch("short", waits("a", 20.0)).await.ok();
        t.client.dispatch("long", waits("a", 200.0)).await.ok();
        t.client.dispatch("again", waits("c", 200.0)).await.ok();
        t.advance_forgetting(Duration::from_secs(31), Some("stale")).await;
        let run = t.client.run("long").await;
        assert_eq!(reason(&run), ("False".into(), "NoAvailableWorker".into()));
        let left = seconds(&run["hold"]["until"]) - t.now().await;
        assert!((197.0..199.5).contains(&left), "it ran {left} s from where the presence was over");
        t.advance_forgetting(Duration::from_secs(81), Some("stale")).await;
        t.client.finished("short").await;
        // 82 s into the gap one of them comes back with other labels, the other as it was.
        worker.beat(json!({"labels": {"zone": "b"}})).await.ok();
        back.beat(json!({})).await.ok();
        t.advance(Duration::from_secs(90)).await;
        t.swept().await;
        assert_eq!(t.client.run("long").await["status"], "queued");
        t.advance(Duration::from_secs(30)).await;
        t.client.finished("long").await;
        assert_eq!(t.client.run("again").await["status"], "queued");
        t.advance_forgetting(Duration::from_secs(200), Some("stale")).await;
        t.swept().await;
        assert_eq!(t.client.run("again").await["status"], "queued", "its clock started anew when the worker came back");
        t.advance_forgetting(Duration::from_secs(35), Some("stale")).await;
        t.client.finished("again").await;
    })
    .await;
}

/// Section 7: a short gap between two passes, behind a worker that is busy again by then, ends a shorter wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_gap_between_two_passes_ends_a_shorter_wait() {
    let mut config = settings();
    config.coordinator.sweep_interval = Duration::from_secs(1);
    with_settings(config, async |t| {
        let first = Worker::register(&t.client, "first", json!({"zone": "b"})).await;
        t.client.dispatch("other", json!({"target_worker_id": "second"})).await.ok();
        t.client.dispatch("none", waits("b", 0.0)).await.ok();
        t.client.dispatch("short", waits("b", 5.0)).await.ok();
        t.client.dispatch("long", waits("b", 60.0)).await.ok();
        t.swept().await;
        first.leave().await.ok();
        t.advance(Duration::from_secs(10)).await;
        let second = Worker::register(&t.client, "second", json!({"zone": "b"})).await;
        assert_eq!(t.client.finished("short").await["failure"]["reason"], "hold_expired");
        assert_eq!(t.client.finished("none").await["error"], "no worker matches the selector {zone: b} any more");
        assert_eq!(t.client.run("long").await["status"], "queued");
        let given = second.poll_with(json!({"wait_seconds": 1, "max_tasks": 9})).await.ok()["tasks"].clone();
        assert_eq!(given[0]["run_id"], "other", "the oldest");
    })
    .await;
}

/// P7, however many selectors there are: the last match goes, and comes back a moment later.
#[tokio::test(flavor = "multi_thread")]
async fn a_gap_is_seen_by_every_one_of_many_selectors() {
    let mut config = settings();
    config.coordinator.sweep_interval = Duration::from_millis(300);
    with_settings(config, async |t| {
        // However long it takes to dispatch them, the worker is not stale meanwhile.
        t.stop_clock().await;
        let labels: Vec<(String, Value)> = (0..11).map(|bit| (format!("bit{bit}"), json!("1"))).collect();
        let worker = Worker::register(&t.client, "w", Value::Object(labels.clone().into_iter().collect())).await;
        dispatch_many(&t.client, 1_500, |number| {
            let wanted =
                labels.iter().enumerate().filter(|(bit, _)| number >> bit & 1 == 1).map(|(_, label)| label.clone());
            let selector: serde_json::Map<String, Value> = wanted.collect();
            json!({"worker_selector": selector, "worker_wait_timeout_seconds": 0})
        })
        .await;
        // Long enough that the rounds since the start are over.
        t.swept().await;
        t.swept().await;
        worker.leave().await.ok();
        t.tick(1).await;
        Worker::register(&t.client, "w", Value::Object(labels.into_iter().collect())).await;
        t.swept().await;
        assert_eq!(unfinished(t).await, 0, "each of them was without a match for a moment");
    })
    .await;
}

/// A hold longer than what a later configuration allows still ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_longer_than_a_lowered_maximum_still_ends() {
    with(async |t| {
        t.client.dispatch("r", waits("b", 3_600.0)).await.ok();
        let mut lowered = t.config.clone();
        lowered.coordinator.worker_wait_timeout_max = Duration::from_mins(10);
        let server = roadstead::server::Server::start(&lowered, &t.database_url).await.unwrap();
        let client = Client::new(&format!("http://{}", server.address()));
        // The service with the old settings would see to it; it must not come to the run first.
        let mut tx = t.pool.begin().await.unwrap();
        sqlx::query("SELECT FROM run FOR UPDATE").execute(&mut *tx).await.unwrap();
        t.advance(Duration::from_secs(3_601)).await;
        let worker = Worker::register(&client, "w", json!({"zone": "b"})).await;
        assert!(worker.poll(0.3).await.is_empty(), "it has expired");
        tx.rollback().await.unwrap();
        client.finished("r").await;
        server.stop().await;
    })
    .await;
}
