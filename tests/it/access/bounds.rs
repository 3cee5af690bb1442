use roadstead::access::Scope;
use serde_json::json;

use super::Tokens;
use crate::harness::{Test, Worker, with_settings};

fn tokens() -> Tokens {
    Tokens::none().and("free", "team", &Scope::ALL).and_with("bound", "team", &[Scope::Work], |entry| {
        entry.labels = [("zone", "b"), ("trust", "low")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    })
}

async fn sessions(t: &Test) -> serde_json::Value {
    t.json("SELECT coalesce(jsonb_agg(to_jsonb(s) ORDER BY worker_id, session_id), '[]') FROM worker_session s").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_tokens_worker_offers_what_it_is_bound_to_or_is_none() {
    let tokens = tokens();
    with_settings(tokens.settings(), async |t| {
        let bound = tokens.client(t, "bound");
        for (labels, said) in [
            (json!({}), "this one has no label trust"),
            (json!({"trust": "low"}), "this one has no label zone"),
            (json!({"trust": "low", "zone": "a"}), "the label zone=b; this one offers zone=a"),
            (json!({"trust": "low", "zone": ""}), "this one offers zone="),
            (json!({"Trust": "low", "zone": "b"}), "this one has no label trust"),
        ] {
            let problem = bound.put("/v1/workers/w", &json!({"labels": labels})).await.problem(403, "forbidden");
            assert!(problem["detail"].as_str().unwrap().contains(said), "{said}: {problem}");
        }
        assert_eq!(sessions(t).await, json!([]));
        let worker = Worker::register(&bound, "w", json!({"trust": "low", "zone": "b", "more": "1"})).await;
        let before = sessions(t).await;
        for labels in [json!({}), json!({"trust": "high", "zone": "b"}), json!({"zone": "b"})] {
            worker.beat(json!({"labels": labels})).await.problem(403, "forbidden");
        }
        assert_eq!(sessions(t).await, before, "a refused beat is no sign of life");
        worker.beat(json!({})).await.ok();
        worker.beat(json!({"labels": {"trust": "low", "zone": "b"}})).await.ok();
        tokens.client(t, "free").dispatch("r", json!({"worker_selector": {"zone": "b"}})).await.ok();
        worker.work_one().await;
    })
    .await;
}

/// Else the bounds would be worth nothing: whoever reads the list of workers knows every session.
#[tokio::test(flavor = "multi_thread")]
async fn a_bound_token_cannot_speak_for_a_session_beyond_its_bounds() {
    let tokens = tokens();
    with_settings(tokens.settings(), async |t| {
        let free = tokens.client(t, "free");
        let worker = Worker::register(&free, "w-a", json!({"zone": "a"})).await;
        free.dispatch("r", json!({"worker_selector": {"zone": "a"}})).await.ok();
        let before = sessions(t).await;
        let forged = worker.through(&tokens.client(t, "bound"));
        forged.poll_reply(0.0).await.problem(403, "forbidden");
        forged.beat(json!({})).await.problem(403, "forbidden");
        forged.beat(json!({"labels": {"trust": "low", "zone": "b"}})).await.problem(403, "forbidden");
        assert_eq!(sessions(t).await, before);
        worker.work_one().await;
        // One that nobody knows is told so.
        let unknown = Worker { session_id: "nobody".into(), ..forged };
        unknown.poll_reply(0.0).await.problem(409, "unknown-session");
    })
    .await;
}
