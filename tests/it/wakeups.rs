//! Wake-ups: a poll that waits is given what it waits for at once by its own replica, and within the fallback interval
//! whatever has gone wrong; and it costs little while it waits.
//!
//! Where a wake-up is what is tested, the fallback interval is longer than the test.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::{Client, Dice, Test, Worker, settings, settings_with_fallback, until, with_settings};

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3_600);

/// What is given later than this was not given by a wake-up.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Ends every connection of every service.
const END_ALL: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
     WHERE datname = current_database() AND application_name = 'roadstead'";

/// A poll of this worker, waiting: completes with its answer and when that came.
fn parked(worker: &Worker, rest: Value) -> tokio::task::JoinHandle<(Value, Instant)> {
    let worker = worker.clone();
    tokio::spawn(async move { (worker.poll_with(rest).await.ok(), Instant::now()) })
}

/// Dispatches until it is answered: what was cut off on the way is sent again.
async fn insist_on_dispatch(client: &Client, run_id: &str, body: &Value) {
    loop {
        let reply = client.dispatch(run_id, body.clone()).await;
        if reply.status == 201 {
            return;
        }
        reply.problem(503, "unavailable");
    }
}

async fn finish(worker: &Worker, task: &Value) {
    worker.ack(task).await.ok();
    worker.report(task, "succeeded").await.ok();
}

/// B85, B89: all connections of the replica that a poll is parked on end, and something is dispatched on the other one.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_outlives_the_connections_of_its_replica() {
    with_settings(settings(), async |t| {
        let (tap, server, replica) = t.tapped().await;
        let worker = Worker::register(&replica, "w", json!({"zone": "b"})).await;
        let (mut dice, mut latest) = (Dice::new(85), Duration::ZERO);
        for number in 0..8 {
            // So that there are many connections, and not only the one that the look has.
            let mut warm = JoinSet::new();
            for _ in 0..8 {
                let replica = replica.clone();
                warm.spawn(async move { replica.get("/v1/workers").await.status });
            }
            warm.join_all().await;
            let news = tap.count("store::worker::news");
            let poll = parked(&worker, json!({"wait_seconds": 30}));
            until("it is parked", async || tap.count("store::worker::news") > news).await;
            let looks = tap.count("store::claim::claimable");
            until("it waits", async || tap.count("store::claim::claimable") > looks).await;
            if number % 2 == 0 {
                tap.cut();
            } else {
                assert!(t.count(END_ALL).await > 0);
            }
            tokio::time::sleep(Duration::from_micros(dice.below(10_000))).await;
            insist_on_dispatch(&t.client, &format!("r{number}"), &json!({"worker_selector": {"zone": "b"}})).await;
            let dispatched = Instant::now();
            let (answer, at) = poll.await.unwrap();
            assert_eq!(answer["tasks"][0]["run_id"], format!("r{number}"));
            latest = latest.max(at.saturating_duration_since(dispatched));
            finish(&worker.through(&t.client), &answer["tasks"][0]).await;
        }
        println!("given {latest:?} after the dispatch at the latest");
        assert!(latest < AT_ONCE, "{latest:?}, and not by the end of the wait");
        server.stop().await;
    })
    .await;
}

/// B89: the network forgets all connections of a replica without a word, and lets new ones through. What was asked on the
/// old ones is given up long before the system would; polls, requests and loops go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_outlives_a_network_that_swallows_what_it_says() {
    let mut config = settings();
    // A session is not to become stale meanwhile, nor an outage to be declared.
    config.coordinator.heartbeat_interval = Duration::from_secs(100);
    config.coordinator.stale_after = Duration::from_secs(300);
    config.coordinator.lease_ttl = Duration::from_secs(300);
    config.database.max_connections = 6;
    with_settings(config, async |t| {
        let (tap, server, replica) = t.tapped().await;
        let worker = Worker::register(&replica, "w", json!({"zone": "b"})).await;
        let mut warm = JoinSet::new();
        for _ in 0..12 {
            let replica = replica.clone();
            warm.spawn(async move { replica.get("/v1/workers").await.status });
        }
        warm.join_all().await;
        let news = tap.count("store::worker::news");
        let poll = parked(&worker, json!({"wait_seconds": 50}));
        until("it is parked", async || tap.count("store::worker::news") > news).await;
        let looks = tap.count("store::claim::claimable");
        until("it waits", async || tap.count("store::claim::claimable") > looks).await;
        tap.silence();
        t.client.dispatch("r", json!({"worker_selector": {"zone": "b"}})).await.ok();
        // As many as there are connections, of every kind.
        let mut asked = JoinSet::new();
        for number in 0..6 {
            let replica = replica.clone();
            asked.spawn(async move {
                let body = json!({"worker_selector": {"zone": "far"}});
                replica.dispatch(&format!("lost-{number}"), body).await.status
            });
            let replica = t.client.clone();
            asked.spawn(async move { replica.get("/v1/runs").await.status });
        }
        let silenced = Instant::now();
        let (answer, at) = poll.await.unwrap();
        assert_eq!(answer["tasks"][0]["run_id"], "r", "{answer:#}");
        println!("given {:?} after the silence", at.duration_since(silenced));
        assert!(asked.join_all().await.iter().all(|status| [200, 201, 503].contains(status)));
        let ready = async || replica.get("/readyz").await.status == 200;
        until("it is ready again", ready).await;
        finish(&worker, &answer["tasks"][0]).await;
        // Its sweep and its sequencer, which nobody else's stand in for.
        for n in 0..12 {
            // What is still waiting on the old connections has its turns for a while.
            let (run_id, body) = (format!("x{n}"), json!({"worker_selector": {"zone": "far"}}));
            until("it is taken", async || replica.dispatch(&run_id, body.clone()).await.status == 201).await;
        }
        server.stop().await;
    })
    .await;
}

/// B91: nothing that a dispatch may hold is too large for the wake-up.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_dispatch_wakes_the_poll_it_fits() {
    with_settings(settings_with_fallback(NEVER), async |t| {
        let labels = |count: usize| -> Value {
            (0..count)
                .map(|number| (format!("{number:a>63}"), json!("v".repeat(128))))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let worker = Worker::register(&t.client, "w", labels(64)).await;
        let poll = parked(&worker, json!({"wait_seconds": 50}));
        let waiting = "SELECT count(*) FROM worker_session WHERE last_seen > started_at";
        until("the poll is there", async || t.count(waiting).await == 1).await;
        let mut body = json!({"worker_selector": labels(16), "labels": labels(64), "definition": "d".repeat(1 << 20)});
        let frame = json!({"dag_name": "dag", "run_id": "r", "params": ""}).to_string().len();
        body["params"] = json!("p".repeat((4 << 20) - body.to_string().len() - frame));
        t.client.dispatch("r", body.clone()).await.ok();
        let dispatched = Instant::now();
        let (answer, at) = poll.await.unwrap();
        assert!(at.saturating_duration_since(dispatched) < AT_ONCE);
        let task = &answer["tasks"][0];
        for field in ["worker_selector", "labels", "definition", "params"] {
            assert!(task[field] == body[field], "{field} is handed on as it was sent");
        }
        finish(&worker, task).await;
    })
    .await;
}

/// Makes two claims in three fail in the database.
const FAILING_CLAIMS: &str = "
    CREATE SEQUENCE tries;
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF nextval('tries') % 3 <> 0 THEN RAISE EXCEPTION 'no claim this time'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER refused BEFORE UPDATE ON task FOR EACH ROW
    WHEN (NEW.claim_until IS NOT NULL) EXECUTE FUNCTION refuse()";

/// One after the other, as soon as the worker asks for more or a moment later: how late the latest was given.
async fn dispatch_and_take(t: &Test, count: usize) -> Duration {
    let worker = Worker::register_with(&t.client, "w", json!({"labels": {"zone": "b"}, "slots": 2})).await;
    let body = json!({"worker_selector": {"zone": "b"}});
    let (mut dice, mut latest) = (Dice::new(93), Duration::ZERO);
    for number in 0..count {
        let poll = parked(&worker, json!({"max_tasks": 1, "wait_seconds": 50}));
        tokio::time::sleep(Duration::from_micros(dice.below(4_000))).await;
        t.client.dispatch(&format!("r{number}"), body.clone()).await.ok();
        let dispatched = Instant::now();
        let (answer, at) = poll.await.unwrap();
        assert_eq!(answer["tasks"][0]["run_id"], format!("r{number}"));
        latest = latest.max(at.saturating_duration_since(dispatched));
        finish(&worker, &answer["tasks"][0]).await;
    }
    println!("given {latest:?} after its dispatch at the latest");
    latest
}

/// B93: a steady stream of work, each dispatched just as the worker begins to wait.
#[tokio::test(flavor = "multi_thread")]
async fn none_of_five_hundred_dispatches_is_missed_by_a_waiting_poll() {
    with_settings(settings_with_fallback(NEVER), async |t| {
        let latest = dispatch_and_take(t, 500).await;
        assert!(latest < AT_ONCE, "{latest:?}");
    })
    .await;
}

/// B93: a look that fails is repeated soon, and never taken for one that found nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_fails_is_tried_again_before_the_fallback() {
    with_settings(settings_with_fallback(Duration::from_secs(20)), async |t| {
        sqlx::raw_sql(FAILING_CLAIMS).execute(&t.pool).await.unwrap();
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        for number in 0..50 {
            // Before the poll, so that a look must find it: beside one that waits, it would be handed over.
            t.client.dispatch(&format!("r{number}"), json!({"worker_selector": {"zone": "b"}})).await.ok();
            let polled = Instant::now();
            let (answer, at) = parked(&worker, json!({"max_tasks": 1, "wait_seconds": 50})).await.unwrap();
            assert_eq!(answer["tasks"][0]["run_id"], format!("r{number}"));
            assert!(at - polled < AT_ONCE, "{:?}", at - polled);
            finish(&worker, &answer["tasks"][0]).await;
        }
        assert_eq!(t.count("SELECT last_value FROM tries").await, 150, "two of three failed");
    })
    .await;
}

/// B95: a poll for many is answered with what there is, at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_for_ten_takes_the_one_there_is() {
    with_settings(settings_with_fallback(NEVER), async |t| {
        let (tap, server, replica) = t.tapped().await;
        let worker = Worker::register_with(&replica, "w", json!({"slots": 10})).await;
        for (run_id, waits) in [("before", false), ("after", true)] {
            let dispatch = async || drop(replica.dispatch(run_id, json!({})).await.ok());
            if !waits {
                dispatch().await;
            }
            let looks = tap.count("store::claim::look");
            let (poll, asked) = (parked(&worker, json!({"max_tasks": 10, "wait_seconds": 50})), Instant::now());
            until("it is looked for", async || tap.count("store::claim::look") > looks).await;
            if waits {
                dispatch().await;
            }
            let (answer, at) = poll.await.unwrap();
            assert_eq!(answer["tasks"].as_array().unwrap().len(), 1);
            assert!(at.duration_since(asked) < AT_ONCE, "{run_id}: {:?}", at.duration_since(asked));
            finish(&worker, &answer["tasks"][0]).await;
        }
        server.stop().await;
    })
    .await;
}

/// B95: what waits for nothing costs one look per label set and fallback interval, and no other statement.
#[tokio::test(flavor = "multi_thread")]
async fn idle_polls_cost_a_look_per_interval_between_them() {
    let mut config = settings_with_fallback(Duration::from_millis(300));
    // The keeper's signs of life are not what is counted.
    config.coordinator.heartbeat_interval = NEVER;
    config.coordinator.stale_after = NEVER * 2;
    config.coordinator.lease_ttl = NEVER * 2;
    with_settings(config, async |t| {
        let (tap, server, replica) = t.tapped().await;
        let mut polls = JoinSet::new();
        let worker = Worker::register_with(&replica, "w", json!({"slots": 200})).await;
        for _ in 0..20 {
            let worker = worker.clone();
            polls.spawn(async move { worker.poll_with(json!({"max_tasks": 10, "wait_seconds": 50})).await.ok() });
        }
        until("all have come", async || tap.count("store::worker::news") >= 20).await;
        let looks = tap.count("store::claim::claimable");
        // The last of them may have woken the others.
        until("they are looked for", async || tap.count("store::claim::claimable") > looks + 2).await;
        let (before, began) = (tap.counts(), Instant::now());
        let counted = before["store::claim::claimable"];
        until("five more", async || tap.count("store::claim::claimable") >= counted + 5).await;
        let (after, took) = (tap.counts(), began.elapsed());
        let looks = after["store::claim::claimable"] - counted;
        let intervals = took.as_secs_f64() / t.config.coordinator.fallback_interval.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a handful")]
        let looks = looks as f64;
        assert!(looks <= intervals + 1.0, "{looks} looks in {intervals} intervals");
        // The watcher asks once an interval what became of all their sessions.
        let of_polls = |name: &str| {
            let rooms = ["store::claim::", "store::session::", "store::contents::", "store::worker::news"];
            !["store::claim::claimable", "store::session::standing"].contains(&name)
                && rooms.iter().any(|room| name.starts_with(room))
        };
        let more: Vec<_> =
            after.iter().filter(|(name, count)| of_polls(name) && before.get(*name) != Some(count)).collect();
        println!("while twenty polls wait for {took:?}: {looks} looks, and besides {more:?}");
        assert!(more.is_empty(), "{more:?}");
        for number in 0..20 {
            t.client.dispatch(&format!("r{number}"), json!({})).await.ok();
        }
        for answer in polls.join_all().await {
            assert!(!answer["tasks"].as_array().unwrap().is_empty());
        }
        server.stop().await;
    })
    .await;
}

/// B97: one slot. What frees it and what is dispatched at that instant find each other, each time.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_freed_as_a_task_arrives_is_given_the_task() {
    with_settings(settings_with_fallback(NEVER), async |t| {
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        let body = json!({"worker_selector": {"zone": "b"}});
        t.client.dispatch("r0", body.clone()).await.ok();
        let mut task = worker.take().await;
        worker.ack(&task).await.ok();
        let (mut dice, mut latest) = (Dice::new(97), Duration::ZERO);
        for number in 1..=200 {
            let poll = parked(&worker, json!({"wait_seconds": 50}));
            let run_id = format!("r{number}");
            let [later, sooner] = [dice.below(3_000), dice.below(3_000)].map(Duration::from_micros);
            let (dispatched, reported) = tokio::join!(
                async {
                    tokio::time::sleep(later).await;
                    t.client.dispatch(&run_id, body.clone()).await
                },
                async {
                    tokio::time::sleep(sooner).await;
                    worker.report(&task, "succeeded").await
                },
            );
            drop((dispatched.ok(), reported.ok()));
            let both = Instant::now();
            let (answer, at) = poll.await.unwrap();
            latest = latest.max(at.saturating_duration_since(both));
            task = answer["tasks"][0].clone();
            assert_eq!(task["run_id"], run_id);
            worker.ack(&task).await.ok();
        }
        println!("given {latest:?} after both at the latest");
        assert!(latest < AT_ONCE, "{latest:?}");
        worker.report(&task, "succeeded").await.ok();
    })
    .await;
}
