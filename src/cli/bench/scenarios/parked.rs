//! What polls cost while they are parked: memory, connections to the database, statements.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

use super::super::BenchError;
use super::super::database::{Count, Database};
use super::super::figure::Figure;
use super::super::ground::Ground;
use super::super::hands::register;
use super::Scenario;
use crate::cli::ambient::now;

pub(in crate::cli::bench) const SCENARIO: Scenario = Scenario {
    name: "parked",
    about: "1,000 parked polls of as many workers, no two with the same labels",
    long: false,
    run: |ground| Box::pin(run(ground)),
};

/// How long a poll waits: the longest that is allowed, and longer than it is watched, so that none comes anew meanwhile.
const POLL: Duration = Duration::from_secs(50);

/// How many polls come a second: as many at one instant would show how the service bears a crush.
const ARRIVALS: u32 = 200;

/// How many workers come or go at a time.
const AT_A_TIME: usize = 16;

/// What was seen of the database in a while.
struct Watched {
    /// Statements a second, or transactions.
    rate: Option<(f64, bool)>,
    /// The most transactions that were open at two looks in a row, a second apart.
    held: Option<usize>,
}

async fn run(ground: &Ground) -> Result<Vec<Figure>, BenchError> {
    let workers: Vec<(String, String)> =
        (0..ground.sized(1_000, 20)).map(|_| (ground.name("worker"), ground.name("session"))).collect();
    let labels = ground.name("parked");
    let registered = stream::iter(workers.clone().into_iter().enumerate()).map(|(index, (worker_id, session_id))| {
        let labels = [("bench".to_owned(), format!("{labels}-{index}"))].into();
        let client = ground.client.clone();
        async move { register(&client, &worker_id, &session_id, &labels).await }
    });
    registered.buffer_unordered(AT_A_TIME).try_collect::<()>().await?;
    sleep(ground.sized(Duration::from_secs(2), Duration::ZERO)).await;
    let before = ground.memory();
    let idle = watch(ground, ground.sized(5, 1)).await?;

    let mut polls = JoinSet::new();
    let mut next = now();
    for (worker_id, session_id) in &workers {
        sleep_until(next).await;
        next += Duration::from_secs(1) / ARRIVALS;
        let (client, worker_id, session_id) = (ground.client.clone(), worker_id.clone(), session_id.clone());
        polls.spawn(async move { client.poll(&worker_id, &session_id, "poll", 1, POLL).await });
    }
    sleep(ground.sized(Duration::from_secs(5), Duration::from_secs(2))).await;
    let parked = watch(ground, ground.sized(20, 2)).await?;
    let memory = ground.memory();
    if let Some(ended) = polls.try_join_next() {
        let why = ended.map_err(|error| BenchError::Missing(error.to_string()))?;
        return Err(BenchError::Missing(format!("a poll did not stay parked: {why:?}")));
    }
    polls.shutdown().await;
    let polls = workers.len();
    let leaving = stream::iter(workers).map(|(worker_id, session_id)| {
        let client = ground.client.clone();
        async move { client.deregister(&worker_id, &session_id).await.map(drop) }
    });
    leaving.buffer_unordered(AT_A_TIME).try_collect::<()>().await?;
    Ok(figures(polls, before.zip(memory), &idle, &parked))
}

fn figures(polls: usize, memory: Option<(f64, f64)>, idle: &Watched, parked: &Watched) -> Vec<Figure> {
    let polls = u32::try_from(polls).map_or(f64::NAN, f64::from);
    let unseen = "neither the process nor the database is the bench's own, or psql is missing";
    let figure = |what: &str, unit, value: Option<f64>| match value {
        Some(value) => Figure::new(what, unit, value),
        None => Figure::absent(what, unit, unseen),
    };
    let rates = idle.rate.zip(parked.rate);
    let what = match rates {
        Some(((_, true), _)) => "transactions a second, beyond those without polls",
        _ => "statements a second, beyond those without polls",
    };
    let held = parked.held.and_then(|held| u32::try_from(held).ok()).map(f64::from);
    vec![
        Figure::new("polls", "", polls),
        figure("resident memory", "MiB", memory.map(|(_, with)| with)).at_most(80.0),
        figure("memory a poll", "KiB", memory.map(|(before, with)| (with - before) * 1024.0 / polls)),
        figure("connections held", "", held).at_most(0.0),
        figure(what, "/s", rates.map(|((idle, _), (parked, _))| (parked - idle).max(0.0))).at_most(5.0),
        figure("of the service without polls", "/s", idle.rate.map(|(rate, _)| rate)),
    ]
}

/// Watches the database for so many seconds, with a look each second.
async fn watch(ground: &Ground, seconds: u32) -> Result<Watched, BenchError> {
    let Some(database) = &ground.database else { return Ok(Watched { rate: None, held: None }) };
    let (began, first) = (now(), database.count().await?);
    let (mut held, mut open) = (None, HashSet::new());
    for second in 1..=seconds {
        sleep_until(began + Duration::from_secs(1) * second).await;
        let Some(now_open) = look(database).await? else { continue };
        let both = open.intersection(&now_open).count();
        held = held.max(Some(both));
        open = now_open;
    }
    let last = database.count().await?;
    let took = now() - began;
    // The looks themselves, where they cannot be told from the rest: one each second, and the first count.
    let looks = |count: Count| if count.are_transactions { f64::from(seconds + 1) } else { 0.0 };
    let rate = first.zip(last).map(|(first, last)| {
        let rate = (last.number - first.number - looks(last)) / took.as_secs_f64();
        (rate, last.are_transactions)
    });
    Ok(Watched { rate, held })
}

async fn look(database: &Database) -> Result<Option<HashSet<String>>, BenchError> {
    Ok(database.open_transactions().await?.map(|open| open.into_iter().collect()))
}
