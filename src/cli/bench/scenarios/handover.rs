//! From a dispatch to the hands of a worker whose poll is parked.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout};

use super::super::BenchError;
use super::super::figure::{Figure, Times};
use super::super::ground::Ground;
use super::super::hands::{Hands, Taken};
use super::super::pace::paced;
use super::Scenario;
use crate::cli::ambient::now;

pub(in crate::cli::bench) const SCENARIO: Scenario = Scenario {
    name: "handover",
    about: "from before a dispatch is sent until a parked worker holds it; 100 a second, each acked and reported; \
            the first 500 are not measured",
    long: false,
    run: |ground| Box::pin(run(ground)),
};

/// Dispatches a second.
const RATE: u32 = 100;

/// How many are dispatched at that rate before the first that is measured: a connection plans a statement anew at each of
/// its first five executions, and again after the tables were analysed.
const WARM_UP: usize = 500;

/// How many workers have their polls parked, one after the other.
const WORKERS: [usize; 2] = [1, 8];

/// How long a task may take to its worker at the most.
const PATIENCE: Duration = Duration::from_secs(10);

async fn run(ground: &Ground) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    for workers in WORKERS {
        let commits = ground.commits().await?;
        let (handed, answered) = hand_over(ground, workers).await?;
        let who = if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") };
        let commit = |percent| commits.as_ref().map(|commits| commits.percentile(percent));
        figures.extend([
            Figure::new(format!("{who}: median"), "ms", handed.median()).at_most(3.0).beside(commit(50)),
            Figure::new(format!("{who}: p99"), "ms", handed.percentile(99)).at_most(15.0).beside(commit(99)),
            Figure::new(format!("{who}: dispatch answered, median"), "ms", answered.median()).beside(commit(50)),
        ]);
    }
    Ok(figures)
}

/// The times from dispatch to hands, and those to the dispatch's own answer.
async fn hand_over(ground: &Ground, workers: usize) -> Result<(Times, Times), BenchError> {
    let (labels, dag_name) = (ground.label(), ground.name("handover"));
    let (tell, mut taken) = unbounded_channel();
    let mut hands = Vec::new();
    for _ in 0..workers {
        hands.push(Hands::start(ground, &labels, tell.clone()).await?);
    }
    // The first of its kind makes the selector known, and shows that somebody polls.
    let first = ground.request(&dag_name, &labels, PATIENCE);
    ground.client.dispatch(&first, None).await?;
    next(&mut taken).await?;

    let number = ground.sized(500, 30);
    let dispatch = |_| {
        let (client, request) = (ground.client.clone(), ground.request(&dag_name, &labels, PATIENCE));
        async move {
            let at = now();
            let run = client.dispatch(&request, None).await?;
            Ok((run.run_id, at, now() - at))
        }
    };
    for _ in paced(ground.sized(WARM_UP, 5), RATE, dispatch).await? {
        next(&mut taken).await?;
    }
    let sent = paced(number, RATE, dispatch).await?;
    let answered = sent.iter().map(|(_, _, took)| *took).collect();
    let sent: HashMap<String, Instant> = sent.into_iter().map(|(run_id, at, _)| (run_id, at)).collect();
    let mut handed = Times::default();
    while handed.len() < number {
        let Taken { run_id, at } = next(&mut taken).await?;
        if let Some(sent_at) = sent.get(&run_id) {
            handed.push(at - *sent_at);
        }
    }
    for hands in hands {
        hands.stop().await?;
    }
    Ok((handed, answered))
}

async fn next(taken: &mut UnboundedReceiver<Taken>) -> Result<Taken, BenchError> {
    let next = timeout(PATIENCE, taken.recv()).await.ok().flatten();
    next.ok_or_else(|| BenchError::Missing("a dispatch did not come to its worker".to_owned()))
}
