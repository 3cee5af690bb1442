//! A worker that does what a test tells it.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::client::{Client, Reply};

/// One registered session.
#[derive(Clone)]
#[expect(clippy::struct_field_names, reason = "they are called as on the wire")]
pub struct Worker {
    pub client: Client,
    pub worker_id: String,
    pub session_id: String,
}

impl Worker {
    /// Registers a worker with these labels and one slot.
    pub async fn register(client: &Client, worker_id: &str, labels: Value) -> Self {
        Self::register_with(client, worker_id, json!({"labels": labels})).await
    }

    /// Registers a worker with what the body says.
    pub async fn register_with(client: &Client, worker_id: &str, body: Value) -> Self {
        let registered = client.put(&format!("/v1/workers/{worker_id}"), &body).await.ok();
        Self {
            client: client.clone(),
            worker_id: worker_id.to_owned(),
            session_id: registered["session_id"].as_str().unwrap().to_owned(),
        }
    }

    /// Polls for one task and returns the whole answer.
    pub async fn poll_reply(&self, wait_seconds: f64) -> Reply {
        self.poll_with(json!({"wait_seconds": wait_seconds})).await
    }

    /// Polls with what the body says besides the session.
    pub async fn poll_with(&self, rest: Value) -> Reply {
        let mut body = json!({"session_id": self.session_id});
        body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        self.client.post(&format!("/v1/workers/{}/poll", self.worker_id), &body).await
    }

    /// Polls, and returns the tasks.
    pub async fn poll(&self, wait_seconds: f64) -> Vec<Value> {
        self.poll_reply(wait_seconds).await.ok()["tasks"].as_array().unwrap().clone()
    }

    /// Polls for the one task there should be within 10 seconds.
    pub async fn take(&self) -> Value {
        let tasks = self.poll(10.0).await;
        assert_eq!(tasks.len(), 1, "{} expected one task", self.worker_id);
        tasks.into_iter().next().unwrap()
    }

    pub async fn ack(&self, task: &Value) -> Reply {
        self.say(task, "ack", json!({})).await
    }

    pub async fn report(&self, task: &Value, status: &str) -> Reply {
        self.say(task, "report", json!({"status": status})).await
    }

    /// Says something about a task, with its token.
    pub async fn say(&self, task: &Value, verb: &str, rest: Value) -> Reply {
        let mut body = json!({"token": task["token"]});
        body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        self.client.post(&format!("/v1/attempts/{}/{verb}", task["attempt_id"].as_str().unwrap()), &body).await
    }

    /// The same session, spoken for through another replica.
    pub fn through(&self, client: &Client) -> Self {
        Self { client: client.clone(), ..self.clone() }
    }

    /// Polls on a connection of its own, whose answer nobody reads. Dropping it cuts the connection, as the end of
    /// the worker's process does.
    pub async fn poll_raw(&self, wait_seconds: f64) -> TcpStream {
        let address = self.client.url().strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let body = json!({"session_id": self.session_id, "wait_seconds": wait_seconds}).to_string();
        let request = format!(
            "POST /v1/workers/{}/poll HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.worker_id,
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// When it last gave a sign of life, as the service tells it.
    pub async fn last_seen(&self) -> String {
        let worker = self.client.get(&format!("/v1/workers/{}", self.worker_id)).await.ok();
        worker["last_seen_at"].as_str().unwrap().to_owned()
    }

    /// Takes a task, acknowledges it and reports that it succeeded.
    pub async fn work_one(&self) -> Value {
        let task = self.take().await;
        self.ack(&task).await.ok();
        self.report(&task, "succeeded").await.ok();
        task
    }

    pub async fn beat(&self, rest: Value) -> Reply {
        let mut body = json!({"session_id": self.session_id});
        body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        self.client.post(&format!("/v1/workers/{}/heartbeat", self.worker_id), &body).await
    }

    pub async fn leave(&self) -> Reply {
        self.client.delete(&format!("/v1/workers/{}?session_id={}", self.worker_id, self.session_id)).await
    }
}
