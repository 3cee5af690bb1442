//! Every operation there is, with the scopes that open it and a request that asks for what belongs to another.

use reqwest::Method;
use roadstead::access::Scope::{self, Admin, Dispatch, Read, Work};
use serde_json::{Value, json};

use crate::harness::{Client, Reply};

/// Whom and what a request names.
#[derive(Clone)]
pub struct Names {
    pub dag_name: String,
    pub run_id: String,
    pub worker_id: String,
    pub session_id: String,
    pub attempt_id: String,
    pub token: String,
}

impl Names {
    /// Names of nothing.
    pub fn nobody() -> Self {
        Self {
            dag_name: "dag".into(),
            run_id: "nobody".into(),
            worker_id: "nobody".into(),
            session_id: "nobody".into(),
            attempt_id: "00000000-0000-0000-0000-000000000000".into(),
            token: "0".repeat(64),
        }
    }
}

/// One operation.
pub struct Operation {
    pub id: &'static str,
    pub scopes: &'static [Scope],
    pub method: Method,
    pub path: String,
    pub body: Option<Value>,
    /// The status for one who may ask and owns nothing of what is named.
    pub status: u16,
}

/// Every operation, each asking for what these names stand for. Those that make something come last.
#[rustfmt::skip]
pub fn all(names: &Names) -> Vec<Operation> {
    let Names { dag_name, run_id, worker_id, session_id, attempt_id, token } = names;
    let run = format!("/v1/dags/{dag_name}/runs/{run_id}");
    let worker = format!("/v1/workers/{worker_id}");
    let attempt = format!("/v1/attempts/{attempt_id}");
    let (get, post, put, delete) = (Method::GET, Method::POST, Method::PUT, Method::DELETE);
    let operation = |id, scopes, method: &Method, path: String, body, status| {
        Operation { id, scopes, method: method.clone(), path, body, status }
    };
    let said = |what: Value| {
        let mut body = json!({"token": token});
        body.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
        Some(body)
    };
    vec![
        operation("listRuns", &[Read], &get, "/v1/runs".into(), None, 200),
        operation("getRun", &[Read], &get, format!("{run}?include=payload&wait_for=finished&wait_seconds=1"), None, 404),
        operation("listRunEvents", &[Read], &get, format!("{run}/events"), None, 404),
        operation("cancelRun", &[Dispatch, Admin], &post, format!("{run}/cancel"), Some(json!({"force": true})), 404),
        operation("listAttempts", &[Read], &get, format!("{run}/attempts"), None, 404),
        operation("retryRun", &[Dispatch], &post, format!("{run}/retry"),
            Some(json!({"after_attempt_id": attempt_id})), 404),
        operation("resumeRun", &[Dispatch], &post, format!("{run}/resume"),
            Some(json!({"after_attempt_id": attempt_id})), 404),
        operation("redispatchRun", &[Dispatch], &post, format!("{run}/dispatch"),
            Some(json!({"attempt_id": attempt_id})), 404),
        operation("listEvents", &[Read], &get, "/v1/events?limit=500".into(), None, 200),
        operation("streamEvents", &[Read], &get, "/v1/events/stream".into(), None, 200),
        operation("listWorkers", &[Read], &get, "/v1/workers".into(), None, 200),
        operation("getWorker", &[Read], &get, worker.clone(), None, 404),
        operation("drainWorker", &[Admin], &post, format!("{worker}/drain"),
            Some(json!({"drain": true, "comment": "none of yours"})), 404),
        operation("pollTasks", &[Work], &post, format!("{worker}/poll"),
            Some(json!({"session_id": session_id, "wait_seconds": 1, "max_tasks": 100})), 409),
        operation("heartbeatWorker", &[Work], &post, format!("{worker}/heartbeat"),
            Some(json!({"session_id": session_id, "labels": {}, "attempts": [{"attempt_id": attempt_id, "token": token}]})), 409),
        operation("ackAttempt", &[Work], &post, format!("{attempt}/ack"), said(json!({})), 404),
        operation("renewAttempt", &[Work], &post, format!("{attempt}/renew"), said(json!({})), 404),
        operation("releaseAttempt", &[Work], &post, format!("{attempt}/release"), said(json!({})), 404),
        operation("reportAttempt", &[Work], &post, format!("{attempt}/report"), said(json!({"status": "failed"})), 404),
        operation("ackAttempts", &[Work], &post, "/v1/batch/acks".into(),
            Some(json!({"items": [{"attempt_id": attempt_id, "token": token}]})), 200),
        operation("reportAttempts", &[Work], &post, "/v1/batch/reports".into(),
            Some(json!({"items": [{"attempt_id": attempt_id, "token": token, "status": "failed"}]})), 200),
        operation("cancelRuns", &[Dispatch, Admin], &post, "/v1/batch/cancels".into(),
            Some(json!({"runs": [{"dag_name": dag_name, "run_id": run_id}], "force": true})), 200),
        operation("deregisterWorker", &[Work], &delete, format!("{worker}?session_id={session_id}"), None, 404),
        operation("registerWorker", &[Work], &put, worker, Some(json!({"session_id": session_id})), 200),
        operation("dispatchRun", &[Dispatch], &post, "/v1/runs".into(),
            Some(json!({"dag_name": dag_name, "run_id": run_id})), 201),
        operation("dispatchRuns", &[Dispatch], &post, "/v1/batch/runs".into(),
            Some(json!({"runs": [{"dag_name": dag_name, "run_id": run_id}]})), 200),
    ]
}

impl Operation {
    /// Asks. Of a stream only what comes before its events, and its first bytes, are read.
    pub async fn ask(&self, client: &Client) -> Reply {
        let mut request = client.request(self.method.clone(), &self.path);
        if let Some(body) = &self.body {
            request = request.json(body);
        }
        if self.id != "streamEvents" {
            return client.send(request).await;
        }
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = if status == 200 { Value::Null } else { response.json().await.unwrap() };
        Reply { status, headers, body }
    }
}
