//! Honest clients beside a crowd of connections that never ask for anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use reqwest::Url;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

use super::super::BenchError;
use super::super::figure::{Figure, Times};
use super::super::ground::Ground;
use super::super::pace::paced;
use super::Scenario;
use crate::cli::ambient::now;

pub(in crate::cli::bench) const SCENARIO: Scenario = Scenario {
    name: "crowd",
    about: "dispatch and getRun, 50 a second each, alone and beside silent and dripping connections that come back when cut",
    long: false,
    run: |ground| Box::pin(run(ground)),
};

/// Silent and dripping connections: so many of each.
const EACH: usize = 5_000;

/// Files of the bench, and of the service, that are not for the crowd.
const OTHER_FILES: u64 = 512;

/// Over how long the crowd comes: as long as the service lets a connection be silent, so that it is cut evenly too.
const GATHERING: Duration = Duration::from_secs(10);

/// Requests of each kind a second.
const RATE: u32 = 50;

/// How long the runs may be held: longer than the round.
const HOLD: Duration = Duration::from_secs(300);

/// What a dripping client sends, a byte a second; it never comes to its end.
const HEAD: &[u8] = b"GET /v1/runs HTTP/1.1\r\nHost: crowd\r\nUser-Agent: drip\r\nX-Drip: ";

async fn run(ground: &Ground) -> Result<Vec<Figure>, BenchError> {
    let each = ground.sized(EACH, 20).min(room() / 2);
    let commits = ground.commits().await?;
    let (dispatch, read) = honest(ground).await?;
    let crowd = Crowd::gather(&ground.url, each, ground.sized(GATHERING, Duration::from_millis(200))).await?;
    let honest = honest(ground);
    let (beside, least) = crowd.while_it_stands(honest).await;
    let (dispatch_beside, read_beside) = beside?;
    drop(crowd);

    let mut figures = vec![Figure::new("connections of the crowd, at the least", "", count(least))];
    for (what, alone, beside) in [("dispatch", &dispatch, &dispatch_beside), ("getRun", &read, &read_beside)] {
        let commit = commits.as_ref().filter(|_| what == "dispatch").map(Times::median);
        figures.extend([
            Figure::new(format!("{what} alone: median"), "ms", alone.median()).beside(commit),
            Figure::new(format!("{what} alone: p99"), "ms", alone.percentile(99)),
            Figure::new(format!("{what} in the crowd: median"), "ms", beside.median()).beside(commit),
            Figure::new(format!("{what} in the crowd: p99"), "ms", beside.percentile(99)),
            Figure::new(format!("{what}: in the crowd to alone, median"), "×", beside.median() / alone.median())
                .at_most(2.0),
        ]);
    }
    Ok(figures)
}

/// How long dispatches and reads of what was dispatched take.
async fn honest(ground: &Ground) -> Result<(Times, Times), BenchError> {
    let (selector, dag_name) = (ground.label(), ground.name("crowd"));
    let done = paced(ground.sized(500, 20), RATE, |_| {
        let (client, request) = (ground.client.clone(), ground.request(&dag_name, &selector, HOLD));
        async move {
            let sent_at = now();
            let run = client.dispatch(&request, None).await?;
            let answered_at = now();
            client.run(&run.dag_name, &run.run_id).await?;
            let read = now() - answered_at;
            Ok((run.run_id, answered_at - sent_at, read))
        }
    })
    .await?;
    for (run_id, ..) in &done {
        ground.client.cancel(&dag_name, run_id, "measured", false).await?;
    }
    Ok((done.iter().map(|(_, dispatch, _)| *dispatch).collect(), done.iter().map(|(.., read)| *read).collect()))
}

/// How many connections the limit of open files leaves room for, in the bench and in a service with the same limit.
fn room() -> usize {
    let lifted = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most).map(|()| most));
    let files = lifted.or_else(|_| getrlimit(Resource::RLIMIT_NOFILE).map(|(now, _)| now)).unwrap_or(1_024);
    usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX)
}

fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::NAN, f64::from)
}

/// Connections that ask for nothing. Gone when dropped.
struct Crowd {
    inside: Arc<AtomicUsize>,
    _members: JoinSet<()>,
}

impl Crowd {
    /// Brings so many silent and as many dripping connections, spread over `gathering`, and waits until they are there.
    async fn gather(url: &str, each: usize, gathering: Duration) -> Result<Self, BenchError> {
        let url = Url::parse(url).map_err(|error| BenchError::Missing(format!("{url}: {error}")))?;
        let address = (url.host_str().unwrap_or_default().to_owned(), url.port_or_known_default().unwrap_or_default());
        let (inside, mut members) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
        let all = u32::try_from(2 * each).unwrap_or(u32::MAX).max(1);
        for member in 0..all {
            let (address, inside) = (address.clone(), Arc::clone(&inside));
            members.spawn(async move {
                sleep(gathering * member / all).await;
                belong(&address, member % 2 == 0, &inside).await;
            });
        }
        let crowd = Self { inside, _members: members };
        let gathered = async {
            // Now and then one is just on its way back.
            while crowd.inside.load(Ordering::Relaxed) < 2 * each - each / 50 {
                sleep(Duration::from_millis(50)).await;
            }
        };
        let late = || BenchError::Missing(format!("of {} connections {} came", 2 * each, crowd.number()));
        timeout(6 * GATHERING, gathered).await.map_err(|_| late())?;
        Ok(crowd)
    }

    fn number(&self) -> usize {
        self.inside.load(Ordering::Relaxed)
    }

    /// Does something, and tells how many there were at the least meanwhile.
    async fn while_it_stands<T>(&self, work: impl Future<Output = T>) -> (T, usize) {
        let (mut least, mut ticks) = (usize::MAX, interval(Duration::from_millis(50)));
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return (done, least.min(self.number())),
                _ = ticks.tick() => least = least.min(self.number()),
            }
        }
    }
}

/// Connects, is silent or drips until it is cut off, and comes back, for ever.
async fn belong((host, port): &(String, u16), silent: bool, inside: &AtomicUsize) {
    loop {
        let Ok(stream) = TcpStream::connect((host.as_str(), *port)).await else {
            sleep(Duration::from_secs(1)).await;
            continue;
        };
        inside.fetch_add(1, Ordering::Relaxed);
        endure(stream, silent).await;
        inside.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Stays until the service closes the connection.
async fn endure(mut stream: TcpStream, silent: bool) {
    let (mut reader, mut writer) = stream.split();
    let drip = async {
        if silent {
            return std::future::pending().await;
        }
        let mut seconds = interval(Duration::from_secs(1));
        for byte in HEAD.iter().chain(std::iter::repeat(&b'x')) {
            seconds.tick().await;
            if writer.write_all(&[*byte]).await.is_err() {
                return;
            }
        }
    };
    let mut thrown_away = [0; 64];
    let cut = async { while reader.read(&mut thrown_away).await.is_ok_and(|read| read > 0) {} };
    tokio::select! {
        () = drip => {}
        () = cut => {}
    }
}
