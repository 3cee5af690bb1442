//! What many runs take that change together: those of a worker that comes back, and those of a family that is cancelled.

use std::time::Duration;

use super::super::BenchError;
use super::super::figure::{Figure, Times};
use super::super::ground::Ground;
use super::super::hands::{register, take_and_ack};
use super::Scenario;
use crate::cli::ambient::now;
use crate::cli::client::{Labels, RunRef};

pub(in crate::cli::bench) const SCENARIO: Scenario = Scenario {
    name: "settle",
    about: "until a worker that comes back with 100 attempts is let in, and until a family of 1,000 is cancelled",
    long: false,
    run: |ground| Box::pin(run(ground)),
};

/// How often a worker comes back, and a family is cancelled.
const TIMES: usize = 5;

/// How many attempts the worker has.
const ATTEMPTS: usize = 100;

/// How many children a family has.
const CHILDREN: usize = 1_000;

/// How long nobody need come for a run.
const WAIT: Duration = Duration::from_secs(600);

async fn run(ground: &Ground) -> Result<Vec<Figure>, BenchError> {
    let commits = ground.commits().await?;
    let (mut back, mut cancelled) = (Times::default(), Times::default());
    for _ in 0..ground.sized(TIMES, 1) {
        back.push(come_back(ground, ground.sized(ATTEMPTS, 5)).await?);
        cancelled.push(cancel(ground, ground.sized(CHILDREN, 10)).await?);
    }
    let commit = commits.as_ref().map(Times::median);
    Ok(vec![
        Figure::new("let in with 100 attempts: median", "ms", back.median()).at_most(100.0).beside(commit),
        Figure::new("let in with 100 attempts: the longest", "ms", back.percentile(100)),
        Figure::new("family of 1,000 cancelled: median", "ms", cancelled.median()).at_most(1_000.0).beside(commit),
        Figure::new("family of 1,000 cancelled: the longest", "ms", cancelled.percentile(100)),
    ])
}

/// A process of a worker has so many attempts, dies, and is followed by another, whose registration loses them all.
async fn come_back(ground: &Ground, attempts: usize) -> Result<Duration, BenchError> {
    let (client, labels, dag_name) = (&ground.client, ground.label(), ground.name("settle"));
    let (worker_id, before, after) = (ground.name("worker"), ground.name("session"), ground.name("session"));
    register(client, &worker_id, &before, &labels).await?;
    let requests: Vec<_> = (0..attempts).map(|_| ground.request(&dag_name, &labels, WAIT)).collect();
    client.dispatch_all(&requests).await?;
    let held = take_and_ack(client, &worker_id, &before, attempts).await?;
    let at = now();
    register(client, &worker_id, &after, &labels).await?;
    let took = now() - at;
    let failed = client.runs(&[("dag_name", &dag_name), ("status", "failed"), ("limit", "100")]).await?.runs.len();
    if failed != held.len() {
        return Err(BenchError::Missing(format!("{failed} of {} attempts were lost with their session", held.len())));
    }
    client.deregister(&worker_id, &after).await?;
    Ok(took)
}

/// A run with so many children, none of which has a worker, is cancelled.
async fn cancel(ground: &Ground, children: usize) -> Result<Duration, BenchError> {
    let (client, dag_name) = (&ground.client, ground.name("settle"));
    let request = || ground.request(&dag_name, &Labels::from([("bench".to_owned(), "nobody".to_owned())]), WAIT);
    let parent = client.dispatch(&request(), None).await?;
    let parent = RunRef { dag_name: parent.dag_name, run_id: parent.run_id };
    let of_parent = |_| {
        let mut child = request();
        child.parent = Some(parent.clone());
        child
    };
    let requests: Vec<_> = (0..children).map(of_parent).collect();
    client.dispatch_all(&requests).await?;
    let at = now();
    client.cancel(&parent.dag_name, &parent.run_id, "the bench's own", false).await?;
    let took = now() - at;
    let left = client.runs(&[("dag_name", &dag_name), ("status", "queued")]).await?.runs.len();
    if left > 0 {
        return Err(BenchError::Missing(format!("{left} children wait on after their parent's cancel was answered")));
    }
    Ok(took)
}
