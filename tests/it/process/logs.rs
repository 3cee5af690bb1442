//! The log: what happened to which run, on whose request; never what was carried.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::{Client, Program, Worker, database, until};

/// Stands in everything that a log must not show.
const CANARY: &str = "canary-7f3a";

/// Sends a request under this id.
async fn under(client: &Client, request_id: &str, path: &str, body: &Value) -> Value {
    let request = client.request(reqwest::Method::POST, path).header("x-request-id", request_id).json(body);
    let reply = client.send(request).await;
    assert_eq!(reply.headers["x-request-id"], request_id);
    reply.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_tells_of_runs_and_workers_and_never_what_they_carry() {
    for level in ["info", "debug"] {
        let database = database::create().await;
        let args = ["serve", "--listen", "127.0.0.1:0", "--database-url", &database.url];
        let mut service = Program::start_with(&args, &[("ROADSTEAD_LOG", level)]);
        let client = service.client().await;
        let mut secrets = vec![CANARY.to_owned()];
        exercise(&client, &mut secrets).await;
        service.stop().await;
        let log = service.log();
        assert!(secrets.len() > 6);
        for secret in &secrets {
            let told = log.lines().find(|line| line.contains(secret.as_str()));
            assert!(told.is_none(), "at level {level} the log says {told:?}");
        }
        let lines = service.log_lines();
        // One line is for people who start it by hand: where it listens.
        assert_eq!(lines.len() + 1, log.lines().count(), "all else is JSON: {log}");
        let of = |message: &str, run: &str| {
            let run = format!("dag/{run}");
            let found = lines.iter().find(|line| line["message"] == message && line["run"] == *run);
            found.unwrap_or_else(|| panic!("no {message} of {run} in {log}")).clone()
        };
        assert_eq!(of("dispatched", "ok")["span"]["request_id"], "req-dispatch");
        assert_eq!(of("cancelled", "cancelled")["span"]["request_id"], "req-cancel");
        assert_eq!(of("started", "ok")["span"]["attempt_id"], of("reported", "ok")["attempt"]);
        assert!(of("swept", "expired")["span"].is_null(), "nobody asked for it");
        assert!(lines.iter().any(|line| line.to_string().contains("worker-log")), "{log}");
        database.drop().await;
    }
}

/// Everything that can be carried, on every way that a run can go.
async fn exercise(client: &Client, secrets: &mut Vec<String>) {
    let carried = |run_id: &str| {
        json!({
            "dag_name": "dag", "run_id": run_id, "worker_selector": {"zone": "b"}, "labels": {"note": CANARY},
            "definition": format!("steps: {CANARY}"), "params": {"secret": CANARY}, "context": [CANARY],
        })
    };
    under(client, "req-dispatch", "/v1/runs", &carried("ok")).await;
    client.post("/v1/runs", &carried("bad")).await.ok();
    client.post("/v1/runs", &carried("cancelled")).await.ok();
    let body = json!({"reason": CANARY});
    under(client, "req-cancel", "/v1/dags/dag/runs/cancelled/cancel", &body).await;
    let mut brief = carried("expired");
    brief["worker_selector"] = json!({"zone": "nowhere"});
    brief["worker_wait_timeout_seconds"] = json!(0.5);
    client.post("/v1/runs", &brief).await.ok();
    // Refused, and told why.
    let mut other = carried("ok");
    other["params"] = json!(format!("other {CANARY}"));
    client.post("/v1/runs", &other).await.problem(409, "run-exists");
    let mut wrong = carried("ok");
    wrong["definition"] = json!([CANARY]);
    wrong[CANARY] = json!(1);
    client.post("/v1/runs", &wrong).await.problem(422, "invalid-request");
    let broken = client.request(reqwest::Method::POST, "/v1/runs").header("content-type", "application/json");
    client.send(broken.body(format!("{{\"dag_name\": \"{CANARY}"))).await.problem(400, "malformed-json");

    let worker = Worker::register(client, "worker-log", json!({"zone": "b"})).await;
    for (run_id, status) in [("ok", "succeeded"), ("bad", "failed")] {
        let task = worker.take().await;
        assert_eq!(task["run_id"], run_id);
        secrets.push(task["token"].as_str().unwrap().to_owned());
        if run_id == "ok" {
            worker.say(&task, "release", json!({"reason": CANARY})).await.ok();
            let again = Worker::register(client, "worker-log-2", json!({"zone": "b"})).await;
            let task = again.poll_with(json!({"wait_seconds": 10, "poll_id": "p"})).await.ok()["tasks"][0].clone();
            secrets.push(task["token"].as_str().unwrap().to_owned());
            let repeat = again.poll_with(json!({"wait_seconds": 10, "poll_id": "p"})).await.ok()["tasks"][0].clone();
            secrets.push(repeat["token"].as_str().unwrap().to_owned());
            finish(&again, &repeat, status, secrets).await;
        } else {
            finish(&worker, &task, status, secrets).await;
        }
    }
    until("the third has expired", async || client.run("expired").await["status"] == "failed").await;
}

async fn finish(worker: &Worker, task: &Value, status: &str, secrets: &mut Vec<String>) {
    worker.ack(task).await.ok();
    worker.say(task, "renew", json!({})).await.ok();
    worker.say(task, "report", json!({"status": "running", "progress": {"at": CANARY}})).await.ok();
    worker.beat(json!({"attempts": [{"attempt_id": task["attempt_id"], "token": task["token"]}]})).await.ok();
    let forged = format!("{CANARY}-forged");
    let stale = json!({"attempt_id": task["attempt_id"], "token": forged});
    worker.report(&stale, "succeeded").await;
    secrets.push(forged);
    let said = json!({"status": status, "output": {"result": CANARY}, "error": CANARY, "log_url": format!("https://{CANARY}/")});
    worker.say(task, "report", said).await.ok();
}

/// A database that goes away in the middle: neither its texts nor ours may show what a statement carried.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_failing_database_shows_nothing_that_was_carried() {
    let folder = crate::harness::Folder::new();
    let data_dir = folder.join("data");
    let mut service = Program::serve(&["--data-dir", &data_dir]);
    let client = service.client().await;
    let text = std::fs::read_to_string(format!("{data_dir}/pg/postmaster.pid")).unwrap();
    let postmaster = nix::unistd::Pid::from_raw(text.lines().next().unwrap().parse().unwrap());
    nix::sys::signal::kill(postmaster, Signal::SIGKILL).unwrap();
    let body = json!({"dag_name": "dag", "run_id": "r", "definition": CANARY, "params": CANARY, "context": CANARY});
    let mut failures = 0;
    until("it is taken", async || {
        let status = client.post("/v1/runs", &body).await.status;
        failures += usize::from(status == 503);
        status == 201
    })
    .await;
    assert!(failures > 0);
    service.stop().await;
    assert!(service.log().contains("database is unavailable"));
    assert!(!service.log().contains(CANARY), "{}", service.log());
    let postgres = std::fs::read_to_string(format!("{data_dir}/postgres.log")).unwrap();
    assert!(!postgres.contains(CANARY), "{postgres}");
}
