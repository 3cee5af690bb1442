use std::collections::BTreeMap;

use reqwest::Method;
use roadstead::access::{Scope, Secret};
use serde_json::{Value, json};

use super::Tokens;
use super::operations::{Names, all};
use crate::harness::{Worker, with, with_settings};

/// The paths outside the document: exactly these need no token.
const OPEN: [&str; 3] = ["/livez", "/readyz", "/openapi.json"];

/// The operations of the served document: id to method, path and scopes.
fn documented(document: &Value) -> BTreeMap<String, (String, String, Vec<String>)> {
    let mut found = BTreeMap::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let security = operation["security"].as_array().unwrap_or_else(|| panic!("{method} {path} is open"));
            assert_eq!(security.len(), 1, "{method} {path}");
            let scopes = security[0]["bearer"].as_array().unwrap();
            let scopes = scopes.iter().map(|scope| scope.as_str().unwrap().to_owned()).collect();
            let id = operation["operationId"].as_str().unwrap().to_owned();
            found.insert(id, (method.to_uppercase(), path.clone(), scopes));
        }
    }
    found
}

/// Whether a path is one that the template stands for.
fn stands_for(template: &str, path: &str) -> bool {
    let path = path.split('?').next().unwrap();
    let (template, path): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
    template.len() == path.len() && template.iter().zip(path).all(|(one, other)| one.starts_with('{') || *one == other)
}

/// A route that stands in no list fails here: each must be known with the scopes that open it.
#[tokio::test(flavor = "multi_thread")]
async fn every_route_is_known_with_its_scopes() {
    with(async |t| {
        let document = t.client.get("/openapi.json").await.ok();
        assert_eq!(document["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
        let mut documented = documented(&document);
        for operation in all(&Names::nobody()) {
            let found = documented.remove(operation.id);
            let (method, path, scopes) = found.unwrap_or_else(|| panic!("{} is not served", operation.id));
            let expected: Vec<&str> = operation.scopes.iter().map(|scope| scope.as_str()).collect();
            assert_eq!(
                (method.as_str(), scopes),
                (operation.method.as_str(), expected.iter().map(ToString::to_string).collect()),
                "{}",
                operation.id
            );
            assert!(stands_for(&path, &operation.path), "{path} is not {}", operation.path);
        }
        assert!(documented.is_empty(), "add these to operations.rs, with their scopes: {documented:?}");
        assert_eq!(roadstead::http::outside_the_document(), OPEN, "a route outside the document is open to everyone");
    })
    .await;
}

/// Every route × every scope, and × every way of having no token.
#[tokio::test(flavor = "multi_thread")]
async fn each_route_opens_to_its_scopes_and_to_nothing_else() {
    let tokens = Scope::ALL.iter().fold(Tokens::none(), |tokens, scope| tokens.and(scope.as_str(), "team", &[*scope]));
    let mut mistyped = tokens.secret("read").to_owned();
    mistyped.pop();
    let unknown = Secret::draw();
    with_settings(tokens.settings(), async |t| {
        for operation in all(&Names::nobody()) {
            for scope in Scope::ALL {
                let reply = operation.ask(&tokens.client(t, scope.as_str())).await;
                let what = format!("{} with {scope}", operation.id);
                if operation.scopes.contains(&scope) {
                    // Two scopes may open one route: the second finds what the first has made.
                    assert_eq!(reply.status, operation.status, "{what}: {reply:?}");
                } else {
                    let problem = reply.problem(403, "forbidden");
                    let detail = problem["detail"].as_str().unwrap();
                    assert!(operation.scopes.iter().all(|needed| detail.contains(needed.as_str())), "{what}: {detail}");
                    assert!(detail.contains(&format!("the token {scope} ")), "{what}: {detail}");
                    assert_eq!(problem["action"], "give_up");
                }
            }
            for wrong in [&mistyped, unknown.reveal(), "hunter2", &"0".repeat(64)] {
                let reply = operation.ask(&t.client.with_token(wrong)).await;
                assert_eq!(reply.headers["www-authenticate"], "Bearer");
                let problem = reply.problem(401, "unauthenticated").to_string();
                assert!(!problem.contains(wrong), "{problem}");
            }
            let reply = operation.ask(&t.client).await;
            assert_eq!(reply.headers["www-authenticate"], "Bearer");
            reply.problem(401, "unauthenticated");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_is_told_what_is_wrong_with_it() {
    let tokens = Tokens::none().and("reader", "team", &[Scope::Read]);
    let good = tokens.secret("reader").to_owned();
    with_settings(tokens.settings(), async |t| {
        let ask = async |headers: &[&str]| {
            let mut request = t.client.request(Method::GET, "/v1/runs");
            for value in headers {
                request = request.header("authorization", *value);
            }
            t.client.send(request).await
        };
        let bearer = |token: &str| format!("Bearer {token}");
        ask(&[&bearer(&good)]).await.ok();
        ask(&[&format!("bearer  {good}")]).await.ok();
        for (headers, said) in [
            (vec![], "a token is needed"),
            (vec!["Bearer".to_owned()], "must be `Bearer`"),
            (vec![good.clone()], "must be `Bearer`"),
            (vec![format!("Basic {good}")], "must be `Bearer`"),
            (vec![bearer(&good), bearer(&good)], "more than once"),
            (vec![bearer(&good[..40])], "mistyped or cut short"),
            (vec![bearer(&good.to_uppercase())], "does not look like one"),
            (vec![bearer(Secret::draw().reveal())], "revoked, or belongs to another service"),
        ] {
            let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
            let problem = ask(&headers).await.problem(401, "unauthenticated");
            assert!(problem["detail"].as_str().unwrap().contains(said), "{said}: {problem}");
        }
        // Who asks is judged before what is asked.
        let broken = t.client.request(Method::POST, "/v1/runs").body("{");
        t.client.send(broken).await.problem(401, "unauthenticated");
    })
    .await;
}

/// Exempt by exact route only: what ends like an open path, or is written like one, is none.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_is_open_by_its_exact_path() {
    let tokens = Tokens::none().and("reader", "team", &[Scope::Read]);
    with_settings(tokens.settings(), async |t| {
        for path in OPEN {
            t.client.get(path).await.ok();
            // A token that is wrong does not close them: a probe needs none.
            t.client.with_token("hunter2").get(path).await.ok();
        }
        for path in ["/v1/dags/livez/runs/readyz", "/v1/workers/livez", "/v1/workers/openapi.json"] {
            t.client.get(path).await.problem(401, "unauthenticated");
        }
        for path in ["/livez/", "/v1/livez", "/LIVEZ", "/livez/../v1/runs/", "/v1/runs/livez", "//v1/runs", "/v1/runs/"]
        {
            let reply = t.client.get(path).await;
            assert!([401, 404].contains(&reply.status), "{path}: {reply:?}");
        }
    })
    .await;
}

/// No tokens: everyone is in the default namespace, and a token that is sent all the same does no harm.
#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_everyone_may_do_everything() {
    with(async |t| {
        let other = t.client.with_token("hunter2");
        t.client.dispatch("r", json!({})).await.ok();
        assert_eq!(other.run("r").await["status"], "queued");
        Worker::register(&other, "w", json!({})).await.work_one().await;
    })
    .await;
}
