//! The hand-over: a poll is given what it may have, once, and what it does not take comes back as it was.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::client::reason;
use crate::harness::{Worker, settings, spawn, until, with, with_settings};

/// More than the wait for an acknowledgement.
const ACK_OVER: Duration = Duration::from_secs(16);

fn ids(tasks: &[Value]) -> Vec<&str> {
    tasks.iter().map(|task| task["run_id"].as_str().unwrap()).collect()
}

/// B01: a worker dies while its poll is parked. Whatever the hand-over was at, the worker that replaces it has the task
/// at the latest when the claim lapses, with the same attempt, place and clocks.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_whose_client_was_cut_swallows_nothing() {
    let mut config = settings();
    config.coordinator.ack_timeout = Duration::from_secs(1);
    with_settings(config, async |t| {
        let mut at_once = 0;
        for round in 0..12 {
            let dead = Worker::register(&t.client, "dead", json!({"zone": "b"})).await;
            let registered = dead.last_seen().await;
            let poll = dead.poll_raw(30.0).await;
            until("its poll has come", async || dead.last_seen().await != registered).await;
            let (first, second) = (format!("{round}-first"), format!("{round}-second"));
            let dispatch = t.client.dispatch(&first, json!({"worker_selector": {"zone": "b"}}));
            let cut = async {
                // Before the dispatch, and then ever deeper into the hand-over.
                tokio::time::sleep(Duration::from_millis(3 * round)).await;
                drop(poll);
            };
            tokio::join!(dispatch, cut).0.ok();
            t.client.dispatch(&second, json!({"worker_selector": {"zone": "b"}})).await.ok();
            let clocks = t.clocks(&first).await;
            let heir = Worker::register(&t.client, "heir", json!({"zone": "b"})).await;
            let asked = Instant::now();
            let task = loop {
                // The younger one may be had first only while the older is still out.
                let task = heir.take().await;
                assert_eq!(task["attempt_number"], 1);
                if task["run_id"] == first {
                    break task;
                }
                heir.ack(&task).await.ok();
                heir.report(&task, "succeeded").await.ok();
            };
            assert!(asked.elapsed() < Duration::from_secs(3), "had after {:?}", asked.elapsed());
            at_once += usize::from(task["fence"] == 1);
            assert_eq!(t.clocks(&first).await, clocks);
            heir.ack(&task).await.ok();
            heir.report(&task, "succeeded").await.ok();
            if t.client.run(&second).await["status"] == "queued" {
                assert_eq!(heir.work_one().await["run_id"], second);
            }
            let events = t.client.event_types(&first).await;
            assert_eq!(events.iter().filter(|kind| *kind == "dag.run.running").count(), 1);
            heir.leave().await.ok();
            dead.leave().await.ok();
        }
        assert!(at_once > 0, "none was had without a detour");
    })
    .await;
}

/// B01: the network swallows the answer: nothing tells the service that the worker is gone. The claim is never both's.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_lost_on_the_wire_comes_back_as_it_was() {
    with(async |t| {
        let dead = Worker::register(&t.client, "dead", json!({"zone": "b"})).await;
        let _unread = dead.poll_raw(30.0).await;
        t.client.dispatch("r", json!({"worker_selector": {"zone": "b"}})).await.ok();
        until("it is given away", async || reason(&t.client.run("r").await).1 == "ClaimPending").await;
        let clocks = t.clocks("r").await;
        let heir = Worker::register(&t.client, "heir", json!({"zone": "b"})).await;
        assert!(heir.poll(0.0).await.is_empty(), "never both");
        t.advance(ACK_OVER).await;
        let task = heir.take().await;
        assert_eq!((&task["attempt_number"], &task["fence"]), (&json!(1), &json!(2)));
        assert_eq!(t.clocks("r").await, clocks);
        heir.ack(&task).await.ok();
        heir.report(&task, "succeeded").await.ok();
    })
    .await;
}

/// B05: a goodbye returns the parked poll at once, and a later poll of that process is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_said_goodbye_is_given_nothing() {
    with(async |t| {
        let leaving = Worker::register(&t.client, "w", json!({})).await;
        let registered = leaving.last_seen().await;
        let parked = spawn({
            let leaving = leaving.clone();
            async move { (leaving.poll_reply(30.0).await, Instant::now()) }
        });
        until("its poll has come", async || leaving.last_seen().await != registered).await;
        let left = Instant::now();
        assert_eq!(leaving.leave().await.ok()["state"], "ended");
        let (answer, at) = parked.await.unwrap();
        // A goodbye that overtakes the poll on its way in is refused like one that came later.
        if answer.status == 200 {
            assert_eq!(answer.body["tasks"], json!([]));
        } else {
            answer.problem(409, "unknown-session");
        }
        assert!(at - left < Duration::from_secs(1), "returned after {:?}", at - left);
        assert_eq!(leaving.poll_reply(1.0).await.problem(409, "unknown-session")["action"], "register");
        let run = t.client.dispatch("r", json!({})).await.ok();
        assert_eq!(reason(&run), ("False".into(), "NoAvailableWorker".into()));
        assert_eq!(t.count("SELECT count(*) FROM task WHERE claim_until IS NOT NULL").await, 0);
    })
    .await;
}

/// B09: the health of a worker does not keep a claim that it never acknowledges.
#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_worker_that_never_acknowledges_loses_its_claim() {
    with(async |t| {
        t.stop_clock().await;
        let idle = Worker::register(&t.client, "idle", json!({})).await;
        t.client.dispatch("r", json!({})).await.ok();
        let task = idle.take().await;
        assert!(task["ack_within_seconds"].as_f64().unwrap() > 14.0);
        let named = json!({"attempts": [{"attempt_id": task["attempt_id"], "token": task["token"]}]});
        t.advance(Duration::from_secs(10)).await;
        assert_eq!(idle.beat(named.clone()).await.ok()["lost"], json!([]));
        t.advance(Duration::from_secs(6)).await;
        until("it is held again", async || reason(&t.client.run("r").await).1 == "AwaitingPoll").await;
        assert_eq!(idle.beat(named).await.ok()["lost"], json!([task["attempt_id"]]));
        let other = Worker::register(&t.client, "other", json!({})).await;
        assert_eq!(other.work_one().await["run_id"], "r");
        assert_eq!(idle.ack(&task).await.problem(409, "run-finished")["action"], "stop_attempt");
        let kinds = ["dag.run.queued", "dag.run.updated", "dag.run.running", "dag.run.succeeded"];
        assert_eq!(t.client.event_types("r").await, kinds);
    })
    .await;
}

/// Rule 8: after an outage of ours a claim ends no earlier than the amnesty: it is given again, and acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_outlives_an_outage_of_the_service() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        t.client.dispatch("r", json!({})).await.ok();
        let poll = json!({"poll_id": "p", "wait_seconds": 5});
        assert_eq!(worker.poll_with(poll.clone()).await.ok()["tasks"][0]["fence"], 1);
        sqlx::raw_sql("UPDATE sweep_stamp SET stamped_at = stamped_at - interval '30 seconds'")
            .execute(&t.pool)
            .await
            .unwrap();
        until("the outage is on record", async || t.count("SELECT count(*) FROM outage").await == 1).await;
        t.advance(ACK_OVER).await;
        t.swept().await;
        let again = worker.poll_with(poll).await.ok();
        assert_eq!(again["tasks"][0]["fence"], 1, "it is the same claim");
        worker.ack(&again["tasks"][0]).await.ok();
        worker.report(&again["tasks"][0], "succeeded").await.ok();
    })
    .await;
}

/// B25, P8: each time the same attempt, place and clocks; only the fence rises. The hold alone ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_never_acknowledged_comes_back_three_times_and_fails_by_its_hold_alone() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        t.client.dispatch("r", json!({"worker_selector": {"zone": "b"}})).await.ok();
        t.client.dispatch("younger", json!({"worker_selector": {"zone": "b"}})).await.ok();
        let clocks = t.clocks("r").await;
        for fence in 1..=3 {
            let task = worker.take().await;
            let seen = (task["run_id"].clone(), task["attempt_number"].clone(), task["fence"].clone());
            assert_eq!(seen, (json!("r"), json!(1), json!(fence)));
            t.advance(ACK_OVER).await;
            until("it is back", async || reason(&t.client.run("r").await).1 == "AwaitingPoll").await;
            assert_eq!(t.clocks("r").await, clocks);
        }
        worker.leave().await.ok();
        t.advance(Duration::from_secs(121)).await;
        let failed = t.client.finished("r").await;
        assert_eq!(failed["error"], "no worker matched the selector {zone: b} within 2m0s");
        assert_eq!((&failed["failure"]["reason"], &failed["attempt"]["number"]), (&json!("hold_expired"), &json!(1)));
    })
    .await;
}

/// Rule 4: highest priority first, then oldest, and a returned claim has its old place.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_given_by_priority_and_then_by_age() {
    with(async |t| {
        for (run_id, priority) in [("a", 0), ("b", -100), ("c", 5), ("d", 0), ("e", 100), ("f", 5)] {
            t.client.dispatch(run_id, json!({"priority": priority, "worker_selector": {"zone": "b"}})).await.ok();
        }
        t.client.dispatch("g", json!({})).await.ok();
        let worker = Worker::register_with(&t.client, "w", json!({"labels": {"zone": "b"}, "slots": 10})).await;
        let tasks = worker.poll_with(json!({"max_tasks": 10, "wait_seconds": 5})).await.ok();
        assert_eq!(ids(tasks["tasks"].as_array().unwrap()), ["e", "c", "f", "a", "d", "g", "b"]);
        t.advance(ACK_OVER).await;
        until("they are back", async || t.count("SELECT count(*) FROM task WHERE claim_until IS NULL").await == 7)
            .await;
        for run_id in ["e", "c", "f", "a", "d", "g", "b"] {
            assert_eq!(worker.work_one().await["run_id"], run_id);
        }
    })
    .await;
}

/// Rule 4: never more than the session's free slots, however many polls of it are open on however many replicas.
#[tokio::test(flavor = "multi_thread")]
async fn many_polls_of_one_session_share_its_slots() {
    with(async |t| {
        let (server, client) = t.replica().await;
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 3})).await;
        let there = worker.through(&client);
        for round in 0..4 {
            let polls: Vec<_> = (0..6)
                .map(|n| {
                    let worker = if n % 2 == 0 { worker.clone() } else { there.clone() };
                    spawn(async move { worker.poll_with(json!({"max_tasks": 2, "wait_seconds": 0.7})).await.ok() })
                })
                .collect();
            for n in 0..4 {
                t.client.dispatch(&format!("{round}-{n}"), json!({})).await.ok();
            }
            let mut given = Vec::new();
            for poll in polls {
                given.extend(poll.await.unwrap()["tasks"].as_array().unwrap().clone());
            }
            assert_eq!(given.len(), 3, "in round {round}");
            let view = t.client.get("/v1/workers/w").await.ok();
            assert_eq!((&view["claimed"], &view["running"]), (&json!(3), &json!(0)));
            worker.ack(&given[0]).await.ok();
            assert!(there.poll(0.0).await.is_empty(), "a running attempt has its slot as well");
            worker.report(&given[0], "succeeded").await.ok();
            given.remove(0);
            given.push(there.take().await);
            for task in given {
                worker.ack(&task).await.ok();
                there.report(&task, "succeeded").await.ok();
            }
        }
        server.stop().await;
    })
    .await;
}

/// Rule 5: a release gives the task back to its place, and not to the same session for 30 s; but others have it, and
/// the session has others.
#[tokio::test(flavor = "multi_thread")]
async fn a_released_task_goes_to_others_and_its_session_to_other_tasks() {
    with(async |t| {
        t.stop_clock().await;
        let worker = Worker::register(&t.client, "w", json!({})).await;
        t.client.dispatch("r", json!({})).await.ok();
        let clocks = t.clocks("r").await;
        let task = worker.take().await;
        let standing = worker.say(&task, "release", json!({"reason": "no disk"})).await.ok();
        assert_eq!((&standing["run_id"], &standing["status"]), (&json!("r"), &json!("queued")));
        assert_eq!(standing["version"], t.client.run("r").await["version"]);
        assert_eq!(t.clocks("r").await, clocks);
        assert!(worker.poll(0.0).await.is_empty(), "not offered to the one who released it");

        t.client.dispatch("next", json!({})).await.ok();
        assert_eq!(worker.work_one().await["run_id"], "next", "what it released is not in its way");

        let other = Worker::register(&t.client, "other", json!({})).await;
        let again = other.take().await;
        assert_eq!((&again["run_id"], &again["attempt_number"], &again["fence"]), (&json!("r"), &json!(1), &json!(2)));
        other.say(&again, "release", json!({})).await.ok();
        t.advance(Duration::from_secs(29)).await;
        assert!(other.poll(0.0).await.is_empty());
        t.advance(Duration::from_secs(2)).await;
        assert_eq!(other.work_one().await["run_id"], "r", "after 30 s it may have it again");
    })
    .await;
}

/// As above, with more released than one look chooses.
#[tokio::test(flavor = "multi_thread")]
async fn however_much_a_session_released_it_is_given_the_rest() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 70})).await;
        for n in 0..70 {
            t.client.dispatch(&format!("{n}"), json!({})).await.ok();
        }
        let mut released = 0;
        while released < 70 {
            let given = worker.poll_with(json!({"max_tasks": 70, "wait_seconds": 5})).await.ok();
            for task in given["tasks"].as_array().unwrap() {
                worker.say(task, "release", json!({})).await.ok();
                released += 1;
            }
        }
        t.client.dispatch("rest", json!({})).await.ok();
        assert_eq!(worker.work_one().await["run_id"], "rest");
    })
    .await;
}

/// Rule 5: a delay moves the hold to its end, and until then nobody is offered it.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_with_a_delay_starts_the_hold_anew_after_it() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        t.client.dispatch("r", json!({"worker_wait_timeout_seconds": 60})).await.ok();
        let before = t.clocks("r").await;
        let task = worker.take().await;
        worker.say(&task, "release", json!({"delay_seconds": 100})).await.ok();
        let moved = t.count(
            "SELECT round(extract(epoch FROM hold_from - roadstead_now()))::bigint FROM task WHERE hold_until = hold_from + wait",
        );
        assert_eq!(moved.await, 100);
        assert_eq!(t.clocks("r").await["place"], before["place"]);
        let other = Worker::register(&t.client, "other", json!({})).await;
        t.advance(Duration::from_secs(95)).await;
        assert!(other.poll(0.0).await.is_empty(), "offered to nobody before the delay is over");
        worker.leave().await.ok();
        other.leave().await.ok();
        t.advance(Duration::from_mins(1)).await;
        t.swept().await;
        assert_eq!(t.client.run("r").await["status"], "queued", "its hold began with the delay's end");
        t.advance(Duration::from_secs(10)).await;
        assert_eq!(t.client.finished("r").await["error"], "no worker was available within 1m0s");
    })
    .await;
}

/// Rule 5: a release of what was acknowledged ends the attempt like a lost lease, at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_of_a_running_attempt_ends_it() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        t.client.dispatch("r", json!({})).await.ok();
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        let standing = worker.say(&task, "release", json!({"reason": "moving house"})).await.ok();
        let run = t.client.run("r").await;
        assert_eq!((&standing["status"], &standing["version"]), (&json!("failed"), &run["version"]));
        assert_eq!(run["error"], "worker w released it: moving house");
        assert_eq!((&run["failure"]["reason"], &run["failure"]["worker_id"]), (&json!("lease_lost"), &json!("w")));
        assert_eq!(worker.report(&task, "succeeded").await.problem(409, "lease-lost")["action"], "stop_attempt");
    })
    .await;
}

/// A poll that does not wait has looked, and one that waits is answered when its wait is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_always_looks_and_always_ends_in_time() {
    let mut config = settings();
    // Looks without end: many polls end while one is under way.
    config.coordinator.fallback_interval = Duration::from_millis(1);
    with_settings(config, async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        for n in 0..30 {
            t.client.dispatch(&format!("{n}"), json!({})).await.ok();
            let tasks = worker.poll(0.0).await;
            assert_eq!(tasks.len(), 1, "it was there when poll {n} came");
            worker.ack(&tasks[0]).await.ok();
            worker.report(&tasks[0], "succeeded").await.ok();
        }
        let polls: Vec<_> = (0..200_u32)
            .map(|n| {
                let worker = worker.clone();
                spawn(async move { worker.poll(f64::from(n) / 500.0).await })
            })
            .collect();
        let asked = Instant::now();
        for poll in polls {
            let left = Duration::from_secs(5).saturating_sub(asked.elapsed());
            assert!(tokio::time::timeout(left, poll).await.expect("it ends in time").unwrap().is_empty());
        }
    })
    .await;
}

/// Rule 7: a new session of the same worker ends the old one at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_session_ends_the_old_one_at_once() {
    with(async |t| {
        let old = Worker::register_with(&t.client, "w", json!({"slots": 3})).await;
        t.client.dispatch("runs", json!({})).await.ok();
        t.client.dispatch("claimed", json!({})).await.ok();
        let running = old.take().await;
        old.ack(&running).await.ok();
        let claimed = old.take().await;
        let (clocks, before) = (t.clocks("claimed").await, old.last_seen().await);
        let parked = spawn({
            let old = old.clone();
            async move { old.poll_reply(30.0).await }
        });
        until("its poll has come", async || old.last_seen().await != before).await;

        let asked = Instant::now();
        let new = Worker::register(&t.client, "w", json!({})).await;
        assert_ne!(old.session_id, new.session_id);
        let lost = t.client.run("runs").await;
        assert_eq!(
            (&lost["status"], &lost["error"]),
            (&json!("failed"), &json!("worker w was lost: its session ended"))
        );
        assert_eq!(t.clocks("claimed").await, clocks);
        assert_eq!(parked.await.unwrap().problem(409, "unknown-session")["action"], "give_up");
        assert!(asked.elapsed() < Duration::from_secs(1), "took {:?}", asked.elapsed());

        assert_eq!(old.beat(json!({})).await.problem(409, "unknown-session")["action"], "give_up");
        assert_eq!(old.poll_reply(0.0).await.problem(409, "unknown-session")["action"], "give_up");
        old.report(&running, "succeeded").await.problem(409, "lease-lost");
        old.ack(&claimed).await.problem(409, "claim-expired");
        let again = new.work_one().await;
        assert_eq!(
            (&again["run_id"], &again["attempt_number"], &again["fence"]),
            (&json!("claimed"), &json!(1), &json!(2))
        );
        let distinct: HashSet<_> = [&claimed["token"], &again["token"]].into_iter().map(Value::to_string).collect();
        assert_eq!(distinct.len(), 2);
    })
    .await;
}
