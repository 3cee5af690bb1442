//! What a large fleet at work costs: the heartbeats of many workers, each with some attempts.

use std::time::Duration;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::super::BenchError;
use super::super::figure::{Figure, Times};
use super::super::ground::Ground;
use super::super::hands::{register_with, take_and_ack};
use super::Scenario;
use crate::cli::ambient::now;
use crate::cli::client::{Action, Client, NamedAttempt, Problem};

pub(in crate::cli::bench) const SCENARIO: Scenario = Scenario {
    name: "fleet",
    about: "10,000 workers that hold 100,000 attempts and name them in a heartbeat every 10 s, for 10 minutes",
    long: true,
    run: |ground| Box::pin(run(ground)),
};

/// How many attempts a worker has.
const ATTEMPTS: usize = 10;

/// How often it beats.
const EVERY: Duration = Duration::from_secs(10);

/// How many workers come, take or go at a time.
const AT_A_TIME: usize = 16;

/// How many runs are dispatched with one request.
const BATCH: usize = 500;

/// A worker of the fleet, with what it holds.
#[derive(Clone)]
struct Member {
    worker_id: String,
    session_id: String,
    attempts: Vec<NamedAttempt>,
}

/// What came of beats.
#[derive(Default)]
struct Beaten {
    took: Times,
    /// Those that were refused and may be said again.
    again: usize,
    /// Attempts that were said to be lost.
    lost: usize,
}

async fn run(ground: &Ground) -> Result<Vec<Figure>, BenchError> {
    let fleet = gather(ground).await?;
    let held: usize = fleet.iter().map(|member| member.attempts.len()).sum();
    let every = ground.sized(EVERY, EVERY / 10);
    // The first round is not measured: it tells the service of each attempt what is not said anew later.
    beat(&ground.client, &fleet, every, 1).await?;
    let before = (ground.service_cpu(), ground.database_cpu().await?);
    let beaten = beat(&ground.client, &fleet, every, ground.sized(60, 2)).await?;
    let after = (ground.service_cpu(), ground.database_cpu().await?);
    disband(&ground.client, fleet).await?;

    let unseen = "the process or the database is not the bench's own";
    let cores = |what: &str, taken: Option<f64>, most: f64| match taken {
        Some(cores) => Figure::new(what, "cores", cores).at_most(most),
        None => Figure::absent(what, "cores", unseen).at_most(most),
    };
    let number = |what: &str, number: usize| Figure::new(what, "", u32::try_from(number).map_or(f64::NAN, f64::from));
    let service = after.0.zip(before.0).map(|(after, before)| after.cores_since(before));
    let database = after.1.zip(before.1).map(|(after, before)| after.cores_since(before));
    Ok(vec![
        number("attempts held", held),
        number("heartbeats", beaten.took.len()),
        cores("processors of the service", service, 0.6),
        cores("processors of PostgreSQL", database, 0.4),
        number("attempts lost", beaten.lost).at_most(0.0),
        number("heartbeats to be said again", beaten.again),
        Figure::new("heartbeat: median", "ms", beaten.took.median()),
        Figure::new("heartbeat: p99", "ms", beaten.took.percentile(99)),
    ])
}

/// Registers the workers and gives each its attempts; those that have them beat while the others come.
async fn gather(ground: &Ground) -> Result<Vec<Member>, BenchError> {
    let dag_name = ground.name("fleet");
    let number = ground.sized(10_000, 20);
    let (mut fleet, mut beaten) = (Vec::with_capacity(number), now());
    while fleet.len() < number {
        // Some at a time, with a label of their own: a dispatch looks at all that match until it finds a free slot.
        let labels = ground.label();
        let some = (BATCH / ATTEMPTS).min(number - fleet.len());
        let wait = Duration::from_secs(600);
        let requests: Vec<_> = (0..some * ATTEMPTS).map(|_| ground.request(&dag_name, &labels, wait)).collect();
        ground.client.dispatch_all(&requests).await?;
        let coming = stream::iter(0..some).map(|_| {
            let (client, labels) = (ground.client.clone(), labels.clone());
            let (worker_id, session_id) = (ground.name("worker"), ground.name("session"));
            async move {
                register_with(&client, &worker_id, &session_id, &labels, ATTEMPTS).await?;
                let attempts = take_and_ack(&client, &worker_id, &session_id, ATTEMPTS).await?;
                Ok::<_, BenchError>(Member { worker_id, session_id, attempts })
            }
        });
        fleet.extend(coming.buffer_unordered(AT_A_TIME).try_collect::<Vec<_>>().await?);
        if beaten.elapsed() > EVERY {
            beat(&ground.client, &fleet, EVERY / 2, 1).await?;
            beaten = now();
        }
    }
    Ok(fleet)
}

/// So many rounds of heartbeats, spread evenly over the time of a round.
async fn beat(client: &Client, fleet: &[Member], every: Duration, rounds: u32) -> Result<Beaten, BenchError> {
    let (mut beating, began) = (JoinSet::new(), now());
    let step = every / u32::try_from(fleet.len().max(1)).unwrap_or(u32::MAX);
    for (at, member) in (0..).zip(fleet) {
        beating.spawn(beats(client.clone(), member.clone(), began + step * at, every, rounds));
    }
    let mut beaten = Beaten::default();
    while let Some(one) = beating.join_next().await {
        let one = one.map_err(|error| BenchError::Missing(format!("a worker of the fleet: {error}")))??;
        one.took.iter().for_each(|time| beaten.took.push(time));
        beaten.again += one.again;
        beaten.lost += one.lost;
    }
    Ok(beaten)
}

async fn beats(
    client: Client,
    member: Member,
    first: Instant,
    every: Duration,
    rounds: u32,
) -> Result<Beaten, Problem> {
    let mut beaten = Beaten::default();
    for round in 0..rounds {
        sleep_until(first + every * round).await;
        let at = now();
        match client.heartbeat(&member.worker_id, &member.session_id, &member.attempts, false).await {
            Ok(answer) => beaten.lost += answer.lost.len(),
            Err(problem) if problem.action == Action::Retry => beaten.again += 1,
            Err(problem) => return Err(problem),
        }
        beaten.took.push(now() - at);
    }
    Ok(beaten)
}

async fn disband(client: &Client, fleet: Vec<Member>) -> Result<(), BenchError> {
    let leaving = stream::iter(fleet).map(|member| {
        let client = client.clone();
        async move { client.deregister(&member.worker_id, &member.session_id).await.map(drop) }
    });
    Ok(leaving.buffer_unordered(AT_A_TIME).try_collect::<()>().await?)
}
