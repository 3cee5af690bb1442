//! Requests made up from what has broken services, over every documented operation.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, header};
use roadstead::access::Keyring;
use roadstead::coordinator::Coordinator;
use roadstead::http;
use roadstead::store::Db;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::harness::{Dice, Worker, with, with_process};

/// How many requests are made up.
const REQUESTS: u32 = 100_000;

/// One of these.
fn one<'a, T: ?Sized>(dice: &mut Dice, of: &[&'a T]) -> &'a T {
    of[usize::try_from(dice.below(of.len() as u64)).unwrap()]
}

fn chance(dice: &mut Dice, one_in: u64) -> bool {
    dice.below(one_in) == 0
}

/// Text of the kinds that have broken services: empty, long, control characters, halves of pairs, other alphabets.
fn text(dice: &mut Dice) -> String {
    let long = "x".repeat(usize::try_from(dice.below(300)).unwrap());
    let texts = [
        "",
        "\u{0}",
        "a",
        "dag",
        "r1",
        "w1",
        ".",
        "..",
        "a/b",
        "%2F",
        "a b",
        " a",
        "a\n",
        "\\u0000",
        "\\ud800",
        "\\udc00\\ud800",
        "ä",
        "\u{202e}x",
        "\u{1f600}",
        "\\",
        "\\\"",
        "null",
        "-1",
        "1e999",
        "'; DROP TABLE run; --",
        "key=value",
        ",",
        "=",
        "2026-01-31T12:00:00Z",
        "9999-12-31T23:59:60Z",
        "0000-01-01T00:00:00+23:59",
        "NaN",
        "queued",
        "NoMatchingWorker",
        "00000000-0000-0000-0000-000000000000",
        "AQ",
        "oldest",
        "change",
        "payload",
        long.as_str(),
    ];
    one(dice, &texts).to_owned()
}

/// A JSON value, or what only looks like one.
fn value(dice: &mut Dice, depth: u32) -> String {
    match dice.below(if depth == 0 { 8 } else { 11 }) {
        0..=2 => format!("\"{}\"", text(dice)),
        3 => one(
            dice,
            &[
                "0",
                "-0",
                "1",
                "-1",
                "1.5",
                "1e308",
                "1e999",
                "-1e999",
                "9223372036854775808",
                "99999999999999999999",
                "0.0000001",
                "16",
                "4096",
                "NaN",
                "01",
                "1.",
                "-",
            ],
        )
        .to_owned(),
        4 => one(dice, &["true", "false", "null", "nul", "True"]).to_owned(),
        5 => "[]".to_owned(),
        6 => "{}".to_owned(),
        7 => {
            let deep = usize::try_from(dice.below(300)).unwrap();
            "[".repeat(deep) + &"]".repeat(deep - usize::from(deep > 0 && chance(dice, 9)))
        }
        8 => format!("[{},{}]", value(dice, depth - 1), value(dice, depth - 1)),
        _ => object(dice, &["a", "zone", "dag_name", "run_id", "attempt_id", "token", "a"], depth - 1),
    }
}

fn object(dice: &mut Dice, names: &[&str], depth: u32) -> String {
    let mut fields = Vec::new();
    for _ in 0..dice.below(6) {
        let name = if chance(dice, 8) { text(dice) } else { (*one(dice, names)).to_owned() };
        fields.push(format!("\"{name}\":{}", value(dice, depth)));
    }
    format!("{{{}}}", fields.join(","))
}

/// What is documented of one operation: where it is, and what it knows by name.
struct Operation {
    method: String,
    path: String,
    parameters: Vec<String>,
    fields: Vec<String>,
}

/// Every documented operation, from the document that clients are generated from.
fn operations() -> Vec<Operation> {
    let document = serde_json::to_value(http::openapi()).unwrap();
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let parameters = parameters.filter(|parameter| parameter["in"] == "query");
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
            let schema = schema.as_str().map(|schema| document.pointer(&schema[1..]).unwrap()["properties"].clone());
            operations.push(Operation {
                method: method.to_uppercase(),
                path: path.clone(),
                parameters: parameters.map(|parameter| parameter["name"].as_str().unwrap().to_owned()).collect(),
                fields: schema.iter().flat_map(|fields| fields.as_object().unwrap().keys().cloned()).collect(),
            });
        }
    }
    assert!(operations.len() >= 17, "every operation is tried");
    operations
}

fn escaped(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// A request that is wrong in some way, or happens to be right.
fn request(dice: &mut Dice, operation: &Operation) -> Request<Body> {
    let mut path = String::new();
    for part in operation.path.split_inclusive(['{', '}']) {
        match part.strip_suffix('}') {
            Some(_) if chance(dice, 30) => path.push_str("%ff%zz"),
            Some("attempt_id") => path.push_str(&if chance(dice, 2) { escaped(&text(dice)) } else { uuid(dice) }),
            Some(_) => path.push_str(&if chance(dice, 2) { escaped(&text(dice)) } else { "known".to_owned() }),
            None => path.push_str(part.trim_end_matches('{')),
        }
    }
    let parameters: Vec<&str> = operation.parameters.iter().map(String::as_str).chain(["limit", "no"]).collect();
    for at in 0..dice.below(4) / 2 * (1 + dice.below(2)) {
        path.push(if at == 0 { '?' } else { '&' });
        let name = one(dice, &parameters);
        path.push_str(name);
        match dice.below(12) {
            0 => {}
            1 => path.push_str("=%ff"),
            2 => path.push_str("=%"),
            _ => path.extend(["=", &escaped(&text(dice))]),
        }
    }
    let names: Vec<&str> = operation.fields.iter().map(String::as_str).chain(["no"]).collect();
    let mut body =
        if chance(dice, 3) { object(dice, &names, 3) } else { nearly_good(dice, operation, &names) }.into_bytes();
    match dice.below(24) {
        0 => body.truncate(usize::try_from(dice.below(body.len() as u64)).unwrap()),
        1 => {
            let at = usize::try_from(dice.below(body.len() as u64)).unwrap();
            body[at] = u8::try_from(dice.below(256)).unwrap();
        }
        2 => body.clear(),
        3 => body = value(dice, 2).into_bytes(),
        _ => {}
    }
    let method = if chance(dice, 20) {
        one(dice, &["GET", "POST", "PUT", "DELETE", "PATCH", "BREW"])
    } else {
        &operation.method
    };
    let mut request = Request::builder().method(method).uri(path);
    if !chance(dice, 20) {
        request =
            request.header(header::CONTENT_TYPE, one(dice, &["application/json", "application/json", "text/plain"]));
    }
    if chance(dice, 5) {
        let key = HeaderValue::from_bytes(&text(dice).into_bytes()).unwrap_or(HeaderValue::from_static(""));
        request = request.header(one(dice, &["idempotency-key", "traceparent", "last-event-id", "x-request-id"]), key);
    }
    request.body(Body::from(body)).unwrap()
}

/// A body that would do, but for one field or none.
fn nearly_good(dice: &mut Dice, operation: &Operation, names: &[&str]) -> String {
    let good: &[(&str, &str)] = match operation.path.rsplit('/').next().unwrap() {
        "runs" => &[("dag_name", "\"d\""), ("worker_selector", "{\"zone\":\"x\"}"), ("labels", "{\"a\":\"b\"}")],
        "poll" | "heartbeat" => &[("session_id", "\"w1\"")],
        "ack" | "renew" | "release" => &[("token", "\"t\"")],
        "report" => &[("token", "\"t\""), ("status", "\"failed\"")],
        _ => &[],
    };
    let bad = (!chance(dice, 4)).then(|| one(dice, names));
    let mut fields: Vec<String> =
        good.iter().filter(|(name, _)| Some(*name) != bad).map(|(name, value)| format!("\"{name}\":{value}")).collect();
    fields.extend(bad.map(|name| format!("\"{name}\":{}", value(dice, 2))));
    format!("{{{}}}", fields.join(","))
}

fn uuid(dice: &mut Dice) -> String {
    format!("00000000-0000-7000-8000-{:012}", dice.below(5))
}

/// Sends one made-up request and judges the answer.
async fn judge(router: &Router, request: Request<Body>) -> u16 {
    let said = format!("{} {} {:?}", request.method(), request.uri(), request.headers());
    let answer = tokio::time::timeout(Duration::from_secs(10), router.clone().oneshot(request));
    let answer = answer.await.unwrap_or_else(|_| panic!("no answer to {said}")).unwrap();
    let status = answer.status().as_u16();
    assert!(status < 500, "{status} to {said}");
    if status < 400 {
        // A stream of events has no end.
        return status;
    }
    assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/problem+json", "{said}");
    let body: Value =
        serde_json::from_slice(&axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap()).unwrap();
    assert_eq!(body["status"], status, "{said}");
    for member in ["type", "title", "detail", "code", "action"] {
        assert!(body[member].as_str().is_some_and(|text| !text.is_empty()), "no {member} in {body} to {said}");
    }
    if body["code"] == "invalid-request" {
        assert!(body["errors"].as_array().is_some_and(|errors| !errors.is_empty()), "{body} to {said}");
    }
    status
}

/// B123 and B129 among others: requests made up from what has broken services, over every operation.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_bad_requests_are_all_answered_without_a_fault() {
    with(async |t| {
        t.client.post("/v1/runs", &json!({"dag_name": "known", "run_id": "known"})).await.ok();
        Worker::register_with(&t.client, "known", json!({"session_id": "w1", "labels": {"zone": "x"}})).await;
        let db = Db::open(&t.database_url, 16).unwrap();
        let coordinator = Coordinator::new(db.clone(), t.config.coordinator.clone());
        // Nothing waits: what would is answered at once.
        coordinator.close();
        let router = http::router(coordinator.clone(), Keyring::new([]));
        let operations = operations();
        let mut lanes = tokio::task::JoinSet::new();
        for lane in 0..4 {
            let (router, mut dice) = (router.clone(), Dice::new(100_000 + lane));
            let requests: Vec<Request<Body>> = (0..REQUESTS / 4)
                .map(|_| {
                    let at = usize::try_from(dice.below(operations.len() as u64)).unwrap();
                    request(&mut dice, &operations[at])
                })
                .collect();
            lanes.spawn(async move {
                let mut statuses = std::collections::BTreeMap::<u16, u32>::new();
                for request in requests {
                    *statuses.entry(judge(&router, request).await).or_default() += 1;
                }
                statuses
            });
        }
        let mut statuses = std::collections::BTreeMap::<u16, u32>::new();
        for (status, times) in lanes.join_all().await.into_iter().flatten() {
            *statuses.entry(status).or_default() += times;
        }
        assert_eq!(statuses.values().sum::<u32>(), REQUESTS);
        // They come as far as the database, and to every kind of answer.
        for status in [200, 201, 400, 404, 405, 409, 415, 422] {
            assert!(statuses.contains_key(&status), "{status} is never reached: {statuses:?}");
        }
        coordinator.finished().await;
        db.close().await;
    })
    .await;
}

/// Bad requests leave nothing behind in the process.
#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_leave_no_memory_behind() {
    with_process(async |t, service| {
        let operations = operations();
        let mut dice = Dice::new(7);
        let mut sizes = Vec::new();
        for _ in 0..4 {
            for _ in 0..1_000 {
                // Those that say where something is: nothing is made, so whatever stays is a leak.
                let at = usize::try_from(dice.below(operations.len() as u64)).unwrap();
                let (parts, body) = request(&mut dice, &operations[at]).into_parts();
                let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
                let path = format!("{}{}no=1", parts.uri, if parts.uri.query().is_some() { "&" } else { "?" });
                let request = t.client.request(parts.method, &path).headers(parts.headers).body(body.to_vec());
                let reply = t.client.send(request).await;
                assert!((400..500).contains(&reply.status), "{path}: {reply:#?}");
            }
            sizes.push(service.memory());
        }
        assert!(sizes[3].saturating_sub(sizes[1]) < 8 << 20, "it grows: {sizes:?}");
    })
    .await;
}
