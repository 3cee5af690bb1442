use serde_json::json;

use crate::harness::program::run;
use crate::harness::{Folder, Program, Worker, autopsy_of, database};

/// Makes a token and answers it with its entry.
async fn new_token(args: &[&str]) -> (String, String) {
    let said = run(&[&["token", "new"], args].concat(), &[]).await;
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:?}");
    let (token, entry) = said.stdout.split_once("\n\n").unwrap();
    assert!(token.starts_with("rst_") && !entry.contains(token), "{}", said.stdout);
    (token.to_owned(), entry.to_owned())
}

/// From the command that makes tokens to a worker that works with one, and nothing of them in the log.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_made_by_the_program_open_it_and_never_reach_its_log() {
    let folder = Folder::new();
    let file = folder.join("tokens.toml");
    let (dispatcher, first) =
        new_token(&["--name", "ci-bot", "--namespace", "team-a", "--scope", "dispatch,read"]).await;
    let fixed = ["--name", "fleet", "--namespace", "team-a", "--scope", "work", "--label", "zone=b"];
    let (worker, second) = new_token(&[&fixed[..], &["--expires-at", "2100-01-01T00:00:00Z"]].concat()).await;
    std::fs::write(&file, format!("{first}\n{second}")).unwrap();

    let printed = run(&["config", "print"], &[("ROADSTEAD_AUTH__TOKENS_FILE", &file)]).await;
    assert!(printed.stdout.contains("name = \"fleet\"") && printed.stdout.contains("sha256 = \"set\""), "{printed:?}");
    let database = database::create().await;
    let env = [("ROADSTEAD_AUTH__TOKENS_FILE", file.as_str()), ("ROADSTEAD_LOG", "debug")];
    // With tokens it may listen where others reach it.
    let args = ["serve", "--listen", "0.0.0.0:0", "--database-url", &database.url];
    let mut service = Program::start_with(&args, &env);
    let url = service.address().await.replace("0.0.0.0", "127.0.0.1");
    let client = crate::harness::Client::new(&url);
    client.dispatch("r", json!({})).await.problem(401, "unauthenticated");
    let mistyped = &dispatcher[..dispatcher.len() - 1];
    client.with_token(mistyped).dispatch("r", json!({})).await.problem(401, "unauthenticated");
    let dispatching = client.with_token(&dispatcher);
    dispatching.dispatch("r", json!({"worker_selector": {"zone": "b"}})).await.ok();
    client.with_token(&worker).get("/v1/runs").await.problem(403, "forbidden");

    let arguments = ["worker", "--url", &url, "--worker-id", "w", "--label", "zone=b", "--once", "--", "true"];
    let done = run(&arguments, &[("ROADSTEAD_TOKEN", &worker)]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(dispatching.finished("r").await["status"], "succeeded");
    // A worker whose token is not good for it ends and says why.
    let refused = run(&arguments, &[("ROADSTEAD_TOKEN", &dispatcher)]).await;
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("the scope `work`"), "{refused:?}");

    autopsy_of(&client, &database.url).await;
    service.stop().await;
    let log = service.log();
    let random = |token: &str| token[4..40].to_owned();
    let hash = |entry: &str| entry.split('"').nth(3).unwrap()[..32].to_owned();
    let hidden = [random(&dispatcher), random(&worker), hash(&first), hash(&second)];
    for text in [&log, &done.stderr, &refused.stderr, &printed.stdout] {
        assert!(hidden.iter().all(|secret| !text.contains(secret)), "{text}");
    }
    let lines = service.log_lines();
    assert!(
        lines.iter().any(|line| line["message"] == "dispatched" && line["span"]["token_name"] == "ci-bot"),
        "{log}"
    );
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_an_address_that_others_reach_is_refused_unless_told() {
    let database = database::create().await;
    let args = ["serve", "--listen", "0.0.0.0:0", "--database-url", &database.url];
    let refused = run(&args, &[]).await;
    assert_eq!(refused.code, Some(78), "{refused:?}");
    for way in ["auth.tokens", "roadstead token new", "127.0.0.1", "--insecure"] {
        assert!(refused.stderr.contains(way), "{way} is missing in {}", refused.stderr);
    }
    let mut service = Program::start(&[&args[..], &["--insecure"]].concat());
    let url = service.address().await.replace("0.0.0.0", "127.0.0.1");
    let client = crate::harness::Client::new(&url);
    client.dispatch("r", json!({})).await.ok();
    Worker::register(&client, "w", json!({})).await.work_one().await;
    service.logged("everyone who reaches it is let in").await;
    service.stop().await;
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_does_not_make_sense_is_not_made() {
    for (args, said) in [
        (vec!["--scope", "read"], "--name"),
        (vec!["--name", "a b", "--scope", "read"], "may contain"),
        (vec!["--name", "a"], "--scope"),
        (vec!["--name", "a", "--scope", "write"], "must be one of dispatch, work, read, demand, admin"),
        (vec!["--name", "a", "--scope", "read", "--label", "zone=b"], "give the token the scope work"),
        (vec!["--name", "a", "--scope", "work", "--label", "zone"], "must be KEY=VALUE"),
        (vec!["--name", "a", "--scope", "work", "--label", "zone=a", "--label", "zone=b"], "twice"),
        (vec!["--name", "a", "--scope", "work", "--label", "zone=a,b"], "commas"),
        (vec!["--name", "a", "--scope", "work", "--expires-at", "tomorrow"], "must be a time"),
        (vec!["--name", "a", "--namespace", "", "--scope", "work"], "must have 1 to 63"),
    ] {
        let refused = run(&[vec!["token", "new"], args].concat(), &[]).await;
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{refused:?}");
        assert!(refused.stderr.contains(said), "{said} is missing in {}", refused.stderr);
    }
}
