//! Statements that many share: each is answered as if it had been alone, and nobody waits for another's lock.

use serde_json::{Value, json};

use crate::harness::{Reply, Test, Worker, spawn, until, with};

/// Workers with a run each that they have acknowledged.
async fn at_work(t: &Test, number: usize) -> Vec<(Worker, Value)> {
    let mut working = Vec::new();
    for n in 0..number {
        let worker = Worker::register(&t.client, &format!("w{n}"), json!({"n": n.to_string()})).await;
        t.client.dispatch(&format!("r{n}"), json!({"worker_selector": {"n": n.to_string()}})).await.ok();
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        working.push((worker, task));
    }
    working
}

fn naming(task: &Value) -> Value {
    json!({"attempts": [{"attempt_id": task["attempt_id"], "token": task["token"]}]})
}

/// All of these beats at the same time; their answers in order.
async fn at_once(beats: Vec<(Worker, Value)>) -> Vec<Reply> {
    let beating: Vec<_> =
        beats.into_iter().map(|(worker, body)| spawn(async move { worker.beat(body).await })).collect();
    let mut answers = Vec::new();
    for beat in beating {
        answers.push(beat.await.unwrap());
    }
    answers
}

/// 300 beats at once, among them the same one thrice, of ended sessions and of such as never were, with wrong tokens, and
/// with a cancel to be told: each is answered for itself, by far fewer statements than beats.
#[tokio::test(flavor = "multi_thread")]
async fn beats_that_share_statements_are_answered_each_for_itself() {
    with(async |t| {
        let (tap, server, replica) = t.tapped().await;
        let working: Vec<(Worker, Value)> =
            at_work(t, 40).await.into_iter().map(|(worker, task)| (worker.through(&replica), task)).collect();
        t.client.cancel("r1").await.ok();
        working[2].0.leave().await.ok();
        let never = Worker { worker_id: "never".to_owned(), ..working[0].0.clone() };

        let mut beats = Vec::new();
        for _ in 0..7 {
            for (n, (worker, task)) in working.iter().enumerate() {
                let mut body = naming(task);
                match n {
                    3 => body["attempts"][0]["token"] = json!("0".repeat(64)),
                    // The same as before, and something else.
                    4 => body["labels"] = json!({"n": "4"}),
                    5 => (body["slots"], body["draining"]) = (json!(1), json!(false)),
                    6 => body["slots"] = json!(3),
                    7 => body["draining"] = json!(true),
                    8 => body["labels"] = json!({"n": "other"}),
                    _ => {}
                }
                beats.push((worker.clone(), body));
            }
            beats.push((never.clone(), json!({})));
        }
        let before = tap.count("store::beats::heard");
        let (number, answers) = (beats.len(), at_once(beats).await);
        for (at, answer) in answers.into_iter().enumerate() {
            match at % 41 {
                2 | 40 => drop(answer.problem(409, "unknown-session")),
                n => {
                    let answer = answer.ok();
                    let id = &working[n].1["attempt_id"];
                    let (cancel, lost) = match n {
                        1 => (json!([id]), json!([])),
                        3 => (json!([]), json!([id])),
                        _ => (json!([]), json!([])),
                    };
                    assert_eq!((&answer["cancel"], &answer["lost"]), (&cancel, &lost), "w{n}");
                    assert_eq!(answer["drain"], n == 7, "w{n}");
                }
            }
        }
        for (n, field, value) in [
            (4, "labels", json!({"n": "4"})),
            (6, "slots", json!(3)),
            (7, "state", json!("draining")),
            (8, "labels", json!({"n": "other"})),
        ] {
            assert_eq!(t.client.get(&format!("/v1/workers/w{n}")).await.ok()[field], value, "w{n}");
        }
        let statements = tap.count("store::beats::heard") - before;
        assert!(statements < number as u64 / 2, "{statements} statements for {number} beats");
        assert_eq!(t.count("SELECT count(*) FROM attempt WHERE named AND status = 'running'").await, 38, "all but two");
        server.stop().await;
    })
    .await;
}

/// Somebody has locked the rows of as many sessions as there are slots: their beats wait, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn locked_sessions_keep_no_other_beat_waiting() {
    with(async |t| {
        t.stop_clock().await;
        let working = at_work(t, 20).await;
        t.tick(5).await;
        let mut lock = t.pool.begin().await.unwrap();
        let locks = "SELECT FROM worker_session WHERE worker_id IN ('w0', 'w1') ORDER BY worker_id FOR UPDATE";
        sqlx::query(locks).execute(&mut *lock).await.unwrap();
        let (locked, others) = working.split_at(2);
        let beats = |of: &[(Worker, Value)]| of.iter().map(|(worker, task)| (worker.clone(), naming(task))).collect();
        let waiting = spawn(at_once(beats(locked)));
        let blocked =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        until("both beats wait for the lock", async || t.count(blocked).await == 2).await;
        for _ in 0..5 {
            for answer in at_once(beats(others)).await {
                answer.ok();
            }
        }
        assert!(!waiting.is_finished(), "they wait still");
        lock.rollback().await.unwrap();
        for answer in waiting.await.unwrap() {
            answer.ok();
        }
        let behind = "SELECT count(*) FROM worker_session WHERE last_seen < roadstead_now()";
        assert_eq!(t.count(behind).await, 0, "every beat was a sign of life");
    })
    .await;
}
