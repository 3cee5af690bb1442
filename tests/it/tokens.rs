//! Tokens: only the right one changes anything (P4), and the right one may say the same again (rule 5).

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Test, Worker, settings, until, with, with_settings};

const VERBS: [(&str, &str); 4] =
    [("ack", "{}"), ("renew", "{}"), ("report", r#"{"status":"succeeded"}"#), ("release", "{}")];

/// Says every verb about an attempt with each of these tokens, and checks the code, what to do, and that nothing
/// changed.
async fn refused(t: &Test, worker: &Worker, attempt: &Value, tokens: &[&Value], codes: [&str; 4]) {
    let before = t.state().await;
    for token in tokens {
        let task = json!({"attempt_id": attempt, "token": token});
        for ((verb, rest), code) in VERBS.into_iter().zip(codes) {
            let problem = worker.say(&task, verb, serde_json::from_str(rest).unwrap()).await.problem(409, code);
            assert_eq!(problem["action"], "stop_attempt", "{verb}");
        }
    }
    assert_eq!(t.state().await, before);
}

/// P3, P4, P8: a wrong token, one whose claim went to another worker, and one of another attempt, at every stage.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_or_old_token_changes_nothing_and_is_told_what_to_do() {
    let mut config = settings();
    // Moves of a claim are made by the test alone.
    config.coordinator.sweep_interval = Duration::from_millis(20);
    with_settings(config, async |t| {
        let first = Worker::register(&t.client, "first", json!({})).await;
        t.client.dispatch("other", json!({})).await.ok();
        let other = first.take().await;
        first.ack(&other).await.ok();
        first.report(&other, "succeeded").await.ok();

        t.client.dispatch("r", json!({})).await.ok();
        let old = first.take().await;
        let id = &old["attempt_id"];
        let wrong = json!("wrong");
        let foreign = [&wrong, &other["token"]];
        let stale = [&wrong, &other["token"], &old["token"]];
        refused(t, &first, id, &foreign, ["claim-expired"; 4]).await;
        // Its own token is not for everything before the ack.
        refused(t, &first, id, &[&wrong], ["claim-expired"; 4]).await;

        t.advance(Duration::from_secs(16)).await;
        until("it is back", async || t.count("SELECT count(*) FROM task WHERE claim_until IS NULL").await == 1).await;
        refused(t, &first, id, &stale, ["claim-expired"; 4]).await;

        let second = Worker::register(&t.client, "second", json!({})).await;
        let new = second.take().await;
        assert_eq!((&new["attempt_id"], &new["attempt_number"], &new["fence"]), (id, &json!(1), &json!(2)));
        refused(t, &first, id, &stale, ["claim-expired"; 4]).await;

        second.ack(&new).await.ok();
        refused(t, &first, id, &stale, ["claim-expired", "lease-lost", "lease-lost", "lease-lost"]).await;

        second.report(&new, "succeeded").await.ok();
        refused(t, &first, id, &stale, ["run-finished"; 4]).await;
        assert_eq!(t.client.run("r").await["worker_id"], "second");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_never_was_is_told_to_be_stopped() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        let task = json!({"attempt_id": "019a0000-0000-7000-8000-000000000000", "token": "t"});
        for (verb, rest) in VERBS {
            let reply = worker.say(&task, verb, serde_json::from_str(rest).unwrap()).await;
            assert_eq!(reply.problem(404, "not-found")["action"], "stop_attempt");
        }
    })
    .await;
}

/// P4: a session that has ended speaks with the right token in vain, and does not come back to life by it.
#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_a_session_that_ended_is_dead() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        t.client.dispatch("r", json!({})).await.ok();
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        worker.leave().await.ok();
        assert_eq!(t.client.run("r").await["status"], "failed");
        let before = t.state().await;
        for (verb, rest) in &VERBS[..3] {
            let reply = worker.say(&task, verb, serde_json::from_str(rest).unwrap()).await;
            assert_eq!(reply.problem(409, "lease-lost")["action"], "stop_attempt");
        }
        assert_eq!(t.state().await, before);
    })
    .await;
}

/// Rule 5: the same ack and the same report again are answered alike and change nothing; on any replica.
#[tokio::test(flavor = "multi_thread")]
async fn an_ack_and_a_report_may_be_said_again() {
    with(async |t| {
        let (server, client) = t.replica().await;
        let worker = Worker::register(&t.client, "w", json!({})).await;
        let there = worker.through(&client);
        t.client.dispatch("r", json!({})).await.ok();
        let task = worker.take().await;
        let first = worker.ack(&task).await.ok();
        let again = there.ack(&task).await.ok();
        assert_eq!(first["lease_seconds"], again["lease_seconds"]);
        assert_eq!(t.client.run("r").await["version"], 2);

        let failed = worker.say(&task, "report", json!({"status": "failed", "error": "no"})).await.ok();
        assert_eq!((&failed["status"], &failed["version"]), (&json!("failed"), &json!(3)));
        let before = t.state().await;
        assert_eq!(there.say(&task, "report", json!({"status": "failed", "error": "again"})).await.ok(), failed);
        there.report(&task, "succeeded").await.problem(409, "run-finished");
        worker.leave().await.ok();
        assert_eq!(there.report(&task, "failed").await.ok(), failed, "also when its session is gone");
        assert_eq!(t.state().await["runs"], before["runs"]);
        assert_eq!(t.client.event_types("r").await, ["dag.run.queued", "dag.run.running", "dag.run.failed"]);
        server.stop().await;
    })
    .await;
}

/// Rule 5: a release is idempotent for the right token, whoever has the task meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_may_be_said_again_whatever_happened_since() {
    with(async |t| {
        let first = Worker::register(&t.client, "first", json!({})).await;
        t.client.dispatch("r", json!({})).await.ok();
        let given = first.take().await;
        let released = first.say(&given, "release", json!({})).await.ok();
        let before = t.state().await;
        assert_eq!(first.say(&given, "release", json!({})).await.ok(), released);
        assert_eq!(t.state().await["runs"], before["runs"]);

        let second = Worker::register(&t.client, "second", json!({})).await;
        let again = second.take().await;
        let unchanged = t.state().await["tasks"].clone();
        first.say(&given, "release", json!({})).await.ok();
        assert_eq!(t.state().await["tasks"], unchanged, "not the claim of another");
        second.say(&again, "release", json!({})).await.ok();
        first.say(&given, "release", json!({})).await.ok();

        let third = Worker::register(&t.client, "third", json!({})).await;
        let task = third.take().await;
        third.ack(&task).await.ok();
        let running = first.say(&given, "release", json!({})).await.ok();
        assert_eq!(running["status"], "running");
        let lost = third.say(&task, "release", json!({})).await.ok();
        assert_eq!(lost["status"], "failed");
        assert_eq!(third.say(&task, "release", json!({})).await.ok(), lost);
        assert_eq!(second.say(&again, "release", json!({})).await.ok()["status"], "failed");
    })
    .await;
}

/// Section 5: the same `poll_id` is given that poll's unacknowledged claims, with fresh tokens, same fence and clock.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_poll_again_is_given_the_same_claims_with_fresh_tokens() {
    with(async |t| {
        let (server, client) = t.replica().await;
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 4})).await;
        let there = worker.through(&client);
        for run_id in ["a", "b", "c"] {
            t.client.dispatch(run_id, json!({})).await.ok();
        }
        let poll = json!({"poll_id": "p-1", "max_tasks": 2, "wait_seconds": 5});
        let first = worker.poll_with(poll.clone()).await.ok();
        let clock =
            "SELECT jsonb_agg(jsonb_build_array(run_id, claim_until, claimed_at, fence) ORDER BY run_id) FROM task";
        let before = t.json(clock).await;
        let second = there.poll_with(poll.clone()).await.ok();
        assert_eq!(t.json(clock).await, before);
        let by_run = |answer: &Value| -> Vec<Value> {
            let mut tasks = answer["tasks"].as_array().unwrap().clone();
            tasks.sort_by_key(|task| task["run_id"].to_string());
            tasks
        };
        let (first, second) = (by_run(&first), by_run(&second));
        assert_eq!((first.len(), second.len()), (2, 2));
        for (before, after) in first.iter().zip(&second) {
            assert_eq!((&before["run_id"], &before["fence"]), (&after["run_id"], &after["fence"]));
            assert_ne!(before["token"], after["token"]);
            worker.ack(before).await.problem(409, "claim-expired");
        }
        worker.ack(&second[0]).await.ok();
        let third = by_run(&worker.poll_with(poll.clone()).await.ok());
        assert_eq!(third.len(), 1, "what was acknowledged is not given again");
        assert_eq!(third[0]["run_id"], second[1]["run_id"]);
        worker.ack(&third[0]).await.ok();
        let next = by_run(&worker.poll_with(poll).await.ok());
        assert_eq!(next[0]["run_id"], "c", "a name used up is a name like any other");
        worker.ack(&next[0]).await.ok();
        for task in [&second[0], &third[0], &next[0]] {
            worker.report(task, "succeeded").await.ok();
        }
        server.stop().await;
    })
    .await;
}
