//! Batches: each item is done and answered as if it had come alone.

use serde_json::{Value, json};

use crate::harness::{Client, Worker, with};

/// The statuses of a batch's results, in their order.
fn statuses(answer: &Value) -> Vec<u64> {
    answer["results"].as_array().unwrap().iter().map(|result| result["status"].as_u64().unwrap()).collect()
}

/// What stands in each result, one word for each: the code of its problem, or the status of its run.
fn outcomes(answer: &Value) -> Vec<&str> {
    let results = answer["results"].as_array().unwrap().iter();
    results
        .map(|result| result["problem"]["code"].as_str().or(result["run"]["status"].as_str()).unwrap_or("-"))
        .collect()
}

async fn dispatch(client: &Client, runs: Value) -> Value {
    client.post("/v1/batch/runs", &json!({"runs": runs})).await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_dispatch_of_a_batch_is_recorded_or_refused_alone() {
    with(async |t| {
        t.client.dispatch("there", json!({})).await.ok();
        let runs = json!([
            {"dag_name": "dag", "run_id": "new", "worker_selector": {"zone": "b"}},
            {"dag_name": "dag", "run_id": "there"},
            {"dag_name": "dag", "run_id": "there", "priority": 1},
            {"dag_name": "dag", "run_id": "refused", "worker_wait_timeout_seconds": 0},
            {"dag_name": "dag", "run_id": "bad", "priority": 1000, "unknown": 1},
            "no object",
            {"dag_name": "dag", "run_id": "keyed", "idempotency_key": "k"},
            {"dag_name": "dag", "run_id": "keyed", "idempotency_key": "k", "priority": 2},
            {"dag_name": "dag", "run_id": "orphan", "parent": {"dag_name": "dag", "run_id": "never-seen"}},
            {"dag_name": "dag", "run_id": "blank-key", "idempotency_key": ""},
        ]);
        let answer = dispatch(&t.client, runs.clone()).await;
        assert_eq!(statuses(&answer), [201, 201, 409, 409, 422, 422, 201, 422, 201, 422]);
        assert_eq!(
            outcomes(&answer),
            [
                "queued",
                "queued",
                "run-exists",
                "no-available-worker",
                "invalid-request",
                "invalid-request",
                "queued",
                "idempotency-mismatch",
                "queued",
                "invalid-request",
            ]
        );
        let results = answer["results"].as_array().unwrap();
        let replayed: Vec<usize> = (0..10).filter(|at| results[*at]["idempotent_replayed"] == true).collect();
        assert_eq!(replayed, [1], "only what had been dispatched before");
        let pointers = |at: usize| -> Vec<&str> {
            let errors = results[at]["problem"]["errors"].as_array().unwrap();
            errors.iter().map(|error| error["pointer"].as_str().unwrap()).collect()
        };
        assert_eq!(pointers(4), ["/runs/4/priority", "/runs/4/unknown"], "into the body, not into the item");
        assert_eq!((pointers(5), pointers(9)), (vec!["/runs/5"], vec!["/runs/9/idempotency_key"]));
        assert_eq!(
            results[0]["run"]["conditions"].as_array().map(Vec::len),
            Some(2),
            "the run as a dispatch answers it"
        );
        assert_eq!(t.count("SELECT count(*) FROM run").await, 4);

        // The same again makes nothing, and says so.
        let again = dispatch(&t.client, runs).await;
        assert_eq!(statuses(&again), statuses(&answer));
        let replayed = again["results"].as_array().unwrap().iter().filter(|r| r["idempotent_replayed"] == true);
        assert_eq!(replayed.count(), 4);
        assert_eq!(t.count("SELECT count(*) FROM event").await, 4);
    })
    .await;
}

/// A thousand at once, twice over two replicas at the same time: each run is made once.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_a_thousand_sent_twice_makes_a_thousand_runs() {
    with(async |t| {
        let (server, other) = t.replica().await;
        let runs: Vec<Value> = (0..1_000)
            .map(|n| json!({"dag_name": "dag", "run_id": format!("r{n}"), "idempotency_key": format!("k{n}")}))
            .collect();
        let runs = Value::from(runs);
        let (one, two) = tokio::join!(dispatch(&t.client, runs.clone()), dispatch(&other, runs));
        let results = [one, two].map(|answer| answer["results"].as_array().unwrap().clone());
        for (number, (one, two)) in results[0].iter().zip(&results[1]).enumerate() {
            assert_eq!((&one["status"], &two["status"]), (&json!(201), &json!(201)), "{one} {two}");
            assert_eq!(one["run"]["run_id"], format!("r{number}"), "in their order");
            assert_eq!(one["run"]["attempt"], two["run"]["attempt"]);
            let made = [one, two].iter().filter(|result| result["idempotent_replayed"] != true).count();
            assert_eq!(made, 1, "one of the two made it: {one} {two}");
        }
        assert_eq!(t.count("SELECT count(*) FROM event").await, 1_000);
        server.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_poll_gave_is_acknowledged_and_reported_together() {
    with(async |t| {
        let runs: Vec<Value> = (0..4).map(|n| json!({"dag_name": "dag", "run_id": format!("r{n}")})).collect();
        dispatch(&t.client, Value::from(runs)).await;
        let worker = Worker::register_with(&t.client, "w", json!({"slots": 4})).await;
        let mut given = worker.poll_with(json!({"max_tasks": 4, "wait_seconds": 10})).await.ok();
        let tasks = given["tasks"].as_array_mut().unwrap();
        tasks.sort_by_key(|task| task["run_id"].to_string());
        assert_eq!(tasks.len(), 4);
        let item = |task: &Value, rest: Value| {
            let mut item = json!({"attempt_id": task["attempt_id"], "token": task["token"]});
            item.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            item
        };
        let nobody = json!({"attempt_id": "00000000-0000-0000-0000-000000000000", "token": "t"});
        let mut items: Vec<Value> = tasks.iter().map(|task| item(task, json!({"from": "a newer worker"}))).collect();
        items.extend([item(&tasks[0], json!({"token": "wrong"})), nobody.clone(), json!({"token": "t"})]);
        let acked = t.client.post("/v1/batch/acks", &json!({"items": items})).await.ok();
        assert_eq!(statuses(&acked), [200, 200, 200, 200, 409, 404, 422]);
        let lease = &acked["results"][0];
        assert!(lease["lease_until"].is_string() && lease["lease_seconds"].as_f64() > Some(0.0), "{lease}");
        assert!(lease["renew_every_seconds"].as_f64() > Some(0.0), "{lease}");
        assert_eq!(acked["results"][4]["problem"]["code"], "claim-expired");
        assert_eq!(acked["results"][5]["problem"]["action"], "stop_attempt");

        t.client.cancel("r3").await.ok();
        let items = json!([
            // Of two on one attempt, the first is taken first, though it says less.
            item(&tasks[0], json!({"status": "running", "progress": {"step": 1}})),
            item(&tasks[0], json!({"status": "succeeded", "output": "o"})),
            item(&tasks[1], json!({"status": "failed", "error": "a\u{0}b"})),
            item(&tasks[2], json!({"status": "no status"})),
            item(&tasks[3], json!({"status": "running"})),
            item(&tasks[1], json!({"status": "succeeded"})),
            nobody,
        ]);
        let reported = t.client.post("/v1/batch/reports", &json!({"items": items})).await.ok();
        assert_eq!(statuses(&reported), [200, 200, 200, 422, 200, 409, 422]);
        assert_eq!(outcomes(&reported)[..3], ["running", "succeeded", "failed"]);
        assert_eq!(reported["results"][3]["problem"]["errors"][0]["pointer"], "/items/3/status");
        let to_stop = |at: usize| reported["results"][at]["cancel_requested"].clone();
        assert_eq!((to_stop(0), to_stop(4)), (json!(false), json!(true)));
        let run = t.client.get("/v1/dags/dag/runs/r0").await.ok();
        assert_eq!(
            (&run["status"], &run["progress"], &run["output"]),
            (&json!("succeeded"), &json!({"step": 1}), &json!("o"))
        );
        assert_eq!(t.client.run("r1").await["error"], "a\u{fffd}b", "no text is a reason to refuse");
        assert_eq!(t.client.run("r2").await["status"], "running");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_cancel_of_a_batch_takes_its_descendants_with_it() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        t.client.dispatch("runs", json!({})).await.ok();
        worker.ack(&worker.take().await).await.ok();
        t.client.dispatch("waits", json!({})).await.ok();
        t.client.dispatch("child", json!({"parent": {"dag_name": "dag", "run_id": "waits"}})).await.ok();
        let key = |run_id: &str| json!({"dag_name": "dag", "run_id": run_id});
        let body = json!({"runs": [key("runs"), key("nobody"), key("waits"), {"dag_name": "dag"}], "reason": "enough"});
        let answer = t.client.post("/v1/batch/cancels", &body).await.ok();
        assert_eq!(statuses(&answer), [200, 404, 200, 422]);
        assert_eq!(outcomes(&answer), ["running", "not-found", "aborted", "invalid-request"]);
        assert_eq!(answer["results"][0]["run"]["cancel_reason"], "enough");
        assert!(answer["results"][0]["run"]["cancel_requested_at"].is_string());
        assert_eq!(t.client.finished("child").await["status"], "aborted");

        let forced = json!({"runs": [key("runs")], "force": true});
        assert_eq!(outcomes(&t.client.post("/v1/batch/cancels", &forced).await.ok()), ["aborted"]);
    })
    .await;
}

/// What is wrong with the batch itself is refused as a whole, and nothing of it is done.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_no_batch_does_nothing() {
    with(async |t| {
        let run = |n: usize| json!({"dag_name": "dag", "run_id": format!("r{n}")});
        let many = |count: usize| json!({"runs": (0..count).map(run).collect::<Vec<_>>()});
        let refused = t.client.post("/v1/batch/runs", &many(1_001)).await.problem(422, "invalid-request");
        assert_eq!(refused["errors"][0]["detail"], "must have at most 1000 items, has 1001");
        t.client.post("/v1/batch/runs", &json!({"runs": {}})).await.problem(422, "invalid-request");
        t.client.post("/v1/batch/acks", &json!({})).await.problem(422, "invalid-request");
        let text = r#"{"runs": [{"dag_name": "dag", "run_id": "a", "run_id": "b"}]}"#;
        let request = t.client.request(reqwest::Method::POST, "/v1/batch/runs");
        let twice = request.header("content-type", "application/json").body(text);
        t.client.send(twice).await.problem(400, "malformed-json");
        let keyed = t.client.request(reqwest::Method::POST, "/v1/batch/runs").header("idempotency-key", "k");
        let refused = t.client.send(keyed.json(&many(1))).await.problem(422, "invalid-request");
        assert_eq!(refused["errors"][0]["pointer"], "Idempotency-Key", "it would be taken for what it is not");
        assert_eq!(t.count("SELECT count(*) FROM run").await, 0);
        assert_eq!(t.client.post("/v1/batch/runs", &many(0)).await.ok(), json!({"results": []}));

        // More than a single request may have.
        let large = json!({"runs": (0..6).map(|n| {
            let mut run = run(n);
            run["definition"] = "x".repeat(1024 * 1024).into();
            run
        }).collect::<Vec<_>>()});
        assert_eq!(statuses(&t.client.post("/v1/batch/runs", &large).await.ok()), [201; 6]);
    })
    .await;
}
