//! The start clock: how long a run may be queued in all, whatever matches meanwhile.

use std::time::Duration;

use roadstead::server::Server;
use serde_json::{Value, json};

use crate::harness::client::reason;
use crate::harness::{Client, Test, Worker, seconds, settings, until, with, with_settings};

/// A dispatch body: a run for `zone` that must be started within so long.
fn starts(zone: &str, start: f64) -> Value {
    json!({"worker_selector": {"zone": zone}, "worker_wait_timeout_seconds": 3_600, "start_timeout_seconds": start})
}

/// How long after its dispatch a run's start clock ends, as it is told.
#[track_caller]
fn told(run: &Value) -> Duration {
    Duration::from_secs_f64(seconds(&run["start_until"]) - seconds(&run["queued_at"]))
}

/// A worker of one slot that matches zone b and is busy for as long as nobody ends what it runs.
async fn busy(t: &Test) -> (Worker, Value) {
    let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
    t.client.dispatch("first", json!({"worker_selector": {"zone": "b"}})).await.ok();
    let task = worker.take().await;
    worker.ack(&task).await.ok();
    (worker, task)
}

/// The hold stands still behind a busy worker; the start clock does not.
#[tokio::test(flavor = "multi_thread")]
async fn it_runs_while_a_busy_worker_matches() {
    with(async |t| {
        t.stop_clock().await;
        let (worker, task) = busy(t).await;
        let run = t.client.dispatch("r", starts("b", 600.0)).await.ok();
        assert_eq!(reason(&run), ("False".into(), "WorkersBusy".into()));
        let listed = t.client.get("/v1/runs?status=queued").await.ok()["runs"][0].clone();
        let event = t.client.events("r").await[0]["data"]["run"].clone();
        for shown in [&run, &t.client.run("r").await, &listed, &event] {
            assert_eq!(
                (told(shown), &shown["start_timeout_seconds"]),
                (Duration::from_mins(10), &json!(600.0)),
                "{shown:#}"
            );
            assert!(shown["hold"].get("until").is_none(), "{shown:#}");
        }
        t.advance(Duration::from_secs(599)).await;
        t.swept().await;
        assert_eq!(t.client.run("r").await["status"], "queued");
        t.advance(Duration::from_secs(1)).await;
        let failed = t.client.finished("r").await;
        assert_eq!(failed["error"], "run was not started within 10m0s");
        let failure = &failed["failure"];
        assert_eq!((&failure["reason"], &failure["waited_seconds"]), (&json!("start_timeout"), &json!(600.0)));
        assert_eq!(failure["worker_selector"], json!({"zone": "b"}));
        assert!(failed.get("start_until").is_none() && failed.get("conditions").is_none(), "{failed:#}");
        assert_eq!(t.client.event_types("r").await, ["dag.run.queued", "dag.run.failed"]);
        assert_eq!(t.count("SELECT count(*) FROM task").await, 0);
        worker.report(&task, "succeeded").await.ok();
        assert!(worker.poll(0.1).await.is_empty(), "it is never claimed afterwards");
    })
    .await;
}

/// P7, by real time: the sweeper knows when the next clock ends, and does not wait for its interval.
#[tokio::test(flavor = "multi_thread")]
async fn the_sweeper_wakes_when_it_ends() {
    let mut config = settings();
    config.coordinator.sweep_interval = Duration::from_hours(1);
    with_settings(config, async |t| {
        t.client.dispatch("r", starts("b", 1.5)).await.ok();
        // What comes back makes the sweeper look, and see when to look again.
        let worker = Worker::register(&t.client, "w", json!({"zone": "c"})).await;
        t.client.dispatch("other", json!({"worker_selector": {"zone": "c"}})).await.ok();
        let task = worker.take().await;
        worker.say(&task, "release", json!({})).await.ok();
        let failed = t.client.finished("r").await;
        assert_eq!(failed["failure"]["reason"], "start_timeout");
        println!("it waited {} s", failed["failure"]["waited_seconds"]);
    })
    .await;
}

/// Off unless it is asked for, by the dispatch or by the configuration; what the dispatch says goes first.
#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_speaks_for_those_who_do_not_say() {
    with(async |t| {
        let run = t.client.dispatch("r", json!({})).await.ok();
        assert!(run.get("start_until").is_none() && run.get("start_timeout_seconds").is_none(), "{run:#}");
    })
    .await;
    let mut config = settings();
    config.coordinator.start_timeout = Duration::from_secs(60);
    with_settings(config, async |t| {
        t.stop_clock().await;
        assert_eq!(told(&t.client.dispatch("default", json!({})).await.ok()), Duration::from_secs(60));
        assert_eq!(
            told(&t.client.dispatch("own", json!({"start_timeout_seconds": 90})).await.ok()),
            Duration::from_secs(90)
        );
        let off = t.client.dispatch("off", json!({"start_timeout_seconds": 0})).await.ok();
        assert!(off.get("start_until").is_none(), "{off:#}");
        let week = 7 * 86_400;
        assert_eq!(
            told(&t.client.dispatch("week", json!({"start_timeout_seconds": week})).await.ok()),
            Duration::from_secs(604_800)
        );
        let over = json!({"start_timeout_seconds": week + 1});
        let problem = t.client.dispatch("over", over).await.problem(422, "invalid-request");
        assert_eq!(problem["errors"][0]["pointer"], "/start_timeout_seconds");
    })
    .await;
}

/// Whichever clock is over first gives its own reason, however late the sweep comes.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_clocks_the_first_one_says_why() {
    with(async |t| {
        t.stop_clock().await;
        let both = |hold, start| json!({"worker_wait_timeout_seconds": hold, "start_timeout_seconds": start});
        t.client.dispatch("hold", both(5, 7)).await.ok();
        t.client.dispatch("start", both(7, 5)).await.ok();
        t.client.dispatch("hold-by-far", both(5, 3_600)).await.ok();
        t.client.dispatch("start-by-far", both(3_600, 5)).await.ok();
        t.client.dispatch("at-once", both(5, 5)).await.ok();
        // Both are over by now, and only now is it looked.
        t.advance(Duration::from_secs(9)).await;
        for (run_id, reason, error) in [
            ("hold", "hold_expired", "no worker was available within 5s"),
            ("start", "start_timeout", "run was not started within 5s"),
            ("hold-by-far", "hold_expired", "no worker was available within 5s"),
            ("start-by-far", "start_timeout", "run was not started within 5s"),
            ("at-once", "hold_expired", "no worker was available within 5s"),
        ] {
            let failed = t.client.finished(run_id).await;
            assert_eq!((&failed["failure"]["reason"], &failed["error"]), (&json!(reason), &json!(error)), "{run_id}");
        }
    })
    .await;
}

/// Past its end a task is not handed out, whether or not the sweep has come to it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_is_not_claimed_before_it_is_failed() {
    let mut config = settings();
    config.coordinator.sweep_interval = Duration::from_hours(1);
    with_settings(config, async |t| {
        t.client.dispatch("late", starts("b", 60.0)).await.ok();
        t.client.dispatch("in-time", starts("b", 600.0)).await.ok();
        // Held here, the sweep cannot fail it yet, once it has been told.
        let mut tx = t.pool.begin().await.unwrap();
        sqlx::query("SELECT FROM run WHERE run_id = 'late' FOR UPDATE").execute(&mut *tx).await.unwrap();
        t.advance(Duration::from_secs(61)).await;
        let worker = Worker::register_with(&t.client, "w", json!({"labels": {"zone": "b"}, "slots": 5})).await;
        let tasks = worker.poll_with(json!({"max_tasks": 5, "wait_seconds": 2})).await.ok()["tasks"].clone();
        let given: Vec<&Value> = tasks.as_array().unwrap().iter().map(|task| &task["run_id"]).collect();
        assert_eq!(given, [&json!("in-time")]);
        assert!(worker.poll(0.6).await.is_empty());
        assert_eq!(t.client.run("late").await["status"], "queued");
        tx.rollback().await.unwrap();
        // Nothing is due by the sweep's own reckoning for an hour: the next poll tells it.
        assert!(worker.poll(0.6).await.is_empty());
        assert_eq!(t.client.finished("late").await["failure"]["reason"], "start_timeout");
        worker.ack(&tasks[0]).await.ok();
    })
    .await;
}

/// An unexpired claim is not cut: an ack in time counts, and the run fails when the claim returns.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_not_cut_and_its_return_is() {
    with(async |t| {
        t.stop_clock().await;
        let worker = Worker::register_with(&t.client, "w", json!({"labels": {"zone": "b"}, "slots": 5})).await;
        let mut tasks = Vec::new();
        for run_id in ["acked", "released", "lapsed"] {
            t.client.dispatch(run_id, starts("b", 5.0)).await.ok();
            tasks.push(worker.take().await);
        }
        t.tick(6).await;
        t.swept().await;
        for run_id in ["acked", "released", "lapsed"] {
            let run = t.client.run(run_id).await;
            assert_eq!(reason(&run), ("False".into(), "ClaimPending".into()));
            assert_eq!(told(&run), Duration::from_secs(5), "{run:#}");
        }
        worker.ack(&tasks[0]).await.ok();
        worker.say(&tasks[1], "release", json!({})).await.ok();
        t.client.finished("released").await;
        t.tick(10).await;
        for run_id in ["released", "lapsed"] {
            let failed = t.client.finished(run_id).await;
            assert_eq!(failed["failure"]["reason"], "start_timeout", "{failed:#}");
            assert_eq!(t.client.event_types(run_id).await, ["dag.run.queued", "dag.run.updated", "dag.run.failed"]);
        }
        assert_eq!(t.client.run("acked").await["status"], "running");
        worker.report(&tasks[0], "succeeded").await.ok();
    })
    .await;
}

/// What is handed over, or given by a look, keeps its clock through the claim; a release with a delay moves the hold only.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_returns_keeps_its_clock_and_a_delay_does_not_move_it() {
    with(async |t| {
        t.stop_clock().await;
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let poll = tokio::spawn({
            let worker = worker.clone();
            async move { worker.take().await }
        });
        until("it is parked", async || t.client.get("/v1/workers/w").await.ok()["state"] == "healthy").await;
        t.client.dispatch("r", starts("b", 600.0)).await.ok();
        let given = poll.await.unwrap();
        let before = t.clocks("r").await;
        t.tick(20).await;
        worker.beat(json!({})).await.ok();
        until("it has returned", async || t.client.run("r").await["version"] == 2).await;
        assert_eq!(t.clocks("r").await, before);
        worker.ack(&given).await.problem(409, "claim-expired");
        let again = worker.take().await;
        let run = worker.say(&again, "release", json!({"delay_seconds": 3_000})).await.ok();
        assert_eq!(run["status"], "queued");
        let run = t.client.run("r").await;
        assert_eq!(reason(&run), ("False".into(), "BackingOff".into()));
        let from = Duration::from_secs_f64(seconds(&run["hold"]["from"]) - seconds(&run["queued_at"]));
        assert_eq!((told(&run), from), (Duration::from_mins(10), Duration::from_secs(3_020)));
        t.advance(Duration::from_secs(579)).await;
        t.swept().await;
        assert_eq!(t.client.run("r").await["status"], "queued");
        t.advance(Duration::from_secs(1)).await;
        assert_eq!(t.client.finished("r").await["error"], "run was not started within 10m0s");
    })
    .await;
}

/// Both clocks begin at the end of a back-off, and each attempt has its own; a retry may ask for another.
#[tokio::test(flavor = "multi_thread")]
async fn each_attempt_has_a_clock_of_its_own() {
    with(async |t| {
        t.stop_clock().await;
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let mut body = starts("b", 60.0);
        body["max_attempts"] = json!(2);
        body["retry"] = json!({"delay_seconds": 100});
        t.client.dispatch("r", body).await.ok();
        t.tick(2).await;
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        worker.say(&task, "release", json!({})).await.ok();
        let run = t.client.run("r").await;
        assert_eq!((&run["attempt"]["number"], told(&run)), (&json!(2), Duration::from_secs(160)), "{run:#}");
        t.advance(Duration::from_secs(159)).await;
        t.swept().await;
        assert_eq!(t.client.run("r").await["status"], "queued");
        t.advance(Duration::from_secs(1)).await;
        let failed = t.client.finished("r").await;
        assert_eq!(failed["failure"]["waited_seconds"], 60.0);

        let retry = |run: &Value, start: Value| {
            let mut body = json!({"after_attempt_id": run["attempt"]["attempt_id"]});
            body.as_object_mut().unwrap().extend(start.as_object().unwrap().clone());
            let client = t.client.clone();
            async move { client.post("/v1/dags/dag/runs/r/retry", &body).await.ok() }
        };
        let same = retry(&failed, json!({})).await;
        assert_eq!(told(&same), Duration::from_mins(1), "as before");
        let cancelled = t.client.cancel("r").await.ok();
        let other = retry(&cancelled, json!({"start_timeout_seconds": 5})).await;
        assert_eq!(told(&other), Duration::from_secs(5));
        let cancelled = t.client.cancel("r").await.ok();
        let off = retry(&cancelled, json!({"start_timeout_seconds": 0})).await;
        assert!(off.get("start_until").is_none(), "{off:#}");
    })
    .await;
}

/// Rule 8: an outage of ours, with its amnesty, is added to the clock; nothing ends in it.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_lets_it_run_longer() {
    with(async |t| {
        t.stop_clock().await;
        let (worker, _task) = busy(t).await;
        t.client.dispatch("r", starts("b", 60.0)).await.ok();
        t.client.dispatch("over-before", starts("b", 10.0)).await.ok();
        t.tick(20).await;
        assert_eq!(t.client.finished("over-before").await["failure"]["reason"], "start_timeout");
        // Nobody swept for 300 seconds: the amnesty lasts a lease more.
        sqlx::query("UPDATE worker_session SET lease_ttl = interval '1 day', stale_after = interval '1 day'")
            .execute(&t.pool)
            .await
            .unwrap();
        t.away(300).await;
        until("the outage is on record", async || t.count("SELECT count(*) FROM outage").await == 1).await;
        t.swept().await;
        let amnesty = t.config.coordinator.lease_ttl;
        let whole = Duration::from_mins(6) + amnesty;
        let run = t.client.run("r").await;
        assert_eq!((&run["status"], told(&run)), (&json!("queued"), whole), "{run:#}");
        let fresh = t.client.dispatch("fresh", starts("b", 60.0)).await.ok();
        assert_eq!(
            told(&fresh),
            Duration::from_mins(1) + amnesty,
            "what comes in the amnesty has its whole time after it"
        );
        t.tick(99).await;
        worker.beat(json!({})).await.ok();
        t.swept().await;
        assert_eq!(t.client.run("r").await["status"], "queued");
        t.tick(1).await;
        assert_eq!(t.client.finished("r").await["failure"]["reason"], "start_timeout");
        assert_eq!(t.client.run("fresh").await["status"], "queued");
        t.tick(20).await;
        t.client.finished("fresh").await;
    })
    .await;
}

/// While an outage keeps a clock running, its task may be had, though it would be over otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_outage_keeps_may_be_claimed() {
    with(async |t| {
        t.stop_clock().await;
        t.client.dispatch("r", starts("b", 60.0)).await.ok();
        t.away(300).await;
        until("the outage is on record", async || t.count("SELECT count(*) FROM outage").await == 1).await;
        t.swept().await;
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        assert_eq!(worker.work_one().await["run_id"], "r");
    })
    .await;
}

/// Rule 3: a run that cannot be read stops none of the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_be_read_stops_nobody_else() {
    // This service looks at nothing by itself: another one does, which has never read the selectors.
    let mut config = settings();
    config.coordinator.sweep_interval = Duration::from_hours(1);
    with_settings(config, async |t| {
        for (run_id, zone) in [("bad-labels", "b"), ("bad-selector", "x"), ("worse-selector", "y"), ("good", "b")] {
            t.client.dispatch(run_id, starts(zone, 60.0)).await.ok();
        }
        for damage in [
            "UPDATE run SET labels = '[1]' WHERE run_id = 'bad-labels'",
            "UPDATE selector SET canonical = '{' || canonical WHERE canonical LIKE '%\"x\"%' OR canonical LIKE '%\"y\"%'",
        ] {
            sqlx::query(damage).execute(&t.pool).await.unwrap();
        }
        let server = Server::start(&settings(), &t.database_url).await.unwrap();
        let other = Client::new(&server.url());
        t.advance(Duration::from_secs(61)).await;
        assert_eq!(other.finished("good").await["failure"]["reason"], "start_timeout");
        t.swept().await;
        assert_eq!(t.count("SELECT count(*) FROM task").await, 3);
        for repair in [
            "UPDATE run SET labels = '{}' WHERE run_id = 'bad-labels'",
            "UPDATE selector SET canonical = substr(canonical, 2) WHERE canonical LIKE '{{%'",
        ] {
            sqlx::query(repair).execute(&t.pool).await.unwrap();
        }
        for run_id in ["bad-labels", "bad-selector", "worse-selector"] {
            assert_eq!(other.finished(run_id).await["failure"]["reason"], "start_timeout");
        }
        server.stop().await;
    })
    .await;
}
