//! The hold clock and the start clock against a stopwatch: random timelines of workers and tasks, judged tick by tick by a model that
//! knows nothing of gaps, and by the service. Everything between two ticks happens at one instant.
//!
//! Each seed is an island: its workers and selectors share a label that no other island has, so all of them live
//! through the same ticks at once. `ROADSTEAD_SEED=7` replays one island alone.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Client, Test, Worker, seconds, settings, with_settings};

const ISLANDS: u64 = 40;
const TICKS: i64 = 32;
const STALE_AFTER: i64 = 5;
const LEASE: i64 = 8;

/// A small generator, so that a seed says everything.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn pick<T: Copy>(&mut self, some: &[T]) -> T {
        some[usize::try_from(self.below(some.len() as u64)).unwrap()]
    }
}

/// A worker as a bystander sees it.
struct Watched {
    worker: Worker,
    zone: &'static str,
    draining: bool,
    last_seen: i64,
    /// Gives signs of life at every tick.
    talks: bool,
}

impl Watched {
    fn lives(&self, now: i64) -> bool {
        now < self.last_seen + LEASE
    }

    fn present(&self, now: i64) -> bool {
        !self.draining && now < self.last_seen + STALE_AFTER
    }
}

/// A run and its stopwatch.
struct Timed {
    run_id: String,
    /// None asks for any zone of the island.
    zone: Option<&'static str>,
    wait: i64,
    /// How long it may wait in all, if that is bounded.
    start: Option<i64>,
    waited: i64,
    without: i64,
    /// Where the present stretch without a match began.
    since: i64,
    outcome: &'static str,
    /// Which clock ran out.
    reason: &'static str,
}

struct Island {
    seed: u64,
    random: Random,
    workers: BTreeMap<u64, Watched>,
    runs: Vec<Timed>,
    log: Vec<String>,
}

impl Island {
    fn new(seed: u64) -> Self {
        Self { seed, random: Random(seed), workers: BTreeMap::new(), runs: Vec::new(), log: Vec::new() }
    }

    fn labels(&self, zone: Option<&str>) -> Value {
        let mut labels = json!({"island": self.seed.to_string()});
        if let Some(zone) = zone {
            labels["zone"] = json!(zone);
        }
        labels
    }

    fn matched(&self, zone: Option<&str>, now: i64) -> bool {
        self.workers.values().any(|seen| seen.present(now) && zone.is_none_or(|zone| zone == seen.zone))
    }

    /// Lets the second before `now` pass on every stopwatch.
    fn tick(&mut self, now: i64) {
        for at in 0..self.runs.len() {
            if self.runs[at].outcome != "queued" {
                continue;
            }
            let matched = self.matched(self.runs[at].zone, now - 1);
            let run = &mut self.runs[at];
            run.waited += 1;
            if matched {
                (run.without, run.since) = (0, now);
            } else {
                run.without += 1;
            }
            if !matched && run.without >= run.wait {
                (run.outcome, run.reason) = ("failed", "hold_expired");
            } else if run.start.is_some_and(|start| run.waited >= start) {
                (run.outcome, run.reason) = ("failed", "start_timeout");
            }
            if run.outcome == "failed" {
                self.log.push(format!("{now}: {} fails, {}", run.run_id, run.reason));
            }
        }
        self.workers.retain(|_, seen| seen.lives(now));
    }

    /// A few random things, and the signs of life of those who talk.
    async fn act(&mut self, client: &Client, now: i64) {
        for seen in self.workers.values_mut().filter(|seen| seen.talks) {
            seen.worker.beat(json!({})).await.ok();
            seen.last_seen = now;
        }
        for _ in 0..self.random.below(3) {
            match self.random.below(12) {
                0..4 => self.dispatch(client, now).await,
                4..6 => self.register(client, now).await,
                kind => self.change(kind, now).await,
            }
        }
    }

    async fn dispatch(&mut self, client: &Client, now: i64) {
        let run_id = format!("island-{}-{}", self.seed, self.runs.len());
        let zone = self.random.pick(&[None, Some("a"), Some("b")]);
        let wait = self.random.pick(&[0, 1, 2, 3, 5, 8, 13, 21]);
        let start = self.random.pick(&[None, None, Some(1), Some(4), Some(9), Some(20)]);
        let mut body = json!({"worker_selector": self.labels(zone), "worker_wait_timeout_seconds": wait});
        body["start_timeout_seconds"] = json!(start.unwrap_or(0));
        let reply = client.dispatch(&run_id, body).await;
        let bound = start.map_or_else(String::new, |start| format!(", {start} s in all"));
        self.log.push(format!("{now}: {run_id} waits {wait} s for {zone:?}{bound}: {}", reply.status));
        let accepted = wait > 0 || self.matched(zone, now);
        assert_eq!(reply.status, if accepted { 201 } else { 409 }, "{}", self.story());
        if accepted {
            let run =
                Timed { run_id, zone, wait, start, waited: 0, without: 0, since: now, outcome: "queued", reason: "" };
            self.runs.push(run);
        }
    }

    async fn register(&mut self, client: &Client, now: i64) {
        let number = self.random.below(3);
        let zone = self.random.pick(&["a", "b"]);
        self.log.push(format!("{now}: worker {number} registers for {zone}"));
        let name = format!("island-{}-w{number}", self.seed);
        let body = json!({"labels": self.labels(Some(zone)), "lease_seconds": LEASE});
        let worker = Worker::register_with(client, &name, body).await;
        let talks = self.random.below(4) > 0;
        self.workers.insert(number, Watched { worker, zone, draining: false, last_seen: now, talks });
    }

    async fn change(&mut self, kind: u64, now: i64) {
        let numbers: Vec<u64> = self.workers.keys().copied().collect();
        if numbers.is_empty() {
            return;
        }
        let number = self.random.pick(&numbers);
        let (drain, zone) = (self.random.below(2) == 0, self.random.pick(&["a", "b"]));
        let labels = self.labels(Some(zone));
        let seen = self.workers.get_mut(&number).unwrap();
        let what = match kind {
            6 => {
                seen.worker.leave().await.ok();
                self.workers.remove(&number);
                "leaves".to_owned()
            }
            7 => {
                seen.worker.beat(json!({"labels": labels})).await.ok();
                (seen.zone, seen.last_seen) = (zone, now);
                format!("offers {zone}")
            }
            8 => {
                seen.worker.beat(json!({"draining": drain})).await.ok();
                (seen.draining, seen.last_seen) = (drain, now);
                format!("drains: {drain}")
            }
            9 | 10 => {
                seen.talks = false;
                "falls silent".to_owned()
            }
            _ => {
                seen.worker.beat(json!({})).await.ok();
                (seen.talks, seen.last_seen) = (true, now);
                "talks again".to_owned()
            }
        };
        self.log.push(format!("{now}: worker {number} {what}"));
    }

    /// Compares what the model says of each run with what the service says.
    fn compare(&self, told: &BTreeMap<String, Value>, now: i64, epoch: f64) {
        for run in &self.runs {
            let story = || format!("{} at {now}: {:#}\n{}", run.run_id, told[&run.run_id], self.story());
            let told = &told[&run.run_id];
            assert_eq!(told["status"], run.outcome, "{}", story());
            if run.outcome == "failed" {
                assert_eq!(told["failure"]["reason"], run.reason, "{}", story());
            }
            if run.outcome == "queued" {
                let ends = run.start.map(|start| Duration::from_secs((now - run.waited + start).unsigned_abs()));
                let told_end = told.get("start_until").map(|until| seconds(until) - epoch);
                assert_eq!(told_end, ends.map(|ends| ends.as_secs_f64()), "{}", story());
                let until = (!self.matched(run.zone, now)).then(|| run.since + run.wait);
                let told = told["hold"].get("until").map(|until| seconds(until) - epoch);
                assert_eq!(
                    told,
                    until.map(|until| Duration::from_secs(until.unsigned_abs()).as_secs_f64()),
                    "{}",
                    story()
                );
            }
        }
    }

    fn story(&self) -> String {
        format!("replay with ROADSTEAD_SEED={}\n{}", self.seed, self.log.join("\n"))
    }
}

/// Where all runs stand, from behind: a list takes its time for what else it tells.
async fn statuses(t: &Test) -> BTreeMap<String, String> {
    let rows: Vec<(String, String)> =
        sqlx::query_as("SELECT run_id, status FROM run").fetch_all(&t.pool).await.unwrap();
    rows.into_iter().collect()
}

/// All runs, as they are listed.
async fn listed(t: &Test) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for status in ["queued", "failed"] {
        for run in t.client.get(&format!("/v1/runs?status={status}&limit=500")).await.ok()["runs"].as_array().unwrap() {
            all.insert(run["run_id"].as_str().unwrap().to_owned(), run.clone());
        }
    }
    all
}

/// Lives through all ticks on all islands.
async fn live_through(t: &Test, seeds: Vec<u64>) {
    let mut islands: Vec<Island> = seeds.into_iter().map(Island::new).collect();
    t.stop_clock().await;
    let epoch = t.now().await;
    for now in 1..=TICKS {
        t.tick(1).await;
        t.swept().await;
        for island in &mut islands {
            island.tick(now);
        }
        let stands = statuses(t).await;
        for island in &islands {
            for run in &island.runs {
                assert_eq!(stands[&run.run_id], run.outcome, "{} at {now}\n{}", run.run_id, island.story());
            }
        }
        let acting = islands.into_iter().map(|mut island| {
            let client = t.client.clone();
            tokio::spawn(async move {
                island.act(&client, now).await;
                island
            })
        });
        let mut acted = Vec::new();
        for island in acting.collect::<Vec<_>>() {
            acted.push(island.await.unwrap());
        }
        islands = acted;
        // A list asks for the situation of each selector, a hundred of them here.
        if now % 4 == 0 {
            let told = listed(t).await;
            for island in &islands {
                island.compare(&told, now, epoch);
            }
        }
    }
    let failed = islands.iter().flat_map(|island| &island.runs).filter(|run| run.outcome == "failed").count();
    let all: usize = islands.iter().map(|island| island.runs.len()).sum();
    assert!(failed * 10 > all && failed < all, "{failed} of {all} expired: the timelines try too little");
    let not_started =
        islands.iter().flat_map(|island| &island.runs).filter(|run| run.reason == "start_timeout").count();
    println!("of {all} runs {failed} failed, {not_started} of them for their start clock");
    assert!(not_started * 10 > failed && not_started < failed, "{not_started} of {failed}: they try too little");
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_run_out_at_the_tick_a_stopwatch_says() {
    let mut config = settings();
    config.coordinator.sweep_interval = Duration::from_millis(5);
    config.coordinator.heartbeat_interval = Duration::from_secs(3);
    config.coordinator.stale_after = Duration::from_secs(5);
    let seeds = match std::env::var("ROADSTEAD_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=ISLANDS).collect(),
    };
    with_settings(config, async |t| live_through(t, seeds).await).await;
}
