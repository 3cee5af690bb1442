//! Selectors, labels and registration: who is given what, and why a run waits.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::client::reason;
use crate::harness::{Client, Test, Worker, seconds, settings, until, with, with_settings};

fn zone(zone: &str) -> Value {
    json!({"worker_selector": {"zone": zone}})
}

/// Asserts that a run is queued with this status and reason in its read, in the list, and since when.
async fn waits_for(t: &Test, run_id: &str, status: &str, why: &str) -> f64 {
    let run = t.client.run(run_id).await;
    assert_eq!(reason(&run), (status.to_owned(), why.to_owned()), "{run:#}");
    let list = t.client.get("/v1/runs?status=queued&limit=500").await.ok();
    let listed = list["runs"].as_array().unwrap().iter().find(|listed| listed["run_id"] == run_id).unwrap();
    assert_eq!(listed["conditions"], run["conditions"]);
    let since = seconds(&run["conditions"][0]["last_transition_at"]);
    assert!(since >= seconds(&run["queued_at"]) && since <= t.now().await, "{run:#}");
    since
}

/// The reason in a run's queued event.
async fn queued_for(client: &Client, run_id: &str) -> (String, String) {
    reason(&client.events(run_id).await[0]["data"]["run"])
}

/// B63: an immediate start heeds the selector.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_is_never_given_to_another_zone() {
    with(async |t| {
        let other = Worker::register(&t.client, "a", json!({"zone": "a"})).await;
        let parked = tokio::spawn({
            let other = other.clone();
            async move { other.poll(1.2).await }
        });
        until("its poll is parked", async || t.client.get("/v1/workers/a").await.ok()["state"] == "healthy").await;
        t.client.dispatch("r", zone("b")).await.ok();
        t.client.dispatch("r", zone("b")).await.ok();
        assert!(parked.await.unwrap().is_empty());
        assert!(other.poll(0.0).await.is_empty());
        assert_eq!(Worker::register(&t.client, "b", json!({"zone": "b"})).await.work_one().await["run_id"], "r");
    })
    .await;
}

/// B65: no other option switches the selector off, in pairs.
#[tokio::test(flavor = "multi_thread")]
async fn the_selector_holds_in_every_combination() {
    with(async |t| {
        let wrong = Worker::register_with(&t.client, "a", json!({"labels": {"zone": "a"}, "slots": 100})).await;
        let right = Worker::register_with(&t.client, "b", json!({"labels": {"zone": "b"}, "slots": 100})).await;
        let family = json!({"dag_name": "top", "run_id": "1"});
        let options: [(&str, Value); 4] =
            [("priority", json!(50)), ("labels", json!({"zone": "a"})), ("parent", family.clone()), ("root", family)];
        let mut expected = 0;
        for (first, one) in &options {
            for (second, other) in &options {
                for key in [None, Some(format!("{first}-{second}"))] {
                    let run_id = format!("{first}-{second}-{}", key.is_some());
                    let mut body = json!({"dag_name": "dag", "run_id": run_id, "worker_selector": {"zone": "b"}});
                    body[*first] = one.clone();
                    body[*second] = other.clone();
                    let request = t.client.request(reqwest::Method::POST, "/v1/runs").json(&body);
                    let request = key.into_iter().fold(request, |request, key| request.header("idempotency-key", key));
                    assert_eq!(t.client.send(request).await.ok()["worker_selector"], json!({"zone": "b"}));
                    expected += 1;
                }
            }
        }
        let many = json!({"max_tasks": 100, "wait_seconds": 0});
        assert_eq!(wrong.poll_with(many.clone()).await.ok()["tasks"], json!([]));
        let mut given = 0;
        while given < expected {
            let tasks = right.poll_with(many.clone()).await.ok()["tasks"].as_array().unwrap().clone();
            assert!(!tasks.is_empty(), "{given} of {expected} were given");
            given += tasks.len();
        }
    })
    .await;
}

/// A poll that does not want to wait is still looked for once.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_without_a_wait_gets_what_is_there() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 50})).await;
        for number in 0..30 {
            t.client.dispatch(&format!("r{number}"), json!({})).await.ok();
            assert_eq!(worker.poll(0.0).await.len(), 1, "poll {number}");
        }
        let began = Instant::now();
        assert!(worker.poll(0.0).await.is_empty());
        assert!(began.elapsed() < Duration::from_secs(2));
    })
    .await;
}

/// A poll whose wait ends while a look is under way is answered then, not at the next task.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_ends_with_its_wait_whatever_is_under_way() {
    let mut config = settings();
    config.coordinator.fallback_interval = Duration::from_millis(1);
    with_settings(config, async |t| {
        let mut polling = tokio::task::JoinSet::new();
        for number in 0..60_u32 {
            let client = t.client.clone();
            polling.spawn(async move {
                let worker = Worker::register(&client, &format!("w{number}"), json!({"zone": "b"})).await;
                let began = Instant::now();
                assert!(worker.poll(0.2 + f64::from(number) / 200.0).await.is_empty());
                began.elapsed()
            });
        }
        for took in polling.join_all().await {
            assert!(took < Duration::from_secs(5), "{took:?}");
        }
    })
    .await;
}

/// B67: no labels, empty labels and null are alike on both sides.
#[tokio::test(flavor = "multi_thread")]
async fn empty_labels_may_be_written_in_three_ways() {
    with(async |t| {
        let ways =
            [json!({}), json!({"labels": {}, "worker_selector": {}}), json!({"labels": null, "worker_selector": null})];
        for (number, way) in ways.iter().enumerate() {
            t.client.dispatch(&format!("r{number}"), way.clone()).await.ok();
        }
        assert_eq!(t.count("SELECT count(DISTINCT selector_no) FROM task").await, 1);
        for (number, way) in ways.iter().enumerate() {
            let worker = Worker::register_with(&t.client, &format!("w{number}"), way.clone()).await;
            assert_eq!(worker.work_one().await["worker_selector"], json!({}));
        }
        // Not even a body is needed.
        let request = t.client.request(reqwest::Method::PUT, "/v1/workers/plain");
        t.client.send(request).await.ok();
    })
    .await;
}

/// B69: values are strings, and equal only when they are the same.
#[tokio::test(flavor = "multi_thread")]
async fn values_are_strings_and_compared_exactly() {
    with(async |t| {
        let worker =
            Worker::register_with(&t.client, "w", json!({"labels": {"cores": "8", "Zone": "B"}, "slots": 9})).await;
        for (number, other) in ["08", "8.0", "10", "", " 8".trim_start_matches(' '), "８"].into_iter().enumerate() {
            let run = t.client.dispatch(&format!("r{number}"), json!({"worker_selector": {"cores": other}})).await.ok();
            assert_eq!(reason(&run).1 == "AwaitingPoll", other == "8", "{other:?}");
        }
        for selector in [json!({"zone": "B"}), json!({"Zone": "b"})] {
            let run = t.client.post("/v1/runs", &json!({"dag_name": "dag", "worker_selector": selector})).await.ok();
            assert_eq!(reason(&run).1, "NoMatchingWorker");
        }
        for bad in [json!(8), json!(true), json!(null), json!(["8"]), json!({"a": "b"})] {
            let body = json!({"dag_name": "dag", "worker_selector": {"cores": bad}});
            let problem = t.client.post("/v1/runs", &body).await.problem(422, "invalid-request");
            assert_eq!(problem["errors"][0]["pointer"], "/worker_selector/cores", "{problem:#}");
            let problem =
                t.client.put("/v1/workers/x", &json!({"labels": {"cores": bad}})).await.problem(422, "invalid-request");
            assert_eq!(problem["errors"][0]["pointer"], "/labels/cores", "{problem:#}");
        }
        let tasks = worker.poll_with(json!({"max_tasks": 9, "wait_seconds": 0})).await.ok()["tasks"].clone();
        assert_eq!(tasks.as_array().unwrap().len(), 1, "{tasks:#}");
    })
    .await;
}

/// B71: what can never be meant is refused, by the same rules at dispatch, at registration and in a heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn bad_labels_are_named_wherever_they_are_sent() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        let (long_key, long_value) = ("k".repeat(64), "v".repeat(129));
        let (huge, pointer) = ("v".repeat(65_536), |key: &str| key.replace('~', "~0").replace('/', "~1"));
        let bad = [
            ("", "b"),
            ("a b", "b"),
            ("a=b", "b"),
            ("a,b", "b"),
            ("größe", "b"),
            ("a\n", "b"),
            (long_key.as_str(), "b"),
            ("zone", "b\n"),
            ("zone", " b"),
            ("zone", "b\t"),
            ("zone", "a,b"),
            ("zone", "a\u{7}b"),
            ("zone", "\u{a0}b"),
            ("zone", long_value.as_str()),
            ("zone", huge.as_str()),
            ("a~b", "b"),
        ];
        for (key, value) in bad {
            let labels = json!({key: value});
            let mut told = Vec::new();
            for (field, reply) in [
                (
                    "worker_selector",
                    t.client.post("/v1/runs", &json!({"dag_name": "d", "worker_selector": labels})).await,
                ),
                ("labels", t.client.post("/v1/runs", &json!({"dag_name": "d", "labels": labels})).await),
                ("labels", t.client.put("/v1/workers/x", &json!({"labels": labels})).await),
                ("labels", worker.beat(json!({"labels": labels})).await),
            ] {
                let problem = reply.problem(422, "invalid-request");
                assert_eq!(problem["errors"][0]["pointer"], format!("/{field}/{}", pointer(key)), "{problem:#}");
                told.push(problem["errors"][0]["detail"].clone());
            }
            told.dedup();
            assert_eq!(told.len(), 1, "one rule, one word: {told:?}");
        }
        let many = |count: usize| -> Value {
            (0..count).map(|n| (format!("k{n}"), json!("v"))).collect::<serde_json::Map<_, _>>().into()
        };
        for (count, field, path) in
            [(17, "worker_selector", "/v1/runs"), (65, "labels", "/v1/runs"), (10_000, "worker_selector", "/v1/runs")]
        {
            let problem = t
                .client
                .post(path, &json!({"dag_name": "d", field: many(count)}))
                .await
                .problem(422, "invalid-request");
            assert_eq!(problem["errors"][0]["pointer"], format!("/{field}"));
        }
        t.client.put("/v1/workers/x", &json!({"labels": many(65)})).await.problem(422, "invalid-request");
        let body = json!({"dag_name": "d", "worker_selector": many(16), "target_worker_id": "w"});
        t.client.post("/v1/runs", &body).await.problem(422, "invalid-request");
        t.client.put("/v1/workers/x", &json!({"exclusive": ["a b"]})).await.problem(422, "invalid-request");
        assert_eq!(t.count("SELECT count(*) FROM run").await + t.count("SELECT count(*) FROM selector").await, 0);
        // At the limits.
        let most = Worker::register(&t.client, "most", many(64)).await;
        t.client.dispatch("most", json!({"worker_selector": many(16)})).await.ok();
        most.work_one().await;
    })
    .await;
}

/// B73: a worker made from what the queued event says gets the task, whatever characters are in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_built_from_the_event_gets_the_task() {
    with(async |t| {
        let selectors = [
            json!({"zone": "b"}),
            json!({"topology.kubernetes.io/zone": "eu-1", "empty": "", "eq": "a=b", "quote": "a\"b'c\\d"}),
            json!({"ort": "Köln / Süd", "emoji": "🚢", "percent": "%25", "brace": "{a}"}),
        ];
        for (number, selector) in selectors.iter().enumerate() {
            let run_id = format!("r{number}");
            t.client.dispatch(&run_id, json!({"worker_selector": selector})).await.ok();
            let told = t.client.events(&run_id).await[0]["data"]["worker_selector"].clone();
            assert_eq!(told, *selector);
            let worker = Worker::register(&t.client, "built", told).await;
            let task = worker.work_one().await;
            assert_eq!((&task["run_id"], &task["worker_selector"]), (&json!(run_id), selector));
        }
        let body = json!({"dag_name": "dag", "worker_selector": {"zone": "b\n"}});
        t.client.post("/v1/runs", &body).await.problem(422, "invalid-request");
    })
    .await;
}

/// B75: all terms must hold. B77: an unlabelled worker gets only what asks for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn all_terms_must_hold_and_more_labels_do_no_harm() {
    with(async |t| {
        let plain = Worker::register(&t.client, "plain", json!({})).await;
        let some = Worker::register(&t.client, "some", json!({"zone": "b"})).await;
        let parked: Vec<_> = [&plain, &some]
            .map(|worker| {
                let worker = worker.clone();
                tokio::spawn(async move { worker.poll(1.2).await })
            })
            .into();
        let run = t.client.dispatch("r", json!({"worker_selector": {"zone": "b", "gpu": "a100"}})).await.ok();
        assert_eq!(reason(&run), ("False".into(), "NoMatchingWorker".into()));
        for poll in parked {
            assert!(poll.await.unwrap().is_empty());
        }
        let more = Worker::register(&t.client, "more", json!({"zone": "b", "gpu": "a100", "rack": "7"})).await;
        assert_eq!(more.work_one().await["run_id"], "r");
        t.client.dispatch("any", json!({})).await.ok();
        assert_eq!(plain.work_one().await["run_id"], "any");
    })
    .await;
}

/// B79: with a poll parked, the same session or another one registers with other labels.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_other_labels_gets_nothing_for_its_old_ones() {
    with(async |t| {
        for same_session in [true, false] {
            let name = format!("w-{same_session}");
            let (a, b) = (format!("a-{same_session}"), format!("b-{same_session}"));
            let first = json!({"labels": {"zone": a}, "session_id": "s1"});
            let worker = Worker::register_with(&t.client, &name, first).await;
            let parked = tokio::spawn({
                let worker = worker.clone();
                async move { worker.poll_reply(20.0).await }
            });
            // It is parked when it has been given something: so it is looked for.
            t.client.dispatch(&format!("warm-{same_session}"), zone(&a)).await.ok();
            let warm = parked.await.unwrap().ok()["tasks"][0].clone();
            worker.ack(&warm).await.ok();
            worker.report(&warm, "succeeded").await.ok();
            let began = Instant::now();
            let parked = tokio::spawn({
                let worker = worker.clone();
                async move { worker.poll_reply(20.0).await }
            });
            until("the poll was seen", async || {
                let seen = t.client.get(&format!("/v1/workers/{name}")).await.ok();
                seen["last_seen_at"].is_string() && began.elapsed() > Duration::from_millis(100)
            })
            .await;
            let session = if same_session { "s1" } else { "s2" };
            let second = json!({"labels": {"zone": b}, "session_id": session});
            let worker = Worker::register_with(&t.client, &name, second).await;
            t.client.dispatch(&format!("old-{same_session}"), zone(&a)).await.ok();
            t.client.dispatch(&format!("new-{same_session}"), zone(&b)).await.ok();
            let reply = parked.await.unwrap();
            assert!(began.elapsed() < Duration::from_secs(5), "the old poll ends, or looks by the new labels");
            let new = format!("new-{same_session}");
            if same_session {
                let task = &reply.ok()["tasks"][0];
                assert_eq!(task["run_id"], new);
                worker.ack(task).await.ok();
                worker.report(task, "succeeded").await.ok();
            } else {
                assert_eq!(reply.problem(409, "unknown-session")["action"], "give_up");
                assert_eq!(worker.work_one().await["run_id"], new);
            }
            assert!(worker.poll(0.0).await.is_empty());
            waits_for(t, &format!("old-{same_session}"), "False", "NoMatchingWorker").await;
        }
    })
    .await;
}

/// B79, invariant 5: labels changed through one replica count for a poll parked on another within the fallback interval.
#[tokio::test(flavor = "multi_thread")]
async fn labels_changed_on_another_replica_reach_a_parked_poll() {
    let mut config = settings();
    config.coordinator.heartbeat_interval = Duration::from_secs(20);
    config.coordinator.stale_after = Duration::from_mins(1);
    with_settings(config, async |t| {
        let (server, replica) = t.replica().await;
        let worker = Worker::register(&replica, "w", json!({"zone": "a"})).await;
        let looked =
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%store::claim::look%' AND pid <> pg_backend_pid()";
        for (beat, drains) in [(json!({"labels": {"zone": "b"}}), false), (json!({"draining": true}), true)] {
            let parked = tokio::spawn({
                let worker = worker.clone();
                async move { (worker.poll_reply(20.0).await.ok(), Instant::now()) }
            });
            until("the poll was looked for", async || t.count(looked).await > 0).await;
            let here = Worker { client: t.client.clone(), ..worker.clone() };
            if !drains {
                t.client.dispatch("r", zone("b")).await.ok();
            }
            here.beat(beat).await.ok();
            let told = Instant::now();
            let (answer, at) = parked.await.unwrap();
            assert_eq!(answer["drain"], json!(drains));
            let run = if drains { Value::Null } else { json!("r") };
            assert_eq!(answer["tasks"][0]["run_id"], run, "{answer}");
            let late = at.duration_since(told);
            assert!(late < t.config.coordinator.fallback_interval * 2 + Duration::from_millis(500), "{late:?}");
        }
        server.stop().await;
    })
    .await;
}

/// B81: a dispatch and its worker's registration and poll at one instant, on two replicas, many times.
#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_and_a_poll_at_one_instant_find_each_other() {
    with(async |t| {
        let (server, replica) = t.replica().await;
        let mut rounds = tokio::task::JoinSet::new();
        let slots = std::sync::Arc::new(tokio::sync::Semaphore::new(8));
        for number in 0..320 {
            let (here, there) = if number % 2 == 0 { (&t.client, &replica) } else { (&replica, &t.client) };
            let (here, there, slots) = (here.clone(), there.clone(), slots.clone());
            rounds.spawn(async move {
                let _slot = slots.acquire().await.unwrap();
                let (run_id, zone) = (format!("r{number}"), format!("z{number}"));
                let dispatched = tokio::spawn({
                    let body = json!({"worker_selector": {"zone": zone}});
                    async move {
                        here.dispatch(&run_id, body).await.ok();
                        Instant::now()
                    }
                });
                let worker = Worker::register(&there, &format!("w{number}"), json!({"zone": zone})).await;
                let polled = Instant::now();
                let task = worker.take().await;
                let given = Instant::now();
                worker.ack(&task).await.ok();
                worker.report(&task, "succeeded").await.ok();
                given.saturating_duration_since(polled.max(dispatched.await.unwrap()))
            });
        }
        let mut late = rounds.join_all().await;
        late.sort_unstable();
        println!("p50 {:?}, p99 {:?}, p100 {:?}", late[160], late[316], late[319]);
        assert!(late[319] < t.config.coordinator.fallback_interval + Duration::from_millis(1_500), "{:?}", late[319]);
        server.stop().await;
    })
    .await;
}

/// B83: of three processes with one name the newest counts; the others are told to stop and keep nothing alive.
#[tokio::test(flavor = "multi_thread")]
async fn of_processes_with_one_name_the_newest_counts() {
    with(async |t| {
        let first = Worker::register(&t.client, "w1", json!({"zone": "a"})).await;
        let parked = tokio::spawn({
            let first = first.clone();
            async move { first.poll_reply(20.0).await }
        });
        let second = Worker::register(&t.client, "w1", json!({"zone": "b"})).await;
        let third = Worker::register(&t.client, "w1", json!({"zone": "c"})).await;
        assert_eq!(parked.await.unwrap().problem(409, "unknown-session")["action"], "give_up");
        for old in [&first, &second] {
            assert_eq!(old.poll_reply(0.0).await.problem(409, "unknown-session")["action"], "give_up");
            old.beat(json!({})).await.problem(409, "unknown-session");
        }
        for name in ["a", "b", "c"] {
            t.client.dispatch(name, zone(name)).await.ok();
        }
        assert_eq!(third.work_one().await["run_id"], "c");
        waits_for(t, "a", "False", "NoMatchingWorker").await;
        assert_eq!(t.client.get("/v1/workers").await.ok()["workers"].as_array().unwrap().len(), 1);
    })
    .await;
}

/// A worker keeps its exclusive keys for runs that mention them.
#[tokio::test(flavor = "multi_thread")]
async fn exclusive_keys_keep_plain_runs_away() {
    with(async |t| {
        let body = json!({"labels": {"zone": "b", "gpu": "a100"}, "exclusive": ["gpu"]});
        let worker = Worker::register_with(&t.client, "gpu", body).await;
        for (run_id, rest) in [("plain", json!({})), ("zone", zone("b")), ("mine", json!({"target_worker_id": "gpu"}))]
        {
            let run = t.client.dispatch(run_id, rest).await.ok();
            assert_eq!(reason(&run).1, "NoMatchingWorker", "{run_id}");
        }
        let body = json!({"worker_selector": {"zone": "b"}, "worker_wait_timeout_seconds": 0});
        t.client.dispatch("now", body).await.problem(409, "no-matching-worker");
        t.client.dispatch("gpu", json!({"worker_selector": {"gpu": "a100"}})).await.ok();
        assert_eq!(worker.work_one().await["run_id"], "gpu");
        assert!(worker.poll(0.0).await.is_empty());
        // A change of labels by heartbeat leaves what is exclusive as it was.
        worker.beat(json!({"labels": {"zone": "c", "gpu": "h100"}})).await.ok();
        t.client.dispatch("zone-c", zone("c")).await.ok();
        t.client.dispatch("h100", json!({"worker_selector": {"zone": "c", "gpu": "h100"}})).await.ok();
        assert_eq!(worker.work_one().await["run_id"], "h100");
        assert!(worker.poll(0.0).await.is_empty());
    })
    .await;
}

/// A target names the one worker that may have it, and is a term like any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_is_given_to_that_worker_only() {
    with(async |t| {
        let other = Worker::register(&t.client, "w-6", json!({"zone": "b"})).await;
        let body =
            json!({"target_worker_id": "w-7", "worker_selector": {"zone": "b"}, "worker_wait_timeout_seconds": 60});
        let run = t.client.dispatch("both", body).await.ok();
        assert_eq!((&run["target_worker_id"], reason(&run).1), (&json!("w-7"), "NoMatchingWorker".to_owned()));
        let body = json!({"target_worker_id": "w-8", "worker_wait_timeout_seconds": 60});
        t.client.dispatch("alone", body).await.ok();
        assert_eq!(t.client.events("both").await[0]["data"]["target_worker_id"], "w-7");
        assert!(other.poll(0.0).await.is_empty());
        let wrong_zone = Worker::register(&t.client, "w-7", json!({"zone": "a"})).await;
        assert!(wrong_zone.poll(0.0).await.is_empty());
        t.advance(Duration::from_secs(61)).await;
        let failed = t.client.finished("both").await;
        assert_eq!(failed["error"], "no worker matched the selector {zone: b} and worker w-7 within 1m0s");
        assert_eq!(failed["failure"]["target_worker_id"], "w-7");
        let failed = t.client.finished("alone").await;
        assert_eq!(failed["error"], "no worker matched the selector worker w-8 within 1m0s");
        let body = json!({"target_worker_id": "w-7"});
        t.client.dispatch("mine", body).await.ok();
        assert_eq!(wrong_zone.work_one().await["run_id"], "mine");
    })
    .await;
}

/// B109: 5,000 older tasks that nobody can take do not delay the one that somebody can.
#[tokio::test(flavor = "multi_thread")]
async fn older_tasks_that_do_not_match_delay_nobody() {
    with(async |t| {
        let mut sending = tokio::task::JoinSet::new();
        for sender in 0..24 {
            let client = t.client.clone();
            sending.spawn(async move {
                for number in (sender..5_000).step_by(24) {
                    client.dispatch(&format!("x{number}"), zone("x")).await.ok();
                }
            });
        }
        sending.join_all().await;
        let worker = Worker::register(&t.client, "b", json!({"zone": "b"})).await;
        let mut slowest = Duration::ZERO;
        for number in 0..20 {
            t.client.dispatch(&format!("b{number}"), zone("b")).await.ok();
            let began = Instant::now();
            worker.work_one().await;
            slowest = slowest.max(began.elapsed());
        }
        println!("beside 5,000 others a lifecycle took {slowest:?} at the most");
        assert!(slowest < Duration::from_millis(500), "{slowest:?}");
    })
    .await;
}

/// P10: what a session has just released does not stand before what comes after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_released_task_does_not_hide_the_next_from_its_releaser() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        for run_id in ["first", "second"] {
            t.client.dispatch(run_id, json!({})).await.ok();
        }
        let task = worker.take().await;
        worker.say(&task, "release", json!({})).await.ok();
        assert_eq!(worker.work_one().await["run_id"], "second");
        assert!(worker.poll(0.0).await.is_empty());
        assert_eq!(Worker::register(&t.client, "other", json!({})).await.work_one().await["run_id"], "first");
    })
    .await;
}

/// A run with expressions is held until a worker's labels meet them all, and says everywhere what it asks for.
#[tokio::test(flavor = "multi_thread")]
async fn expressions_are_held_for_told_and_met() {
    with(async |t| {
        let expressions = json!([
            {"key": "cores", "operator": "gte", "values": ["8"]},
            {"key": "gpu", "operator": "does_not_exist"},
            {"key": "zone", "operator": "in", "values": ["a", "b"]},
        ]);
        let body = json!({"worker_expressions": expressions, "worker_wait_timeout_seconds": 60});
        let run = t.client.dispatch("r", body.clone()).await.ok();
        assert_eq!((&run["worker_expressions"], &run["worker_selector"]), (&expressions, &json!({})));
        let event = &t.client.events("r").await[0];
        assert_eq!(event["data"]["worker_expressions"], expressions, "whoever opens capacity reads it here");
        // Wherever one of them is not met it is no match, and one that nobody has named is met by its absence.
        for (n, labels) in [
            json!({"cores": "4", "zone": "a"}),
            json!({"cores": "16", "zone": "c"}),
            json!({"cores": "16", "zone": "a", "gpu": ""}),
            json!({"cores": "many", "zone": "a"}),
            json!({"zone": "a"}),
            json!({"cores": "16"}),
        ]
        .into_iter()
        .enumerate()
        {
            let other = Worker::register(&t.client, &format!("other-{n}"), labels.clone()).await;
            assert!(other.poll(0.0).await.is_empty(), "{labels}");
        }
        waits_for(t, "r", "False", "NoMatchingWorker").await;
        let worker = Worker::register(&t.client, "w", json!({"cores": "4", "zone": "b", "more": "x"})).await;
        let parked = tokio::spawn({
            let worker = worker.clone();
            async move { worker.take().await }
        });
        worker.beat(json!({"labels": {"cores": "10", "zone": "b"}})).await.ok();
        let task = parked.await.unwrap();
        assert_eq!((&task["run_id"], &task["worker_expressions"]), (&json!("r"), &expressions));
        worker.ack(&task).await.ok();
        worker.report(&task, "failed").await.ok();

        // A poll that waits is handed one that fits, by the dispatch itself, with all that it asks for.
        let parked = tokio::spawn({
            let worker = worker.clone();
            async move { worker.take().await }
        });
        until("the poll is parked", async || {
            t.count("SELECT count(*) FROM worker_session WHERE worker_id = 'w' AND last_seen > started_at").await == 1
        })
        .await;
        t.client.dispatch("next", body.clone()).await.ok();
        let task = parked.await.unwrap();
        assert_eq!((&task["run_id"], &task["worker_expressions"]), (&json!("next"), &expressions));
        worker.leave().await.ok();

        // A retry asks for the same unless it says otherwise, and then for that alone.
        let retry = async |after: &Value, rest: Value| {
            let mut body = json!({"after_attempt_id": after});
            body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            t.client.post("/v1/dags/dag/runs/r/retry", &body).await
        };
        let first = &run["attempt"]["attempt_id"];
        let again = retry(first, json!({"worker_selector": {"disk": "ssd"}})).await.ok();
        assert_eq!((&again["worker_expressions"], &again["worker_selector"]), (&expressions, &json!({"disk": "ssd"})));
        t.advance(Duration::from_secs(61)).await;
        let failed = t.client.finished("r").await;
        let selector = "{disk: ssd, cores >= 8, gpu does not exist, zone in (a, b)}";
        assert_eq!(failed["error"], format!("no worker matched the selector {selector} within 1m0s"));
        assert_eq!(failed["failure"]["worker_expressions"], expressions);
        let refused =
            t.client.dispatch("now", json!({"worker_expressions": expressions, "worker_wait_timeout_seconds": 0}));
        let refused = refused.await.problem(409, "no-matching-worker");
        assert!(
            refused["detail"].as_str().unwrap().contains("{cores >= 8, gpu does not exist, zone in (a, b)}"),
            "{refused}"
        );
        let last =
            retry(&again["attempt"]["attempt_id"], json!({"worker_expressions": [], "worker_selector": {}})).await.ok();
        assert_eq!((&last["worker_expressions"], reason(&last).1.as_str()), (&Value::Null, "AwaitingPoll"));
    })
    .await;
}

/// An exclusive key may be mentioned by an expression, and terms of every kind count together.
#[tokio::test(flavor = "multi_thread")]
async fn an_expression_mentions_its_key_and_is_a_term() {
    with(async |t| {
        let pool = Worker::register_with(
            &t.client,
            "pool",
            json!({"labels": {"gpu": "80"}, "exclusive": ["gpu"], "slots": 9}),
        )
        .await;
        t.client.dispatch("plain", json!({})).await.ok();
        t.client
            .dispatch("small", json!({"worker_expressions": [{"key": "gpu", "operator": "gt", "values": ["100"]}]}))
            .await
            .ok();
        t.client
            .dispatch("large", json!({"worker_expressions": [{"key": "gpu", "operator": "gt", "values": ["9"]}]}))
            .await
            .ok();
        let answer = pool.poll_with(json!({"max_tasks": 9, "wait_seconds": 0})).await.ok();
        let given: Vec<&Value> = answer["tasks"].as_array().unwrap().iter().map(|task| &task["run_id"]).collect();
        assert_eq!(given, ["large"]);
        let many: Vec<Value> = (0..15).map(|n| json!({"key": format!("k{n}"), "operator": "exists"})).collect();
        let asked = json!({"worker_expressions": many, "target_worker_id": "w"});
        let run = t.client.dispatch("most", asked).await.ok();
        t.client.cancel("most").await.ok();
        let retry = json!({"after_attempt_id": run["attempt"]["attempt_id"], "worker_selector": {"a": "b"}});
        let refused = t.client.post("/v1/dags/dag/runs/most/retry", &retry).await.problem(422, "invalid-request");
        assert_eq!(refused["errors"][0]["pointer"], "/worker_selector", "with what it inherits it is too much");
    })
    .await;
}

/// Every reason that there can be, each in the read, in the list and, where a dispatch meets it, in the queued event.
#[tokio::test(flavor = "multi_thread")]
async fn every_reason_is_given_where_it_holds() {
    with(async |t| {
        t.client.dispatch("none", zone("b")).await.ok();
        let since = waits_for(t, "none", "False", "NoAvailableWorker").await;
        assert_eq!(queued_for(&t.client, "none").await.1, "NoAvailableWorker");
        let other = Worker::register(&t.client, "other", json!({"zone": "a"})).await;
        t.client.dispatch("unmatched", zone("b")).await.ok();
        assert_eq!(queued_for(&t.client, "unmatched").await.1, "NoMatchingWorker");
        assert_eq!(waits_for(t, "none", "False", "NoMatchingWorker").await.to_bits(), since.to_bits(), "still False");

        t.advance(Duration::from_secs(5)).await;
        let before = t.now().await;
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        assert!(waits_for(t, "none", "True", "AwaitingPoll").await >= before);
        t.client.dispatch("awaiting", zone("b")).await.ok();
        assert_eq!(queued_for(&t.client, "awaiting").await, ("True".into(), "AwaitingPoll".into()));

        t.advance(Duration::from_secs(5)).await;
        let before = t.now().await;
        let task = worker.take().await;
        assert!(waits_for(t, "none", "False", "ClaimPending").await >= before);
        assert_eq!(t.client.run("none").await["worker_id"], "w");
        waits_for(t, "awaiting", "False", "WorkersBusy").await;
        worker.ack(&task).await.ok();
        waits_for(t, "awaiting", "False", "WorkersBusy").await;
        t.client.dispatch("busy", zone("b")).await.ok();
        assert_eq!(queued_for(&t.client, "busy").await.1, "WorkersBusy");
        worker.report(&task, "succeeded").await.ok();
        waits_for(t, "awaiting", "True", "AwaitingPoll").await;

        // Given back for a while: no clock runs until then, and afterwards it is as it was.
        let task = worker.take().await;
        t.advance(Duration::from_secs(1)).await;
        worker.say(&task, "release", json!({"delay_seconds": 60})).await.ok();
        let run_id = task["run_id"].as_str().unwrap();
        waits_for(t, run_id, "False", "BackingOff").await;
        assert_eq!(reason(&t.client.events(run_id).await[1]["data"]["run"]).1, "BackingOff");
        t.advance(Duration::from_secs(61)).await;
        waits_for(t, run_id, "True", "AwaitingPoll").await;

        // A claim that came back without delay was not runnable while it was out.
        let back = worker.take().await;
        t.advance(Duration::from_secs(5)).await;
        let before = t.now().await;
        worker.say(&back, "release", json!({})).await.ok();
        assert!(waits_for(t, back["run_id"].as_str().unwrap(), "True", "AwaitingPoll").await >= before);

        t.advance(Duration::from_secs(5)).await;
        let before = t.now().await;
        worker.beat(json!({"draining": true})).await.ok();
        assert!(waits_for(t, "busy", "False", "WorkersDraining").await >= before);
        assert!(t.client.run("busy").await["hold"]["until"].is_string(), "the hold clock runs");
        t.client.dispatch("draining", zone("b")).await.ok();
        assert_eq!(queued_for(&t.client, "draining").await.1, "WorkersDraining");
        let body = json!({"worker_selector": {"zone": "b"}, "worker_wait_timeout_seconds": 0});
        t.client.dispatch("now", body.clone()).await.problem(409, "no-matching-worker");
        other.leave().await.ok();
        // B147: what drains is not available.
        t.client.dispatch("now", body).await.problem(409, "no-available-worker");
        worker.beat(json!({"draining": false})).await.ok();
        waits_for(t, "busy", "True", "AwaitingPoll").await;
        worker.leave().await.ok();
        waits_for(t, "busy", "False", "NoAvailableWorker").await;
    })
    .await;
}
