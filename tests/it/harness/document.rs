//! Every answer that a test is given is validated against the served document: what the one says, the other means.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use jsonschema::Validator;
use serde_json::{Value, json};

fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(|| serde_json::to_value(roadstead::http::openapi()).unwrap())
}

static VALIDATORS: OnceLock<Mutex<HashMap<String, Validator>>> = OnceLock::new();

/// Fails the test when an answer is not what the document says of it. What is outside the document passes.
#[track_caller]
pub fn check(method: &str, path: &str, status: u16, body: &Value) {
    let path = path.split('?').next().unwrap_or_default();
    let Some(responses) = responses(method, path) else { return };
    let (class, media) = match status {
        200..300 => (status.to_string(), "application/json"),
        400..500 => ("4XX".to_owned(), "application/problem+json"),
        _ => ("5XX".to_owned(), "application/problem+json"),
    };
    let response = &responses[&class];
    assert!(!response.is_null(), "{method} {path} answered {status}, which the document does not know");
    let schema = &response["content"][media]["schema"];
    if schema.is_null() {
        return;
    }
    let validators = VALIDATORS.get_or_init(Mutex::default);
    let mut validators = validators.lock().unwrap_or_else(PoisonError::into_inner);
    let validator = validators.entry(schema.to_string()).or_insert_with(|| {
        let mut whole = schema.clone();
        whole["components"] = document()["components"].clone();
        jsonschema::draft202012::options().build(&whole).unwrap()
    });
    let faults: Vec<String> =
        validator.iter_errors(body).map(|fault| format!("{}: {fault}", fault.instance_path())).collect();
    assert!(faults.is_empty(), "{method} {path}: {status} is not what the document says: {faults:#?}\nin {body:#}");
}

/// The responses of the operation that serves a path: the template with the most fixed parts that fits.
fn responses(method: &str, path: &str) -> Option<&'static Value> {
    let parts: Vec<&str> = path.split('/').collect();
    let paths = document()["paths"].as_object()?;
    let fits = |template: &&String| {
        let template: Vec<&str> = template.split('/').collect();
        template.len() == parts.len() && template.iter().zip(&parts).all(|(t, part)| t.starts_with('{') || t == part)
    };
    let template = paths.keys().filter(fits).min_by_key(|template| template.matches('{').count())?;
    Some(&paths[template][method.to_lowercase()]["responses"]).filter(|responses| !responses.is_null())
}

#[test]
fn an_answer_that_is_not_what_the_document_says_is_caught() {
    let run = json!({"dag_name": "d", "run_id": "r", "status": "Queued"});
    let caught = std::panic::catch_unwind(|| check("GET", "/v1/dags/d/runs/r", 200, &run));
    let text = *caught.unwrap_err().downcast::<String>().unwrap();
    assert!(text.contains("Queued") && text.contains("version"), "{text}");
}
