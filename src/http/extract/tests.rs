//! Every way in which a request can be no request, through a router without a network.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::config::{Config, Flags};
use crate::http::problem::{MEDIA_TYPE, Problem};
use crate::http::wire::attempts::ReportRequest;
use crate::http::wire::dispatch::DispatchRequest;
use crate::http::wire::runs::{CancelRequest, ListRuns};
use crate::http::wire::tasks::PollRequest;

fn router() -> Router {
    let settings = Config::load(None, std::iter::empty(), &Flags::default()).unwrap().coordinator;
    let routes = Router::new()
        .route(
            "/strict",
            post(|_: NoQuery, headers: DispatchHeaders, Json(request): Json<DispatchRequest>| async move {
                format!("{} {:?} {:?}", request.dag_name, headers.idempotency_key, headers.traceparent)
            }),
        )
        .route("/empty", post(|Json(request): Json<CancelRequest>| async move { format!("{request:?}") }))
        .route("/tolerant", post(|Json(request): Json<PollRequest>| async move { format!("{request:?}") }))
        .route("/mending", post(|Json(request): Json<ReportRequest>| async move { request.error.unwrap_or_default() }))
        .route("/query", get(|Query(list): Query<ListRuns>| async move { format!("{list:?}") }))
        .route("/dags/{dag_name}/runs/{run_id}", get(|Path(run): Path<RunPath>| async move { run.key().to_string() }))
        .route(
            "/attempts/{attempt_id}",
            get(|Path(attempt): Path<AttemptPath>| async move { attempt.attempt_id.to_string() }),
        )
        .route("/panic", get(panics));
    crate::http::finished(routes.with_state(settings))
}

async fn panics() -> Problem {
    panic!("password=hunter2")
}

async fn send(request: Request<Body>) -> Response<Body> {
    router().oneshot(request).await.unwrap()
}

async fn text(response: Response<Body>) -> String {
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Sends, and checks that the answer is a whole problem.
async fn problem(request: Request<Body>) -> Value {
    let response = send(request).await;
    let status = response.status();
    assert_eq!(response.headers()[header::CONTENT_TYPE], MEDIA_TYPE);
    assert!(response.headers().contains_key("x-request-id"));
    let body: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(body["status"], status.as_u16());
    assert_eq!(body["type"], format!("urn:roadstead:problem:{}", body["code"].as_str().unwrap()));
    for member in ["title", "detail", "action"] {
        assert!(body[member].as_str().is_some_and(|text| !text.is_empty()), "{member} of {body}");
    }
    body
}

fn with_body(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path).header(header::CONTENT_TYPE, "application/json").body(body.into()).unwrap()
}

fn read(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

fn pointers(problem: &Value) -> Vec<&str> {
    problem["errors"].as_array().unwrap().iter().map(|error| error["pointer"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_body_must_say_that_it_is_json() {
    for content_type in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("json")] {
        let mut request = Request::post("/strict");
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let problem = problem(request.body(Body::from(r#"{"dag_name": "etl"}"#)).unwrap()).await;
        assert_eq!((&problem["status"], &problem["code"]), (&json!(415), &json!("unsupported-media-type")));
    }
    for content_type in ["application/json; charset=utf-8", "Application/JSON", "application/cloudevents+json"] {
        let request = Request::post("/strict").header(header::CONTENT_TYPE, content_type);
        let response = send(request.body(Body::from(r#"{"dag_name": "etl"}"#)).unwrap()).await;
        assert_eq!(response.status(), StatusCode::OK, "{content_type}");
    }
}

#[tokio::test]
async fn malformed_json_is_told_with_its_place() {
    let detail = |problem: &Value| problem["detail"].as_str().unwrap().to_owned();
    let broken = problem(with_body("/strict", "{\"dag_name\": \"etl\",\n  x}")).await;
    assert_eq!((&broken["status"], &broken["code"]), (&json!(400), &json!("malformed-json")));
    assert_eq!(detail(&broken), "line 2, column 3: expected a key, but there is 'x'");
    let deep = format!(r#"{{"dag_name": "etl", "params": {}{}}}"#, "[".repeat(129), "]".repeat(129));
    for (body, rule) in [
        (String::new(), "the text ends"),
        (r#"{"dag_name": "a", "params": {"x": {"k": 1, "k": 2}}}"#.to_owned(), "stands twice"),
        (r#"{"dag_name": "a\u0000"}"#.to_owned(), "contains \\u0000"),
        (r#"{"dag_name": "a", "context": "\ud800"}"#.to_owned(), "half of a surrogate pair"),
        (deep, "nested more than 120 levels deep"),
    ] {
        let problem = problem(with_body("/strict", body.clone())).await;
        assert_eq!(problem["code"], "malformed-json", "{body}");
        assert!(detail(&problem).contains(rule), "{problem}");
    }
    let not_utf8 = problem(with_body("/strict", &b"{\"dag_name\": \"\xff\"}"[..])).await;
    assert_eq!(not_utf8["code"], "malformed-json");
    for path in ["/tolerant", "/mending"] {
        assert_eq!(problem(with_body(path, "{")).await["code"], "malformed-json", "{path}");
    }
}

#[tokio::test]
async fn what_is_wrong_is_told_all_at_once() {
    let problem =
        problem(with_body("/strict", r#"{"priority": "high", "worker_selector": {"zone": 1}, "prio": 1}"#)).await;
    assert_eq!(
        (&problem["status"], &problem["code"], &problem["action"]),
        (&json!(422), &json!("invalid-request"), &json!("fix_request"))
    );
    assert_eq!(pointers(&problem), ["/dag_name", "/worker_selector/zone", "/priority", "/prio"]);
    assert_eq!(problem["detail"], "`/dag_name` is required, and 3 more");
    for body in ["[]", "null", "1", "\"x\""] {
        let problem = self::problem(with_body("/strict", body)).await;
        assert_eq!(
            (&problem["code"], &problem["detail"]),
            (&json!("invalid-request"), &json!("the body must be an object"))
        );
    }
}

#[tokio::test]
async fn workers_may_say_more_than_is_known() {
    let response = send(with_body("/tolerant", r#"{"session_id": "s", "mood": "good"}"#)).await;
    assert_eq!(response.status(), StatusCode::OK);
    let problem = problem(with_body("/tolerant", r#"{"session_id": 1, "max_tasks": 0, "wait_seconds": -5}"#)).await;
    assert_eq!(pointers(&problem), ["/session_id", "/max_tasks", "/wait_seconds"]);
    let twice = self::problem(with_body("/tolerant", r#"{"session_id": "s", "session_id": "t"}"#)).await;
    assert_eq!(twice["code"], "malformed-json");
}

#[tokio::test]
async fn no_text_of_a_report_is_a_reason_to_refuse_it() {
    let mut body = br#"{"token": "t", "status": "failed", "new": "\udfff", "error": "a\u0000b\ud800c"#.to_vec();
    body.extend(b"\xffd\0e\"}");
    let response = send(with_body("/mending", body)).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(text(response).await, "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}e");
    let twice = send(with_body("/mending", r#"{"token": "t", "status": "failed", "error": "a", "error": "b"}"#)).await;
    assert_eq!(text(twice).await, "b");
}

#[tokio::test]
async fn a_body_that_may_be_left_out_may_be_left_out() {
    let response = send(Request::post("/empty").body(Body::empty()).unwrap()).await;
    assert_eq!(text(response).await, "CancelRequest { reason: None, force: false }");
    assert_eq!(problem(with_body("/empty", r#"{"forced": true}"#)).await["code"], "invalid-request");
}

/// B127: the answer is a problem, and comes although the client writes all before it reads.
#[tokio::test]
async fn a_body_that_is_too_large_is_told_so() {
    let body = |length: usize| format!(r#"{{"dag_name": "etl", "params": "{}"}}"#, "x".repeat(length));
    let whole = body(0).len();
    let fits = send(with_body("/strict", body(4 * 1024 * 1024 - whole))).await;
    assert_eq!(fits.status(), StatusCode::OK);
    let problem = problem(with_body("/strict", body(4 * 1024 * 1024 - whole + 1))).await;
    assert_eq!((&problem["status"], &problem["code"]), (&json!(413), &json!("payload-too-large")));
    let mut waiting = with_body("/strict", body(5 * 1024 * 1024));
    waiting.headers_mut().insert(header::EXPECT, "100-continue".parse().unwrap());
    assert_eq!(self::problem(waiting).await["code"], "payload-too-large");
}

#[tokio::test]
async fn a_query_is_known_given_once_and_within_bounds() {
    let fine = "/query?status=queued&dag_name=t%C3%A4glich+%2F&label=zone=b,a/b=&order=oldest&limit=500\
        &created_after=2026-01-31T12:00:00%2B01:00";
    let listed = text(send(read(fine)).await).await;
    for part in ["Queued", "täglich /", r#"{"a/b": "", "zone": "b"}"#, "2026-01-31T11:00:00Z", "Oldest", "limit: 500"]
    {
        assert!(listed.contains(part), "{part} in {listed}");
    }
    assert!(text(send(read("/query")).await).await.contains("limit: 50"));
    for (query, pointer) in [
        ("limit=501", "?limit"),
        ("limit=0", "?limit"),
        ("limit=x", "?limit"),
        ("limit=2147483648", "?limit"),
        ("limit=1&limit=1", "?limit"),
        ("status=held", "?status"),
        ("status=", "?status"),
        ("dag_name=%00", "?dag_name"),
        ("dag_name=%ff", "?dag_name"),
        ("label=zone", "?label"),
        ("label=a=1,a=2", "?label"),
        ("label=a%20b=1", "?label"),
        ("created_after=yesterday", "?created_after"),
        ("order=up", "?order"),
        ("cursor=x", "?cursor"),
        ("Limit=1", "?Limit"),
    ] {
        let problem = problem(read(&format!("/query?{query}"))).await;
        assert_eq!((&problem["status"], &problem["code"]), (&json!(422), &json!("invalid-request")), "{query}");
        assert_eq!(pointers(&problem), [pointer], "{query}");
    }
    let all = problem(read("/query?limit=0&order=up&x=1")).await;
    assert_eq!(pointers(&all), ["?order", "?limit", "?x"]);
    let none = problem(with_body("/strict?dry_run=true", r#"{"dag_name": "etl"}"#)).await;
    assert_eq!(pointers(&none), ["?dry_run"]);
}

/// B157: ids with a slash, a blank and more than ASCII arrive as they are.
#[tokio::test]
async fn paths_arrive_decoded() {
    assert_eq!(
        text(send(read("/dags/t%C3%A4glich%20%2F%20Bericht/runs/a%40b:c")).await).await,
        "täglich / Bericht/a@b:c"
    );
    for (path, pointer) in [
        ("/dags/a/runs/b%20c", vec!["{run_id}"]),
        ("/dags/a/runs/%2E%2E", vec!["{run_id}"]),
        ("/dags/a%00/runs/%C3%A4", vec!["{dag_name}", "{run_id}"]),
        ("/dags/%ff/runs/b", vec!["{path}"]),
    ] {
        let problem = problem(read(path)).await;
        assert_eq!(problem["code"], "invalid-request", "{path}");
        assert_eq!(pointers(&problem), pointer, "{path}");
    }
}

#[tokio::test]
async fn an_attempt_that_cannot_be_must_be_stopped() {
    let problem = problem(read("/attempts/17")).await;
    assert_eq!(
        (&problem["status"], &problem["code"], &problem["action"]),
        (&json!(404), &json!("not-found"), &json!("stop_attempt"))
    );
    let id = "019a0000-0000-7000-8000-000000000000";
    assert_eq!(text(send(read(&format!("/attempts/{id}"))).await).await, id);
}

#[tokio::test]
async fn the_headers_of_a_dispatch() {
    let request = |name: &str, value: &[u8]| {
        let mut request = with_body("/strict", r#"{"dag_name": "etl"}"#);
        let name: header::HeaderName = name.parse().unwrap();
        request.headers_mut().append(name, header::HeaderValue::from_bytes(value).unwrap());
        request
    };
    assert_eq!(text(send(request("Idempotency-Key", b"a b/1")).await).await, r#"etl Some("a b/1") None"#);
    assert_eq!(text(send(request("traceparent", b"nonsense")).await).await, "etl None None");
    let long = [b'x'; 256];
    for bad in [&b""[..], &long, b"\xc3\xa4", b"a\tb"] {
        let problem = problem(request("Idempotency-Key", bad)).await;
        assert_eq!(pointers(&problem), ["Idempotency-Key"]);
    }
    let mut twice = request("Idempotency-Key", b"a");
    twice.headers_mut().append("Idempotency-Key", "b".parse().unwrap());
    assert_eq!(pointers(&problem(twice).await), ["Idempotency-Key"]);
}

#[tokio::test]
async fn what_no_handler_reaches_is_a_problem_too() {
    let unknown = problem(read("/nowhere?x=1")).await;
    assert_eq!(
        (&unknown["status"], &unknown["code"], &unknown["detail"]),
        (&json!(404), &json!("not-found"), &json!("there is nothing at /nowhere"))
    );
    let response = send(Request::put("/query").body(Body::empty()).unwrap()).await;
    assert_eq!(response.headers()[header::ALLOW], "GET,HEAD");
    let method = problem(Request::put("/query").body(Body::empty()).unwrap()).await;
    assert_eq!((&method["status"], &method["code"]), (&json!(405), &json!("method-not-allowed")));
}

#[tokio::test]
async fn a_panic_is_a_problem_and_its_text_stays_inside() {
    let problem = problem(read("/panic")).await;
    assert_eq!(
        (&problem["status"], &problem["code"], &problem["action"]),
        (&json!(500), &json!("internal"), &json!("give_up"))
    );
    assert!(!problem.to_string().contains("hunter2"));
}

#[tokio::test]
async fn a_request_keeps_its_id_if_it_is_fit_for_a_log() {
    let id = |given: Option<&'static str>| async move {
        let mut request = read("/query");
        if let Some(given) = given {
            request.headers_mut().insert("x-request-id", header::HeaderValue::from_static(given));
        }
        send(request).await.headers()["x-request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(id(Some("abc-1")).await, "abc-1");
    for unfit in [None, Some(""), Some("a b"), Some("a\"b"), Some("{}")] {
        assert_eq!(id(unfit).await.len(), 36, "{unfit:?}");
    }
}

#[tokio::test]
async fn waiting_answers_say_when_to_come_back() {
    let problem =
        crate::http::problem::translate(crate::coordinator::Error::Overloaded, crate::http::problem::Verb::Run);
    let response = problem.into_response();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()[header::RETRY_AFTER], "1");
}
