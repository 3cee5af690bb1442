//! Readers of the feed under load: a hundred thousand events of transactions that commit in another order than they
//! began, read by page and by stream, on two replicas, by readers that are killed at any moment and go on from where
//! they were.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use serde::Deserialize;
use sqlx::types::Uuid;
use sqlx::{Connection as _, PgConnection, PgPool};
use tokio::task::JoinSet;

use crate::harness::{Client, Dice, Test, until, with};

/// How many events there are to be in all, at the least.
const EVENTS: i64 = 100_000;

/// How many transactions are open at a time.
const WRITERS: u64 = 24;

/// How many runs are each writer's own.
const OWN_RUNS: usize = 25;

/// How many runs all writers change.
const SHARED_RUNS: u64 = 20;

/// Not known yet.
const OPEN: i64 = i64::MAX;

/// What a reader needs of an event.
#[derive(Deserialize)]
struct Seen {
    id: Uuid,
    position: i64,
    run_seq: i64,
    subject: String,
}

#[derive(Deserialize)]
struct Page {
    events: Vec<Seen>,
    next_after: i64,
}

/// A reader and all it has seen, over its many lives.
struct Reader {
    replicas: [Client; 2],
    dice: Dice,
    seen: Vec<Seen>,
    after: i64,
    lives: u32,
}

impl Reader {
    fn new(replicas: &[Client; 2], seed: u64) -> Self {
        Self { replicas: replicas.clone(), dice: Dice::new(seed), seen: Vec::new(), after: 0, lives: 0 }
    }

    /// Comes to life at one of the replicas.
    fn start(&mut self, path: &str) -> reqwest::RequestBuilder {
        self.lives += 1;
        let replica = usize::try_from(self.dice.below(2)).unwrap();
        self.replicas[replica].request(reqwest::Method::GET, path)
    }

    /// Reads page after page up to the end; one in three is cut off at some moment, with or without an answer.
    async fn by_page(mut self, end: Arc<AtomicI64>) -> Self {
        while self.after < end.load(Ordering::Relaxed) {
            let path = format!("/v1/events?after={}&limit={}&wait_seconds=1", self.after, 1 + self.dice.below(500));
            let asked = self.start(&path);
            let answer = async { asked.send().await.unwrap().bytes().await.unwrap() };
            let patience =
                if self.dice.below(3) == 0 { Duration::from_micros(self.dice.below(30_000)) } else { Duration::MAX };
            let Ok(text) = tokio::time::timeout(patience, answer).await else { continue };
            let page: Page = serde_json::from_slice(&text).unwrap();
            self.after = page.next_after;
            self.seen.extend(page.events);
        }
        self
    }

    /// Follows streams up to the end; each is cut off after some events, as a rule in the middle of one.
    async fn by_stream(mut self, end: Arc<AtomicI64>) -> Self {
        while self.after < end.load(Ordering::Relaxed) {
            let last = self.after.to_string();
            let mut stream = self.start("/v1/events/stream").header("last-event-id", last).send().await.unwrap();
            assert_eq!(stream.status(), 200);
            let enough = self.seen.len() + usize::try_from(self.dice.below(4_000)).unwrap();
            let mut unread = Vec::new();
            while self.seen.len() < enough {
                // A silence is an end as well: perhaps there is nothing more to come.
                let Ok(chunk) = tokio::time::timeout(Duration::from_secs(1), stream.chunk()).await else { break };
                unread.extend_from_slice(&chunk.unwrap().expect("the stream goes on"));
                self.take_frames(&mut unread);
            }
        }
        self
    }

    /// Takes the complete frames of a stream; what comes after them waits for its end.
    fn take_frames(&mut self, unread: &mut Vec<u8>) {
        let Some(end) = unread.windows(2).rposition(|pair| pair == b"\n\n") else { return };
        let frames = String::from_utf8(unread.drain(..end + 2).collect()).unwrap();
        for frame in frames.split_terminator("\n\n") {
            let line = |name| frame.lines().find_map(|line| line.strip_prefix(name));
            let Some(id) = line("id: ") else {
                assert!(frame.starts_with(':'), "only comments have no id: {frame}");
                continue;
            };
            self.after = id.parse().unwrap();
            self.seen.push(serde_json::from_str(line("data: ").unwrap()).unwrap());
        }
    }

    /// Fails unless it has seen each of these events once, in one order without a gap, and in each run's order.
    fn judge(&self, what: &str, events: &BTreeSet<Uuid>) {
        let mut last: HashMap<&str, i64> = HashMap::new();
        for (at, event) in (1..).zip(&self.seen) {
            assert_eq!(event.position, at, "{what}: what comes after {} is skipped or comes twice", at - 1);
            let seq = last.entry(&event.subject).or_default();
            assert_eq!(event.run_seq, *seq + 1, "{what}: out of the order of {}", event.subject);
            *seq += 1;
        }
        let seen: BTreeSet<Uuid> = self.seen.iter().map(|event| event.id).collect();
        assert_eq!(seen.len(), self.seen.len(), "{what}: an event comes at two positions");
        assert!(seen == *events, "{what}: saw {} events of {}", seen.len(), events.len());
        assert!(self.lives > 30, "{what}: had {} lives only", self.lives);
    }
}

/// Changes runs as the store does, their events with them: some at a time, in a transaction that stays open for a
/// while and sometimes comes to nothing. Answers how many events it has committed, at least so many.
async fn write(url: String, own: Vec<String>, mut dice: Dice, least: u64) -> u64 {
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let mut committed = 0;
    while committed < least {
        let runs = match dice.below(4) {
            0 => vec![format!("shared-{}", dice.below(SHARED_RUNS))],
            _ => own.clone(),
        };
        let mut tx = connection.begin().await.unwrap();
        let written = sqlx::query(
            r#"WITH r AS (
                UPDATE run SET version = version + 1, updated_at = roadstead_now()
                WHERE namespace_id = 1 AND dag_name = 'dag' AND run_id = ANY($1)
                RETURNING dag_name, run_id, version, updated_at
            ), u AS (
                INSERT INTO event_unstamped (namespace_id, dag_name, run_id, run_seq)
                SELECT 1, dag_name, run_id, version FROM r
            )
            INSERT INTO event (namespace_id, dag_name, run_id, run_seq, event_id, type, occurred_at, data)
            SELECT 1, dag_name, run_id, version, gen_random_uuid(), 'dag.run.updated', updated_at,
                   '{"run":{"status":"queued","version":' || version || '}}'
            FROM r"#,
        )
        .bind(&runs)
        .execute(&mut *tx)
        .await
        .unwrap();
        assert_eq!(written.rows_affected(), runs.len() as u64);
        tokio::time::sleep(Duration::from_micros(dice.below(30_000))).await;
        if dice.below(10) == 0 {
            tx.rollback().await.unwrap();
        } else {
            tx.commit().await.unwrap();
            committed += written.rows_affected();
        }
    }
    connection.close().await.unwrap();
    committed
}

/// Gives each event a serial, in its own transaction, for those who would read by that.
const SERIAL: &str = "
    CREATE TABLE naive (id bigserial PRIMARY KEY, event_id uuid NOT NULL);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO naive (event_id) SELECT event_id FROM added; RETURN NULL; END $$;
    CREATE TRIGGER noted AFTER INSERT ON event REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION note()";

/// What readers do who take a serial for the order of commits: how many events they see.
async fn read_by_serial(pool: PgPool, end: Arc<AtomicI64>) -> i64 {
    let (mut seen, mut last) = (0, 0);
    loop {
        let over = end.load(Ordering::Relaxed) != OPEN;
        let rows: Vec<i64> = sqlx::query_scalar("SELECT id FROM naive WHERE id > $1 ORDER BY id")
            .bind(last)
            .fetch_all(&pool)
            .await
            .unwrap();
        seen += i64::try_from(rows.len()).unwrap();
        last = rows.last().copied().unwrap_or(last);
        if over {
            return seen;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Dispatches through both replicas, a few at a time.
async fn dispatch_all(replicas: &[Client; 2], run_ids: Vec<String>) {
    let mut dispatching = JoinSet::new();
    let body = serde_json::json!({"worker_selector": {"zone": "none"}, "worker_wait_timeout_seconds": 3600});
    for (number, run_id) in run_ids.into_iter().enumerate() {
        let (client, body) = (replicas[number % 2].clone(), body.clone());
        dispatching.spawn(async move { drop(client.dispatch(&run_id, body).await.ok()) });
        if dispatching.len() >= 8 {
            dispatching.join_next().await.unwrap().unwrap();
        }
    }
    dispatching.join_all().await;
}

/// All events there are.
async fn all_events(t: &Test) -> BTreeSet<Uuid> {
    let ids: Vec<Uuid> = sqlx::query_scalar("SELECT event_id FROM event").fetch_all(&t.pool).await.unwrap();
    ids.into_iter().collect()
}

/// B134, invariant 7.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_events_are_seen_once_each_by_readers_that_die_and_come_back() {
    with(async |t| {
        sqlx::raw_sql(SERIAL).execute(&t.pool).await.unwrap();
        let (server, other) = t.replica().await;
        let replicas = [t.client.clone(), other];
        let end = Arc::new(AtomicI64::new(OPEN));
        let naive = tokio::spawn(read_by_serial(t.pool.clone(), Arc::clone(&end)));
        let by_page = tokio::spawn(Reader::new(&replicas, 134).by_page(Arc::clone(&end)));
        let by_stream = tokio::spawn(Reader::new(&replicas, 431).by_stream(Arc::clone(&end)));

        let began = Instant::now();
        let shared: Vec<String> = (0..SHARED_RUNS).map(|number| format!("shared-{number}")).collect();
        dispatch_all(&replicas, shared).await;
        let own = |writer: u64| (0..OWN_RUNS).map(move |number| format!("r{writer}-{number}"));
        dispatch_all(&replicas, (0..WRITERS).flat_map(own).collect()).await;
        let mut writing = JoinSet::new();
        let least = u64::try_from(EVENTS).unwrap() / WRITERS;
        for writer in 0..WRITERS {
            writing.spawn(write(t.database_url.clone(), own(writer).collect(), Dice::new(writer), least));
        }
        // And those that the service itself writes meanwhile.
        dispatch_all(&replicas, (0..500).map(|number| format!("beside-{number}")).collect()).await;
        let written: u64 = writing.join_all().await.into_iter().sum();
        println!("{written} events written behind the service's back in {:?}", began.elapsed());
        until("all is stamped", async || t.count("SELECT count(*) FROM event_unstamped").await == 0).await;
        println!("stamped after {:?}", began.elapsed());
        let events = all_events(t).await;
        let total = i64::try_from(events.len()).unwrap();
        assert!(total >= EVENTS, "{total} events only");
        end.store(total, Ordering::Relaxed);

        let by_serial = naive.await.unwrap();
        let (by_page, by_stream) = (by_page.await.unwrap(), by_stream.await.unwrap());
        println!("read after {:?}; a reader of the serial missed {}", began.elapsed(), total - by_serial);
        by_page.judge("by page", &events);
        by_stream.judge("by stream", &events);
        assert!(by_serial < total, "commits came in the order of serials: this test proves nothing");
        server.stop().await;
        // The autopsy's statements are planned for a table that has just been filled.
        sqlx::raw_sql("ANALYZE").execute(&t.pool).await.unwrap();
    })
    .await;
}
