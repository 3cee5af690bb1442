//! Signals: a stop that lets everybody finish, one that does not, and one that comes before the start is over.

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use crate::harness::program::mute_listener;
use crate::harness::{Client, Folder, Program, Raw, Worker, database, until, with_process};

/// A stop must be over by then.
const IN_TIME: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_answers_all_who_wait_and_exits_with_success() {
    with_process(async |t, service| {
        t.client.dispatch("r", json!({"worker_selector": {"zone": "b"}})).await.ok();
        let mut polls = JoinSet::new();
        for number in 0..20 {
            let worker = Worker::register(&t.client, &format!("w{number}"), json!({"zone": "a"})).await;
            polls.spawn(async move { worker.poll_reply(50.0).await });
        }
        let mut reads = JoinSet::new();
        for _ in 0..5 {
            let client = t.client.clone();
            let path = "/v1/dags/dag/runs/r?wait_for=finished&wait_seconds=50";
            reads.spawn(async move { client.get(path).await });
        }
        // Each of them shows itself in the database when it begins to wait; the last ones a moment later.
        let polled = "SELECT count(*) FROM worker_session WHERE last_seen > started_at";
        until("all polls have arrived", async || t.count(polled).await == 20).await;
        tokio::time::sleep(Duration::from_millis(300)).await;

        let asked = Instant::now();
        service.stop().await;
        assert!(asked.elapsed() < Duration::from_secs(5), "nobody was waited for in vain: {:?}", asked.elapsed());
        while let Some(reply) = polls.join_next().await {
            let answer = reply.unwrap().ok();
            assert_eq!(answer["tasks"], json!([]));
            assert!(answer["poll_after_seconds"].as_f64().unwrap() >= 1.0, "{answer}");
        }
        while let Some(reply) = reads.join_next().await {
            assert_eq!(reply.unwrap().ok()["status"], "queued");
        }
    })
    .await;
}

/// B100: streams and parked polls in great number do not hold up a stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_fifty_streams_and_two_hundred_polls_in_time() {
    with_process(async |t, service| {
        let mut streams = JoinSet::new();
        for _ in 0..50 {
            let client = t.client.clone();
            streams.spawn(async move {
                let request = client.request(reqwest::Method::GET, "/v1/events/stream");
                client.try_send(request).await.map(|reply| reply.status)
            });
        }
        let mut polls = JoinSet::new();
        for number in 0..200 {
            let worker = Worker::register(&t.client, &format!("w{number}"), json!({"zone": "a"})).await;
            polls.spawn(async move { worker.poll_reply(50.0).await });
        }
        let polled = "SELECT count(*) FROM worker_session WHERE last_seen > started_at";
        until("all polls have arrived", async || t.count(polled).await == 200).await;
        let asked = Instant::now();
        service.stop().await;
        println!("stopped after {:?}", asked.elapsed());
        assert!(asked.elapsed() < IN_TIME, "{:?}", asked.elapsed());
        while let Some(reply) = polls.join_next().await {
            assert_eq!(reply.unwrap().ok()["tasks"], json!([]));
        }
        while let Some(status) = streams.join_next().await {
            assert_eq!(status.unwrap().unwrap(), 200, "it ended as a stream ends, and was not cut");
        }
    })
    .await;
}

/// B100: nor does a stream whose client has ceased to read, when nothing more goes into its connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_a_client_that_does_not_read() {
    with_process(async |t, service| {
        // Nine megabytes of events: more than the system keeps for anybody.
        let labels: Map<String, Value> = (0..60).map(|n| (format!("label-{n}"), json!("x".repeat(120)))).collect();
        let mut dispatches = JoinSet::new();
        for number in 0..1_000 {
            if dispatches.len() == 8 {
                dispatches.join_next().await.unwrap().unwrap();
            }
            let (client, body) = (t.client.clone(), json!({"labels": labels, "worker_selector": {"zone": "b"}}));
            dispatches.spawn(async move { drop(client.dispatch(&format!("r{number}"), body).await.ok()) });
        }
        dispatches.join_all().await;
        let stream = "GET /v1/events/stream?after=0 HTTP/1.1\r\nhost: deaf\r\n\r\n";
        let deaf = Raw::say_and_not_listen(&t.client, stream).await;
        until("no more goes into its connection", async || deaf.awaits_reading()).await;

        let asked = Instant::now();
        service.stop().await;
        println!("stopped after {:?}", asked.elapsed());
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
        drop(deaf);
    })
    .await;
}

/// A dispatch that the database keeps waiting, at a service that is asked to stop meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_lets_work_under_way_finish_and_takes_no_more() {
    with_process(async |t, service| {
        let mut lock = t.pool.begin().await.unwrap();
        sqlx::query("LOCK TABLE run IN EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
        let mut dispatching = JoinSet::new();
        let client = t.client.clone();
        dispatching.spawn(async move { client.dispatch("r", json!({})).await });
        until("the dispatch waits for the lock", async || t.count(WAITING).await == 1).await;
        service.signal(Signal::SIGTERM);
        service.logged("stopping").await;
        let late = Client::new(t.client.url());
        until("nobody listens any more", async || {
            late.try_send(late.request(reqwest::Method::GET, "/livez")).await.is_err()
        })
        .await;
        assert!(service.runs());
        lock.rollback().await.unwrap();
        assert_eq!(dispatching.join_next().await.unwrap().unwrap().status, 201);
        assert_eq!(service.ended_within(IN_TIME).await.code(), Some(0));
        assert_eq!(t.count("SELECT count(*) FROM run").await, 1);
    })
    .await;
}

const WAITING: &str = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
     WHERE NOT granted AND datname = current_database()";

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once() {
    with_process(async |t, service| {
        let mut lock = t.pool.begin().await.unwrap();
        sqlx::query("LOCK TABLE run IN EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
        let mut dispatching = JoinSet::new();
        let client = t.client.clone();
        dispatching.spawn(async move {
            let request = client.request(reqwest::Method::POST, "/v1/runs").json(&json!({"dag_name": "dag"}));
            client.try_send(request).await.is_err()
        });
        until("the dispatch waits for the lock", async || t.count(WAITING).await == 1).await;
        service.signal(Signal::SIGINT);
        service.logged("stopping").await;
        service.signal(Signal::SIGTERM);
        let status = service.ended_within(Duration::from_secs(1)).await;
        assert!(!status.success(), "{status}");
        assert!(dispatching.join_next().await.unwrap().unwrap(), "there was no answer");
        lock.rollback().await.unwrap();
        let others = "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'roadstead' AND pid <> pg_backend_pid()";
        until("Postgres has noticed", async || t.count(others).await == 0).await;
    })
    .await;
}

/// B37: a stop that lands while it starts is not lost, and leaves nothing half done.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_during_the_start_is_heeded_and_leaves_a_usable_schema() {
    let database = database::create_empty().await;
    for delay in [0, 20, 50, 80, 110, 140, 170, 200] {
        let mut service = Program::serve(&["--database-url", &database.url]);
        tokio::time::sleep(Duration::from_millis(delay)).await;
        service.signal(Signal::SIGTERM);
        let status = service.ended_within(IN_TIME).await;
        let before_it_listened_for_signals = status.signal() == Some(Signal::SIGTERM as i32);
        assert!(status.success() || before_it_listened_for_signals, "{delay} ms: {status} {}", service.log());
    }
    let mut service = Program::serve(&["--database-url", &database.url]);
    let client = service.client().await;
    client.dispatch("r", json!({})).await.ok();
    service.stop().await;
    database.drop().await;
}

/// B37: also while the embedded Postgres is being made or started.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_while_the_embedded_postgres_starts_is_heeded() {
    let folder = Folder::new();
    let data_dir = folder.join("data");
    for delay in [50, 300, 600, 1_500] {
        let mut service = Program::serve(&["--data-dir", &data_dir]);
        tokio::time::sleep(Duration::from_millis(delay)).await;
        service.signal(Signal::SIGTERM);
        let status = service.ended_within(IN_TIME).await;
        assert!(status.success() || status.signal() == Some(Signal::SIGTERM as i32), "{delay} ms: {status}");
    }
    let mut service = Program::serve(&["--data-dir", &data_dir]);
    service.client().await.dispatch("r", json!({})).await.ok();
    service.stop().await;
}

/// B37: a database that takes connections and says nothing keeps nobody from leaving.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_while_it_waits_for_its_database_is_heeded() {
    let (mute, _held) = mute_listener().await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for address in [mute, closed] {
        let url = format!("postgres://roadstead@{address}/roadstead?sslmode=disable");
        let mut service = Program::serve(&["--database-url", &url]);
        service.logged("waiting for the database").await;
        service.signal(Signal::SIGTERM);
        assert_eq!(service.ended_within(Duration::from_secs(2)).await.code(), Some(0), "{}", service.log());
    }
}
