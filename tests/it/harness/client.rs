//! Speaks HTTP to the service as any client does, with JSON as it stands on the wire.

use std::time::Duration;

use serde_json::{Value, json};

use super::document;

/// A client of one service.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    token: Option<String>,
}

/// An answer: status, headers and JSON.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

impl Reply {
    /// The body of a 2xx answer; fails the test otherwise.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!((200..300).contains(&self.status), "expected success, got {self:#?}");
        self.body
    }

    /// The body of a problem with this status and code; fails the test otherwise.
    #[track_caller]
    pub fn problem(self, status: u16, code: &str) -> Value {
        assert_eq!((self.status, self.body["code"].as_str()), (status, Some(code)), "in {self:#?}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(self.body["type"], format!("urn:roadstead:problem:{code}"));
        self.body
    }
}

impl Client {
    pub fn new(url: &str) -> Self {
        // Tests of other parts may have installed it before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().timeout(Duration::from_secs(70)).no_proxy().build().unwrap();
        Self { http, url: url.to_owned(), token: None }
    }

    /// The same service, spoken to with a token.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Reply {
        self.try_send(request).await.expect("the service answers")
    }

    /// As [`Self::send`], where the service may be gone.
    pub async fn try_send(&self, request: reqwest::RequestBuilder) -> Result<Reply, reqwest::Error> {
        let (http, request) = request.build_split();
        let request = request?;
        let (method, path) = (request.method().to_string(), request.url().path().to_owned());
        let response = http.execute(request).await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await?;
        let body =
            if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap_or(Value::String(text)) };
        document::check(&method, &path, status, &body);
        Ok(Reply { status, headers, body })
    }

    pub fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(self.request(reqwest::Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(self.request(reqwest::Method::POST, path).json(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Reply {
        self.send(self.request(reqwest::Method::PUT, path).json(body)).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.send(self.request(reqwest::Method::DELETE, path)).await
    }

    /// Dispatches run `run_id` of DAG `dag` with what else the body says.
    pub async fn dispatch(&self, run_id: &str, rest: Value) -> Reply {
        let mut body = json!({"dag_name": "dag", "run_id": run_id});
        body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        self.post("/v1/runs", &body).await
    }

    /// A run of DAG `dag` as it is.
    pub async fn run(&self, run_id: &str) -> Value {
        self.get(&format!("/v1/dags/dag/runs/{run_id}")).await.ok()
    }

    /// A run of DAG `dag` once it has finished; fails the test when it does not within 20 seconds.
    #[track_caller]
    pub fn finished(&self, run_id: &str) -> impl Future<Output = Value> {
        let path = format!("/v1/dags/dag/runs/{run_id}?wait_for=finished&wait_seconds=20");
        async move {
            let run = self.get(&path).await.ok();
            assert!(run["finished_at"].is_string(), "has not finished: {run:#}");
            run
        }
    }

    pub async fn cancel(&self, run_id: &str) -> Reply {
        self.post(&format!("/v1/dags/dag/runs/{run_id}/cancel"), &json!({})).await
    }

    /// The types of a run's events, in order.
    pub async fn event_types(&self, run_id: &str) -> Vec<String> {
        let events = self.events(run_id).await;
        events.iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    }

    pub async fn events(&self, run_id: &str) -> Vec<Value> {
        self.get(&format!("/v1/dags/dag/runs/{run_id}/events")).await.ok()["events"].as_array().unwrap().clone()
    }
}

/// The one reason of a queued run's two conditions, with their status.
#[track_caller]
pub fn reason(run: &Value) -> (String, String) {
    let conditions = run["conditions"].as_array().unwrap_or_else(|| panic!("no conditions in {run:#}"));
    let kinds: Vec<&str> = conditions.iter().map(|condition| condition["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["Runnable", "WorkerReady"]);
    assert_eq!(conditions[0]["reason"], conditions[1]["reason"]);
    assert_eq!(conditions[0]["status"], conditions[1]["status"]);
    (conditions[0]["status"].as_str().unwrap().into(), conditions[0]["reason"].as_str().unwrap().into())
}
