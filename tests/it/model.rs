//! The life of runs and workers against a reference model: random sequences of all verbs, by right, old and wrong tokens,
//! through two replicas in turn, with a clock that jumps. The model is written from the contract and shares nothing with
//! the rules. What it says of an operation is what the service must answer, and where every run stands afterwards; the
//! promises are for the autopsy.
//!
//! Each seed is an island as in `hold_model`: its workers and runs share a label that no other has. `ROADSTEAD_SEED=7`
//! replays one; `ROADSTEAD_ISLANDS=2000` lets so many live.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Client, Dice, Reply, Test, settings, with_settings};

/// How many sequences there are. The full form is 2,000.
const ISLANDS: u64 = 200;

/// Operations of one sequence: so many between two ticks.
const TICKS: usize = 10;
const STEPS: usize = 5;

/// How many live at a time.
const TOGETHER: usize = 50;

const ACK: i64 = 15;
const LEASE: i64 = 60;
const BARRED: i64 = 30;
const SLOTS: usize = 2;
const RUNS: usize = 4;

/// A claim, acknowledged or not, and who has it.
#[derive(Debug, Clone)]
struct Hold {
    worker: usize,
    session: usize,
    token: String,
    until: i64,
    running: bool,
    /// When it was last renewed by itself, if it was.
    renewed: Option<i64>,
}

#[derive(Debug)]
struct Run {
    status: &'static str,
    version: i64,
    number: i64,
    attempt_id: String,
    attempts_left: i64,
    max_attempts: i64,
    priority: i64,
    place: i64,
    held: Option<Hold>,
    cancelled: bool,
    /// Which session is not offered it, and until when.
    barred: Option<(usize, usize, i64)>,
    /// Every token that was ever given for it, with its attempt, its session and what ended it: a status that was
    /// reported, or "lost".
    tokens: Vec<Given>,
}

#[derive(Debug, Clone)]
struct Given {
    attempt_id: String,
    token: String,
    worker: usize,
    session: usize,
    acked: bool,
    end: &'static str,
}

#[derive(Debug, Default)]
struct Watched {
    sessions: Vec<String>,
    ended: bool,
    last_seen: i64,
    drained: bool,
    talks: bool,
}

struct Island {
    seed: u64,
    dice: Dice,
    clients: [Client; 2],
    runs: Vec<Run>,
    workers: [Watched; 2],
    places: i64,
    log: Vec<String>,
    now: i64,
}

fn terminal(status: &str) -> bool {
    matches!(status, "succeeded" | "failed" | "aborted")
}

impl Run {
    fn change(&mut self) {
        self.version += 1;
    }

    fn end(&mut self, status: &'static str) {
        self.status = if self.cancelled { "aborted" } else { status };
        self.held = None;
        self.change();
    }

    /// Its running attempt is lost: another one is queued, if there is one left.
    fn lose(&mut self, place: &mut i64) {
        self.mark("lost");
        self.held = None;
        if self.cancelled {
            return self.end("aborted");
        }
        if self.attempts_left == 0 {
            return self.end("failed");
        }
        self.attempts_left -= 1;
        self.follow(place);
    }

    /// The next attempt; its id is read from the service.
    fn follow(&mut self, place: &mut i64) {
        *place += 1;
        (self.status, self.place, self.held, self.barred) = ("queued", *place, None, None);
        self.number += 1;
        self.attempt_id.clear();
        self.change();
    }

    fn back(&mut self) {
        self.held = None;
        self.change();
    }

    /// What ended the attempt of the token in hand.
    fn mark(&mut self, end: &'static str) {
        if let Some(held) = &self.held {
            let token = held.token.clone();
            self.tokens.iter_mut().filter(|given| given.token == token).for_each(|given| given.end = end);
        }
    }
}

impl Island {
    fn new(seed: u64, clients: [Client; 2]) -> Self {
        let workers = [Watched::default(), Watched::default()];
        Self { seed, dice: Dice::new(seed), clients, runs: Vec::new(), workers, places: 0, log: Vec::new(), now: 0 }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.dice.below(bound as u64)).unwrap()
    }

    fn client(&mut self) -> Client {
        let which = self.below(2);
        self.clients[which].clone()
    }

    fn name(&self, run: usize) -> String {
        format!("i{}-r{run}", self.seed)
    }

    fn worker_name(&self, worker: usize) -> String {
        format!("i{}-w{worker}", self.seed)
    }

    fn story(&self) -> String {
        format!("replay with ROADSTEAD_SEED={}\n{}\n{:#?}", self.seed, self.log.join("\n"), self.runs)
    }

    #[track_caller]
    fn expect(&self, reply: &Reply, good: bool) {
        let refused = reply.status == 404 || reply.status == 409;
        assert!(if good { reply.status < 300 } else { refused }, "{} {}\n{}", reply.status, reply.body, self.story());
    }

    fn free(&self, worker: usize) -> usize {
        let session = self.workers[worker].sessions.len();
        let used = self.runs.iter().filter_map(|run| run.held.as_ref());
        SLOTS.saturating_sub(used.filter(|held| (held.worker, held.session) == (worker, session)).count())
    }

    /// A session is gone: what it had returns or is lost.
    fn end_session(&mut self, worker: usize) {
        self.workers[worker].ended = true;
        for run in &mut self.runs {
            match &run.held {
                Some(held) if held.worker == worker && held.running => run.lose(&mut self.places),
                Some(held) if held.worker == worker => run.back(),
                _ => {}
            }
        }
    }

    /// Lets time pass: what is over by now ends.
    fn tick(&mut self, seconds: i64) {
        self.now += seconds;
        let now = self.now;
        for worker in 0..2 {
            let seen = &self.workers[worker];
            if !seen.sessions.is_empty() && !seen.ended && now >= seen.last_seen + LEASE {
                self.end_session(worker);
            }
        }
        for run in &mut self.runs {
            match &run.held {
                Some(held) if !held.running && now >= held.until => run.back(),
                Some(held) if held.renewed.is_some_and(|renewed| now >= renewed + LEASE) => run.lose(&mut self.places),
                _ => {}
            }
        }
        self.log.push(format!("-- {now} s"));
    }

    async fn act(&mut self) {
        for worker in 0..2 {
            if self.workers[worker].talks {
                self.beat(worker).await;
            }
        }
        for _ in 0..STEPS {
            match self.below(20) {
                0..3 => self.dispatch().await,
                3 => self.register().await,
                4 => self.leave_or_drain().await,
                5 => {
                    let worker = self.below(2);
                    self.workers[worker].talks ^= true;
                    self.beat(worker).await;
                }
                6..10 => self.poll().await,
                10..16 => self.speak().await,
                16 | 17 => self.cancel().await,
                _ => self.again().await,
            }
        }
    }

    async fn dispatch(&mut self) {
        let client = self.client();
        if self.runs.len() == RUNS || (!self.runs.is_empty() && self.below(5) == 0) {
            // The same again is the run as it is; another request is another run of the same name.
            let run = self.below(self.runs.len());
            let other = self.below(2) == 0;
            let mut body = self.body(self.runs[run].max_attempts, self.runs[run].priority);
            if other {
                body["params"] = json!("other");
            }
            let reply = client.dispatch(&self.name(run), body).await;
            self.log.push(format!("dispatch r{run} again, other: {other}: {}", reply.status));
            self.expect(&reply, !other);
            return;
        }
        let (most, priority) = ([1, 1, 2, 3][self.below(4)], [0, 0, 5][self.below(3)]);
        let run_id = self.name(self.runs.len());
        let reply = client.dispatch(&run_id, self.body(most, priority)).await;
        self.log.push(format!("dispatch {run_id}, {most} attempts, priority {priority}: {}", reply.status));
        self.expect(&reply, true);
        self.places += 1;
        self.runs.push(Run {
            status: "queued",
            version: 1,
            number: 1,
            attempt_id: reply.body["attempt"]["attempt_id"].as_str().unwrap().to_owned(),
            attempts_left: most - 1,
            max_attempts: most,
            priority,
            place: self.places,
            held: None,
            cancelled: false,
            barred: None,
            tokens: Vec::new(),
        });
    }

    fn body(&self, most: i64, priority: i64) -> Value {
        json!({"worker_selector": {"island": self.seed.to_string()}, "worker_wait_timeout_seconds": 604_800,
               "max_attempts": most, "priority": priority})
    }

    async fn register(&mut self) {
        let (worker, client) = (self.below(2), self.client());
        let path = format!("/v1/workers/{}", self.worker_name(worker));
        let reply = client.put(&path, &json!({"labels": {"island": self.seed.to_string()}, "slots": SLOTS})).await;
        self.log.push(format!("w{worker} registers: {}", reply.status));
        let session = reply.ok()["session_id"].as_str().unwrap().to_owned();
        self.end_session(worker);
        let now = self.now;
        let seen = &mut self.workers[worker];
        seen.sessions.push(session);
        (seen.ended, seen.last_seen, seen.talks) = (false, now, true);
    }

    /// A session of this worker, mostly the present one, and whether it is alive.
    fn session(&mut self, worker: usize) -> Option<(String, bool)> {
        let known = self.workers[worker].sessions.len();
        let at = if self.below(6) == 0 { self.below(known.max(1)) } else { known.saturating_sub(1) };
        let alive = at + 1 == known && !self.workers[worker].ended;
        Some((self.workers[worker].sessions.get(at)?.clone(), alive))
    }

    async fn beat(&mut self, worker: usize) {
        let Some((session_id, alive)) = self.session(worker) else { return };
        let client = self.client();
        let path = format!("/v1/workers/{}/heartbeat", self.worker_name(worker));
        let reply = client.post(&path, &json!({"session_id": session_id})).await;
        self.log.push(format!("w{worker} beats, alive: {alive}: {}", reply.status));
        self.expect(&reply, alive);
        if alive {
            self.workers[worker].last_seen = self.now;
            assert_eq!(reply.body["drain"], self.workers[worker].drained, "{}", self.story());
        }
    }

    async fn leave_or_drain(&mut self) {
        let (worker, client) = (self.below(2), self.client());
        if self.workers[worker].sessions.is_empty() {
            return;
        }
        let path = format!("/v1/workers/{}", self.worker_name(worker));
        if self.below(2) == 0 {
            let Some((session_id, alive)) = self.session(worker) else { return };
            let reply = client.delete(&format!("{path}?session_id={session_id}")).await;
            self.log.push(format!("w{worker} leaves, alive: {alive}: {}", reply.status));
            if alive {
                self.expect(&reply, true);
                self.end_session(worker);
            }
            return;
        }
        let drain = self.below(3) > 0;
        let reply = client.post(&format!("{path}/drain"), &json!({"drain": drain})).await;
        self.log.push(format!("w{worker} is drained: {drain}: {}", reply.status));
        self.expect(&reply, true);
        self.workers[worker].drained = drain;
    }

    async fn poll(&mut self) {
        let (worker, most) = (self.below(2), 1 + self.below(3));
        let Some((session_id, alive)) = self.session(worker) else { return };
        let client = self.client();
        let path = format!("/v1/workers/{}/poll", self.worker_name(worker));
        let body = json!({"session_id": session_id, "max_tasks": most, "wait_seconds": 0});
        let reply = client.post(&path, &body).await;
        self.log.push(format!("w{worker} polls for {most}, alive: {alive}: {} {}", reply.status, reply.body));
        self.expect(&reply, alive);
        if !alive {
            return;
        }
        self.workers[worker].last_seen = self.now;
        let session = self.workers[worker].sessions.len();
        let mut due: Vec<usize> = (0..self.runs.len())
            .filter(|run| {
                let run = &self.runs[*run];
                let barred = run.barred.is_some_and(|(w, s, until)| (w, s) == (worker, session) && self.now < until);
                run.status == "queued" && run.held.is_none() && !barred
            })
            .collect();
        due.sort_by_key(|run| (-self.runs[*run].priority, self.runs[*run].place));
        due.truncate(if self.workers[worker].drained { 0 } else { most.min(self.free(worker)) });
        let given = reply.body["tasks"].as_array().unwrap();
        let names: Vec<&str> = given.iter().map(|task| task["run_id"].as_str().unwrap()).collect();
        let expected: Vec<String> = due.iter().map(|run| self.name(*run)).collect();
        assert_eq!(names, expected, "{}", self.story());
        for (run, task) in due.into_iter().zip(given) {
            let token = task["token"].as_str().unwrap().to_owned();
            let run = &mut self.runs[run];
            if run.attempt_id.is_empty() {
                task["attempt_id"].as_str().unwrap().clone_into(&mut run.attempt_id);
            }
            assert_eq!((&task["attempt_id"], &task["attempt_number"]), (&json!(run.attempt_id), &json!(run.number)));
            run.tokens.push(Given {
                attempt_id: run.attempt_id.clone(),
                token: token.clone(),
                worker,
                session,
                acked: false,
                end: "",
            });
            run.held = Some(Hold { worker, session, token, until: self.now + ACK, running: false, renewed: None });
        }
    }

    /// Somebody says something of an attempt with a token, the right one or an old one.
    async fn speak(&mut self) {
        let spoken: Vec<usize> = (0..self.runs.len()).filter(|run| !self.runs[*run].tokens.is_empty()).collect();
        if spoken.is_empty() {
            return;
        }
        let run = spoken[self.below(spoken.len())];
        let known = self.runs[run].tokens.len();
        let at = if self.below(4) == 0 { self.below(known) } else { known - 1 };
        let mut given = self.runs[run].tokens[at].clone();
        if self.below(12) == 0 {
            given.token = "0".repeat(64);
        }
        let (verb, status) = [
            ("ack", ""),
            ("ack", ""),
            ("renew", ""),
            ("release", ""),
            ("report", "running"),
            ("report", "succeeded"),
            ("report", "failed"),
            ("report", "waiting"),
        ][self.below(8)];
        let mut body = json!({"token": given.token});
        if verb == "report" {
            body["status"] = json!(status);
        }
        let client = self.client();
        let reply = client.post(&format!("/v1/attempts/{}/{verb}", given.attempt_id), &body).await;
        self.log.push(format!("r{run} token {at}/{known} {verb} {status}: {} {}", reply.status, reply.body));
        let good = self.said(run, &given, verb, status);
        self.expect(&reply, good);
    }

    /// What the model makes of it: whether it is accepted.
    fn said(&mut self, at: usize, given: &Given, verb: &str, status: &'static str) -> bool {
        let (now, run) = (self.now, &mut self.runs[at]);
        let right = run.held.as_ref().is_some_and(|held| held.token == given.token);
        let running = right && run.held.as_ref().is_some_and(|held| held.running);
        // A repeat is answered for ever, and changes nothing.
        let ended = run.tokens.iter().find(|known| known.token == given.token).map_or("", |known| known.end);
        let repeat = match verb {
            "report" => ended == status,
            "release" => ended == "released" || ended == "lost",
            _ => false,
        };
        if repeat {
            return true;
        }
        match verb {
            "ack" if right => {
                let held = run.held.as_mut().unwrap();
                if !held.running {
                    held.running = true;
                    run.status = "running";
                    run.version += 1;
                    run.tokens
                        .iter_mut()
                        .filter(|known| known.token == given.token)
                        .for_each(|known| known.acked = true);
                }
            }
            "renew" if running => run.held.as_mut().unwrap().renewed = Some(now),
            "report" if running && status == "running" => {
                let held = run.held.as_mut().unwrap();
                held.renewed = held.renewed.map(|_| now);
            }
            "report" if running => {
                run.mark(status);
                run.end(status);
            }
            "release" if running => {
                run.lose(&mut self.places);
                return true;
            }
            "release" if right => {
                run.mark("released");
                run.barred = Some((given.worker, given.session, now + BARRED));
                run.back();
                return true;
            }
            _ => return false,
        }
        self.workers[given.worker].last_seen = now;
        true
    }

    async fn cancel(&mut self) {
        if self.runs.is_empty() {
            return;
        }
        let (run, force) = (self.below(self.runs.len()), self.below(3) == 0);
        let client = self.client();
        let path = format!("/v1/dags/dag/runs/{}/cancel", self.name(run));
        let reply = client.post(&path, &json!({"force": force})).await;
        self.log.push(format!("cancel r{run}, force: {force}: {}", reply.status));
        self.expect(&reply, true);
        let run = &mut self.runs[run];
        let running = run.status == "running";
        if terminal(run.status) || (running && run.cancelled && !force) {
            return;
        }
        run.cancelled = true;
        if running && !force {
            run.change();
        } else {
            run.mark("ended");
            run.end("aborted");
        }
    }

    async fn again(&mut self) {
        if self.runs.is_empty() {
            return;
        }
        let (run, verb) = (self.below(self.runs.len()), ["retry", "resume"][self.below(2)]);
        let client = self.client();
        let path = format!("/v1/dags/dag/runs/{}/{verb}", self.name(run));
        let after = Some(self.runs[run].attempt_id.as_str()).filter(|id| !id.is_empty());
        let after = after.unwrap_or("00000000-0000-0000-0000-000000000000");
        let reply = client.post(&path, &json!({"after_attempt_id": after})).await;
        self.log.push(format!("{verb} r{run}: {}", reply.status));
        let status = self.runs[run].status;
        let good = if verb == "retry" { terminal(status) } else { status == "waiting" };
        self.expect(&reply, good);
        if good {
            let run = &mut self.runs[run];
            run.attempts_left = run.max_attempts - 1;
            run.cancelled = false;
            run.follow(&mut self.places);
            reply.body["attempt"]["attempt_id"].as_str().unwrap().clone_into(&mut run.attempt_id);
        }
    }

    /// Where a run must stand: status, version, number of its attempt, whether it is claimed and not acknowledged.
    fn stands(&self, run: usize) -> (String, i64, i64, bool) {
        let run = &self.runs[run];
        (run.status.to_owned(), run.version, run.number, run.held.as_ref().is_some_and(|held| !held.running))
    }
}

type Standing = BTreeMap<String, (String, i64, i64, bool, String)>;

/// Where all runs stand, from behind.
async fn standing(t: &Test) -> Standing {
    let rows: Vec<(String, String, i64, i32, bool, String)> = sqlx::query_as(
        "SELECT r.run_id, r.status, r.version, r.attempt_number, t.claim_until IS NOT NULL, r.attempt_id::text
         FROM run r LEFT JOIN task t USING (namespace_id, attempt_id)",
    )
    .fetch_all(&t.pool)
    .await
    .unwrap();
    rows.into_iter()
        .map(|(run, status, version, number, claimed, id)| (run, (status, version, i64::from(number), claimed, id)))
        .collect()
}

/// The runs that do not stand as the model says.
fn apart(islands: &[Island], standing: &Standing) -> BTreeSet<(usize, usize)> {
    let mut apart = BTreeSet::new();
    for (at, island) in islands.iter().enumerate() {
        for run in 0..island.runs.len() {
            let (status, version, number, claimed, _) = standing[&island.name(run)].clone();
            if (status, version, number, claimed) != island.stands(run) {
                apart.insert((at, run));
            }
        }
    }
    apart
}

/// Whether the workers with a session that lives are those that the model has. Until a sweep has ended a silent one, a sign of
/// life revives it.
async fn same_sessions(t: &Test, islands: &[Island]) -> bool {
    let alive: Vec<String> = sqlx::query_scalar("SELECT worker_id FROM worker_session WHERE ended_at IS NULL")
        .fetch_all(&t.pool)
        .await
        .unwrap();
    let alive: BTreeSet<String> = alive.into_iter().collect();
    islands.iter().all(|island| {
        (0..2).all(|worker| {
            let seen = &island.workers[worker];
            alive.contains(&island.worker_name(worker)) != (seen.sessions.is_empty() || seen.ended)
        })
    })
}

/// Waits until all stand as the model says; what time ends, either replica's sweep ends when it comes to it.
async fn agree(t: &Test, islands: &mut [Island]) {
    let mut found = standing(t).await;
    for _ in 0..1_000 {
        if apart(islands, &found).is_empty() && same_sessions(t, islands).await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        found = standing(t).await;
    }
    if let Some((at, run)) = apart(islands, &found).first() {
        let island = &islands[*at];
        let (is, must) = (&found[&island.name(*run)], island.stands(*run));
        panic!("r{run} stands at {is:?} and not at {must:?}\n{}", island.story());
    }
    assert!(same_sessions(t, islands).await, "the model has other sessions");
    for island in islands {
        for run in 0..island.runs.len() {
            let name = island.name(run);
            island.runs[run].attempt_id.clone_from(&found[&name].4);
        }
    }
}

async fn live_through(t: &Test, seeds: &[u64]) {
    let (server, replica) = t.replica().await;
    t.stop_clock().await;
    let mut dice = Dice::new(seeds[0]);
    for some in seeds.chunks(TOGETHER) {
        let clients = [t.client.clone(), replica.clone()];
        let mut islands: Vec<Island> = some.iter().map(|seed| Island::new(*seed, clients.clone())).collect();
        for _ in 0..TICKS {
            let acting: Vec<_> = islands
                .into_iter()
                .map(|mut island| {
                    tokio::spawn(async move {
                        island.act().await;
                        island
                    })
                })
                .collect();
            islands = Vec::new();
            for island in acting {
                islands.push(island.await.unwrap());
            }
            agree(t, &mut islands).await;
            let seconds = [1, 5, 10, 14, 15, 16, 25, 31][usize::try_from(dice.below(8)).unwrap()];
            t.tick(seconds).await;
            for island in &mut islands {
                island.tick(seconds);
            }
            agree(t, &mut islands).await;
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_does_what_a_model_says() {
    let mut config = settings();
    config.coordinator.sweep_interval = Duration::from_millis(20);
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let all = || (1..=number("ROADSTEAD_ISLANDS").unwrap_or(ISLANDS)).collect();
    let seeds: Vec<u64> = number("ROADSTEAD_SEED").map_or_else(all, |seed| vec![seed]);
    with_settings(config, async |t| live_through(t, &seeds).await).await;
}
