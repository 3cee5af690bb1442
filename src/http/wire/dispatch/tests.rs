use super::*;
use crate::config::{Config, Flags};

fn settings() -> Settings {
    Config::load(None, std::iter::empty(), &Flags::default()).unwrap().coordinator
}

fn read_from(body: &str) -> Result<DispatchRequest, Faults> {
    let mut fields = Fields::of_object(json::check(body.as_bytes()).unwrap())?;
    let request = DispatchRequest::from_fields(&mut fields, &settings());
    fields.end(request, Reading::Strict)
}

fn faults(body: &str) -> Vec<(String, String)> {
    read_from(body).expect_err(body).0.into_iter().map(|error| (error.pointer, error.detail)).collect()
}

fn digest(body: &str) -> Digest {
    let request = read_from(body).expect(body);
    request.digest(&request.selector())
}

#[test]
fn only_a_dag_name_is_needed() {
    let request = read_from(r#"{"dag_name": "etl"}"#).unwrap().into_request(DispatchHeaders::default(), &settings());
    assert_eq!(request.dispatch.wait, Duration::from_mins(2));
    assert_eq!(request.dispatch.priority, 0);
    assert!(request.dispatch.selector.is_empty());
    assert_eq!(request.dispatch.key.run_id.as_str().len(), 36);
}

#[test]
fn everything_arrives_as_it_was_sent() {
    let body = r#"{
        "dag_name": "täglich / Bericht", "run_id": "r-1", "operation": "start",
        "root": {"dag_name": "top", "run_id": "0"}, "parent": {"dag_name": "mid", "run_id": "1"},
        "worker_selector": {"zone": "b"}, "target_worker_id": "w-7", "worker_wait_timeout_seconds": 0.5,
        "priority": -7, "definition": "steps: []", "params": {"n": 123456789012345678901234567890}, "context": [1.0],
        "labels": {"team": "a b"}
    }"#;
    let request = read_from(body).unwrap().into_request(DispatchHeaders::default(), &settings());
    assert_eq!(request.dispatch.key.to_string(), "täglich / Bericht/r-1");
    assert_eq!(request.dispatch.root.unwrap().to_string(), "top/0");
    assert_eq!(request.dispatch.parent.unwrap().to_string(), "mid/1");
    assert_eq!(request.dispatch.selector.to_string(), "{zone: b} and worker w-7");
    assert_eq!(request.dispatch.wait, Duration::from_millis(500));
    assert_eq!(request.dispatch.priority, -7);
    assert_eq!(request.dispatch.labels["team"], "a b");
    assert_eq!(request.payload.definition.as_deref(), Some("steps: []"));
    assert_eq!(request.payload.params.as_deref(), Some(r#"{"n": 123456789012345678901234567890}"#));
    assert_eq!(request.payload.context.as_deref(), Some("[1.0]"));
}

/// B67: absent, null and empty are alike.
#[test]
fn a_null_reads_as_absent() {
    let plain = read_from(r#"{"dag_name": "etl"}"#).unwrap();
    let nulls = r#"{"dag_name": "etl", "run_id": null, "root": null, "worker_selector": null, "priority": null,
        "worker_wait_timeout_seconds": null, "params": null, "labels": {}}"#;
    assert_eq!(read_from(nulls).unwrap(), plain);
    assert_eq!(faults(r#"{"dag_name": null}"#), [("/dag_name".into(), "is required".into())]);
}

#[test]
fn all_faults_are_told_together() {
    let body = r#"{
        "run_id": "a b", "operation": "restart", "root": {"dag_name": "x"}, "worker_selector": {"zone": "b\n", "n": 1},
        "worker_wait_timeout_seconds": -1, "priority": 101, "definition": {}, "labels": [], "park": 1, "delivery": "soon",
        "deliver": true
    }"#;
    let pointers: Vec<String> = faults(body).into_iter().map(|(pointer, _)| pointer).collect();
    let expected = [
        "/dag_name",
        "/run_id",
        "/operation",
        "/root/run_id",
        "/worker_selector/n",
        "/worker_selector/zone",
        "/worker_wait_timeout_seconds",
        "/park",
        "/delivery",
        "/priority",
        "/definition",
        "/labels",
        "/deliver",
    ];
    assert_eq!(pointers, expected);
}

/// B71: what can never be placed is refused, naming the key and the limit.
#[test]
fn a_selector_has_at_most_sixteen_terms() {
    let terms = |count: usize| (0..count).map(|n| format!(r#""k{n}": "v""#)).collect::<Vec<_>>().join(",");
    let body = |count, rest: &str| format!(r#"{{"dag_name": "etl", "worker_selector": {{{}}}{rest}}}"#, terms(count));
    assert!(read_from(&body(16, "")).is_ok());
    assert!(read_from(&body(15, r#", "target_worker_id": "w""#)).is_ok());
    let at = |body: String| faults(&body).remove(0);
    assert_eq!(at(body(17, "")), ("/worker_selector".into(), "must have at most 16 entries, has 17".into()));
    let with_target = at(body(16, r#", "target_worker_id": "w""#));
    assert_eq!(with_target.1, "must have at most 16 terms, has 17 with `worker_expressions` and `target_worker_id`");
    let long = format!(r#"{{"dag_name": "etl", "worker_selector": {{"": "x", "a=b": "{}"}}}}"#, "v".repeat(65_536));
    assert_eq!(faults(&long).len(), 2);
}

#[test]
fn an_expression_has_a_key_an_operator_and_its_values() {
    let body = |expressions: &str| format!(r#"{{"dag_name": "etl", "worker_expressions": {expressions}}}"#);
    let selector = |expressions: &str| read_from(&body(expressions)).expect(expressions).selector().to_string();
    assert_eq!(selector(r#"[{"key": "gpu", "operator": "exists"}]"#), "{gpu exists}");
    assert_eq!(selector("null"), "{}");
    let asked = r#"[{"key": "b", "operator": "in", "values": ["2", "1", "2"]}, {"key": "a", "operator": "lt", "values": ["8"]}]"#;
    assert_eq!(selector(asked), "{a < 8, b in (1, 2)}");
    for (expressions, pointer) in [
        (r#"{"gpu": "exists"}"#, "/worker_expressions"),
        (r#"["gpu"]"#, "/worker_expressions/0"),
        (r#"[{"key": "gpu", "operator": "Exists"}]"#, "/worker_expressions/0/operator"),
        (r#"[{"key": "gpu", "operator": "exists", "value": "1"}]"#, "/worker_expressions/0/value"),
        (r#"[{"key": "gpu", "operator": "exists", "values": ["1"]}]"#, "/worker_expressions/0/values"),
        (r#"[{"key": "g u", "operator": "exists"}]"#, "/worker_expressions/0/key"),
        (r#"[{"key": "n", "operator": "exists"}, {"key": "n", "operator": "in"}]"#, "/worker_expressions/1/values"),
        (r#"[{"key": "n", "operator": "in", "values": ["a", 8]}]"#, "/worker_expressions/0/values/1"),
        (r#"[{"key": "n", "operator": "in", "values": ["a,b"]}]"#, "/worker_expressions/0/values"),
        (r#"[{"key": "n", "operator": "gt", "values": ["many"]}]"#, "/worker_expressions/0/values"),
        (r#"[{"key": "n", "operator": "gt", "values": [8]}]"#, "/worker_expressions/0/values/0"),
        (r#"[{"operator": "gt", "values": ["8"]}]"#, "/worker_expressions/0/key"),
    ] {
        assert_eq!(faults(&body(expressions)).remove(0).0, pointer, "{expressions}");
    }
    let many = |n: usize| format!("[{}]", vec![r#"{"key": "gpu", "operator": "exists"}"#; n].join(","));
    assert!(read_from(&body(&many(16))).is_ok());
    assert_eq!(faults(&body(&many(17)))[0].1, "must have at most 16 items, has 17");
    let both = format!(r#"{{"dag_name": "etl", "worker_selector": {{"a": "b"}}, "worker_expressions": {}}}"#, many(16));
    assert_eq!(faults(&both)[0].0, "/worker_selector");
}

#[test]
fn a_definition_has_at_most_a_mebibyte() {
    let body = |length| format!(r#"{{"dag_name": "etl", "definition": "{}"}}"#, "x".repeat(length));
    assert!(read_from(&body(MAX_DEFINITION_BYTES)).is_ok());
    assert_eq!(faults(&body(MAX_DEFINITION_BYTES + 1))[0].1, "must have at most 1048576 bytes, has 1048577");
}

#[test]
fn the_same_request_has_the_same_digest_however_it_is_written() {
    let one = digest(
        r#"{"dag_name": "etl", "worker_selector": {"zone": "b", "gpu": "1"}, "params": {"a": [1, 2], "b": {}},
            "worker_wait_timeout_seconds": 2}"#,
    );
    let other = digest(
        r#"{"params":{"b":{},"a":[1,2]},"worker_wait_timeout_seconds":2.0,"worker_selector":{"gpu":"1","zone":"\u0062"},
            "operation":"start","priority":0,"root":null,"dag_name":"etl"}"#,
    );
    assert_eq!(one, other);
    let expressions = |text: &str| digest(&format!(r#"{{"dag_name": "etl", "worker_expressions": [{text}]}}"#));
    let (a, b) = (r#"{"key": "a", "operator": "exists"}"#, r#"{"key": "b", "operator": "in", "values": ["1", "2"]}"#);
    let turned = r#"{"operator": "in", "values": ["2", "1"], "key": "b"}"#;
    assert_eq!(expressions(&format!("{a}, {b}")), expressions(&format!("{turned}, {a}, {b}")));
    assert_eq!(digest(r#"{"dag_name": "etl", "worker_expressions": []}"#), digest(r#"{"dag_name": "etl"}"#));
}

#[test]
fn every_field_is_part_of_the_digest() {
    let all = [
        r#"{"dag_name": "etl"}"#,
        r#"{"dag_name": "elt"}"#,
        r#"{"dag_name": "etl", "run_id": "1"}"#,
        r#"{"dag_name": "etl", "root": {"dag_name": "a", "run_id": "1"}}"#,
        r#"{"dag_name": "etl", "parent": {"dag_name": "a", "run_id": "1"}}"#,
        r#"{"dag_name": "etl", "worker_selector": {"zone": "b"}}"#,
        r#"{"dag_name": "etl", "labels": {"zone": "b"}}"#,
        r#"{"dag_name": "etl", "target_worker_id": "b"}"#,
        r#"{"dag_name": "etl", "worker_expressions": [{"key": "zone", "operator": "exists"}]}"#,
        r#"{"dag_name": "etl", "worker_expressions": [{"key": "zone", "operator": "in", "values": ["b"]}]}"#,
        r#"{"dag_name": "etl", "worker_wait_timeout_seconds": 120}"#,
        r#"{"dag_name": "etl", "start_timeout_seconds": 120}"#,
        r#"{"dag_name": "etl", "start_timeout_seconds": 0}"#,
        r#"{"dag_name": "etl", "park": true}"#,
        r#"{"dag_name": "etl", "delivery": "direct"}"#,
        r#"{"dag_name": "etl", "priority": 1}"#,
        r#"{"dag_name": "etl", "definition": "1"}"#,
        r#"{"dag_name": "etl", "params": "1"}"#,
        r#"{"dag_name": "etl", "params": 1}"#,
        r#"{"dag_name": "etl", "params": 1.0}"#,
        r#"{"dag_name": "etl", "context": 1}"#,
        r#"{"dag_name": "etl", "operation": "retry"}"#,
        r#"{"dag_name": "etl", "operation": "resume"}"#,
        r#"{"dag_name": "etl", "operation": "retry", "previous": 1}"#,
        r#"{"dag_name": "etl", "max_attempts": 2}"#,
        r#"{"dag_name": "etl", "retry": {}}"#,
        r#"{"dag_name": "etl", "retry": {"on": ["failed"]}}"#,
        r#"{"dag_name": "etl", "not_before": "2026-01-31T12:00:00Z"}"#,
    ];
    let digests: std::collections::HashSet<Digest> = all.iter().map(|body| digest(body)).collect();
    assert_eq!(digests.len(), all.len());
}

/// Digests outlive a release: this one must never change.
#[test]
fn a_digest_stays_what_it_was() {
    let body = r#"{"dag_name": "etl", "worker_selector": {"zone": "b"}, "params": {"b": 1, "a": []}, "priority": 3}"#;
    let kept = "27e58f83b6f21ab590264dd6b5ad871611cfe9b42d54cb5ded3c98d511db197a";
    let kept: Vec<u8> = (0..64).step_by(2).map(|at| u8::from_str_radix(&kept[at..at + 2], 16).unwrap()).collect();
    assert_eq!(digest(body).0[..], kept);
}
