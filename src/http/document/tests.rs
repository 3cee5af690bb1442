use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::http::openapi;

/// The committed document, from which clients are generated.
const COMMITTED: &str = include_str!("../../../openapi/openapi.json");

const OPERATIONS: [(&str, &str, &str); 26] = [
    ("ackAttempt", "post", "/v1/attempts/{attempt_id}/ack"),
    ("ackAttempts", "post", "/v1/batch/acks"),
    ("cancelRun", "post", "/v1/dags/{dag_name}/runs/{run_id}/cancel"),
    ("cancelRuns", "post", "/v1/batch/cancels"),
    ("deregisterWorker", "delete", "/v1/workers/{worker_id}"),
    ("dispatchRun", "post", "/v1/runs"),
    ("dispatchRuns", "post", "/v1/batch/runs"),
    ("drainWorker", "post", "/v1/workers/{worker_id}/drain"),
    ("getRun", "get", "/v1/dags/{dag_name}/runs/{run_id}"),
    ("getWorker", "get", "/v1/workers/{worker_id}"),
    ("heartbeatWorker", "post", "/v1/workers/{worker_id}/heartbeat"),
    ("listAttempts", "get", "/v1/dags/{dag_name}/runs/{run_id}/attempts"),
    ("listEvents", "get", "/v1/events"),
    ("listRunEvents", "get", "/v1/dags/{dag_name}/runs/{run_id}/events"),
    ("listRuns", "get", "/v1/runs"),
    ("listWorkers", "get", "/v1/workers"),
    ("pollTasks", "post", "/v1/workers/{worker_id}/poll"),
    ("redispatchRun", "post", "/v1/dags/{dag_name}/runs/{run_id}/dispatch"),
    ("registerWorker", "put", "/v1/workers/{worker_id}"),
    ("releaseAttempt", "post", "/v1/attempts/{attempt_id}/release"),
    ("renewAttempt", "post", "/v1/attempts/{attempt_id}/renew"),
    ("reportAttempt", "post", "/v1/attempts/{attempt_id}/report"),
    ("reportAttempts", "post", "/v1/batch/reports"),
    ("resumeRun", "post", "/v1/dags/{dag_name}/runs/{run_id}/resume"),
    ("retryRun", "post", "/v1/dags/{dag_name}/runs/{run_id}/retry"),
    ("streamEvents", "get", "/v1/events/stream"),
];

fn document() -> Value {
    serde_json::to_value(openapi()).unwrap()
}

fn operations(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    paths
        .iter()
        .flat_map(|(path, item)| {
            item.as_object().unwrap().iter().map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
        })
        .collect()
}

/// Every object in the document, with the way to it.
fn each_object<'a>(value: &'a Value, at: &str, visit: &mut impl FnMut(&str, &'a serde_json::Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            visit(at, object);
            for (key, inner) in object {
                each_object(inner, &format!("{at}/{key}"), visit);
            }
        }
        Value::Array(items) => {
            for (index, inner) in items.iter().enumerate() {
                each_object(inner, &format!("{at}/{index}"), visit);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn the_committed_one_is_the_served_one() {
    let generated = openapi().to_pretty_json().unwrap() + "\n";
    assert!(generated == COMMITTED, "run `roadstead openapi > openapi/openapi.json`");
}

#[test]
fn has_the_operations_of_the_contract() {
    let document = document();
    let found: BTreeMap<&str, (&str, &str)> = operations(&document)
        .into_iter()
        .map(|(path, method, operation)| (operation["operationId"].as_str().unwrap(), (method, path)))
        .collect();
    let expected: BTreeMap<&str, (&str, &str)> =
        OPERATIONS.into_iter().map(|(id, method, path)| (id, (method, path))).collect();
    assert_eq!(found, expected);
    assert_eq!(operations(&document).len(), OPERATIONS.len(), "each id stands once");
}

#[test]
fn every_operation_is_described_and_has_one_success() {
    let document = document();
    let tags: BTreeSet<&str> =
        document["tags"].as_array().unwrap().iter().map(|tag| tag["name"].as_str().unwrap()).collect();
    for (path, method, operation) in operations(&document) {
        for text in ["summary", "description"] {
            assert!(operation[text].as_str().is_some_and(|text| !text.is_empty()), "{method} {path}: {text}");
        }
        let own: Vec<&str> = operation["tags"].as_array().unwrap().iter().map(|tag| tag.as_str().unwrap()).collect();
        assert!(own.len() == 1 && tags.contains(own[0]), "{method} {path}: {own:?}");
        let responses = operation["responses"].as_object().unwrap();
        assert_eq!(responses.keys().filter(|status| status.starts_with('2')).count(), 1, "{method} {path}");
        assert!(responses.values().all(|response| response["description"].is_string()), "{method} {path}");
        for range in ["4XX", "5XX"] {
            let schema = &responses[range]["content"]["application/problem+json"]["schema"]["$ref"];
            assert_eq!(schema, "#/components/schemas/Problem", "{method} {path}");
        }
    }
}

/// B157: no placeholder without its parameter, none declared that is not there.
#[test]
fn every_placeholder_of_a_path_is_declared() {
    let document = document();
    for (path, method, operation) in operations(&document) {
        let placeholders: BTreeSet<&str> =
            path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
        let none = Vec::new();
        let declared: BTreeSet<&str> = operation["parameters"]
            .as_array()
            .unwrap_or(&none)
            .iter()
            .filter(|parameter| parameter["in"] == "path" && parameter["required"] == true)
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        assert_eq!(placeholders, declared, "{method} {path}");
        assert!(!path.contains(':'));
    }
}

/// What the client generators in use cannot take: nulls, unions, defaults, integers without a bound, references to
/// nothing.
#[test]
fn has_only_shapes_that_every_generator_takes() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    each_object(&document, "", &mut |at, object| {
        for keyword in ["oneOf", "anyOf", "not", "default", "nullable"] {
            assert!(!object.contains_key(keyword) || at.ends_with("/properties"), "{at}: {keyword}");
        }
        assert!(!object.get("type").is_some_and(Value::is_array), "{at}: several types");
        assert_ne!(object.get("type"), Some(&Value::from("null")), "{at}");
        if object.get("type") == Some(&Value::from("integer")) {
            assert!(
                object.contains_key("maximum") && object.contains_key("minimum"),
                "{at}: an integer without bounds"
            );
        }
        if let Some(Value::String(reference)) = object.get("$ref") {
            let name = reference.strip_prefix("#/components/schemas/").unwrap();
            assert!(schemas.contains_key(name), "{at}: {reference}");
        }
    });
}

/// Every parameter but those of the path may be left out, and so may every field that a worker or dispatcher need not
/// send.
#[test]
fn requires_what_the_contract_requires() {
    let document = document();
    for (path, method, operation) in operations(&document) {
        for parameter in operation["parameters"].as_array().unwrap_or(&Vec::new()) {
            assert_eq!(parameter["required"], parameter["in"] == "path", "{method} {path}: {parameter}");
        }
    }
    for (path, method, operation) in operations(&document).into_iter().filter(|(_, _, o)| o["requestBody"].is_object())
    {
        let may_be_left_out = ["cancelRun", "registerWorker"].contains(&operation["operationId"].as_str().unwrap());
        assert_eq!(operation["requestBody"]["required"], !may_be_left_out, "{method} {path}");
    }
    for (schema, required) in [
        ("DispatchRequest", vec!["dag_name"]),
        ("CancelRequest", vec![]),
        ("RegisterRequest", vec![]),
        ("PollRequest", vec!["session_id"]),
        ("HeartbeatRequest", vec!["session_id"]),
        ("TokenRequest", vec!["token"]),
        ("ReleaseRequest", vec!["token"]),
        ("ReportRequest", vec!["token", "status"]),
        ("BatchedDispatch", vec!["dag_name"]),
        ("BatchedAck", vec!["attempt_id", "token"]),
        ("BatchedReport", vec!["token", "status", "attempt_id"]),
    ] {
        let found = document["components"]["schemas"][schema]["required"].as_array().cloned().unwrap_or_default();
        assert_eq!(found, required, "{schema}");
    }
}
