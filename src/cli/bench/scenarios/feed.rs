//! From a dispatch's answer, by which it is committed, to a reader of the stream having its event.

use std::collections::HashMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::super::BenchError;
use super::super::figure::{Figure, Times};
use super::super::ground::Ground;
use super::super::pace::paced;
use super::Scenario;
use crate::cli::ambient::now;
use crate::cli::client::EventStream;

pub(in crate::cli::bench) const SCENARIO: Scenario = Scenario {
    name: "feed",
    about: "from the answer of a dispatch until a reader of the stream has its event; 0 when the event was first",
    long: false,
    run: |ground| Box::pin(run(ground)),
};

/// Dispatches a second.
const RATE: u32 = 50;

/// How long the runs may be held: longer than the round.
const HOLD: Duration = Duration::from_secs(120);

/// How long an event may take at the most.
const PATIENCE: Duration = Duration::from_secs(20);

async fn run(ground: &Ground) -> Result<Vec<Figure>, BenchError> {
    let (selector, dag_name) = (ground.label(), ground.name("feed"));
    let number = ground.sized(250, 10);
    let commits = ground.commits().await?;
    let stream = ground.client.stream_events(&dag_name).await?;
    let mut reader = JoinSet::new();
    reader.spawn(queued(stream, number));
    let sent = paced(number, RATE, |_| {
        let (client, request) = (ground.client.clone(), ground.request(&dag_name, &selector, HOLD));
        async move {
            let sent_at = now();
            let run = client.dispatch(&request, None).await?;
            Ok((run.run_id, sent_at, now()))
        }
    })
    .await?;
    let read = match timeout(PATIENCE, reader.join_next()).await {
        Ok(Some(Ok(read))) => read?,
        _ => return Err(BenchError::Missing("the stream did not show every dispatch".to_owned())),
    };
    let (mut after_answer, mut after_sending) = (Times::default(), Times::default());
    for (run_id, sent_at, answered_at) in sent {
        let read_at = read.get(&run_id);
        let read_at = read_at.ok_or_else(|| BenchError::Missing(format!("no event tells of {run_id}")))?;
        after_answer.push(read_at.saturating_duration_since(answered_at));
        after_sending.push(read_at.saturating_duration_since(sent_at));
        ground.client.cancel(&dag_name, &run_id, "measured", false).await?;
    }
    let commit = commits.as_ref().map(Times::median);
    Ok(vec![
        Figure::new("median", "ms", after_answer.median()).at_most(50.0).beside(commit),
        Figure::new("p99", "ms", after_answer.percentile(99)),
        Figure::new("from before the dispatch is sent: median", "ms", after_sending.median()).beside(commit),
        Figure::new("from before the dispatch is sent: p99", "ms", after_sending.percentile(99)),
    ])
}

/// Reads the stream until so many runs are queued.
async fn queued(mut stream: EventStream, number: usize) -> Result<HashMap<String, Instant>, BenchError> {
    let mut queued = HashMap::new();
    while queued.len() < number {
        let Some(event) = stream.next().await? else { break };
        let at = now();
        if let (true, Some(run)) = (event.kind == "dag.run.queued", event.data.run) {
            queued.entry(run.run_id).or_insert(at);
        }
    }
    Ok(queued)
}
