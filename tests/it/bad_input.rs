//! Bad input: whatever is sent is answered with what is wrong with it, and never with a fault of ours.

mod limits;
mod made_up;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::harness::{Client, Reply, Worker, with, with_process};

/// B123: half a surrogate pair, or a NUL, is refused in a dispatch wherever it stands, and mended in a report.
#[tokio::test(flavor = "multi_thread")]
async fn broken_unicode_is_refused_in_a_dispatch() {
    with(async |t| {
        for broken in ["\\ud800", "\\udc00", "\\ud800x", "\\udc00\\ud800", "\\u0000"] {
            for body in [
                r#"{"dag_name": "BROKEN"}"#,
                r#"{"dag_name": "dag", "run_id": "BROKEN"}"#,
                r#"{"dag_name": "dag", "params": {"a": ["BROKEN"]}}"#,
                r#"{"dag_name": "dag", "params": {"BROKEN": 1}}"#,
                r#"{"dag_name": "dag", "context": "BROKEN"}"#,
                r#"{"dag_name": "dag", "definition": "BROKEN"}"#,
                r#"{"dag_name": "dag", "labels": {"a": "BROKEN"}}"#,
                r#"{"dag_name": "dag", "worker_selector": {"BROKEN": "a"}}"#,
            ] {
                let reply = post_text(&t.client, "/v1/runs", body.replace("BROKEN", broken)).await;
                let problem = reply.problem(400, "malformed-json");
                assert_eq!(problem["action"], "fix_request");
            }
        }
        assert_eq!(t.count("SELECT count(*) FROM run").await, 0);
        let whole = r#"{"dag_name": "dag", "run_id": "r", "params": "\ud83d\ude00"}"#;
        post_text(&t.client, "/v1/runs", whole.into()).await.ok();
        assert_eq!(t.client.get("/v1/dags/dag/runs/r?include=payload").await.ok()["params"], "\u{1f600}");
    })
    .await;
}

async fn post_text(client: &Client, path: &str, body: String) -> Reply {
    let request = client.request(reqwest::Method::POST, path).header("content-type", "application/json");
    client.send(request.body(body)).await
}

/// B129: what is accepted is read back everywhere; what is deeper than documented is refused, however deep.
#[tokio::test(flavor = "multi_thread")]
async fn deep_json_is_refused_beyond_the_documented_depth() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let body = |levels: usize| format!(r#"{{"dag_name": "dag", "run_id": "r", "params": {}}}"#, deep(levels));
        for levels in [120, 127, 129, 1_000, 100_000, 1_000_000] {
            let problem = post_text(&t.client, "/v1/runs", body(levels)).await.problem(400, "malformed-json");
            assert!(problem["detail"].as_str().unwrap().contains("120 levels"), "{problem:#}");
        }
        // The body itself is the first level.
        post_text(&t.client, "/v1/runs", body(119)).await.ok();
        // Every reader of 128 levels, as the one in this test is, reads it back wherever it stands.
        let sent: serde_json::Value = serde_json::from_str(&deep(119)).unwrap();
        assert_eq!(t.client.get("/v1/dags/dag/runs/r?include=payload").await.ok()["params"], sent);
        assert_eq!(t.client.get("/v1/runs").await.ok()["runs"].as_array().unwrap().len(), 1);
        let poll = json!({"session_id": worker.session_id, "wait_seconds": 5});
        let polled = t.client.post("/v1/workers/w/poll", &poll).await.ok();
        assert_eq!(polled["tasks"][0]["params"], sent, "{polled:#}");
    })
    .await;
}

/// B127: a body over the limit is answered although its client writes all of it first, and costs no memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_told_and_costs_no_memory() {
    with_process(async |t, service| {
        let most = 4 * 1024 * 1024;
        let body = |bytes: usize| {
            let frame = r#"{"dag_name": "dag", "params": ""}"#;
            format!(r#"{{"dag_name": "dag", "params": "{}"}}"#, "x".repeat(bytes - frame.len()))
        };
        post_text(&t.client, "/v1/runs", body(3_000_000)).await.ok();
        post_text(&t.client, "/v1/runs", body(most)).await.ok();
        let problem = post_text(&t.client, "/v1/runs", body(most + 1)).await.problem(413, "payload-too-large");
        assert_eq!(problem["action"], "fix_request");
        let before = service.memory();
        // Whether it says how much is to come or not.
        for chunked in [false, true, false, true] {
            let reply = write_all_then_read(&t.client, 300, chunked).await;
            assert!(reply.starts_with("HTTP/1.1 413"), "{chunked}: {reply}");
            assert!(reply.contains("application/problem+json") && reply.contains("payload-too-large"), "{reply}");
        }
        let grown = service.memory().saturating_sub(before);
        assert!(grown < 32 << 20, "{grown} bytes more");
    })
    .await;
}

/// As clients do that look at the answer only when they have sent everything, so many MiB: declared, or in chunks of one.
async fn write_all_then_read(client: &Client, mebibytes: usize, chunked: bool) -> String {
    let address = client.url().strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let length =
        if chunked { "transfer-encoding: chunked".into() } else { format!("content-length: {}", mebibytes << 20) };
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\n\
         {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let text = "x".repeat(1 << 20);
    let piece = if chunked { format!("{:x}\r\n{text}\r\n", text.len()) } else { text };
    for _ in 0..mebibytes {
        stream.write_all(piece.as_bytes()).await.expect("the service takes all of it");
    }
    if chunked {
        stream.write_all(b"0\r\n\r\n").await.expect("the service takes all of it");
    }
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    reply
}

/// Heads that are larger than anybody needs are refused as everything else is.
#[tokio::test(flavor = "multi_thread")]
async fn heads_are_bounded() {
    with(async |t| {
        let get = |path: &str| t.client.request(reqwest::Method::GET, path);
        let target = |bytes: usize| format!("/v1/runs?label={}", "a".repeat(bytes - "/v1/runs?label=".len()));
        t.client.send(get(&target(16 << 10))).await.problem(422, "invalid-request");
        let problem = t.client.send(get(&target((16 << 10) + 1))).await.problem(414, "uri-too-long");
        assert!(problem["detail"].as_str().unwrap().contains("16384"), "{problem:#}");
        let with_header = |bytes: usize| get("/v1/runs").header("x-long", "a".repeat(bytes));
        t.client.send(with_header(31 << 10)).await.ok();
        t.client.send(with_header(33 << 10)).await.problem(431, "headers-too-large");
        let with_headers =
            |count: usize| (0..count).fold(get("/v1/runs"), |request, n| request.header(format!("x-{n}"), "a"));
        t.client.send(with_headers(90)).await.ok();
        t.client.send(with_headers(101)).await.problem(431, "headers-too-large");
    })
    .await;
}

/// A result is not lost to a large output: what is dropped of a report has been read first.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_with_a_large_output_is_taken_without_it() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({})).await;
        t.client.dispatch("r", json!({})).await.ok();
        let task = worker.take().await;
        worker.ack(&task).await.ok();
        let report = |bytes: usize| json!({"status": "succeeded", "output": "x".repeat(bytes)});
        worker.say(&task, "report", report(16 << 20)).await.problem(413, "payload-too-large");
        worker.say(&task, "report", report(15 << 20)).await.ok();
        let run = t.client.run("r").await;
        assert_eq!((&run["status"], &run["output_dropped"]), (&json!("succeeded"), &json!(true)), "{run:#}");
    })
    .await;
}
