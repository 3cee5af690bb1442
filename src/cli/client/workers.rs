//! What a worker says and hears: its sessions, its polls and its attempts.
//!
//! As tolerant as the other side of the contract, see [`super::runs`].

use std::time::Duration;

use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{BatchAnswer, Client, Labels, PATIENCE, Problem, Secret, Task, answer};

/// What a worker says of itself when it registers.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Registration<'a> {
    /// One life of the process, named by itself.
    pub session_id: &'a str,
    /// What it offers.
    pub labels: &'a Labels,
    /// How many tasks it takes at once.
    pub slots: usize,
    /// Its software.
    pub version: &'a str,
}

/// What the service expects of a registered session.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct RegisterAnswer {
    /// The time between two heartbeats.
    pub heartbeat_every_seconds: f64,
}

/// What a poll brought. `cancel` and `lost` are ids of attempts.
#[derive(Debug, Deserialize)]
pub struct PollAnswer {
    /// Claims to be acked.
    #[serde(default)]
    pub tasks: Vec<Task>,
    /// Attempts that somebody wants stopped.
    #[serde(default)]
    pub cancel: Vec<String>,
    /// Attempts that are no longer this session's.
    #[serde(default)]
    pub lost: Vec<String>,
    /// An operator drains this worker.
    #[serde(default)]
    pub drain: bool,
    /// How long to wait before the next poll.
    pub poll_after_seconds: Option<f64>,
}

/// An attempt that a heartbeat names.
#[derive(Clone, Debug, Serialize)]
pub struct NamedAttempt {
    /// The attempt.
    pub attempt_id: String,
    /// Proves the lease.
    pub token: Secret,
}

/// What a heartbeat was answered with. `cancel` and `lost` are ids of attempts.
#[derive(Clone, Debug, Deserialize)]
pub struct HeartbeatAnswer {
    /// How long the leases of the named attempts last from now.
    pub lease_seconds: f64,
    /// Attempts that somebody wants stopped.
    #[serde(default)]
    pub cancel: Vec<String>,
    /// Attempts that are no longer this session's.
    #[serde(default)]
    pub lost: Vec<String>,
    /// An operator drains this worker.
    #[serde(default)]
    pub drain: bool,
}

/// A worker as the service sees it.
#[derive(Clone, Debug, Deserialize)]
pub struct Worker {
    /// Its name.
    pub worker_id: String,
    /// `healthy`, `draining`, `stale` or `ended`.
    pub state: String,
    /// What it offers.
    #[serde(default)]
    pub labels: Labels,
    /// How many tasks it takes at once.
    pub slots: Option<u32>,
    /// How many it has claimed and not acked.
    pub claimed: Option<u32>,
    /// How many it runs.
    pub running: Option<u32>,
}

/// A page of workers.
#[derive(Clone, Debug, Deserialize)]
pub struct WorkerPage {
    /// The workers.
    pub workers: Vec<Worker>,
    /// Where the next page begins.
    pub next_cursor: Option<String>,
}

/// The lease that an ack began.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct AckAnswer {
    /// How long it lasts from now.
    pub lease_seconds: f64,
    /// How often to renew it.
    pub renew_every_seconds: f64,
}

/// The lease that a renewal lengthened.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct RenewAnswer {
    /// How long it lasts from now.
    pub lease_seconds: f64,
    /// Somebody wants the attempt stopped.
    #[serde(default)]
    pub cancel_requested: bool,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Report<'a> {
    /// Proves the lease.
    pub token: &'a Secret,
    /// `succeeded`, `failed`, `aborted`, …
    pub status: &'a str,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a str>,
    /// What came out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<&'a str>,
}

/// Where a report or a release left the run.
#[derive(Clone, Debug, Deserialize)]
pub struct Standing {
    /// The run's status.
    pub status: String,
    /// The run's version.
    #[serde(default)]
    pub version: u64,
}

impl Client {
    /// `listWorkers`, filtered by the operation's own query parameters.
    ///
    /// # Errors
    ///
    /// As for all.
    pub async fn workers(&self, filter: &[(&str, &str)]) -> Result<WorkerPage, Problem> {
        answer(self.query(Method::GET, &["workers"], filter), PATIENCE).await
    }

    /// `registerWorker`. A new `session_id` ends the worker's former session; the same one again loses nothing.
    ///
    /// # Errors
    ///
    /// As for all.
    pub async fn register(&self, worker_id: &str, registration: &Registration<'_>) -> Result<RegisterAnswer, Problem> {
        answer(self.call(Method::PUT, &["workers", worker_id]).json(registration), PATIENCE).await
    }

    /// `pollTasks`. The same `poll_id` again is given the unacked claims of the poll whose answer was lost.
    ///
    /// # Errors
    ///
    /// `unknown-session`; as for all.
    pub async fn poll(
        &self,
        worker_id: &str,
        session_id: &str,
        poll_id: &str,
        max_tasks: usize,
        wait: Duration,
    ) -> Result<PollAnswer, Problem> {
        let body = json!({
            "session_id": session_id, "poll_id": poll_id, "max_tasks": max_tasks, "wait_seconds": wait.as_secs_f64(),
        });
        answer(self.call(Method::POST, &["workers", worker_id, "poll"]).json(&body), wait + PATIENCE).await
    }

    /// `heartbeatWorker`, naming every attempt that the session is working on.
    ///
    /// # Errors
    ///
    /// `unknown-session`; as for all.
    pub async fn heartbeat(
        &self,
        worker_id: &str,
        session_id: &str,
        attempts: &[NamedAttempt],
        draining: bool,
    ) -> Result<HeartbeatAnswer, Problem> {
        let body = json!({ "session_id": session_id, "attempts": attempts, "draining": draining });
        answer(self.call(Method::POST, &["workers", worker_id, "heartbeat"]).json(&body), PATIENCE).await
    }

    /// `deregisterWorker`: ends the session; its claims return and its attempts are lost.
    ///
    /// # Errors
    ///
    /// As for all.
    pub async fn deregister(&self, worker_id: &str, session_id: &str) -> Result<Worker, Problem> {
        answer(self.query(Method::DELETE, &["workers", worker_id], &[("session_id", session_id)]), PATIENCE).await
    }

    /// `ackAttempt`. Work may begin only after this has been answered with success.
    ///
    /// # Errors
    ///
    /// `claim-expired`, `attempt-superseded`, `run-finished`; as for all.
    pub async fn ack(&self, attempt_id: &str, token: &Secret) -> Result<AckAnswer, Problem> {
        answer(self.attempt(attempt_id, "ack").json(&json!({ "token": token })), PATIENCE).await
    }

    /// `ackAttempts`: at most 1,000.
    ///
    /// # Errors
    ///
    /// The first refusal, if any of them is refused; as for all.
    pub async fn ack_all(&self, attempts: &[NamedAttempt]) -> Result<(), Problem> {
        let call = self.call(Method::POST, &["batch", "acks"]).json(&json!({ "items": attempts }));
        answer::<BatchAnswer>(call, PATIENCE).await?.all()
    }

    /// `renewAttempt`: renews the lease of one attempt, apart from the heartbeat.
    ///
    /// # Errors
    ///
    /// `lease-lost`, `attempt-superseded`; as for all.
    pub async fn renew(&self, attempt_id: &str, token: &Secret) -> Result<RenewAnswer, Problem> {
        answer(self.attempt(attempt_id, "renew").json(&json!({ "token": token })), PATIENCE).await
    }

    /// `releaseAttempt`: gives a claim back.
    ///
    /// # Errors
    ///
    /// As for [`Client::ack`].
    pub async fn release(&self, attempt_id: &str, token: &Secret, reason: &str) -> Result<Standing, Problem> {
        let body = json!({ "token": token, "reason": reason });
        answer(self.attempt(attempt_id, "release").json(&body), PATIENCE).await
    }

    /// `reportAttempt`. The same report again is answered as the first one was.
    ///
    /// # Errors
    ///
    /// `lease-lost`, `attempt-superseded`; as for all.
    pub async fn report(&self, attempt_id: &str, report: &Report<'_>) -> Result<Standing, Problem> {
        answer(self.attempt(attempt_id, "report").json(report), PATIENCE).await
    }

    fn attempt(&self, attempt_id: &str, verb: &str) -> reqwest::RequestBuilder {
        self.call(Method::POST, &["attempts", attempt_id, verb])
    }
}
