//! PostgreSQL restarted under the feet of two services at work: all goes on by itself, and at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use roadstead::config::Config;
use roadstead::embedded::{Embedded, Settings};
use roadstead::server::Server;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;

use crate::harness::{Client, Folder, Worker, autopsy_of, settings, until};

/// What takes longer than this was not woken, nor found at the next fallback.
const SOON: Duration = Duration::from_secs(10);

/// The number of the embedded server's first process.
fn postmaster(folder: &Folder) -> Option<Pid> {
    let text = std::fs::read_to_string(folder.join("data/pg/postmaster.pid")).ok()?;
    text.lines().next()?.trim().parse().ok().map(Pid::from_raw)
}

/// How long there is no server.
const AWAY: Duration = Duration::from_secs(20);

/// Ends the server as a crash does, keeps its files out of the way of another one, and waits until that runs in its place.
async fn restart(folder: &Folder) {
    let before = postmaster(folder).unwrap();
    let (cluster, aside) = (folder.join("data/pg"), folder.join("data/pg.aside"));
    std::fs::rename(&cluster, &aside).unwrap();
    kill(before, Signal::SIGQUIT).unwrap();
    tokio::time::sleep(AWAY).await;
    std::fs::rename(&aside, &cluster).unwrap();
    until("another server runs", async || postmaster(folder).is_some_and(|now| now != before)).await;
}

/// Dispatches and reads without a pause while it is served: whatever it is told, it goes on.
async fn load(client: Client, name: String, over: Arc<AtomicBool>, answers: Arc<AtomicUsize>) {
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        number += 1;
        let body = json!({"worker_selector": {"zone": "far"}});
        for reply in [client.dispatch(&format!("{name}-{number}"), body).await, client.get("/v1/runs?limit=5").await] {
            match reply.status {
                200 | 201 => _ = answers.fetch_add(1, Ordering::Relaxed),
                _ => {
                    reply.problem(503, "unavailable");
                    // Sooner than it was asked to come again, and not without a pause.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// Waits in a connection of its own until a sweep waits for it; the sweep is under way for as long as it is kept.
async fn hold_up_a_sweep(url: &str, client: &Client) -> PgConnection {
    let short = json!({"worker_selector": {"zone": "far"}, "worker_wait_timeout_seconds": 1});
    client.dispatch("short", short).await.ok();
    let mut lock = PgConnection::connect(url).await.unwrap();
    let mut other = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE task IN EXCLUSIVE MODE").execute(&mut lock).await.unwrap();
    until("a sweep waits", async || {
        let waiting =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%store::from_tasks::%'";
        sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut other).await.unwrap() > 0
    })
    .await;
    lock
}

/// Each loop of both services does its work again. `parked` is a poll on the second that has waited through it all.
async fn all_loops_work(one: &Client, two: &Client, idle: &Worker, parked: tokio::task::JoinHandle<Value>) {
    // The sweeper.
    let run = one.finished("short").await;
    assert_eq!(run["failure"]["reason"], "hold_expired");
    // The keeper.
    let seen = idle.last_seen().await;
    until("the parked poll is a sign of life", async || idle.last_seen().await != seen).await;
    // The sequencer and the follower.
    let reading = tokio::spawn({
        let two = two.clone();
        async move { two.get("/v1/events?run_id=told&wait_seconds=50").await.ok() }
    });
    one.dispatch("told", json!({"worker_selector": {"zone": "far"}})).await.ok();
    let page = tokio::time::timeout(SOON, reading).await.expect("the reader is told").unwrap();
    assert_eq!(page["events"][0]["run_id"], "told");
    // The watcher: a read that waits elsewhere, and a poll whose session drains elsewhere.
    let reading = tokio::spawn({
        let two = two.clone();
        async move { two.get("/v1/dags/dag/runs/told?wait_for=finished&wait_seconds=50").await.ok() }
    });
    one.cancel("told").await.ok();
    let run = tokio::time::timeout(SOON, reading).await.expect("the reader is told").unwrap();
    assert_eq!(run["status"], "aborted");
    idle.through(one).beat(json!({"draining": true})).await.ok();
    let answer = tokio::time::timeout(SOON, parked).await.expect("the poll is told").unwrap();
    assert_eq!((&answer["tasks"], &answer["drain"]), (&json!([]), &json!(true)));
}

/// Such settings that an outage counts as one, and is over for every clock soon after its end.
fn quick() -> Config {
    let mut config = settings();
    config.coordinator.heartbeat_interval = Duration::from_secs(2);
    config.coordinator.stale_after = Duration::from_secs(6);
    config.coordinator.lease_ttl = Duration::from_secs(6);
    config
}

/// B27, B87, B107: another server in the place of the first, after twenty seconds without any, and in the middle of a sweep.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_postgres_under_load_stops_nothing_for_good() {
    let folder = Folder::new();
    let embedded = Embedded::start(Settings::new(folder.join("data"))).await.unwrap();
    let url = embedded.url().to_owned();
    let mut servers = Vec::new();
    for _ in 0..2 {
        servers.push(Server::start(&quick(), &url).await.unwrap());
    }
    let [one, two] = [0, 1].map(|at: usize| Client::new(&servers[at].url()));
    let worker = Worker::register_with(&one, "w", json!({"labels": {"zone": "b"}, "slots": 5})).await;
    let idle = Worker::register(&two, "idle", json!({"zone": "c"})).await;
    let parked = tokio::spawn({
        let idle = idle.clone();
        async move { idle.poll_reply(50.0).await.ok() }
    });
    let (over, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut loads = JoinSet::new();
    for number in 0..6 {
        let client = [&one, &two][number % 2].clone();
        loads.spawn(load(client, format!("load-{number}"), Arc::clone(&over), Arc::clone(&answers)));
    }
    until("the load is on", async || answers.load(Ordering::Relaxed) > 50).await;

    // Its process ends while the database is away.
    let doomed = Worker::register(&two, "doomed", json!({"zone": "d"})).await;
    one.dispatch("doomed", json!({"worker_selector": {"zone": "d"}})).await.ok();
    doomed.ack(&doomed.take().await).await.ok();

    let lock = hold_up_a_sweep(&url, &one).await;
    restart(&folder).await;
    drop(lock);
    let back = Instant::now();
    for client in [&one, &two] {
        until("it is ready", async || client.get("/readyz").await.status == 200).await;
    }
    println!("ready {:?} after the restart", back.elapsed());

    // Once what was cut off has been told so, work is taken as before: by its own replica's poll, and by the other's.
    let mut latest = [Duration::ZERO; 2];
    for number in 0..10 {
        let at = number % 2;
        let poll = tokio::spawn({
            let worker = worker.through([&one, &two][at]);
            async move { (worker.poll_reply(50.0).await.ok(), Instant::now()) }
        });
        let run_id = format!("r{number}");
        one.dispatch(&run_id, json!({"worker_selector": {"zone": "b"}})).await.ok();
        let dispatched = Instant::now();
        let (answer, given) = poll.await.unwrap();
        let task = &answer["tasks"][0];
        assert_eq!(task["run_id"], run_id);
        latest[at] = latest[at].max(given.saturating_duration_since(dispatched));
        worker.ack(task).await.ok();
        worker.report(task, "succeeded").await.ok();
    }
    println!("given {latest:?} after the dispatch at the latest, at its own replica and at the other");
    assert!(latest.iter().all(|late| *late < SOON), "{latest:?}");
    all_loops_work(&one, &two, &idle, parked).await;
    // What really died is found once the amnesty is over.
    assert_eq!(one.finished("doomed").await["failure"]["reason"], "lease_lost");
    assert_eq!(two.get("/v1/workers/doomed").await.ok()["state"], "ended");

    let answered = answers.load(Ordering::Relaxed);
    until("the load goes on", async || answers.load(Ordering::Relaxed) > answered + 50).await;
    over.store(true, Ordering::Relaxed);
    loads.join_all().await;
    for server in servers {
        server.stop().await;
    }
    autopsy_of(&one, &url).await;
    embedded.stop().await;
}
