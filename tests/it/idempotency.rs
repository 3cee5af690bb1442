//! Idempotency keys: honoured by each operation whose description lists them, within a namespace, and by no other.

use roadstead::access::Scope;
use serde_json::{Value, json};

use crate::access::Tokens;
use crate::harness::program::run;
use crate::harness::{Client, Reply, Worker, with, with_settings};

async fn post_keyed(client: &Client, path: &str, key: &str, body: &Value) -> Reply {
    let request = client.request(reqwest::Method::POST, path).header("idempotency-key", key);
    client.send(request.json(body)).await
}

/// B131: the document says of each operation whether it takes a key. What it says of a new one is to be tested here.
#[tokio::test(flavor = "multi_thread")]
async fn the_document_lists_the_key_where_it_is_honoured() {
    let document: Value = serde_json::from_str(&run(&["openapi"], &[]).await.stdout).unwrap();
    let mut listed = Vec::new();
    for operation in document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values())
    {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        if parameters.into_iter().any(|parameter| parameter["name"] == "Idempotency-Key") {
            listed.push(operation["operationId"].as_str().unwrap());
        }
    }
    assert_eq!(listed, ["dispatchRun"]);
}

/// B131: a key belongs to the namespace it was used in.
#[tokio::test(flavor = "multi_thread")]
async fn one_key_in_two_namespaces_makes_a_run_in_each() {
    let tokens = Tokens::none().and("a", "team-a", &[Scope::Dispatch]).and("b", "team-b", &[Scope::Dispatch]);
    with_settings(tokens.settings(), async |t| {
        let mut made = Vec::new();
        for name in ["a", "b"] {
            let client = tokens.client(t, name);
            // Another body in each: neither is a repeat of the other, nor its contradiction.
            let body = json!({"dag_name": "dag", "params": {"of": name}});
            let first = post_keyed(&client, "/v1/runs", "k", &body).await;
            assert!(!first.headers.contains_key("idempotent-replayed"));
            let again = post_keyed(&client, "/v1/runs", "k", &body).await;
            assert_eq!(again.headers["idempotent-replayed"], "true");
            assert_eq!(again.body["run_id"], first.body["run_id"]);
            post_keyed(&client, "/v1/runs", "k", &json!({"dag_name": "dag"}))
                .await
                .problem(422, "idempotency-mismatch");
            made.push(first.ok()["run_id"].clone());
        }
        assert_ne!(made[0], made[1]);
    })
    .await;
}

/// B131: elsewhere a key says nothing: it neither makes a repeat of what is none, nor takes the key of a dispatch.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_changes_nothing_where_it_is_not_listed() {
    with(async |t| {
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 5})).await;
        for run_id in ["r1", "r2"] {
            // The one key goes to every operation, with another meaning each time.
            let poll = json!({"session_id": worker.session_id, "wait_seconds": 10});
            t.client.dispatch(run_id, json!({})).await.ok();
            let polled = post_keyed(&t.client, "/v1/workers/w/poll", "k", &poll).await.ok();
            let task = &polled["tasks"][0];
            assert_eq!(task["run_id"], run_id);
            let attempt = format!("/v1/attempts/{}", task["attempt_id"].as_str().unwrap());
            let token = json!({"token": task["token"]});
            for verb in ["ack", "renew"] {
                post_keyed(&t.client, &format!("{attempt}/{verb}"), "k", &token).await.ok();
            }
            let beat = json!({"session_id": worker.session_id});
            post_keyed(&t.client, "/v1/workers/w/heartbeat", "k", &beat).await.ok();
            let cancel = format!("/v1/dags/dag/runs/{run_id}/cancel");
            let asked = post_keyed(&t.client, &cancel, "k", &json!({})).await.ok();
            assert!(asked["cancel_requested_at"].is_string(), "{asked:#}");
            let report = json!({"token": task["token"], "status": "aborted"});
            assert_eq!(
                post_keyed(&t.client, &format!("{attempt}/report"), "k", &report).await.ok()["status"],
                "aborted"
            );
        }
        assert_eq!(t.count("SELECT count(*) FROM idempotency_key").await, 0);
        let made = post_keyed(&t.client, "/v1/runs", "k", &json!({"dag_name": "dag", "run_id": "r3"})).await;
        assert!(made.status == 201 && !made.headers.contains_key("idempotent-replayed"));
    })
    .await;
}
