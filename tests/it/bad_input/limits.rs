//! Every limit and every name, at its limit and one beyond.

use serde_json::{Value, json};

use crate::harness::{Client, Reply, with};

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
#[expect(clippy::too_many_lines, reason = "a table")]
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
    let wrong_values = [&"v".repeat(129), &"\u{e4}".repeat(65), " v", "v ", "a,b", "a\tb"].map(label).to_vec();
    let right_values = [&"v".repeat(128), &"\u{e4}".repeat(64), "", "a b", "a=b", "\u{1f600}"].map(label).to_vec();
    vec![
        limit(
            DISPATCH,
            "/dag_name",
            of("dag_name", vec![a(1), a(250), json!("\u{e4}".repeat(250)), json!("a / b"), json!("...")]),
            of(
                "dag_name",
                vec![
                    a(0),
                    a(251),
                    json!("\u{e4}".repeat(251)),
                    json!("a\nb"),
                    json!(".."),
                    json!("a\u{200b}"),
                    json!(null),
                    json!(7),
                ],
            ),
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
