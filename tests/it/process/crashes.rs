//! `kill -9` of the service and of its Postgres: what was answered is there afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::harness::{Client, Folder, Program, Worker, autopsy_of, until, with_process};

/// The postmaster of the embedded Postgres in this data folder.
fn postmaster(data_dir: &str) -> Option<Pid> {
    let text = std::fs::read_to_string(format!("{data_dir}/pg/postmaster.pid")).ok()?;
    // While a server begins, the file may still hold the number that stands for nobody.
    text.lines().next()?.trim().parse().ok().filter(|pid| *pid != i32::MAX).map(Pid::from_raw)
}

/// Where the embedded Postgres in this data folder is spoken to.
fn database_url(data_dir: &str) -> String {
    let notes = std::fs::read(format!("{data_dir}/embedded.json")).unwrap();
    let notes: Value = serde_json::from_slice(&notes).unwrap();
    let socket = notes["socket_dir"].as_str().unwrap().replace('/', "%2F");
    format!("postgres://roadstead@localhost:5432/roadstead?sslmode=disable&host={socket}")
}

async fn is_ready(client: &Client) -> bool {
    let asked = client.try_send(client.request(reqwest::Method::GET, "/readyz")).await;
    asked.is_ok_and(|reply| reply.status == 200)
}

/// What of a held run must not change.
fn lasting(run: &Value) -> Value {
    json!([run["status"], run["hold"], run["version"], run["attempt"], run["queued_at"], run["worker_selector"]])
}

/// The hold is in the database: neither the end of the service nor that of Postgres shortens or loses it.
#[tokio::test(flavor = "multi_thread")]
async fn held_runs_survive_the_sudden_end_of_the_service_and_of_postgres() {
    let folder = Folder::new();
    let data_dir = folder.join("data");
    let mut service = Program::serve(&["--data-dir", &data_dir]);
    let client = service.client().await;
    let mut held = Vec::new();
    for run_id in ["r1", "r2", "r3"] {
        held.push(client.dispatch(run_id, json!({"worker_selector": {"zone": "b"}})).await.ok());
    }

    let first = postmaster(&data_dir);
    service.kill_hard().await;
    let mut service = Program::serve(&["--data-dir", &data_dir]);
    let client = service.client().await;
    assert_ne!(postmaster(&data_dir), first, "its Postgres ended with it");
    for run in &held {
        assert_eq!(lasting(&client.run(run["run_id"].as_str().unwrap()).await), lasting(run));
    }

    let killed = postmaster(&data_dir).unwrap();
    let cluster = format!("{data_dir}/pg");
    // Out of the way, so that Postgres cannot come back before anybody has noticed.
    std::fs::rename(&cluster, format!("{cluster}.away")).unwrap();
    kill(killed, Signal::SIGKILL).unwrap();
    until("it is not ready any more", async || client.get("/readyz").await.status != 200).await;
    for _ in 0..3 {
        let asked = Instant::now();
        let reply = client.get("/readyz").await;
        assert!(asked.elapsed() < Duration::from_secs(1), "a probe was kept waiting for {:?}", asked.elapsed());
        assert_eq!(reply.headers["retry-after"], "1");
        reply.problem(503, "unavailable");
    }
    assert_eq!(client.get("/livez").await.status, 200);
    std::fs::rename(format!("{cluster}.away"), &cluster).unwrap();
    let back = Instant::now();
    until("it is ready again", async || client.get("/readyz").await.status == 200).await;
    assert!(back.elapsed() < Duration::from_secs(5), "it took {:?} to come back", back.elapsed());
    println!("ready again after {:?}", back.elapsed());
    for run in &held {
        assert_eq!(lasting(&client.run(run["run_id"].as_str().unwrap()).await), lasting(run));
    }
    let worker = Worker::register(&client, "worker-b", json!({"zone": "b"})).await;
    for run in &held {
        assert_eq!(worker.work_one().await["run_id"], run["run_id"]);
    }
    autopsy_of(&client, &database_url(&data_dir)).await;
    service.stop().await;
}

/// What a client that goes on dispatching has seen.
struct Dispatcher {
    client: Client,
    over: AtomicBool,
    answered: AtomicUsize,
}

impl Dispatcher {
    /// Dispatches until it is over: the runs that were accepted, and those of which that is not known.
    async fn go_on(self: Arc<Self>) -> (BTreeSet<String>, BTreeSet<String>) {
        let (mut accepted, mut unknown) = (BTreeSet::new(), BTreeSet::new());
        for number in 0.. {
            if self.over.load(Ordering::Relaxed) {
                break;
            }
            let run_id = format!("r{number}");
            let request = self.client.request(reqwest::Method::POST, "/v1/runs").json(&body(&run_id));
            match self.client.try_send(request).await {
                Ok(reply) if reply.status == 201 => {
                    accepted.insert(run_id);
                    self.answered.fetch_add(1, Ordering::Relaxed);
                }
                Ok(reply) => {
                    assert_eq!(reply.status, 503, "only what may pass: {reply:?}");
                    assert_eq!(reply.headers["retry-after"], "1");
                    unknown.insert(run_id);
                }
                Err(_) => {
                    unknown.insert(run_id);
                    // Nobody listens: asking without a pause would only make more of these.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
        (accepted, unknown)
    }

    async fn more_answers(&self) {
        let wanted = self.answered.load(Ordering::Relaxed) + 10;
        until("dispatches are answered", async || self.answered.load(Ordering::Relaxed) >= wanted).await;
    }
}

fn body(run_id: &str) -> Value {
    json!({"dag_name": "dag", "run_id": run_id, "worker_selector": {"zone": "b"}, "worker_wait_timeout_seconds": 3600})
}

/// P1 and P2: a dispatch answered 201 is never lost, and one that got no answer can be sent again.
#[tokio::test(flavor = "multi_thread")]
async fn answered_dispatches_outlive_every_crash_and_the_others_can_be_repeated() {
    let folder = Folder::new();
    let data_dir = folder.join("data");
    let mut service = Program::serve(&["--data-dir", &data_dir]);
    let address = service.address().await;
    let listen = address.strip_prefix("http://").unwrap().to_owned();
    let client = Client::new(&address);
    let dispatcher =
        Arc::new(Dispatcher { client: client.clone(), over: AtomicBool::new(false), answered: AtomicUsize::new(0) });
    let mut dispatching = tokio::task::JoinSet::new();
    dispatching.spawn(Arc::clone(&dispatcher).go_on());

    for victim in ["service", "postgres", "service", "postgres", "both"] {
        dispatcher.more_answers().await;
        if victim != "service" {
            kill(postmaster(&data_dir).unwrap(), Signal::SIGKILL).unwrap();
        }
        if victim != "postgres" {
            service.kill_hard().await;
            service = Program::start(&["serve", "--listen", &listen, "--data-dir", &data_dir]);
            service.address().await;
        }
    }
    dispatcher.more_answers().await;
    dispatcher.over.store(true, Ordering::Relaxed);
    let (accepted, unknown) = dispatching.join_next().await.unwrap().unwrap();

    assert!(accepted.len() >= 60 && !unknown.is_empty(), "{} and {}", accepted.len(), unknown.len());
    for run_id in &accepted {
        assert_eq!(client.run(run_id).await["status"], "queued");
    }
    for run_id in accepted.iter().chain(&unknown) {
        let again = client.post("/v1/runs", &body(run_id)).await;
        assert_eq!(again.status, 201);
        assert_eq!(again.ok()["version"], 1, "it is the one run");
    }
    assert!(is_ready(&client).await);
    autopsy_of(&client, &database_url(&data_dir)).await;
    service.stop().await;
}

/// The postmaster and its children.
fn postgres_processes(data_dir: &str) -> Vec<Pid> {
    let postmaster = postmaster(data_dir).unwrap();
    let parent_of = |pid: i32| -> Option<i32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let pids =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let children = pids.filter(|pid| parent_of(*pid) == Some(postmaster.as_raw())).map(Pid::from_raw);
    std::iter::once(postmaster).chain(children).collect()
}

/// A database that holds its connections and says nothing, as behind a broken network: callers are told in time, a
/// parked poll ends, and all goes on when it answers again.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_does_not_answer_keeps_nobody_waiting() {
    let folder = Folder::new();
    let data_dir = folder.join("data");
    let mut service = Program::serve(&["--data-dir", &data_dir]);
    let client = service.client().await;
    let worker = Worker::register(&client, "w", json!({"zone": "b"})).await;
    client.dispatch("before", json!({"worker_selector": {"zone": "x"}})).await.ok();
    let parked = tokio::spawn({
        let worker = worker.clone();
        async move { worker.poll_reply(3.0).await }
    });
    until("the poll is parked", async || client.get("/v1/workers/w").await.ok()["state"] == "healthy").await;

    let frozen = postgres_processes(&data_dir);
    let signal = |signal| {
        for pid in &frozen {
            let _ = kill(*pid, signal);
        }
    };
    signal(Signal::SIGSTOP);
    let begun = Instant::now();
    let (dispatch, read) = tokio::join!(
        client.dispatch("during", json!({"worker_selector": {"zone": "x"}})),
        client.get("/v1/dags/dag/runs/before"),
    );
    dispatch.problem(503, "unavailable");
    read.problem(503, "unavailable");
    let poll = parked.await.unwrap();
    assert!(poll.status == 200 || poll.status == 503, "{poll:?}");
    let waited = begun.elapsed();
    signal(Signal::SIGCONT);
    assert!(waited < Duration::from_secs(30), "{waited:?}");

    until("it serves again", async || is_ready(&client).await).await;
    assert_eq!(client.run("before").await["status"], "queued");
    client.dispatch("during", json!({"worker_selector": {"zone": "x"}})).await.ok();
    service.stop().await;
}

/// B61: there is no leader whose pause is a gap. A replica is stopped for a while, wherever it is at that moment; the other
/// does its work, and what the first goes on with afterwards does no harm.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_paused_leaves_no_gap_and_comes_back_harmlessly() {
    with_process(async |t, paused| {
        let mut other = Program::serve(&["--database-url", &t.database_url]);
        let client = other.client().await;
        let worker = Worker::register(&client, "w", json!({"zone": "b"})).await;
        for round in 0..3 {
            for n in 0..50 {
                let short = json!({"worker_selector": {"zone": "x"}, "worker_wait_timeout_seconds": 0.3});
                t.client.dispatch(&format!("r{round}-{n}"), short).await.ok();
            }
            paused.signal(Signal::SIGSTOP);
            for n in 0..50 {
                let run = client.finished(&format!("r{round}-{n}")).await;
                assert_eq!(run["failure"]["reason"], "hold_expired");
            }
            client.dispatch(&format!("b{round}"), json!({"worker_selector": {"zone": "b"}})).await.ok();
            worker.work_one().await;
            until("the feed goes on", async || t.count("SELECT count(*) FROM event_unstamped").await == 0).await;
            paused.signal(Signal::SIGCONT);
            t.client.dispatch(&format!("again{round}"), json!({"worker_selector": {"zone": "b"}})).await.ok();
            worker.work_one().await;
        }
        other.stop().await;
    })
    .await;
}
