//! What dispatchers and operators say and hear: runs and their events.
//!
//! Tolerant where the contract promises growth: unknown fields are ignored and named values stay text.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, Utc};
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{BatchAnswer, Client, Labels, PATIENCE, Problem, answer};

/// What a read of a run waits for, on the service's side.
#[derive(Clone, Copy, Debug)]
pub enum WaitFor {
    /// A version above this one.
    Change {
        /// The version already known.
        since_version: u64,
    },
    /// A terminal status.
    Finished,
}

/// A run to be dispatched. What is `None` or empty is left out and takes the service's default.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DispatchRequest {
    /// The DAG's name.
    pub dag_name: String,
    /// The run's own id; the service invents one if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// What the worker's labels must equal.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub worker_selector: Labels,
    /// The run that it is a part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunRef>,
    /// The only worker that may take it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_worker_id: Option<String>,
    /// How long to hold the run without a match; 0 refuses at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_wait_timeout_seconds: Option<f64>,
    /// From -100 to 100, higher first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// How many attempts may be lost or fail before the run does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// The DAG's text, opaque to the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
    /// The run's parameters, opaque to the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<Value>,
    /// Labels to list runs by.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: Labels,
}

/// A run's name.
#[derive(Clone, Debug, Serialize)]
pub struct RunRef {
    /// The DAG's.
    pub dag_name: String,
    /// The run's own.
    pub run_id: String,
}

/// A run as the service shows it.
#[derive(Clone, Debug, Deserialize)]
pub struct Run {
    /// The DAG's name.
    pub dag_name: String,
    /// The run's id.
    pub run_id: String,
    /// `queued`, `running`, …
    pub status: String,
    /// Rises with each change.
    #[serde(default)]
    pub version: u64,
    /// The current attempt.
    pub attempt: Option<AttemptRef>,
    /// Who has it, or had it.
    pub worker_id: Option<String>,
    /// What it requires of a worker.
    #[serde(default)]
    pub worker_selector: Labels,
    /// Its wait for a match.
    pub hold: Option<Hold>,
    /// Why it waits.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// When it was queued.
    pub queued_at: Option<DateTime<Utc>>,
    /// When a worker began it.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
    /// What whoever cancelled it said.
    pub cancel_reason: Option<String>,
    /// What went wrong, for people.
    pub error: Option<String>,
    /// What went wrong, for programs.
    pub failure: Option<Failure>,
    /// What the worker reported; only a read of one run carries it.
    pub output: Option<Value>,
}

/// An attempt, in short.
#[derive(Clone, Debug, Deserialize)]
pub struct AttemptRef {
    /// From 1.
    pub number: u32,
    /// Its id.
    pub attempt_id: String,
    /// `start`, `retry` or `resume`.
    pub operation: Option<String>,
}

/// A run's wait for a match.
#[derive(Clone, Debug, Deserialize)]
pub struct Hold {
    /// The whole wait.
    pub wait_timeout_seconds: Option<f64>,
    /// When it runs out; absent while the clock stands still.
    pub until: Option<DateTime<Utc>>,
}

/// An observation about a run's present situation.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Condition {
    /// `Runnable` or `WorkerReady`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True` or `False`.
    pub status: String,
    /// Why.
    #[serde(default)]
    pub reason: String,
}

/// Why a run failed, for programs.
#[derive(Clone, Debug, Deserialize)]
pub struct Failure {
    /// `hold_expired`, `lease_lost`, `reported`, …
    pub reason: String,
}

/// A page of runs.
#[derive(Clone, Debug, Deserialize)]
pub struct RunPage {
    /// The runs.
    pub runs: Vec<Run>,
    /// Where the next page begins.
    pub next_cursor: Option<String>,
}

/// One change of a run.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// `dag.run.queued`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// When.
    pub time: DateTime<Utc>,
    /// The run's version after it.
    pub run_seq: Option<u64>,
    /// The run as of the change.
    pub data: EventData,
}

/// What an event carries.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct EventData {
    /// The run as of the change.
    pub run: Option<Run>,
}

/// A page of a run's events.
#[derive(Clone, Debug, Deserialize)]
pub struct EventPage {
    /// The events, oldest first.
    pub events: Vec<Event>,
}

impl Client {
    /// `dispatchRun`. With an idempotency key, sending it again is safe.
    ///
    /// # Errors
    ///
    /// `no-available-worker` and `no-matching-worker` when the wait is 0 and nothing matches; `run-exists`; as for all.
    pub async fn dispatch(&self, request: &DispatchRequest, idempotency_key: Option<&str>) -> Result<Run, Problem> {
        let mut call = self.call(Method::POST, &["runs"]).json(request);
        if let Some(key) = idempotency_key {
            call = call.header("Idempotency-Key", key);
        }
        answer(call, PATIENCE).await
    }

    /// `dispatchRuns`: at most 1,000.
    ///
    /// # Errors
    ///
    /// The first refusal, if any of them is refused; as for all.
    pub async fn dispatch_all(&self, requests: &[DispatchRequest]) -> Result<(), Problem> {
        let call = self.call(Method::POST, &["batch", "runs"]).json(&json!({ "runs": requests }));
        answer::<BatchAnswer>(call, PATIENCE).await?.all()
    }

    /// `getRun`, at once.
    ///
    /// # Errors
    ///
    /// `not-found`; as for all.
    pub async fn run(&self, dag_name: &str, run_id: &str) -> Result<Run, Problem> {
        answer(self.call(Method::GET, &["dags", dag_name, "runs", run_id]), PATIENCE).await
    }

    /// `getRun`, answered when the run is as waited for or `wait` is over, whichever comes first.
    ///
    /// # Errors
    ///
    /// `not-found`; as for all.
    pub async fn wait_for_run(
        &self,
        dag_name: &str,
        run_id: &str,
        wait_for: WaitFor,
        wait: Duration,
    ) -> Result<Run, Problem> {
        let mut query = vec![("wait_seconds", wait.as_secs_f64().to_string())];
        match wait_for {
            WaitFor::Finished => query.push(("wait_for", "finished".to_owned())),
            WaitFor::Change { since_version } => {
                query.push(("wait_for", "change".to_owned()));
                query.push(("since_version", since_version.to_string()));
            }
        }
        let query: Vec<_> = query.iter().map(|(key, value)| (*key, value.as_str())).collect();
        answer(self.query(Method::GET, &["dags", dag_name, "runs", run_id], &query), wait + PATIENCE).await
    }

    /// `listRuns`, filtered by the operation's own query parameters.
    ///
    /// # Errors
    ///
    /// As for all.
    pub async fn runs(&self, filter: &[(&str, &str)]) -> Result<RunPage, Problem> {
        answer(self.query(Method::GET, &["runs"], filter), PATIENCE).await
    }

    /// `cancelRun`. Of a finished run: no change, and the run as it is.
    ///
    /// # Errors
    ///
    /// `not-found`; as for all.
    pub async fn cancel(&self, dag_name: &str, run_id: &str, reason: &str, force: bool) -> Result<Run, Problem> {
        let call = self.call(Method::POST, &["dags", dag_name, "runs", run_id, "cancel"]);
        answer(call.json(&json!({ "reason": reason, "force": force })), PATIENCE).await
    }

    /// `listRunEvents`: the first page, oldest first.
    ///
    /// # Errors
    ///
    /// `not-found`; as for all.
    pub async fn run_events(&self, dag_name: &str, run_id: &str) -> Result<EventPage, Problem> {
        answer(self.call(Method::GET, &["dags", dag_name, "runs", run_id, "events"]), PATIENCE).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_not_sent() {
        let request = DispatchRequest { dag_name: "etl".to_owned(), ..DispatchRequest::default() };
        let body = serde_json::to_string(&request).expect("plain data");
        assert_eq!(body, r#"{"dag_name":"etl"}"#);
    }

    #[test]
    fn a_run_of_a_later_version_is_read() {
        let run: Run = serde_json::from_str(
            r#"{"dag_name":"etl","run_id":"r1","status":"hibernating","version":3,"moon":"full",
                "conditions":[{"type":"Runnable","status":"False","reason":"NoMatchingWorker","message":"-"}]}"#,
        )
        .expect("a run");
        assert_eq!(run.status, "hibernating");
        assert_eq!(run.conditions[0].reason, "NoMatchingWorker");
    }
}
