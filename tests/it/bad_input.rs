//! Bad input: whatever is sent is answered with what is wrong with it, and never with a fault of ours.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, header};
use roadstead::coordinator::Coordinator;
use roadstead::http;
use roadstead::store::{Db, pool};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tower::ServiceExt as _;

use crate::harness::{Client, Dice, Reply, Worker, with, with_process};

/// How many requests are made up.
const REQUESTS: u32 = 20_000;

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
        match dice.below(12) {
            0 => path.push_str(name),
            1 => path.push_str(&format!("{name}=%ff")),
            2 => path.push_str(&format!("{name}=%")),
            _ => path.push_str(&format!("{name}={}", escaped(&text(dice)))),
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
async fn twenty_thousand_bad_requests_are_all_answered_without_a_fault() {
    with(async |t| {
        t.client.post("/v1/runs", &json!({"dag_name": "known", "run_id": "known"})).await.ok();
        Worker::register_with(&t.client, "known", json!({"session_id": "w1", "labels": {"zone": "x"}})).await;
        let db = pool::open(&t.database_url).unwrap();
        let coordinator = Coordinator::new(Db::new(db.clone()), t.config.coordinator.clone());
        // Nothing waits: what would is answered at once.
        coordinator.close();
        let router = http::router(coordinator.clone());
        let operations = operations();
        let mut lanes = tokio::task::JoinSet::new();
        for lane in 0..4 {
            let (router, mut dice) = (router.clone(), Dice::new(20_000 + lane));
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

/// Sends a body to an operation.
async fn send(client: &Client, method: &str, path: &str, body: &Value) -> Reply {
    client.send(client.request(method.parse().unwrap(), path).json(body)).await
}

/// A map of so many labels.
fn labels(count: usize) -> Value {
    (0..count).map(|number| (format!("k{number}"), json!("v"))).collect::<serde_json::Map<_, _>>().into()
}

/// What stands at a limit, and beyond it, of which operation; and the part that is told.
struct Limit {
    operation: (&'static str, &'static str),
    pointer: &'static str,
    within: Vec<Value>,
    beyond: Vec<Value>,
}

fn limit(
    operation: (&'static str, &'static str),
    pointer: &'static str,
    within: Vec<Value>,
    beyond: Vec<Value>,
) -> Limit {
    Limit { operation, pointer, within, beyond }
}

/// Every limit and name of the contract, from both sides.
fn limits() -> Vec<Limit> {
    const DISPATCH: (&str, &str) = ("POST", "/v1/runs");
    const REGISTER: (&str, &str) = ("PUT", "/v1/workers/other");
    const POLL: (&str, &str) = ("POST", "/v1/workers/w/poll");
    const BEAT: (&str, &str) = ("POST", "/v1/workers/w/heartbeat");
    const CANCEL: (&str, &str) = ("POST", "/v1/dags/dag/runs/r/cancel");
    let a = |count: usize| json!("a".repeat(count));
    let of =
        |field: &str, values: Vec<Value>| values.into_iter().map(|value| json!({field: value})).collect::<Vec<_>>();
    let ids = |field: &str| {
        let good = of(field, vec![a(1), a(255), json!("A-z.0_9:@+~=-"), json!("...")]);
        let bad = of(
            field,
            vec![a(0), a(256), json!("."), json!(".."), json!("a b"), json!("a/b"), json!("\u{e4}"), json!(1)],
        );
        (good, bad)
    };
    let (run_ids, no_run_ids) = ids("run_id");
    let (targets, no_targets) = ids("target_worker_id");
    let (sessions, no_sessions) = ids("session_id");
    let label = |value: &str| json!({"zone": value});
    let key = |key: &str| json!({key: "b"});
    let wrong_values =
        [&"v".repeat(129), &"\u{e4}".repeat(65), " v", "v ", "a,b", "a\tb"].map(|value| label(value)).to_vec();
    let right_values =
        [&"v".repeat(128), &"\u{e4}".repeat(64), "", "a b", "a=b", "\u{1f600}"].map(|value| label(value)).to_vec();
    vec![
        limit(
            DISPATCH,
            "/dag_name",
            of("dag_name", vec![a(1), a(250), json!("\u{e4}".repeat(250)), json!("a / b"), json!("..")]),
            of("dag_name", vec![a(0), a(251), json!("\u{e4}".repeat(251)), json!("a\nb"), json!(null), json!(7)]),
        ),
        limit(DISPATCH, "/run_id", run_ids, no_run_ids),
        limit(DISPATCH, "/target_worker_id", targets, no_targets),
        limit(
            DISPATCH,
            "/root/dag_name",
            vec![json!({"root": {"dag_name": "a".repeat(250), "run_id": "r"}})],
            vec![json!({"root": {"dag_name": "a".repeat(251), "run_id": "r"}})],
        ),
        limit(
            DISPATCH,
            "/parent/run_id",
            vec![json!({"parent": {"dag_name": "d", "run_id": "r".repeat(255)}})],
            vec![json!({"parent": {"dag_name": "d", "run_id": "r".repeat(256)}})],
        ),
        limit(
            DISPATCH,
            "/worker_selector",
            vec![
                json!({"worker_selector": labels(16)}),
                json!({"worker_selector": labels(15), "target_worker_id": "w"}),
            ],
            vec![
                json!({"worker_selector": labels(17)}),
                json!({"worker_selector": labels(16), "target_worker_id": "w"}),
                json!({"worker_selector": []}),
            ],
        ),
        limit(
            DISPATCH,
            "/worker_selector/zone",
            of("worker_selector", right_values.clone()),
            of("worker_selector", wrong_values.clone()),
        ),
        limit(DISPATCH, "/labels/zone", of("labels", right_values.clone()), of("labels", wrong_values.clone())),
        limit(DISPATCH, "/labels", vec![json!({"labels": labels(64)})], vec![json!({"labels": labels(65)})]),
        limit(
            DISPATCH,
            "/labels/ab",
            of("labels", vec![key(&"k".repeat(63)), key("A.z_0/9-")]),
            vec![json!({"labels": {"ab": 1}})],
        ),
        limit(
            DISPATCH,
            "/worker_wait_timeout_seconds",
            of("worker_wait_timeout_seconds", vec![json!(0.001), json!(604_800), json!(604_800.0)]),
            of(
                "worker_wait_timeout_seconds",
                vec![json!(604_800.1), json!(-0.001), json!(1e308), json!(i64::MAX), json!("2m")],
            ),
        ),
        limit(
            DISPATCH,
            "/priority",
            of("priority", vec![json!(-100), json!(100), json!(5.0)]),
            of("priority", vec![json!(-101), json!(101), json!(0.5), json!("1")]),
        ),
        limit(
            DISPATCH,
            "/definition",
            of("definition", vec![a(1 << 20)]),
            of("definition", vec![a((1 << 20) + 1), json!({})]),
        ),
        limit(
            DISPATCH,
            "/operation",
            of("operation", vec![json!("start")]),
            of("operation", vec![json!("stop"), json!("START")]),
        ),
        limit(DISPATCH, "/surprise", vec![json!({})], of("surprise", vec![json!(1)])),
        limit(REGISTER, "/labels", of("labels", vec![labels(64)]), of("labels", vec![labels(65)])),
        limit(REGISTER, "/labels/zone", of("labels", right_values), of("labels", wrong_values)),
        limit(
            REGISTER,
            "/exclusive",
            of("exclusive", vec![json!((0..64).map(|n| n.to_string()).collect::<Vec<_>>())]),
            of("exclusive", vec![json!((0..65).map(|n| n.to_string()).collect::<Vec<_>>()), json!("gpu")]),
        ),
        limit(
            REGISTER,
            "/slots",
            of("slots", vec![json!(1), json!(10_000)]),
            of("slots", vec![json!(0), json!(10_001), json!(1.5)]),
        ),
        limit(REGISTER, "/version", of("version", vec![a(255)]), of("version", vec![a(256)])),
        limit(
            REGISTER,
            "/lease_seconds",
            of("lease_seconds", vec![json!(5), json!(3_600)]),
            of("lease_seconds", vec![json!(4.999), json!(3_600.001), json!(-5)]),
        ),
        limit(REGISTER, "/session_id", sessions, no_sessions),
        limit(
            POLL,
            "/max_tasks",
            of("max_tasks", vec![json!(1), json!(100)]),
            of("max_tasks", vec![json!(0), json!(101)]),
        ),
        limit(
            POLL,
            "/wait_seconds",
            of("wait_seconds", vec![json!(0), json!(-0.0)]),
            of("wait_seconds", vec![json!(-0.001), json!("1")]),
        ),
        limit(BEAT, "/slots", of("slots", vec![json!(1), json!(10_000)]), of("slots", vec![json!(0), json!(10_001)])),
        limit(BEAT, "/labels", of("labels", vec![labels(64)]), of("labels", vec![labels(65)])),
        limit(CANCEL, "/reason", of("reason", vec![a(4_096)]), of("reason", vec![a(4_097), json!(1)])),
    ]
}

/// B53, B55 and B71 among others: at the limit is accepted, one more is refused with the part and what to do.
#[tokio::test(flavor = "multi_thread")]
async fn every_limit_holds_from_both_sides() {
    with(async |t| {
        let mut runs = 0;
        for Limit { operation: (method, path), pointer, within, beyond } in limits() {
            let whole = |value: &Value, number: u32| {
                let mut body = match path {
                    "/v1/runs" => json!({"dag_name": format!("dag-{number}"), "worker_selector": {"zone": "none"}}),
                    "/v1/workers/w/poll" => json!({"session_id": "s", "wait_seconds": 0}),
                    "/v1/workers/w/heartbeat" => json!({"session_id": "s"}),
                    _ => json!({}),
                };
                body.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
                body
            };
            // Who is about to be asked for is there.
            t.client.put("/v1/workers/w", &json!({"session_id": "s"})).await.ok();
            t.client.post("/v1/runs", &json!({"dag_name": "dag", "run_id": "r"})).await.ok();
            for value in &within {
                runs += 1;
                let reply = send(&t.client, method, path, &whole(value, runs)).await;
                assert!(reply.status < 300, "{pointer}: {:.200} is refused: {reply:#?}", value.to_string());
            }
            for value in &beyond {
                let reply = send(&t.client, method, path, &whole(value, runs)).await;
                let said = format!("{pointer}: {:.200}", value.to_string());
                assert_eq!(reply.status, 422, "{said} is accepted: {reply:#?}");
                let problem = reply.problem(422, "invalid-request");
                assert_eq!(problem["action"], "fix_request");
                let pointers: Vec<&str> = problem["errors"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|error| error["pointer"].as_str().unwrap())
                    .collect();
                assert_eq!(pointers, [pointer], "{said}");
            }
        }
    })
    .await;
}

/// The same of paths, queries and headers.
#[tokio::test(flavor = "multi_thread")]
async fn names_in_paths_and_queries_keep_the_same_rules() {
    with(async |t| {
        t.client.dispatch("r", json!({"worker_selector": {"zone": "x"}})).await.ok();
        let long = |count: usize| "a".repeat(count);
        let map = |count: usize| (0..count).map(|n| format!("k{n}%3Dv")).collect::<Vec<_>>().join(",");
        let most = "9007199254740991";
        for (path, status, pointer) in [
            (format!("/v1/workers/{}", long(255)), 404, ""),
            (format!("/v1/workers/{}", long(256)), 422, "{worker_id}"),
            ("/v1/workers/a%20b".into(), 422, "{worker_id}"),
            ("/v1/workers/%FF".into(), 422, "{path}"),
            (format!("/v1/dags/{}/runs/r", long(250)), 404, ""),
            (format!("/v1/dags/{}/runs/r", long(251)), 422, "{dag_name}"),
            ("/v1/dags/a%00b/runs/r".into(), 422, "{dag_name}"),
            (format!("/v1/dags/dag/runs/{}", long(255)), 404, ""),
            (format!("/v1/dags/dag/runs/{}", long(256)), 422, "{run_id}"),
            (format!("/v1/runs?dag_name={}", long(250)), 200, ""),
            (format!("/v1/runs?dag_name={}", long(251)), 422, "?dag_name"),
            (format!("/v1/runs?worker_id={}", long(255)), 200, ""),
            (format!("/v1/runs?worker_id={}", long(256)), 422, "?worker_id"),
            (format!("/v1/runs?root_run_id={}", long(256)), 422, "?root_run_id"),
            (format!("/v1/runs?parent_run_id={}", long(256)), 422, "?parent_run_id"),
            (format!("/v1/runs?label={}", map(64)), 200, ""),
            (format!("/v1/runs?label={}", map(65)), 422, "?label"),
            (format!("/v1/runs?label={}%3Dv", long(64)), 422, "?label"),
            ("/v1/runs?label=a%00%3Dv".into(), 422, "?label"),
            ("/v1/runs?limit=1".into(), 200, ""),
            ("/v1/runs?limit=500".into(), 200, ""),
            ("/v1/runs?limit=501".into(), 422, "?limit"),
            ("/v1/runs?limit=0".into(), 422, "?limit"),
            ("/v1/workers?limit=500".into(), 200, ""),
            ("/v1/workers?limit=501".into(), 422, "?limit"),
            ("/v1/runs?reason=Because".into(), 422, "?reason"),
            ("/v1/runs?created_after=0000-01-01T00:00:00%2B23:59".into(), 200, ""),
            ("/v1/runs?created_before=9999-12-31T23:59:60.999999999-23:59".into(), 200, ""),
            ("/v1/runs?created_after=10000-01-01T00:00:00Z".into(), 422, "?created_after"),
            ("/v1/runs?status=queued&status=queued".into(), 422, "?status"),
            (format!("/v1/dags/dag/runs/r?since_version={most}"), 200, ""),
            ("/v1/dags/dag/runs/r?since_version=9007199254740992".into(), 422, "?since_version"),
            ("/v1/dags/dag/runs/r?wait_seconds=-1".into(), 422, "?wait_seconds"),
            ("/v1/dags/dag/runs/r/events?limit=501".into(), 422, "?limit"),
            ("/v1/events?limit=501".into(), 422, "?limit"),
            ("/v1/events?after=-1".into(), 422, "?after"),
        ] {
            let reply = t.client.get(&path).await;
            assert_eq!(reply.status, status, "{path:.100}: {reply:#?}");
            if status == 422 {
                let problem = reply.problem(422, "invalid-request");
                assert_eq!(
                    (&problem["errors"][0]["pointer"], &problem["action"]),
                    (&json!(pointer), &json!("fix_request"))
                );
            }
        }
        for (length, status) in [(255, 201), (256, 422)] {
            let request = t.client.request(reqwest::Method::POST, "/v1/runs").header("idempotency-key", long(length));
            let reply = t.client.send(request.json(&json!({"dag_name": "keyed"}))).await;
            assert_eq!(reply.status, status, "{reply:#?}");
        }
    })
    .await;
}

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
        for levels in [128, 129, 1_000, 100_000, 1_000_000] {
            let problem = post_text(&t.client, "/v1/runs", body(levels)).await.problem(400, "malformed-json");
            assert!(problem["detail"].as_str().unwrap().contains("128 levels"), "{problem:#}");
        }
        // The body itself is the first level.
        post_text(&t.client, "/v1/runs", body(127)).await.ok();
        let run = t.client.send(t.client.request(reqwest::Method::GET, "/v1/dags/dag/runs/r?include=payload")).await;
        assert_eq!(run.status, 200);
        let text = run.body.as_str().map_or_else(|| run.body.to_string(), str::to_owned);
        assert!(text.contains(&deep(127)), "it is read back as it was sent");
        assert_eq!(t.client.get("/v1/runs").await.ok()["runs"].as_array().unwrap().len(), 1);
        let polled =
            t.client.post("/v1/workers/w/poll", &json!({"session_id": worker.session_id, "wait_seconds": 5})).await;
        let text = polled.body.as_str().map_or_else(|| polled.body.to_string(), str::to_owned);
        assert!(text.contains(&deep(127)), "and handed on");
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
        for _ in 0..3 {
            let reply = write_all_then_read(&t.client, 300 << 20).await;
            assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
            assert!(reply.contains("application/problem+json") && reply.contains("payload-too-large"), "{reply}");
        }
        let grown = service.memory().saturating_sub(before);
        assert!(grown < 32 << 20, "{grown} bytes more");
    })
    .await;
}

/// As clients do that look at the answer only when they have sent everything.
async fn write_all_then_read(client: &Client, bytes: usize) -> String {
    let address = client.url().strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {bytes}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..bytes / piece.len() {
        stream.write_all(&piece).await.expect("the service takes all of it");
    }
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    reply
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
