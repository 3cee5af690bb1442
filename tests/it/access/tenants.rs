use roadstead::access::Scope;
use serde_json::{Value, json};

use super::Tokens;
use super::operations::{Names, all};
use crate::harness::client::reason;
use crate::harness::{Client, Test, Worker, until, with_settings};

/// Unique, and allowed wherever a name, a label or a text is.
fn canary(field: &str) -> String {
    format!("canary-{field}-5f3a")
}

const TRACE: &str = "5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a";

/// Everything that a namespace can hold, each field with a canary of its own. Answers what is held, for others to ask
/// for.
async fn fill(client: &Client) -> Vec<Names> {
    let registration = json!({
        "session_id": canary("session"), "labels": {canary("worker-key"): canary("worker-value")}, "slots": 10,
        "version": canary("version"),
    });
    let worker = Worker::register_with(client, &canary("worker"), registration).await;
    let mut held = Vec::new();
    for what in ["running", "finished", "released", "waiting", "claimed"] {
        let body = json!({
            "dag_name": canary("dag"), "run_id": canary(what),
            "worker_selector": {canary("worker-key"): if what == "waiting" { canary("selector") } else { canary("worker-value") }},
            "labels": {canary("run-key"): canary("run-value")},
            "root": {"dag_name": canary("root-dag"), "run_id": canary("root")},
            "parent": {"dag_name": canary("parent-dag"), "run_id": canary("parent")},
            "definition": canary("definition"), "params": {"p": canary("params")}, "context": [canary("context")],
        });
        let request = client.request(reqwest::Method::POST, "/v1/runs").json(&body);
        let request = request
            .header("idempotency-key", canary(&format!("key-{what}")))
            .header("traceparent", format!("00-{TRACE}-5f3a5f3a5f3a5f3a-01"));
        let run = client.send(request).await.ok();
        let mut names = Names {
            dag_name: canary("dag"),
            run_id: canary(what),
            worker_id: canary("worker"),
            session_id: canary("session"),
            attempt_id: run["attempt"]["attempt_id"].as_str().unwrap().to_owned(),
            token: "0".repeat(64),
        };
        if what != "waiting" {
            let task = worker.take().await;
            assert_eq!(task["run_id"], names.run_id);
            task["token"].as_str().unwrap().clone_into(&mut names.token);
            progress(&worker, &task, what).await;
        }
        held.push(names);
    }
    let cancel = format!("/v1/dags/{}/runs/{}/cancel", canary("dag"), canary("running"));
    client.post(&cancel, &json!({"reason": canary("cancel")})).await.ok();
    held
}

/// What becomes of a task that was taken.
async fn progress(worker: &Worker, task: &Value, what: &str) {
    match what {
        "running" => {
            worker.ack(task).await.ok();
            let said = json!({"status": "running", "progress": canary("progress"), "log_url": canary("log")});
            worker.say(task, "report", said).await.ok();
        }
        "finished" => {
            worker.ack(task).await.ok();
            let said = json!({"status": "failed", "error": canary("error"), "output": canary("output")});
            worker.say(task, "report", said).await.ok();
        }
        "released" => {
            worker.say(task, "release", json!({"reason": canary("release")})).await.ok();
        }
        _ => {}
    }
}

/// Fails if an answer holds anything of a canary that its request did not.
#[track_caller]
fn assert_no_canary(answer: &str, request: &str, what: &str) {
    for (at, _) in answer.match_indices("canary-") {
        let found: String = answer[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        assert!(request.contains(&found), "{what} shows {found}: {answer}");
    }
    assert!(!answer.contains(TRACE), "{what} shows the trace: {answer}");
}

/// All rows of a namespace.
async fn rows(t: &Test, namespace: &str) -> Value {
    sqlx::query_scalar(
        "WITH n AS (SELECT namespace_id FROM namespace WHERE name = $1)
         SELECT jsonb_build_object(
            'runs', (SELECT jsonb_agg(to_jsonb(r) ORDER BY run_id) FROM run r JOIN n USING (namespace_id)),
            'attempts', (SELECT jsonb_agg(to_jsonb(a) ORDER BY attempt_id) FROM attempt a JOIN n USING (namespace_id)),
            'tasks', (SELECT jsonb_agg(to_jsonb(k) ORDER BY attempt_id) FROM task k JOIN n USING (namespace_id)),
            'payloads', (SELECT jsonb_agg(to_jsonb(p) ORDER BY run_id) FROM payload p JOIN n USING (namespace_id)),
            'sessions', (SELECT jsonb_agg(to_jsonb(s) ORDER BY worker_id) FROM worker_session s JOIN n USING (namespace_id)),
            'keys', (SELECT jsonb_agg(to_jsonb(i) ORDER BY key) FROM idempotency_key i JOIN n USING (namespace_id)),
            'feed', (SELECT jsonb_agg(to_jsonb(f) ORDER BY position) FROM feed_entry f JOIN n USING (namespace_id)))",
    )
    .bind(namespace)
    .fetch_one(&t.pool)
    .await
    .unwrap()
}

async fn stamped(t: &Test) {
    until("all is stamped", async || t.count("SELECT count(*) FROM event_unstamped").await == 0).await;
}

/// P11: every route, with a token of each scope and one of all, asks for everything of another namespace.
#[tokio::test(flavor = "multi_thread")]
async fn no_route_shows_or_moves_anything_of_another_namespace() {
    let tokens = Scope::ALL
        .iter()
        .fold(Tokens::none(), |tokens, scope| tokens.and(scope.as_str(), "b", &[*scope]))
        .and("a", "a", &Scope::ALL)
        .and("all", "b", &Scope::ALL);
    with_settings(tokens.settings(), async |t| {
        let (a, b) = (tokens.client(t, "a"), tokens.client(t, "all"));
        let held = fill(&a).await;
        stamped(t).await;
        // The canaries are where they should be, so that their absence elsewhere means something.
        let shown = a.get(&format!("/v1/dags/{}/runs/{}?include=payload", canary("dag"), canary("running"))).await.ok();
        for field in ["definition", "params", "context", "progress", "log", "cancel", "run-value", "root-dag", "parent"]
        {
            assert!(shown.to_string().contains(&canary(field)), "{field} is not in {shown}");
        }
        let feed = a.get("/v1/events?limit=500").await.ok();
        assert!(feed["events"].as_array().unwrap().len() > 8 && feed.to_string().contains(&canary("error")));
        let before = rows(t, "a").await;

        for names in &held {
            for operation in all(names) {
                let makes_something = ["registerWorker", "dispatchRun", "dispatchRuns"].contains(&operation.id);
                let request = format!("{} {}", operation.path, operation.body.clone().unwrap_or_default());
                for scope in Scope::ALL.iter().map(|scope| scope.as_str()).chain(["all"]) {
                    if makes_something {
                        continue;
                    }
                    let reply = operation.ask(&tokens.client(t, scope)).await;
                    let may = scope == "all" || operation.scopes.iter().any(|needed| needed.as_str() == scope);
                    let expected = if may { operation.status } else { 403 };
                    let what = format!("{} with {scope}", operation.id);
                    assert_eq!(reply.status, expected, "{what}: {reply:?}");
                    assert_no_canary(&format!("{} {:?}", reply.body, reply.headers), &request, &what);
                }
            }
        }
        for (path, list) in [("/v1/runs", "runs"), ("/v1/workers", "workers"), ("/v1/events", "events")] {
            assert_eq!(b.get(path).await.ok()[list], json!([]), "{path}");
        }
        for query in
            ["dag_name=canary-dag-5f3a", "run_id=canary-running-5f3a", "after=3", "root_run_id=canary-root-5f3a"]
        {
            assert_eq!(b.get(&format!("/v1/events?{query}")).await.ok()["events"], json!([]), "{query}");
        }
        stamped(t).await;
        assert_eq!(rows(t, "a").await, before, "nothing of the other namespace has moved");
    })
    .await;
}

/// The same names, keys, labels and sessions in two namespaces are two of each.
#[tokio::test(flavor = "multi_thread")]
async fn two_namespaces_share_no_name_no_key_and_no_worker() {
    let tokens = Tokens::none().and("a", "a", &Scope::ALL).and("b", "b", &Scope::ALL);
    with_settings(tokens.settings(), async |t| {
        let (a, b) = (tokens.client(t, "a"), tokens.client(t, "b"));
        let session = json!({"session_id": "s", "labels": {"zone": "z"}, "slots": 2});
        let dispatch = async |client: &Client, definition: &str, wait: u32| {
            let body = json!({
                "dag_name": "dag", "run_id": "r", "worker_selector": {"zone": "z"}, "definition": definition,
                "worker_wait_timeout_seconds": wait,
            });
            let request = client.request(reqwest::Method::POST, "/v1/runs").header("idempotency-key", "k").json(&body);
            client.send(request).await
        };
        let of_b = Worker::register_with(&b, "w", session.clone()).await;
        let parked = {
            let of_b = of_b.clone();
            tokio::spawn(async move { of_b.poll(5.0).await })
        };
        until("it waits", async || t.count("SELECT count(*) FROM worker_session").await == 1).await;
        // A worker of another namespace is no match, busy or free.
        dispatch(&a, "of a", 0).await.problem(409, "no-available-worker");
        let run = dispatch(&a, "of a", 60).await.ok();
        assert_eq!(reason(&run), ("False".into(), "NoAvailableWorker".into()));
        assert_eq!(dispatch(&b, "of b", 60).await.status, 201);
        let tasks = parked.await.unwrap();
        assert_eq!((tasks.len(), &tasks[0]["definition"]), (1, &json!("of b")));
        assert!(of_b.poll(0.0).await.is_empty(), "what waits in the other namespace is not for it");

        let of_a = Worker::register_with(&a, "w", session).await;
        of_b.ack(&tasks[0]).await.ok();
        let task = of_a.take().await;
        assert_eq!(task["definition"], "of a");
        // A claim's token is good in its namespace only, even for the worker of the same name and session.
        of_b.say(&task, "ack", json!({})).await.problem(404, "not-found");
        of_a.ack(&task).await.ok();
        of_a.leave().await.ok();
        assert_eq!(b.get("/v1/workers/w").await.ok()["state"], "healthy");
        of_b.report(&tasks[0], "succeeded").await.ok();
        assert_eq!(b.run("r").await["status"], "succeeded");
        assert_eq!(a.finished("r").await["status"], "failed");
        stamped(t).await;
        for (client, last) in [(&a, "dag.run.failed"), (&b, "dag.run.succeeded")] {
            let events = client.get("/v1/events").await.ok()["events"].clone();
            let positions: Vec<_> = events.as_array().unwrap().iter().map(|event| event["position"].clone()).collect();
            assert_eq!(positions, [1, 2, 3]);
            assert_eq!(events[2]["type"], last);
        }
    })
    .await;
}

/// A stream and a read that wait hear of their own namespace only, and of that at once.
#[tokio::test(flavor = "multi_thread")]
async fn waits_are_ended_by_their_own_namespace_only() {
    let tokens = Tokens::none().and("a", "a", &Scope::ALL).and("b", "b", &Scope::ALL);
    with_settings(tokens.settings(), async |t| {
        let (a, b) = (tokens.client(t, "a"), tokens.client(t, "b"));
        let mut stream = b.request(reqwest::Method::GET, "/v1/events/stream").send().await.unwrap();
        let waiting = {
            let b = b.clone();
            tokio::spawn(async move { b.get("/v1/events?wait_seconds=20").await.ok() })
        };
        for n in 0..20 {
            a.dispatch(&canary(&n.to_string()), json!({"definition": canary("definition")})).await.ok();
        }
        b.dispatch("mine", json!({})).await.ok();
        let page = waiting.await.unwrap();
        assert_eq!((page["events"].as_array().unwrap().len(), &page["events"][0]["run_id"]), (1, &json!("mine")));
        let mut text = String::new();
        while !text.contains("mine") {
            text.push_str(std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap());
        }
        assert_no_canary(&text, "", "the stream");
        assert!(text.contains("id: 1\n"), "{text}");
    })
    .await;
}

/// Replicas that start together make each namespace once, with its feed.
#[tokio::test(flavor = "multi_thread")]
async fn namespaces_are_made_at_the_start_by_whoever_comes_first() {
    let names = ["n1", "n2", "n3", "n4", "n5"];
    let tokens = names.iter().fold(Tokens::none(), |tokens, name| tokens.and(name, name, &Scope::ALL));
    with_settings(super::settings(), async |t| {
        let config = tokens.settings();
        let start = || roadstead::server::Server::start(&config, &t.database_url);
        let servers = futures_util::future::join_all((0..4).map(|_| Box::pin(start()))).await;
        let servers: Vec<_> = servers.into_iter().map(Result::unwrap).collect();
        assert_eq!(t.count("SELECT count(*) FROM namespace").await, 6);
        assert_eq!(t.count("SELECT count(*) FROM feed JOIN namespace USING (namespace_id)").await, 6);
        // One replica knows them as the other does, and the first, which has no tokens, sweeps and stamps them too.
        for (n, name) in names.iter().enumerate() {
            let client = Client::new(&format!("http://{}", servers[n % 4].address())).with_token(tokens.secret(name));
            client.dispatch(name, json!({"worker_wait_timeout_seconds": 0.2})).await.ok();
            let other =
                Client::new(&format!("http://{}", servers[(n + 1) % 4].address())).with_token(tokens.secret(name));
            assert_eq!(other.finished(name).await["status"], "failed");
            until("its events are stamped", async || {
                other.get("/v1/events").await.ok()["events"].as_array().unwrap().len() == 2
            })
            .await;
        }
        for server in servers {
            server.stop().await;
        }
    })
    .await;
}
