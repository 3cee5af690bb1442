use std::time::Duration;

use roadstead::access::Scope;
use roadstead::domain::Timestamp;
use serde_json::json;

use super::Tokens;
use crate::harness::{Worker, until, with_settings};

/// How soon after its token a wait must be over, with room for a busy machine.
const SOON: Duration = Duration::from_secs(5);

/// A token ends by the database's clock, and with it every wait that it opened; others go on.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_token_opened_ends_with_it() {
    let in_an_hour = Timestamp::from(std::time::SystemTime::now() + Duration::from_secs(3_600));
    let tokens = Tokens::none()
        .and_with("brief", "team", &Scope::ALL, |entry| entry.expires_at = Some(in_an_hour))
        .and("lasting", "team", &Scope::ALL);
    with_settings(tokens.settings(), async |t| {
        let (brief, lasting) = (tokens.client(t, "brief"), tokens.client(t, "lasting"));
        brief
            .dispatch("held", json!({"worker_selector": {"zone": "b"}, "worker_wait_timeout_seconds": 80_000}))
            .await
            .ok();
        until("its event is stamped", async || t.count("SELECT count(*) FROM feed_entry").await == 1).await;
        let worker = Worker::register(&brief, "w", json!({"zone": "a"})).await;

        let poll = {
            let worker = worker.clone();
            tokio::spawn(async move { worker.poll_reply(50.0).await })
        };
        let get = |client: &crate::harness::Client, path: &'static str| {
            let client = client.clone();
            tokio::spawn(async move { client.get(path).await })
        };
        let run = get(&brief, "/v1/dags/dag/runs/held?wait_for=finished&wait_seconds=50");
        let feed = get(&brief, "/v1/events?after=1&wait_seconds=50");
        let other = get(&lasting, "/v1/dags/dag/runs/held?wait_for=finished&wait_seconds=50");
        let mut stream = brief.request(reqwest::Method::GET, "/v1/events/stream").send().await.unwrap();
        assert!(stream.chunk().await.unwrap().is_some(), "the stream has begun");
        let mut streams_on = lasting.request(reqwest::Method::GET, "/v1/events/stream").send().await.unwrap();
        assert!(streams_on.chunk().await.unwrap().is_some());

        t.advance(Duration::from_secs(3_590)).await;
        brief.run("held").await;
        t.advance(Duration::from_secs(20)).await;
        let ended =
            tokio::time::timeout(SOON, async { (poll.await.unwrap(), run.await.unwrap(), feed.await.unwrap()) });
        let (poll, run, feed) = ended.await.expect("every wait is over soon");
        for reply in [poll, run, feed] {
            let problem = reply.problem(401, "unauthenticated");
            assert_eq!(problem["detail"], "the token brief has expired");
        }
        let rest = async { while stream.chunk().await.unwrap().is_some() {} };
        tokio::time::timeout(SOON, rest).await.expect("the stream is over soon");
        brief.get("/v1/runs").await.problem(401, "unauthenticated");

        // What the token has left behind lives on, and so does what others wait for.
        assert!(!other.is_finished());
        let other_worker = Worker::register(&lasting, "w-b", json!({"zone": "b"})).await;
        other_worker.work_one().await;
        assert_eq!(other.await.unwrap().ok()["status"], "succeeded");
        let mut text = String::new();
        while !text.contains("dag.run.succeeded") {
            text.push_str(std::str::from_utf8(&streams_on.chunk().await.unwrap().expect("it goes on")).unwrap());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_has_expired_opens_nothing_from_the_first_request_on() {
    let past = Timestamp::from(std::time::SystemTime::now() - Duration::from_secs(1));
    let tokens = Tokens::none().and_with("old", "team", &Scope::ALL, |entry| entry.expires_at = Some(past));
    with_settings(tokens.settings(), async |t| {
        let problem = tokens.client(t, "old").get("/v1/runs").await.problem(401, "unauthenticated");
        assert_eq!(problem["detail"], "the token old has expired");
    })
    .await;
}
