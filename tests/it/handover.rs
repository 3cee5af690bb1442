//! Hand-over: what is dispatched beside a parked poll is saved already claimed for it. No look is made for it, and nothing
//! that a look would have refused is given away.

use std::time::Duration;

use roadstead::config::Config;
use serde_json::{Value, json};

use crate::harness::client::reason;
use crate::harness::{Worker, settings, settings_with_fallback, until, with_settings};

const CLAIM: &str = "store::claim::write";
const LOOK: &str = "store::claim::look";

/// Nobody looks again by itself.
fn never_again() -> Config {
    settings_with_fallback(Duration::from_hours(1))
}

/// What a task says that is the same of every claim of runs alike.
fn alike(task: &Value) -> Value {
    let mut task = task.clone();
    for own in ["run_id", "attempt_id", "token", "ack_within_seconds"] {
        assert!(!task.as_object_mut().unwrap().remove(own).unwrap().is_null(), "{own}");
    }
    task
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_poll_is_given_what_is_dispatched_without_a_look() {
    with_settings(never_again(), async |t| {
        let (tap, server, client) = t.tapped().await;
        let family = json!({"dag_name": "top", "run_id": "1"});
        let body = json!({
            "worker_selector": {"zone": "b"}, "definition": "steps: []", "params": {"n": 1.50}, "context": [1],
            "labels": {"team": "x"}, "root": family, "parent": family, "priority": 7,
        });
        client.dispatch("held", body.clone()).await.ok();
        let worker = Worker::register(&client, "w", json!({"zone": "b"})).await;
        let claimed = worker.work_one().await;

        for number in 0.. {
            assert!(number < 50, "none of {number} was handed over");
            let (looks, claims) = (tap.count(LOOK), tap.count(CLAIM));
            let poll = tokio::spawn({
                let worker = worker.clone();
                async move { worker.poll_with(json!({"wait_seconds": 30, "poll_id": format!("p{number}")})).await.ok() }
            });
            until("it is looked for", async || tap.count(LOOK) > looks).await;
            let run_id = format!("r{number}");
            let run = client.dispatch(&run_id, body.clone()).await.ok();
            let task = poll.await.unwrap()["tasks"][0].clone();
            assert_eq!(task["run_id"], run_id.as_str());
            if tap.count(CLAIM) > claims {
                // The look for the poll had not ended: it, or the next one, took the task.
                worker.ack(&task).await.ok();
                worker.report(&task, "succeeded").await.ok();
                continue;
            }
            assert_eq!(alike(&task), alike(&claimed), "as a claim by a look");
            assert_eq!((task["ack_within_seconds"].as_f64(), &task["fence"]), (Some(15.0), &json!(1)));
            let read = client.run(&run_id).await;
            for seen in [&run, &read, &client.events(&run_id).await[0]["data"]["run"]] {
                assert_eq!(reason(seen), ("False".into(), "ClaimPending".into()));
                assert_eq!((&seen["worker_id"], &seen["claimed_at"]), (&json!("w"), &read["queued_at"]));
                assert_eq!((&seen["version"], &seen["hold"]["until"]), (&json!(1), &Value::Null));
            }
            worker.ack(&task).await.ok();
            worker.report(&task, "succeeded").await.ok();
            let types = ["dag.run.queued", "dag.run.running", "dag.run.succeeded"];
            assert_eq!(client.event_types(&run_id).await, types);
            break;
        }
        server.stop().await;
    })
    .await;
}

/// The same poll again, whose answer was lost on the way, is given what was handed over to it, with a fresh token.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_handed_over_is_given_again_to_the_same_poll() {
    with_settings(never_again(), async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        let poll = json!({"wait_seconds": 30, "poll_id": "p"});
        let first = tokio::spawn({
            let (worker, poll) = (worker.clone(), poll.clone());
            async move { worker.poll_with(poll).await.ok() }
        });
        until("it is parked", async || t.client.get("/v1/workers/w").await.ok()["state"] == "healthy").await;
        t.client.dispatch("r", json!({})).await.ok();
        let first = first.await.unwrap()["tasks"][0].clone();
        let again = worker.poll_with(poll).await.ok()["tasks"][0].clone();
        assert_eq!((&again["attempt_id"], &again["fence"]), (&first["attempt_id"], &first["fence"]));
        worker.ack(&first).await.problem(409, "claim-expired");
        worker.ack(&again).await.ok();
        worker.report(&again, "succeeded").await.ok();
    })
    .await;
}

/// Two polls of a session with one slot, two dispatches at once: each sees a free slot, and one is given it.
#[tokio::test(flavor = "multi_thread")]
async fn slots_hold_though_dispatches_meet() {
    with_settings(settings(), async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"labels": {}, "slots": 1})).await;
        for round in 0..40 {
            let mut polls = tokio::task::JoinSet::new();
            for _ in 0..2 {
                let worker = worker.clone();
                polls.spawn(async move { worker.poll(3.0).await });
            }
            let (one, other) = (format!("a{round}"), format!("b{round}"));
            let both = tokio::join!(t.client.dispatch(&one, json!({})), t.client.dispatch(&other, json!({})));
            both.0.ok();
            both.1.ok();
            let first = polls.join_next().await.unwrap().unwrap();
            assert_eq!(first.len(), 1);
            let state = t.client.get("/v1/workers/w").await.ok();
            assert_eq!((&state["claimed"], &state["running"]), (&json!(1), &json!(0)), "round {round}");
            worker.ack(&first[0]).await.ok();
            worker.report(&first[0], "succeeded").await.ok();
            let second = polls.join_next().await.unwrap().unwrap();
            assert_eq!(second.len(), 1);
            worker.ack(&second[0]).await.ok();
            worker.report(&second[0], "succeeded").await.ok();
        }
    })
    .await;
}

/// What became of the session through another replica, and has not come to this one yet, is seen by the statement itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_another_replica_changed_is_given_nothing() {
    with_settings(never_again(), async |t| {
        let (tap, server, here) = t.tapped().await;
        for change in ["labels", "drain", "leave"] {
            let zone = json!({"zone": change});
            // Matches, and does not poll.
            let other = Worker::register(&t.client, &format!("{change}-other"), zone.clone()).await;
            let worker = Worker::register(&t.client, change, zone.clone()).await;
            let looks = tap.count(LOOK);
            let poll = tokio::spawn({
                let worker = worker.through(&here);
                async move { worker.poll(5.0).await }
            });
            until("it has been looked for", async || tap.count(LOOK) > looks).await;
            match change {
                "labels" => _ = worker.beat(json!({"labels": {"zone": "elsewhere"}})).await.ok(),
                "drain" => _ = worker.beat(json!({"draining": true})).await.ok(),
                _ => _ = worker.leave().await.ok(),
            }
            here.dispatch(change, json!({"worker_selector": zone})).await.ok();
            let run = here.run(change).await;
            assert_eq!(reason(&run), ("True".into(), "AwaitingPoll".into()), "{change}");
            poll.abort();
            assert_eq!(other.work_one().await["run_id"], change);
        }
        server.stop().await;
    })
    .await;
}

/// A slot that is freed is nothing to other workers: nobody looks for them.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_wakes_the_polls_of_its_own_worker_only() {
    with_settings(never_again(), async |t| {
        let (tap, server, client) = t.tapped().await;
        let worker = Worker::register_with(&client, "w", json!({"slots": 1})).await;
        client.dispatch("first", json!({})).await.ok();
        let first = worker.take().await;
        worker.ack(&first).await.ok();
        let mut polls = tokio::task::JoinSet::new();
        for number in 0..10 {
            let target = json!({"target_worker_id": "w"});
            client.dispatch(&format!("r{number}"), target).await.ok();
            let other = Worker::register(&client, &format!("other{number}"), json!({})).await;
            polls.spawn(async move { other.poll(30.0).await });
        }
        until("each has been looked for", async || tap.count(LOOK) >= 11).await;
        // From now on it is known whom the first run's selector fits. Offered to one of them, who leaves it.
        client.dispatch("later", json!({"not_before": "2100-01-01T00:00:00Z"})).await.ok();
        until("it was offered", async || tap.count(LOOK) >= 12).await;
        let own = tokio::spawn({
            let worker = worker.clone();
            async move { worker.poll(30.0).await }
        });
        until("its own, too", async || tap.count(LOOK) >= 13).await;
        let looks = tap.count(LOOK);
        worker.report(&first, "succeeded").await.ok();
        let next = own.await.unwrap();
        assert_eq!(next[0]["run_id"], "r0", "the slot that was freed");
        worker.ack(&next[0]).await.ok();
        worker.report(&next[0], "succeeded").await.ok();
        assert_eq!(worker.take().await["run_id"], "r1");
        assert!(tap.count(LOOK) <= looks + 3, "{} looks", tap.count(LOOK) - looks);
        polls.shutdown().await;
        server.stop().await;
    })
    .await;
}
