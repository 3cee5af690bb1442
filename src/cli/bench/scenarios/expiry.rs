//! From the end of a hold to its failure, as the feed shows it and as those who wait for the run learn it.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::BenchError;
use super::super::figure::{Figure, Times};
use super::super::ground::Ground;
use super::super::pace::paced;
use super::Scenario;
use crate::cli::ambient::now;
use crate::cli::client::{EventStream, WaitFor};

pub(in crate::cli::bench) const SCENARIO: Scenario = Scenario {
    name: "expiry",
    about: "from hold_until to the failure: its event's time, the stream of events, a getRun that waits for it",
    long: false,
    run: |ground| Box::pin(run(ground)),
};

/// Dispatches a second.
const RATE: u32 = 50;

/// The holds, in turn: few that differ, as in practice; their ends are spread out by their beginnings.
const HOLDS: [Duration; 5] = [
    Duration::from_millis(500),
    Duration::from_millis(730),
    Duration::from_secs(1),
    Duration::from_millis(1_270),
    Duration::from_millis(1_500),
];

/// How long after its hold a run may take to fail at the most.
const PATIENCE: Duration = Duration::from_secs(20);

/// A run that was held: when its hold ended, by the database's clock and at the earliest by ours, and when the getRun
/// that waited for its end was answered.
struct Held {
    run_id: String,
    until: DateTime<Utc>,
    ends_at: Instant,
    learned_at: Instant,
}

/// A failure that was read from the stream: its own time, and when it came.
struct Failed {
    time: DateTime<Utc>,
    read_at: Instant,
}

async fn run(ground: &Ground) -> Result<Vec<Figure>, BenchError> {
    let (selector, dag_name) = (ground.label(), ground.name("expiry"));
    let number = ground.sized(200, 10);
    let stream = ground.client.stream_events(&dag_name).await?;
    let mut reader = JoinSet::new();
    reader.spawn(failures(stream, number));
    let held = paced(number, RATE, |index| {
        let wait = HOLDS[index % HOLDS.len()];
        let (client, request) = (ground.client.clone(), ground.request(&dag_name, &selector, wait));
        async move {
            // The hold begins after this, so what is counted from here is never too little.
            let ends_at = now() + wait;
            let run = client.dispatch(&request, None).await?;
            let until = run.hold.and_then(|hold| hold.until);
            let until = until.ok_or_else(|| BenchError::Missing("a run was not held".to_owned()))?;
            let ended = client.wait_for_run(&run.dag_name, &run.run_id, WaitFor::Finished, wait + PATIENCE).await?;
            let learned_at = now();
            if ended.status != "failed" {
                return Err(BenchError::Missing(format!("a run is {} after its hold", ended.status)));
            }
            Ok(Held { run_id: run.run_id, until, ends_at, learned_at })
        }
    })
    .await?;
    let failed = match tokio::time::timeout(PATIENCE, reader.join_next()).await {
        Ok(Some(Ok(failed))) => failed?,
        _ => return Err(BenchError::Missing("the stream did not show every failure".to_owned())),
    };
    let (mut committed, mut streamed, mut learned) = (Times::default(), Times::default(), Times::default());
    for Held { run_id, until, ends_at, learned_at } in held {
        let failed = failed.get(&run_id);
        let failed = failed.ok_or_else(|| BenchError::Missing(format!("no event tells that {run_id} failed")))?;
        committed.push((failed.time - until).to_std().unwrap_or_default());
        streamed.push(failed.read_at.saturating_duration_since(ends_at));
        learned.push(learned_at.saturating_duration_since(ends_at));
    }
    Ok(vec![
        Figure::new("time of the event: median", "ms", committed.median()),
        Figure::new("time of the event: p99", "ms", committed.percentile(99)).at_most(150.0),
        Figure::new("stream has the event: median", "ms", streamed.median()),
        Figure::new("stream has the event: p99", "ms", streamed.percentile(99)).at_most(150.0),
        Figure::new("waiting getRun: median", "ms", learned.median()),
        Figure::new("waiting getRun: p99", "ms", learned.percentile(99)).at_most(150.0),
    ])
}

/// Reads the stream until so many runs have failed.
async fn failures(mut stream: EventStream, number: usize) -> Result<HashMap<String, Failed>, BenchError> {
    let mut failed = HashMap::new();
    while failed.len() < number {
        let Some(event) = stream.next().await? else { break };
        let read_at = now();
        if let (true, Some(run)) = (event.kind == "dag.run.failed", event.data.run) {
            failed.insert(run.run_id, Failed { time: event.time, read_at });
        }
    }
    Ok(failed)
}
