//! Reads that wait, lists, events, and repeats of a dispatch.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::client::reason;
use crate::harness::{Client, Reply, Worker, seconds, until, with};

/// A dispatch with a key.
async fn dispatch_keyed(client: &Client, key: &str, body: &Value) -> Reply {
    client.send(client.request(reqwest::Method::POST, "/v1/runs").header("idempotency-key", key).json(body)).await
}

fn replayed(reply: &Reply) -> bool {
    reply.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
}

/// The run ids of a list, in its order.
async fn listed(client: &Client, query: &str) -> Vec<String> {
    let list = client.get(&format!("/v1/runs?{query}")).await.ok();
    list["runs"].as_array().unwrap().iter().map(|run| run["run_id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_waits_for_a_change_or_for_the_end() {
    with(async |t| {
        t.client.dispatch("r", json!({"worker_selector": {"zone": "b"}})).await.ok();
        let path = |query: &str| format!("/v1/dags/dag/runs/r?{query}");
        let read = |query: &'static str| {
            let client = t.client.clone();
            tokio::spawn(async move {
                let began = Instant::now();
                let run = client.get(&format!("/v1/dags/dag/runs/r?{query}")).await.ok();
                (run, began.elapsed())
            })
        };
        // What is already newer is answered at once, and what never comes at the end of the wait.
        let began = Instant::now();
        assert_eq!(t.client.get(&path("since_version=0&wait_seconds=20")).await.ok()["version"], 1);
        assert_eq!(t.client.get(&path("wait_for=finished")).await.ok()["version"], 1, "no wait, no waiting");
        assert!(began.elapsed() < Duration::from_secs(5));
        let (run, took) = read("wait_seconds=0.3").await.unwrap();
        assert_eq!((&run["version"], took >= Duration::from_millis(300)), (&json!(1), true));
        assert!(took < Duration::from_secs(5), "{took:?}");

        let changed = [read("wait_seconds=20"), read("since_version=1&wait_seconds=20&wait_for=change")];
        let ended = read("wait_for=finished&wait_seconds=20");
        let beyond = read("since_version=2&wait_seconds=20");
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        for read in changed {
            let (run, _) = read.await.unwrap();
            assert!(run["version"].as_i64().unwrap() >= 2, "{run:#}");
        }
        assert!(!ended.is_finished());
        worker.report(&task, "succeeded").await.ok();
        let (run, took) = ended.await.unwrap();
        assert_eq!((&run["status"], took < Duration::from_secs(10)), (&json!("succeeded"), true));
        assert_eq!(beyond.await.unwrap().0["version"], 3);
        let began = Instant::now();
        t.client.get(&path("wait_seconds=20")).await.ok();
        assert!(began.elapsed() < Duration::from_secs(5), "nothing more can come of a run that has ended");
        t.client.get("/v1/dags/dag/runs/none?wait_seconds=20").await.problem(404, "not-found");
    })
    .await;
}

/// A change made on another replica is seen within the fallback interval.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_on_another_replica_is_seen() {
    with(async |t| {
        let (server, replica) = t.replica().await;
        t.client.dispatch("r", json!({"worker_selector": {"zone": "b"}})).await.ok();
        let waiting = tokio::spawn(async move {
            let run = replica.get("/v1/dags/dag/runs/r?wait_for=finished&wait_seconds=20").await.ok();
            (run, Instant::now())
        });
        // The read is under way once its replica has asked for the run's version.
        until("the read waits", async || {
            t.count("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%store::read::versions%' AND pid <> pg_backend_pid()").await > 0
        })
        .await;
        t.client.cancel("r").await.ok();
        let cancelled = Instant::now();
        let (run, seen) = waiting.await.unwrap();
        assert_eq!(run["status"], "aborted");
        let late = seen.duration_since(cancelled);
        assert!(late < t.config.coordinator.fallback_interval + Duration::from_millis(500), "{late:?}");
        server.stop().await;
    })
    .await;
}

/// 200 reads wait and hold no connection: everything else stays quick.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_waiting_reads_hold_up_nobody() {
    with(async |t| {
        let mut waiting = tokio::task::JoinSet::new();
        for number in 0..200 {
            let run_id = format!("r{}", number % 20);
            if number < 20 {
                t.client.dispatch(&run_id, json!({"worker_selector": {"zone": "b"}})).await.ok();
            }
            let client = t.client.clone();
            waiting.spawn(async move {
                client.get(&format!("/v1/dags/dag/runs/{run_id}?wait_for=finished&wait_seconds=30")).await.ok()
            });
        }
        let mut slowest = Duration::ZERO;
        for number in 0..30 {
            let began = Instant::now();
            t.client.run("r0").await;
            t.client.dispatch(&format!("more-{number}"), json!({})).await.ok();
            slowest = slowest.max(began.elapsed());
        }
        assert!(slowest < Duration::from_secs(2), "{slowest:?}");
        let busy = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle'
                    AND pid <> pg_backend_pid() AND application_name = 'roadstead'";
        until("no connection is in use", async || t.count(busy).await == 0).await;
        assert!(waiting.try_join_next().is_none(), "all of them wait");
        for number in 0..20 {
            t.client.cancel(&format!("r{number}")).await.ok();
        }
        while let Some(read) = waiting.join_next().await {
            assert_eq!(read.unwrap()["status"], "aborted");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_by_every_filter_in_either_order() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"labels": {"zone": "b"}, "slots": 9})).await;
        let root = json!({"dag_name": "top", "run_id": "root"});
        let parent = json!({"dag_name": "mid", "run_id": "parent"});
        let body = json!({"worker_selector": {"zone": "b"}, "labels": {"team": "data", "tier": "1"}});
        let first = t.client.dispatch("a", body).await.ok();
        t.client.dispatch("b", json!({"labels": {"team": "data"}, "root": root, "parent": parent})).await.ok();
        t.client.dispatch("c", json!({"worker_selector": {"zone": "x"}, "root": root})).await.ok();
        let last = t.client.post("/v1/runs", &json!({"dag_name": "täglich/1", "run_id": "d"})).await.ok();
        let task = worker.take().await;
        assert_eq!(task["run_id"], "a");
        worker.ack(&task).await.ok();
        t.client.cancel("c").await.ok();
        let claimed = worker.take().await;
        assert_eq!(claimed["run_id"], "b");

        let client = &t.client;
        assert_eq!(listed(client, "").await, ["d", "c", "b", "a"]);
        assert_eq!(listed(client, "order=newest&limit=2").await, ["d", "c"]);
        assert_eq!(listed(client, "order=oldest&limit=3").await, ["a", "b", "c"]);
        for (query, expected) in [
            ("status=queued", vec!["d", "b"]),
            ("status=queued&order=oldest", vec!["b", "d"]),
            ("status=running", vec!["a"]),
            ("status=aborted", vec!["c"]),
            ("status=waiting", vec![]),
            ("dag_name=t%C3%A4glich%2F1", vec!["d"]),
            ("dag_name=dag&status=queued", vec!["b"]),
            ("root_run_id=root", vec!["c", "b"]),
            ("parent_run_id=parent", vec!["b"]),
            ("root_run_id=root&parent_run_id=other", vec![]),
            ("label=team%3Ddata", vec!["b", "a"]),
            ("label=team%3Ddata,tier%3D1", vec!["a"]),
            ("label=tier%3D2", vec![]),
            ("worker_id=w", vec!["b", "a"]),
            ("worker_id=none", vec![]),
        ] {
            assert_eq!(listed(client, query).await, expected, "{query}");
        }
        let created = |run: &Value| run["queued_at"].as_str().unwrap().to_owned();
        assert_eq!(listed(client, &format!("created_after={}", created(&last))).await, ["d"]);
        assert_eq!(listed(client, &format!("created_before={}", created(&first))).await, Vec::<String>::new());
        let between = format!("created_after={}&created_before={}&order=oldest", created(&first), created(&last));
        assert_eq!(listed(client, &between).await, ["a", "b", "c"]);
        for (query, pointer) in [
            ("status=done", "?status"),
            ("order=up", "?order"),
            ("limit=0", "?limit"),
            ("limit=501", "?limit"),
            ("created_after=yesterday", "?created_after"),
            ("label=team", "?label"),
            ("team=data", "?team"),
        ] {
            let problem = client.get(&format!("/v1/runs?{query}")).await.problem(422, "invalid-request");
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem:#}");
        }
        // A run that is given to a worker is shown, and listed, as that worker's.
        let run = client.run("b").await;
        assert_eq!((&run["worker_id"], reason(&run).1), (&json!("w"), "ClaimPending".to_owned()));
        worker.ack(&claimed).await.ok();
        worker.report(&claimed, "succeeded").await.ok();
        worker.report(&task, "succeeded").await.ok();
        assert_eq!(listed(client, "worker_id=w").await, ["b", "a"], "that had it last");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_paged_by_the_version_they_made() {
    with(async |t| {
        t.client.dispatch("r", json!({})).await.ok();
        let worker = Worker::register(&t.client, "w", json!({})).await;
        for round in 0..3 {
            let task = worker.take().await;
            worker.say(&task, "release", json!({"reason": "not now"})).await.ok();
            t.advance(Duration::from_secs(31)).await;
            assert_eq!(t.client.run("r").await["version"], round + 2);
        }
        let path = "/v1/dags/dag/runs/r/events";
        let (mut after, mut seen) = (0, Vec::new());
        loop {
            let page = t.client.get(&format!("{path}?after={after}&limit=3")).await.ok();
            let events = page["events"].as_array().unwrap().clone();
            assert!(events.len() <= 3);
            after = page["next_after"].as_i64().unwrap();
            if events.is_empty() {
                break;
            }
            seen.extend(events);
        }
        let numbers: Vec<i64> = seen.iter().map(|event| event["run_seq"].as_i64().unwrap()).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
        assert_eq!(after, 4);
        for event in &seen {
            assert_eq!(event["data"]["run"]["version"], event["run_seq"]);
            assert_eq!(event["subject"], "dag/r");
        }
        assert!(seen.windows(2).all(|pair| seconds(&pair[0]["time"]) <= seconds(&pair[1]["time"])));
        assert_eq!(t.client.get(&format!("{path}?after=99")).await.ok(), json!({"events": [], "next_after": 99}));
        t.client.get(&format!("{path}?after=-1")).await.problem(422, "invalid-request");
        t.client.get("/v1/dags/dag/runs/none/events").await.problem(404, "not-found");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_listed_as_their_latest_session_stands() {
    with(async |t| {
        let body = json!({"labels": {"zone": "a"}, "exclusive": ["gpu"], "slots": 3, "version": "1.2"});
        let busy = Worker::register_with(&t.client, "busy", body).await;
        let zone_b = json!({"zone": "b", "rack": "1"});
        let drained = Worker::register(&t.client, "drained", zone_b.clone()).await;
        drained.beat(json!({"draining": true})).await.ok();
        Worker::register(&t.client, "gone", zone_b.clone()).await.leave().await.ok();
        Worker::register(&t.client, "idle", zone_b).await;
        Worker::register_with(&t.client, "stale", json!({"lease_seconds": 600})).await;
        t.advance_forgetting(Duration::from_secs(31), Some("stale")).await;
        for run_id in ["r1", "r2"] {
            t.client.dispatch(run_id, json!({"worker_selector": {"gpu": "x"}, "target_worker_id": "busy"})).await.ok();
        }
        busy.beat(json!({"labels": {"zone": "a", "gpu": "x"}})).await.ok();
        let tasks = busy.poll_with(json!({"max_tasks": 5})).await.ok()["tasks"].clone();
        busy.ack(&tasks[0]).await.ok();

        let names = async |query: &str| -> Vec<(String, String)> {
            let list = t.client.get(&format!("/v1/workers?{query}")).await.ok();
            let of = |worker: &Value, field: &str| worker[field].as_str().unwrap().to_owned();
            list["workers"].as_array().unwrap().iter().map(|w| (of(w, "worker_id"), of(w, "state"))).collect()
        };
        let pairs = |expected: &[(&str, &str)]| -> Vec<(String, String)> {
            expected.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect()
        };
        let all =
            [("busy", "healthy"), ("drained", "draining"), ("gone", "ended"), ("idle", "healthy"), ("stale", "stale")];
        assert_eq!(names("").await, pairs(&all));
        for at in 0..5 {
            let (state, of_state): (&str, Vec<_>) =
                (all[at].1, all.iter().copied().filter(|one| one.1 == all[at].1).collect());
            assert_eq!(names(&format!("state={state}")).await, pairs(&of_state));
        }
        assert_eq!(names("label=zone%3Db").await, pairs(&[all[1], all[2], all[3]]));
        assert_eq!(names("label=zone%3Db,rack%3D1&state=healthy").await, pairs(&[all[3]]));
        assert_eq!(names("limit=2").await, pairs(&all[..2]));
        let worker = t.client.get("/v1/workers/busy").await.ok();
        let told = |field: &str| worker[field].clone();
        assert_eq!((told("slots"), told("claimed"), told("running")), (json!(3), json!(1), json!(1)));
        assert_eq!((told("labels"), told("exclusive")), (json!({"zone": "a", "gpu": "x"}), json!(["gpu"])));
        assert_eq!((told("version"), told("session_id")), (json!("1.2"), json!(busy.session_id)));
        assert!((t.now().await - seconds(&worker["last_seen_at"])).abs() < 5.0);
        t.client.get("/v1/workers/none").await.problem(404, "not-found");
        t.client.get("/v1/workers?state=tired").await.problem(422, "invalid-request");
    })
    .await;
}

/// P2: what is a repeat, and what only looks like one.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_is_the_same_key_or_without_one_the_same_identity() {
    with(async |t| {
        let client = &t.client;
        let body = json!({"dag_name": "dag", "run_id": "keyed", "worker_selector": {"zone": "b"}, "params": {"a": 1, "b": 2}});
        let first = dispatch_keyed(client, "k1", &body).await;
        assert!(first.status == 201 && !replayed(&first));
        let first = first.ok();
        // The same, written otherwise.
        let text = r#"{"params": {"b": 2, "a": 1}, "worker_selector": {"zone": "b"}, "run_id": "keyed", "dag_name": "dag", "labels": null}"#;
        for again in [body.clone(), serde_json::from_str(text).unwrap()] {
            let again = dispatch_keyed(client, "k1", &again).await;
            assert!(replayed(&again), "{again:#?}");
            assert_eq!((again.status, again.headers["location"].to_str().unwrap()), (201, "/v1/dags/dag/runs/keyed"));
            assert_eq!(again.body["attempt"], first["attempt"]);
        }
        let other = |field: &str, value: Value| {
            let mut other = body.clone();
            other[field] = value;
            other
        };
        // The same key, another body; the same identity, another key or none; the same identity, another body.
        for (field, value) in [("priority", json!(1)), ("run_id", json!("other")), ("params", json!({"a": 1}))] {
            dispatch_keyed(client, "k1", &other(field, value)).await.problem(422, "idempotency-mismatch");
        }
        dispatch_keyed(client, "k2", &body).await.problem(409, "run-exists");
        client.post("/v1/runs", &body).await.problem(409, "run-exists");
        dispatch_keyed(client, "k2", &other("priority", json!(1))).await.problem(409, "run-exists");
        client.post("/v1/runs", &other("priority", json!(1))).await.problem(409, "run-exists");
        // The key of a refused dispatch is free.
        let reply = dispatch_keyed(client, "k2", &other("run_id", json!("second"))).await;
        assert!(reply.status == 201 && !replayed(&reply));

        let plain = json!({"dag_name": "dag", "run_id": "plain"});
        assert!(!replayed(&client.post("/v1/runs", &plain).await));
        assert!(replayed(&client.post("/v1/runs", &plain).await));
        dispatch_keyed(client, "k3", &plain).await.problem(409, "run-exists");
        let mut otherwise = plain.clone();
        otherwise["labels"] = json!({"a": "b"});
        client.post("/v1/runs", &otherwise).await.problem(409, "run-exists");

        // Without a run id, the key alone makes it one.
        let unnamed = json!({"dag_name": "dag", "worker_selector": {"zone": "b"}});
        let made = dispatch_keyed(client, "k4", &unnamed).await.ok();
        let again = dispatch_keyed(client, "k4", &unnamed).await;
        assert!(replayed(&again));
        assert_eq!(again.ok()["run_id"], made["run_id"]);
        assert_ne!(client.post("/v1/runs", &unnamed).await.ok()["run_id"], made["run_id"]);
    })
    .await;
}

/// B130: what is repeated after it was cancelled is answered as it is; a refused dispatch records no key.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_dispatch_records_no_key_and_a_repeat_answers_the_run_as_it_is() {
    with(async |t| {
        let body = json!({"dag_name": "dag", "run_id": "r", "worker_selector": {"zone": "b"}, "worker_wait_timeout_seconds": 0});
        dispatch_keyed(&t.client, "k", &body).await.problem(409, "no-available-worker");
        assert_eq!(t.count("SELECT count(*) FROM idempotency_key").await, 0);
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let made = dispatch_keyed(&t.client, "k", &body).await;
        assert!(made.status == 201 && !replayed(&made));
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        let again = dispatch_keyed(&t.client, "k", &body).await;
        assert!(replayed(&again));
        assert_eq!(again.ok()["status"], "running");
        worker.report(&task, "aborted").await.ok();
        worker.leave().await.ok();
        // It would be refused by now, but it was accepted then.
        let again = dispatch_keyed(&t.client, "k", &body).await;
        assert!(replayed(&again));
        assert_eq!(again.ok()["status"], "aborted");
        let mut other = body.clone();
        other["run_id"] = json!("other");
        dispatch_keyed(&t.client, "k", &other).await.problem(422, "idempotency-mismatch");
    })
    .await;
}

/// B130: 50 dispatches with one key at one time on two replicas make one run.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_dispatches_with_one_key_make_one_run() {
    with(async |t| {
        let (server, replica) = t.replica().await;
        for (key, body) in [
            (Some("k"), json!({"dag_name": "dag", "worker_selector": {"zone": "b"}})),
            (None, json!({"dag_name": "dag", "run_id": "named", "worker_selector": {"zone": "c"}})),
        ] {
            let mut sending = tokio::task::JoinSet::new();
            for number in 0..50 {
                let client = if number % 2 == 0 { t.client.clone() } else { replica.clone() };
                let body = body.clone();
                sending.spawn(async move {
                    match key {
                        Some(key) => dispatch_keyed(&client, key, &body).await,
                        None => client.post("/v1/runs", &body).await,
                    }
                });
            }
            let replies = sending.join_all().await;
            assert_eq!(replies.iter().filter(|reply| !replayed(reply)).count(), 1);
            let mut ids: Vec<String> = replies.into_iter().map(|reply| reply.ok()["run_id"].to_string()).collect();
            ids.dedup();
            assert_eq!(ids.len(), 1);
        }
        assert_eq!(t.count("SELECT count(*) FROM run").await, 2);
        server.stop().await;
    })
    .await;
}
