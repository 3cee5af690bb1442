//! The feed: every event once, in each run's order, to every reader, by page and by stream.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Client, Test, Worker, until, with};

/// Reads the whole feed by pages of this size.
async fn read_all(client: &Client, limit: usize) -> Vec<Value> {
    let (mut events, mut after) = (Vec::new(), 0);
    loop {
        let page = client.get(&format!("/v1/events?after={after}&limit={limit}")).await.ok();
        let read = page["events"].as_array().unwrap();
        if read.is_empty() {
            return events;
        }
        events.extend(read.iter().cloned());
        after = page["next_after"].as_i64().unwrap();
    }
}

/// Fails unless positions are dense from 1 and each run's events come in its order, without a gap.
fn assert_in_order(events: &[Value]) {
    let mut last: HashMap<String, i64> = HashMap::new();
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["position"], json!(at + 1));
        let seq = last.entry(event["subject"].as_str().unwrap().to_owned()).or_default();
        assert_eq!(event["run_seq"], json!(*seq + 1), "of {}", event["subject"]);
        *seq += 1;
    }
}

/// Waits until everything that was committed has a position.
async fn stamped(t: &Test) {
    until("all is stamped", async || t.count("SELECT count(*) FROM event_unstamped").await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_comes_once_in_its_runs_order() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 10})).await;
        for n in 0..20 {
            t.client.dispatch(&format!("r{n}"), json!({})).await.ok();
        }
        for _ in 0..15 {
            worker.work_one().await;
        }
        for n in 15..20 {
            t.client.cancel(&format!("r{n}")).await.ok();
        }
        stamped(t).await;
        let events = read_all(&t.client, 7).await;
        assert_eq!(events.len(), 15 * 3 + 5 * 2);
        assert_in_order(&events);
        let queued = &events[0];
        assert_eq!((&queued["type"], &queued["specversion"]), (&json!("dag.run.queued"), &json!("1.0")));
        assert_eq!(queued["data"]["run"]["conditions"][0]["type"], "Runnable");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_waits_is_answered_by_the_next_event_also_of_another_replica() {
    with(async |t| {
        let (server, other) = t.replica().await;
        for (n, reader) in [&t.client, &other].into_iter().enumerate() {
            let waiting = {
                let reader = reader.clone();
                tokio::spawn(async move {
                    let page = reader.get(&format!("/v1/events?after={n}&wait_seconds=20")).await.ok();
                    (page, Instant::now())
                })
            };
            until("it waits", async || {
                t.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()").await > 0
            })
            .await;
            let sent = Instant::now();
            t.client.dispatch(&format!("r{n}"), json!({})).await.ok();
            let (page, answered) = waiting.await.unwrap();
            assert_eq!(page["events"][0]["run_id"], format!("r{n}"));
            assert_eq!(page["next_after"], json!(n + 1));
            assert!(answered - sent < Duration::from_secs(1), "took {:?}", answered - sent);
        }
        server.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_let_through_what_they_name_and_the_cursor_moves_on() {
    with(async |t| {
        t.client.dispatch("a", json!({"root": {"dag_name": "top", "run_id": "t"}})).await.ok();
        t.client.dispatch("b", json!({"parent": {"dag_name": "up", "run_id": "p"}})).await.ok();
        t.client.cancel("a").await.ok();
        stamped(t).await;
        for (query, expected) in [
            ("type=dag.run.queued", vec![1, 2]),
            ("type=dag.run.aborted", vec![3]),
            ("run_id=a", vec![1, 3]),
            ("dag_name=dag&run_id=b", vec![2]),
            ("dag_name=other", vec![]),
            ("root_run_id=t", vec![1, 3]),
            ("parent_run_id=p", vec![2]),
            ("after=1&run_id=a", vec![3]),
        ] {
            let page = t.client.get(&format!("/v1/events?{query}")).await.ok();
            let positions: Vec<i64> =
                page["events"].as_array().unwrap().iter().map(|event| event["position"].as_i64().unwrap()).collect();
            assert_eq!(positions, expected, "{query}");
            assert_eq!(page["next_after"], 3, "{query}");
        }
        t.client.get("/v1/events?type=nonsense").await.problem(422, "invalid-request");
        t.client.get("/v1/events?after=-1").await.problem(422, "invalid-request");
    })
    .await;
}

/// Reads a stream until it has had this many events: their ids, and all lines.
async fn stream(client: &Client, last_event_id: Option<i64>, count: usize) -> (Vec<i64>, String) {
    let mut request = client.request(reqwest::Method::GET, "/v1/events/stream");
    if let Some(id) = last_event_id {
        request = request.header("last-event-id", id.to_string());
    }
    let mut response = request.send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    let mut text = String::new();
    let ids = |text: &str| -> Vec<i64> {
        let complete = text.rsplit_once("\n\n").map_or("", |(complete, _)| complete);
        complete.lines().filter_map(|line| line.strip_prefix("id: ")).map(|id| id.parse().unwrap()).collect()
    };
    while ids(&text).len() < count {
        let chunk = tokio::time::timeout(Duration::from_secs(10), response.chunk()).await.expect("more comes");
        text.push_str(std::str::from_utf8(&chunk.unwrap().expect("the stream goes on")).unwrap());
    }
    (ids(&text), text)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_the_same_feed_and_goes_on_where_its_reader_stopped() {
    with(async |t| {
        for n in 0..5 {
            t.client.dispatch(&format!("r{n}"), json!({})).await.ok();
        }
        let (ids, text) = stream(&t.client, None, 5).await;
        assert_eq!(ids, [1, 2, 3, 4, 5]);
        let first: Value =
            serde_json::from_str(text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap()).unwrap();
        assert_eq!(first, t.client.get("/v1/events?limit=1").await.ok()["events"][0]);
        assert_eq!(text.lines().filter(|line| line.starts_with("event: ")).count(), ids.len());

        let reader = t.client.clone();
        let waiting = tokio::spawn(async move { stream(&reader, Some(5), 1).await });
        t.client.cancel("r0").await.ok();
        assert_eq!(waiting.await.unwrap().0, [6]);
        let bad = t.client.request(reqwest::Method::GET, "/v1/events/stream").header("last-event-id", "x");
        t.client.send(bad).await.problem(422, "invalid-request");
    })
    .await;
}

/// B135: whatever keeps a silent stream alive moves no reader on.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_between_events_carries_no_id() {
    with(async |t| {
        t.client.dispatch("before", json!({})).await.ok();
        stamped(t).await;
        let mut response = t.client.request(reqwest::Method::GET, "/v1/events/stream").send().await.unwrap();
        let mut text = String::new();
        let frames = |text: &str| text.split_inclusive("\n\n").map(str::to_owned).collect::<Vec<_>>();
        while frames(&text).len() < 3 || !text.ends_with("\n\n") {
            let chunk = tokio::time::timeout(Duration::from_secs(40), response.chunk()).await.expect("more comes");
            text.push_str(std::str::from_utf8(&chunk.unwrap().expect("the stream goes on")).unwrap());
        }
        let frames = frames(&text);
        assert!(frames[0].contains("id: 1\n"), "{text}");
        for alive in &frames[1..] {
            assert!(alive.lines().all(|line| line.is_empty() || line.starts_with(':')), "{alive}");
        }
        drop(response);
        for run_id in ["after-1", "after-2"] {
            t.client.dispatch(run_id, json!({})).await.ok();
        }
        assert_eq!(stream(&t.client, Some(1), 2).await.0, [2, 3]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_are_no_longer_kept_are_a_problem_and_never_skipped_in_silence() {
    with(async |t| {
        for n in 0..3 {
            t.client.dispatch(&format!("r{n}"), json!({})).await.ok();
        }
        stamped(t).await;
        for statement in ["DELETE FROM feed_entry WHERE position < 3", "UPDATE feed SET first_position = 3"] {
            sqlx::raw_sql(statement).execute(&t.pool).await.unwrap();
        }
        t.client.get("/v1/events").await.problem(410, "position-expired");
        t.client.get("/v1/events?after=1").await.problem(410, "position-expired");
        t.client.get("/v1/events/stream?after=1").await.problem(410, "position-expired");
        assert_eq!(t.client.get("/v1/events?after=2").await.ok()["events"][0]["position"], 3);

        // What operators do after a restore, which would give positions that readers know to other events.
        let restored =
            "UPDATE feed SET first_position = next_position + 1000000, next_position = next_position + 1000000";
        sqlx::raw_sql(restored).execute(&t.pool).await.unwrap();
        for after in [0, 2, 3, 1_000] {
            let path = format!("/v1/events?after={after}");
            let told = t.client.get(&path).await.problem(410, "position-expired");
            assert!(told["detail"].as_str().unwrap().ends_with("go on after position 1000003"), "{told}");
        }
        sqlx::raw_sql("DELETE FROM feed_entry").execute(&t.pool).await.unwrap();
        t.client.dispatch("next", json!({})).await.ok();
        let filtered = "/v1/events?after=1000003&wait_seconds=20&type=dag.run.queued";
        assert_eq!(t.client.get(filtered).await.ok()["events"][0]["position"], 1_000_004);
    })
    .await;
}

/// B134: an event whose transaction is slow to commit is not skipped, as it is by a reader of a serial.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_commits_late_is_read_all_the_same() {
    with(async |t| {
        sqlx::raw_sql("CREATE TABLE naive (id bigserial PRIMARY KEY, what text)").execute(&t.pool).await.unwrap();
        t.client.dispatch("slow", json!({})).await.ok();
        stamped(t).await;
        // Holds what an event of run `slow` would: its serial is drawn, its transaction is open.
        let mut slow = t.pool.begin().await.unwrap();
        sqlx::query(
            "WITH r AS (UPDATE run SET version = 2, updated_at = roadstead_now() WHERE run_id = 'slow'
                 RETURNING dag_name, run_id, version, updated_at),
             u AS (INSERT INTO event_unstamped (namespace_id, dag_name, run_id, run_seq)
                 SELECT 1, dag_name, run_id, version FROM r)
             INSERT INTO event (namespace_id, dag_name, run_id, run_seq, event_id, type, occurred_at, data)
             SELECT 1, r.dag_name, r.run_id, r.version, gen_random_uuid(), 'dag.run.updated', r.updated_at,
                    jsonb_set(e.data::jsonb, '{run,version}', '2')::text
             FROM r JOIN event e ON e.run_id = r.run_id AND e.run_seq = 1",
        )
        .execute(&mut *slow)
        .await
        .unwrap();
        sqlx::query("INSERT INTO naive (what) VALUES ('slow')").execute(&mut *slow).await.unwrap();
        for n in 0..20 {
            t.client.dispatch(&format!("r{n}"), json!({})).await.ok();
            sqlx::query("INSERT INTO naive (what) VALUES ('quick')").execute(&t.pool).await.unwrap();
        }
        stamped(t).await;
        let before = read_all(&t.client, 50).await;
        let cursor: i64 = sqlx::query_scalar("SELECT max(id) FROM naive").fetch_one(&t.pool).await.unwrap();
        slow.commit().await.unwrap();
        until("the slow one is stamped", async || {
            t.count("SELECT count(*) FROM feed_entry WHERE run_id = 'slow'").await == 2
        })
        .await;
        let missed: i64 = sqlx::query_scalar("SELECT count(*) FROM naive WHERE what = 'slow' AND id < $1")
            .bind(cursor)
            .fetch_one(&t.pool)
            .await
            .unwrap();
        assert_eq!(missed, 1, "a reader of the serial never sees it");
        let all = read_all(&t.client, 50).await;
        assert_eq!(all[..before.len()], before[..], "what was read has not changed");
        assert_eq!(all.last().unwrap()["run_id"], "slow");
        assert_in_order(&all);
    })
    .await;
}

/// Two replicas stamp and commit at once while readers of both follow: none skipped, none twice, each run in order.
#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_make_one_feed() {
    with(async |t| {
        let (server, other) = t.replica().await;
        let runs = 300;
        let dispatch = |client: Client, name: &'static str| {
            tokio::spawn(async move {
                for n in 0..runs {
                    client.dispatch(&format!("{name}{n}"), json!({})).await.ok();
                    client.cancel(&format!("{name}{n}")).await.ok();
                }
            })
        };
        let follow = |client: Client| {
            tokio::spawn(async move {
                let (mut events, mut after) = (Vec::new(), 0);
                while events.len() < runs * 4 {
                    let page = client.get(&format!("/v1/events?after={after}&limit=500&wait_seconds=20")).await.ok();
                    events.extend(page["events"].as_array().unwrap().iter().cloned());
                    after = page["next_after"].as_i64().unwrap();
                }
                events
            })
        };
        let readers = [follow(t.client.clone()), follow(other.clone())];
        let writers = [dispatch(t.client.clone(), "a"), dispatch(other.clone(), "b")];
        for writer in writers {
            writer.await.unwrap();
        }
        let mut read = Vec::new();
        for reader in readers {
            read.push(reader.await.unwrap());
        }
        assert_eq!(read[0], read[1]);
        assert_in_order(&read[0]);
        server.stop().await;
    })
    .await;
}
