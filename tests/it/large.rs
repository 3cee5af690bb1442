//! Large payloads: an answer stops before it is too large, and what it leaves out comes with the next.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{Test, Worker, with};

/// What the answer of a poll stops before.
const ANSWER: usize = 8 << 20;

/// One poll for twenty: what it is given, and how long its answer is.
async fn poll(t: &Test, worker: &Worker) -> (Vec<Value>, usize) {
    let body = json!({"session_id": worker.session_id, "max_tasks": 20, "wait_seconds": 10});
    let path = format!("/v1/workers/{}/poll", worker.worker_id);
    let answer = t.client.request(reqwest::Method::POST, &path).json(&body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let text = answer.text().await.unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap();
    (answer["tasks"].as_array().unwrap().clone(), text.len())
}

/// Polls until all of these have been given, in their order; the sizes of the answers, in tasks.
async fn drain(t: &Test, worker: &Worker, run_ids: &[String]) -> Vec<usize> {
    let (mut given, mut sizes) = (Vec::new(), Vec::new());
    while given.len() < run_ids.len() {
        let (tasks, length) = poll(t, worker).await;
        assert!(!tasks.is_empty(), "nothing came after {given:?}");
        assert!(length <= ANSWER || tasks.len() == 1, "{} tasks in {length} bytes", tasks.len());
        sizes.push(tasks.len());
        for task in &tasks {
            given.push(task["run_id"].as_str().unwrap().to_owned());
            worker.ack(task).await.ok();
            worker.report(task, "succeeded").await.ok();
        }
    }
    assert_eq!(given.iter().collect::<BTreeSet<_>>(), run_ids.iter().collect(), "each of them once");
    assert_eq!(given[0], run_ids[0], "what is first in the order is in the first answer");
    sizes
}

/// B125: the largest there can be is first in the order, and holds up nobody.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_large_tasks_come_in_several_answers() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 50})).await;
        let run_ids: Vec<String> = (0..20).map(|number| format!("r{number:02}")).collect();
        for run_id in &run_ids {
            let size = if run_id == "r00" { (4 << 20) - 100 } else { 1 << 20 };
            t.client.dispatch(run_id, json!({"params": "p".repeat(size)})).await.ok();
        }
        let sizes = drain(t, &worker, &run_ids).await;
        assert!(sizes[0] < 20, "a smaller batch: {sizes:?}");
        assert!(sizes.len() < 6, "as many as there is room for: {sizes:?}");
        println!("answers of {sizes:?}");
    })
    .await;
}

/// B125: what counts is the answer as it is written, with all that has to be escaped and all labels.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_measured_as_it_is_written() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 50})).await;
        let labels: serde_json::Map<String, Value> =
            (0..64).map(|number| (format!("{number:a>63}"), json!("\"".repeat(128)))).collect();
        let run_ids: Vec<String> = (0..20).map(|number| format!("r{number:02}")).collect();
        for run_id in &run_ids {
            // Six bytes each in JSON.
            let body = json!({"definition": "\u{1}".repeat(500_000), "labels": labels});
            t.client.dispatch(run_id, body).await.ok();
        }
        let sizes = drain(t, &worker, &run_ids).await;
        assert!(sizes.len() >= 10, "{sizes:?}");
    })
    .await;
}
