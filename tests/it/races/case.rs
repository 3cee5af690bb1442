//! One case of the matrix: a run with three workers that nothing else knows of.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use roadstead::access::Keyring;
use roadstead::config::Config;
use roadstead::coordinator::Coordinator;
use roadstead::coordinator::sweep::SweepMemory;
use roadstead::http;
use roadstead::store::Db;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};

use super::verbs::{Start, Verb};
use crate::harness::{Client, Tap, Worker, autopsy_of, database, spawn};

/// A service without any loop of its own.
#[derive(Clone)]
pub struct Replica {
    client: Client,
    coordinator: Coordinator,
}

impl Replica {
    async fn on(url: &str, config: &Config) -> Self {
        let coordinator = Coordinator::new(Db::open(url, 4).unwrap(), config.coordinator.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(&format!("http://{}", listener.local_addr().unwrap()));
        let router = http::router(coordinator.clone(), Keyring::default());
        spawn(async move { axum::serve(listener, router).await.unwrap() });
        let watched = coordinator.clone();
        spawn(async move { watched.watch_database().await });
        Self { client, coordinator }
    }
}

/// A database with two replicas, of which the first has a gate on its way to it.
pub struct Lane {
    pub tap: Tap,
    pub gated: Replica,
    pub free: Replica,
    pool: PgPool,
    database: database::Database,
}

impl Lane {
    pub async fn open(number: usize, config: &Config) -> Vec<Arc<Self>> {
        let mut lanes = Vec::new();
        for _ in 0..number {
            let database = database::create().await;
            let tap = Tap::on(&database.url).await;
            let gated = Replica::on(&tap.url, config).await;
            let free = Replica::on(&database.url, config).await;
            let pool = PgPool::connect(&database.url).await.unwrap();
            lanes.push(Arc::new(Self { tap, gated, free, pool, database }));
        }
        lanes
    }

    /// Whether one waits for a lock of another.
    pub async fn someone_waits(&self) -> bool {
        let waiting =
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        sqlx::query_scalar(waiting).fetch_one(&self.pool).await.unwrap()
    }

    async fn change(&self, statement: &str, run_id: &str) {
        sqlx::query(AssertSqlSafe(statement)).bind(run_id).execute(&self.pool).await.unwrap();
    }

    /// Ends with an autopsy of all its cases.
    pub async fn close(self) {
        autopsy_of(&self.free.client, &self.database.url).await;
        self.pool.close().await;
        self.database.drop().await;
    }
}

/// What came of two verbs: what each was answered, and how everything stands in the end.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    answers: [String; 2],
    end: Value,
}

impl Outcome {
    /// The same with the second's answer first.
    pub fn turned(&self) -> Self {
        let [one, other] = self.answers.clone();
        Self { answers: [other, one], end: self.end.clone() }
    }

    /// Whether this is what came of the first and then the second, but for what is not of one transaction.
    pub fn is_as(&self, serial: &Self, (start, first, second): (Start, Verb, Verb)) -> bool {
        // A session ends in one and what it ran is lost in the next. In between its worker is told that its lease is lost,
        // and not yet what has become of the run.
        let in_between = matches!(first, Verb::Register | Verb::LeaseExpiry)
            && self.answers[1] == "409 \"lease-lost\""
            && self.answers[0] == serial.answers[0];
        // Who shows the right token is heard, and then answered. A release is no sign of life: whether the session lives
        // when the attempt was released between the two, it alone does not decide.
        let heard = |verb| matches!(verb, Verb::Renew | Verb::Report);
        let was_released = heard(first) && second == Verb::Release || first == Verb::Release && heard(second);
        let mut end = self.end.clone();
        if start == Start::Silent && was_released {
            end["sessions"] = serial.end["sessions"].clone();
        }
        (in_between || self.answers == serial.answers) && end == serial.end
    }
}

/// The answer of a poll that brought no task.
pub const NOTHING_TAKEN: &str = "200 0 tasks";

/// Whether somebody was told to send the same again.
pub fn is_to_be_said_again(answer: &str) -> bool {
    answer.starts_with("503")
}

/// A run, the worker that had it first, and two others that would take it.
#[derive(Clone)]
pub struct Case {
    name: String,
    attempt_id: Value,
    task: Value,
}

impl Case {
    pub async fn begin(lane: &Lane, start: Start, same: bool) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
        let client = &lane.free.client;
        let labels = json!({"case": name});
        let request = json!({"worker_selector": labels, "worker_wait_timeout_seconds": 3_000, "max_attempts": 2});
        let mut case = Self { name, attempt_id: Value::Null, task: Value::Null };
        if start == Start::Expired {
            case.attempt_id =
                client.dispatch(&case.of('r'), request.clone()).await.ok()["attempt"]["attempt_id"].clone();
            let earlier =
                "UPDATE task SET hold_from = hold_from - interval '1 h', hold_until = hold_until - interval '1 h'
                 WHERE run_id = $1";
            lane.change(earlier, &case.of('r')).await;
        }
        let worker = Worker::register(client, &case.of('w'), labels.clone()).await;
        // The second of two polls is another worker's.
        for other in ['v', 'u'].into_iter().take(if same { 2 } else { 1 }) {
            Worker::register_with(client, &case.of(other), json!({"labels": labels, "session_id": case.of(other)}))
                .await;
        }
        if start == Start::Expired {
            return case;
        }
        case.attempt_id = client.dispatch(&case.of('r'), request).await.ok()["attempt"]["attempt_id"].clone();
        if start == Start::Free {
            return case;
        }
        case.task = worker.poll(0.0).await.remove(0);
        match start {
            Start::Free | Start::Expired | Start::Claimed => {}
            Start::Lapsed => {
                let earlier = "UPDATE task SET claim_until = claim_until - interval '1 h' WHERE run_id = $1";
                lane.change(earlier, &case.of('r')).await;
            }
            Start::Running | Start::Silent | Start::Failed => {
                worker.ack(&case.task).await.ok();
            }
        }
        if start == Start::Silent {
            let earlier = "UPDATE worker_session SET last_seen = last_seen - interval '2 h',
                 present_from = present_from - interval '3 h', started_at = started_at - interval '3 h' WHERE worker_id = $1";
            lane.change(earlier, &case.of('w')).await;
        }
        if start == Start::Failed {
            worker.report(&case.task, "failed").await.ok();
        }
        case
    }

    /// The name of a run or worker of it.
    fn of(&self, kind: char) -> String {
        format!("{kind}{}", self.name)
    }

    /// Has a verb done through this replica, and says what was answered.
    pub async fn say(&self, verb: Verb, replica: &Replica, first: bool) -> String {
        let (client, run) = (&replica.client, format!("/v1/dags/dag/runs/{}", self.of('r')));
        let token = json!({"token": self.task["token"]});
        let attempt = |verb: &str| format!("/v1/attempts/{}/{verb}", self.task["attempt_id"].as_str().unwrap());
        let reply = match verb {
            Verb::HoldExpiry | Verb::ClaimExpiry | Verb::LeaseExpiry => {
                let swept = replica.coordinator.sweep(&mut SweepMemory::default()).await;
                // What it did, the end shows; what it could not do, the next one does.
                return swept.map_or_else(|_| "503".to_owned(), |_| "swept".to_owned());
            }
            Verb::Claim => {
                let worker = self.of(if first { 'v' } else { 'u' });
                let poll = json!({"session_id": worker, "wait_seconds": 0});
                client.post(&format!("/v1/workers/{worker}/poll"), &poll).await
            }
            Verb::Ack => client.post(&attempt("ack"), &token).await,
            Verb::Renew => client.post(&attempt("renew"), &token).await,
            Verb::Release => client.post(&attempt("release"), &token).await,
            Verb::Report => {
                let report = json!({"token": self.task["token"], "status": "succeeded"});
                client.post(&attempt("report"), &report).await
            }
            Verb::Cancel => client.post(&format!("{run}/cancel"), &json!({})).await,
            Verb::Retry => client.post(&format!("{run}/retry"), &json!({"after_attempt_id": self.attempt_id})).await,
            Verb::Register => {
                let registration = json!({"labels": {"case": self.name}});
                client.put(&format!("/v1/workers/{}", self.of('w')), &registration).await
            }
            Verb::Drain => client.post(&format!("/v1/workers/{}/drain", self.of('v')), &json!({"drain": true})).await,
            Verb::Child => {
                let parent = json!({"dag_name": "dag", "run_id": self.of('r')});
                let selector = json!({"case": self.of('c')});
                let child =
                    json!({"parent": parent, "worker_selector": selector, "worker_wait_timeout_seconds": 3_000});
                client.dispatch(&self.of('c'), child).await
            }
        };
        let mut said = reply.status.to_string();
        for word in [&reply.body["code"], &reply.body["status"], &reply.body["attempt"]["number"]] {
            if word.is_string() || word.is_number() && !said.starts_with('4') {
                let _ = write!(said, " {word}");
            }
        }
        if let Some(tasks) = reply.body["tasks"].as_array() {
            let _ = write!(said, " {} tasks", tasks.len());
        }
        said
    }

    /// How all stands once time has had its say as well.
    pub async fn outcome(&self, lane: &Lane, answers: [String; 2]) -> Outcome {
        lane.free.coordinator.sweep(&mut SweepMemory::default()).await.unwrap();
        let standing = "SELECT jsonb_build_object(
            'run', (SELECT jsonb_build_array(status, attempt_number, left(worker_id, 1), cancel_requested_at IS NOT NULL)
                    FROM run WHERE run_id = 'r' || $1),
            'attempts', (SELECT jsonb_agg(jsonb_build_array(status, left(worker_id, 1)) ORDER BY number)
                         FROM attempt WHERE run_id = 'r' || $1),
            'claim', (SELECT jsonb_build_array(left(worker_id, 1)) FROM task WHERE run_id = 'r' || $1),
            'sessions', (SELECT jsonb_agg(end_reason ORDER BY started_at) FROM worker_session WHERE worker_id = 'w' || $1),
            'drained', (SELECT drain FROM worker WHERE worker_id = 'v' || $1),
            'child', (SELECT status FROM run WHERE run_id = 'c' || $1),
            'events', (SELECT jsonb_agg(type ORDER BY run_seq) FROM event WHERE run_id = 'r' || $1))";
        let end = sqlx::query_scalar(standing).bind(&self.name).fetch_one(&lane.pool).await.unwrap();
        Outcome { answers, end }
    }
}
