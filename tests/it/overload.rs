//! More than the service can do, and a database that is not there: what must go on does, and the others are told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use roadstead::server::Server;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::{Client, Reply, Stoppable, Worker, settings, until, with_settings};

/// Asks again and again, as many at a time, until told to stop. Counts answers and refusals; anything else fails.
fn flood<F: Future<Output = Reply> + Send + 'static>(
    tasks: &mut JoinSet<()>,
    many: usize,
    over: &Arc<AtomicBool>,
    counts: &Arc<[AtomicUsize; 2]>,
    ask: impl Fn(usize) -> F + Send + Sync + 'static,
) {
    let ask = Arc::new(ask);
    for lane in 0..many {
        let (ask, over, counts) = (Arc::clone(&ask), Arc::clone(over), Arc::clone(counts));
        tasks.spawn(async move {
            let mut number = lane;
            while !over.load(Ordering::Relaxed) {
                let reply = ask(number).await;
                number += many;
                if reply.status < 300 {
                    counts[0].fetch_add(1, Ordering::Relaxed);
                } else {
                    assert_eq!(reply.headers["retry-after"], "1");
                    reply.problem(503, "overloaded");
                    counts[1].fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_reads_and_dispatches_fails_no_renewal_and_no_report() {
    let mut config = settings();
    config.database.max_connections = 4;
    // All of this shares two or four cores with its own clients: how long a claim waits is not what is tested.
    config.coordinator.ack_timeout = Duration::from_secs(60);
    with_settings(config, async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"labels": {"zone": "b"}, "slots": 100})).await;
        let mut tasks = Vec::new();
        for number in 0..10 {
            t.client.dispatch(&format!("r{number}"), json!({"worker_selector": {"zone": "b"}})).await.ok();
            tasks.push(worker.take().await);
        }
        let (over, mut flooding) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        let (reads, dispatches) = (Arc::<[AtomicUsize; 2]>::default(), Arc::<[AtomicUsize; 2]>::default());
        let client = t.client.clone();
        flood(&mut flooding, 300, &over, &reads, move |_| {
            let client = client.clone();
            async move { client.get("/v1/runs?limit=1").await }
        });
        let client = t.client.clone();
        flood(&mut flooding, 50, &over, &dispatches, move |number| {
            let client = client.clone();
            async move { client.dispatch(&format!("f{number}"), json!({"worker_selector": {"zone": "far"}})).await }
        });
        until("reads are refused", async || reads[1].load(Ordering::Relaxed) > 0).await;
        let mut slowest = Duration::ZERO;
        for task in &tasks {
            for verb in ["ack", "renew"] {
                let asked = Instant::now();
                worker.say(task, verb, json!({})).await.ok();
                slowest = slowest.max(asked.elapsed());
            }
            worker.beat(json!({})).await.ok();
            worker.report(task, "succeeded").await.ok();
        }
        over.store(true, Ordering::Relaxed);
        while let Some(done) = flooding.join_next().await {
            done.unwrap();
        }
        println!(
            "slowest ack or renewal {slowest:?}; reads and dispatches done and refused: {reads:?}, {dispatches:?}"
        );
        assert!(slowest < Duration::from_secs(3), "{slowest:?}");
        assert!(dispatches[0].load(Ordering::Relaxed) > 0, "dispatches went on, too");
    })
    .await;
}

/// One request of each kind, and what became of it.
async fn everything(client: &Client, worker: &Worker, task: &Value, number: usize) -> Vec<Reply> {
    vec![
        client.dispatch(&format!("x{number}"), json!({"worker_selector": {"zone": "far"}})).await,
        client.get("/v1/runs").await,
        client.get("/v1/events").await,
        worker.beat(json!({})).await,
        worker.say(task, "renew", json!({})).await,
        worker.poll_with(json!({"wait_seconds": 0})).await,
        client.get("/readyz").await,
    ]
}

/// B107: while the database is away everybody is told at once, and all is back soon after it.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_database_is_away_everybody_is_told_at_once_and_all_is_back_soon_after_it() {
    let mut database = Stoppable::start().await;
    let server = Server::start(&settings(), &database.url()).await.unwrap();
    let client = Client::new(&server.url());
    let worker = Worker::register_with(&client, "w", json!({"labels": {"zone": "b"}, "slots": 9})).await;
    client.dispatch("r", json!({"worker_selector": {"zone": "b"}})).await.ok();
    let task = worker.take().await;
    worker.ack(&task).await.ok();
    let mut parked = JoinSet::new();
    let other = Worker::register(&client, "parked", json!({"zone": "c"})).await;
    parked.spawn(async move { other.poll_reply(50.0).await });
    // Many connections, all of which will be dead.
    let mut warm = JoinSet::new();
    for number in 0..50 {
        let (client, worker, task) = (client.clone(), worker.clone(), task.clone());
        warm.spawn(async move { everything(&client, &worker, &task, number).await });
    }
    for reply in warm.join_all().await.into_iter().flatten() {
        assert!(reply.status < 300, "{reply:#?}");
    }

    database.stop().await;
    let began = Instant::now();
    let mut asked = JoinSet::new();
    for number in 100..200 {
        let (client, worker, task) = (client.clone(), worker.clone(), task.clone());
        asked.spawn(async move {
            let mut slowest = Duration::ZERO;
            while began.elapsed() < Duration::from_millis(1_500) {
                let from = Instant::now();
                for reply in everything(&client, &worker, &task, number).await {
                    assert_eq!(reply.headers["retry-after"], "1");
                    reply.problem(503, "unavailable");
                }
                slowest = slowest.max(from.elapsed() / 7);
            }
            slowest
        });
    }
    let slowest = asked.join_all().await.into_iter().max().unwrap();
    println!("while it is away, a request takes {slowest:?} at the most (mean of seven, a hundred at a time)");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");

    database.start_again().await;
    let back = Instant::now();
    until("it is ready", async || client.get("/readyz").await.status == 200).await;
    println!("ready {:?} after the database", back.elapsed());
    assert!(back.elapsed() < Duration::from_secs(2), "{:?}", back.elapsed());
    for number in 200..230 {
        for reply in everything(&client, &worker, &task, number).await {
            assert!(reply.status < 300, "no dead connection is used: {reply:#?}");
        }
    }
    client.dispatch("c", json!({"worker_selector": {"zone": "c"}})).await.ok();
    let given = parked.join_next().await.unwrap().unwrap().ok();
    assert_eq!(given["tasks"][0]["run_id"], "c", "the poll has waited through it");
    worker.report(&task, "succeeded").await.ok();
    let swept =
        client.dispatch("short", json!({"worker_selector": {"zone": "far"}, "worker_wait_timeout_seconds": 0.1}));
    swept.await.ok();
    server.stop().await;
    database.stop().await;
}
