//! Amnesty (rule 8, P12): an outage of ours fails no healthy run, and hides no dead one for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use roadstead::config::Config;
use roadstead::server::Server;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::harness::{Client, Stoppable, Worker, autopsy_of, settings, until};

const LEASE: Duration = Duration::from_secs(6);

/// Five lease times.
const AWAY: Duration = Duration::from_secs(30);

const WORKERS: usize = 50;

/// Of those, how many die while the service is away, and how many while Postgres is.
const DOOMED: usize = 3;

const WAITING: usize = 200;

/// How long these are held: less than the service is away.
const WAIT: f64 = 12.0;

fn config() -> Config {
    let mut config = settings();
    config.coordinator.heartbeat_interval = LEASE / 6;
    config.coordinator.stale_after = LEASE / 2;
    config.coordinator.lease_ttl = LEASE;
    config.coordinator.sweep_interval = Duration::from_millis(200);
    config
}

/// Services on one database, at addresses that they come back to.
struct Replicas {
    url: String,
    servers: Vec<Server>,
    config: Vec<Config>,
    clients: Vec<Client>,
}

impl Replicas {
    async fn start(url: &str, count: usize) -> Self {
        let mut replicas = Self { url: url.to_owned(), servers: Vec::new(), config: Vec::new(), clients: Vec::new() };
        for _ in 0..count {
            let server = Server::start(&config(), url).await.unwrap();
            let mut config = config();
            config.http.listen = server.address();
            replicas.clients.push(Client::new(&server.url()));
            replicas.config.push(config);
            replicas.servers.push(server);
        }
        replicas
    }

    async fn stop(&mut self) {
        for server in self.servers.drain(..) {
            server.stop().await;
        }
    }

    async fn start_again(&mut self) {
        for config in &self.config {
            self.servers.push(Server::start(config, &self.url).await.unwrap());
        }
    }
}

/// A worker at work on one run, which beats through one replica after the other for as long as it lives.
async fn at_work(clients: Vec<Client>, n: usize, beats: Arc<AtomicUsize>, dies: CancellationToken) {
    let worker = Worker::register(&clients[n % clients.len()], &format!("w{n}"), json!({"n": n.to_string()})).await;
    let task = worker.take().await;
    worker.ack(&task).await.ok();
    let name = json!({"session_id": worker.session_id,
                      "attempts": [{"attempt_id": task["attempt_id"], "token": task["token"]}]});
    for round in 0.. {
        let client = &clients[(n + round) % clients.len()];
        let request = client.request(reqwest::Method::POST, &format!("/v1/workers/w{n}/heartbeat")).json(&name);
        // Whatever it is told while nobody is there, it goes on; what it must never be told is that it lost its run.
        if let Ok(reply) = client.try_send(request).await
            && reply.status != 503
        {
            let answer = reply.ok();
            assert_eq!(answer["lost"], json!([]), "w{n} is alive");
            beats.fetch_add(1, Ordering::Relaxed);
        }
        if dies.run_until_cancelled(tokio::time::sleep(LEASE / 6)).await.is_none() {
            return;
        }
    }
}

async fn statuses(client: &Client, status: &str) -> usize {
    let list = client.get(&format!("/v1/runs?status={status}&limit=500")).await.ok();
    list["runs"].as_array().unwrap().len()
}

/// All is as it was: what waits waits, what runs runs.
async fn nothing_has_failed(client: &Client, running: usize, dead: usize) {
    assert_eq!(statuses(client, "queued").await, WAITING);
    assert_eq!((statuses(client, "running").await, statuses(client, "failed").await), (running, dead));
}

/// Waits for the end of those whose worker has died.
async fn found_dead(client: &Client, doomed: impl Iterator<Item = usize>) {
    for n in doomed {
        let run = client.finished(&format!("r{n}")).await;
        assert_eq!(
            (&run["failure"]["reason"], &run["failure"]["worker_id"]),
            (&json!("lease_lost"), &json!(format!("w{n}")))
        );
    }
}

async fn outages_of(replicas: usize) {
    let mut database = Stoppable::start().await;
    let url = database.url();
    let mut replicas = Replicas::start(&url, replicas).await;
    let clients = replicas.clients.clone();
    let client = clients[0].clone();
    let beats = Arc::new(AtomicUsize::new(0));
    let deaths: Vec<CancellationToken> = (0..WORKERS).map(|_| CancellationToken::new()).collect();
    let mut workers = JoinSet::new();
    for (n, dies) in deaths.iter().enumerate() {
        client.dispatch(&format!("r{n}"), json!({"worker_selector": {"n": n.to_string()}})).await.ok();
        workers.spawn(at_work(clients.clone(), n, Arc::clone(&beats), dies.clone()));
    }
    until("all are at work", async || statuses(&client, "running").await == WORKERS).await;
    let waiting: Vec<Value> = (0..WAITING)
        .map(|n| {
            json!({"dag_name": "dag", "run_id": format!("waits{n}"), "worker_selector": {"zone": "far"},
                   "worker_wait_timeout_seconds": WAIT})
        })
        .collect();
    client.post("/v1/batch/runs", &json!({"runs": waiting})).await.ok();

    // The service.
    replicas.stop().await;
    let mut alive = WORKERS;
    deaths[..DOOMED].iter().for_each(CancellationToken::cancel);
    tokio::time::sleep(AWAY).await;
    replicas.start_again().await;
    nothing_has_failed(&client, WORKERS, 0).await;
    alive -= DOOMED;
    found_dead(&client, 0..DOOMED).await;
    nothing_has_failed(&client, alive, DOOMED).await;

    // Postgres.
    database.stop().await;
    deaths[DOOMED..2 * DOOMED].iter().for_each(CancellationToken::cancel);
    tokio::time::sleep(AWAY).await;
    database.start_again().await;
    for client in &clients {
        until("it is ready", async || client.get("/readyz").await.status == 200).await;
    }
    nothing_has_failed(&client, alive, DOOMED).await;
    alive -= DOOMED;
    found_dead(&client, DOOMED..2 * DOOMED).await;
    assert_eq!(statuses(&client, "running").await, alive);

    // What waited in vain has had its whole wait outside of all outages, and then failed.
    until("they have failed", async || statuses(&client, "failed").await == WAITING + 2 * DOOMED).await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let early: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM run WHERE failure->>'reason' = 'hold_expired'
         AND finished_at < (SELECT max(until_at) FROM outage) + interval '12 seconds'",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(early, 0);
    assert!(beats.load(Ordering::Relaxed) > WORKERS * 10, "they were heard");
    deaths.iter().for_each(CancellationToken::cancel);
    workers.join_all().await;
    replicas.stop().await;
    let server = Server::start(&settings(), &url).await.unwrap();
    autopsy_of(&Client::new(&server.url()), &url).await;
    server.stop().await;
    database.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outages_of_the_service_and_of_postgres_fail_nothing_that_lives() {
    outages_of(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outages_of_two_replicas_and_of_postgres_fail_nothing_that_lives() {
    outages_of(2).await;
}
