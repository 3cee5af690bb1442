//! The reference worker as processes: what it tells its command, what it makes of its end, and how it lets go.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use roadstead::config::Config;
use serde_json::{Value, json};

use crate::harness::program::run;
use crate::harness::{Client, Folder, Program, Worker, settings, until, with, with_process, with_settings};

/// How long a worker with nothing to finish may take to leave.
const IN_TIME: Duration = Duration::from_secs(10);

/// A worker of zone b that runs a script for each task.
fn hire(client: &Client, worker_id: &str, options: &[&str], script: &str) -> Program {
    let url = client.url();
    let fixed = ["worker", "--url", url, "--worker-id", worker_id, "--label", "zone=b"];
    Program::start_with(&[&fixed, options, &["--", "sh", "-c", script]].concat(), &[("ROADSTEAD_TOKEN", "swordfish")])
}

/// Settings under which a worker hears of a cancel soon.
fn brisk() -> Config {
    let mut config = settings();
    config.coordinator.heartbeat_interval = Duration::from_secs(1);
    config
}

async fn dispatch(client: &Client, run_id: &str) {
    client.dispatch(run_id, json!({"worker_selector": {"zone": "b"}})).await.ok();
}

async fn state(client: &Client, worker_id: &str) -> Value {
    client.get(&format!("/v1/workers/{worker_id}")).await.ok()["state"].clone()
}

/// Waits until a file has this many lines, and returns them.
async fn lines(file: &str, count: usize) -> Vec<String> {
    let read = || std::fs::read_to_string(file).unwrap_or_default();
    until(&format!("{file} has {count} lines"), async || read().lines().count() >= count).await;
    read().lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_gets_the_task_on_its_input_and_who_it_is_in_its_environment() {
    with(async |t| {
        let folder = Folder::new();
        let (input, environment) = (folder.join("input"), folder.join("environment"));
        let script = format!("cat > {input}; env > {environment}");
        let mut worker = hire(&t.client, "w-b", &[], &script);
        let carried = json!({
            "worker_selector": {"zone": "b"}, "definition": "steps: 'canary' \u{1F6A2}\n", "params": {"n": 9_007_199_254_740_991_i64},
            "context": [1, {"deep": "canary"}], "labels": {"team": "a"},
        });
        t.client.dispatch("r", carried.clone()).await.ok();
        let run = t.client.finished("r").await;
        assert_eq!((&run["status"], &run["worker_id"]), (&json!("succeeded"), &json!("w-b")));

        let task: Value = serde_json::from_slice(&std::fs::read(input).unwrap()).unwrap();
        for field in ["worker_selector", "definition", "params", "context", "labels"] {
            assert_eq!(task[field], carried[field]);
        }
        assert!(task.get("token").is_none(), "{task}");
        let environment = std::fs::read_to_string(environment).unwrap();
        let attempt_id = run["attempt"]["attempt_id"].as_str().unwrap();
        for variable in [
            "ROADSTEAD_DAG_NAME=dag",
            "ROADSTEAD_RUN_ID=r",
            &format!("ROADSTEAD_ATTEMPT_ID={attempt_id}"),
            "ROADSTEAD_ATTEMPT_NUMBER=1",
            "ROADSTEAD_OPERATION=start",
            "ROADSTEAD_FENCE=1",
            "ROADSTEAD_WORKER_ID=w-b",
        ] {
            assert!(environment.lines().any(|line| line == variable), "{variable} is missing in {environment}");
        }
        assert!(!environment.contains("swordfish") && !environment.contains("ROADSTEAD_TOKEN"));
        worker.stop().await;
        let log = worker.log();
        assert!(log.contains(attempt_id) && log.contains("\"run_id\":\"r\""), "{log}");
        assert!(!log.contains("canary") && !log.contains("swordfish"), "{log}");
    })
    .await;
}

/// The token is known to nobody but the worker and the service, so a log is searched for every text of its length.
#[tokio::test(flavor = "multi_thread")]
async fn no_token_is_in_the_log_of_a_worker() {
    with(async |t| {
        let worker = Worker::register(&t.client, "example", json!({"zone": "b"})).await;
        dispatch(&t.client, "r0").await;
        let token = worker.work_one().await["token"].as_str().unwrap().to_owned();
        worker.leave().await.ok();

        let args = ["worker", "--url", t.client.url(), "--worker-id", "w-b", "--label", "zone=b", "--", "true"];
        let mut worker = Program::start_with(&args, &[("ROADSTEAD_LOG", "debug")]);
        dispatch(&t.client, "r1").await;
        t.client.finished("r1").await;
        worker.stop().await;
        let alike = |word: &str| word.len() == token.len() && word.chars().all(|c| c.is_ascii_hexdigit());
        assert!(alike(&token));
        let log = worker.log();
        let found = log.split(|c: char| !c.is_ascii_alphanumeric()).find(|word| alike(word));
        assert!(found.is_none(), "{found:?} looks like {token}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_status_decides_and_the_tails_are_told() {
    with(async |t| {
        let script = "echo of $ROADSTEAD_RUN_ID; echo 'no such table' >&2; test $ROADSTEAD_RUN_ID = good || exit 3";
        let mut worker = hire(&t.client, "w-b", &[], script);
        for run_id in ["good", "bad"] {
            dispatch(&t.client, run_id).await;
        }
        let good = t.client.finished("good").await;
        assert_eq!((&good["status"], &good["output"]), (&json!("succeeded"), &json!("of good")));
        assert!(good.get("error").is_none());
        let bad = t.client.finished("bad").await;
        assert_eq!((&bad["status"], &bad["output"]), (&json!("failed"), &json!("of bad")));
        assert_eq!(bad["error"], "exit status: 3\nno such table");
        assert_eq!(bad["failure"]["reason"], "reported");
        worker.stop().await;
        assert_eq!(state(&t.client, "w-b").await, "ended");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_cannot_be_started_fails_its_run_and_says_so() {
    with(async |t| {
        let args = ["worker", "--url", t.client.url(), "--label", "zone=b", "--once", "--", "/nowhere/at/all"];
        dispatch(&t.client, "r").await;
        assert_eq!(run(&args, &[]).await.code, Some(1));
        let failed = t.client.finished("r").await;
        assert_eq!(failed["status"], "failed");
        assert!(failed["error"].as_str().unwrap().starts_with("the command could not be started"), "{failed}");
    })
    .await;
}

/// Dispatches a run and waits until the worker's command says that it is up.
async fn under_way(client: &Client, run_id: &str, file: &str) {
    dispatch(client, run_id).await;
    lines(file, 1).await;
    assert_eq!(client.run(run_id).await["status"], "running");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_stops_the_command_which_may_tidy_up() {
    with_settings(brisk(), async |t| {
        let folder = Folder::new();
        let up = folder.join("up");
        let script = format!("trap 'echo tidy; exit 0' TERM; echo up > {up}; while :; do sleep 0.05; done");
        let mut worker = hire(&t.client, "w-b", &[], &script);
        under_way(&t.client, "r", &up).await;
        let asked = Instant::now();
        assert_eq!(t.client.cancel("r").await.ok()["status"], "running");
        let aborted = t.client.finished("r").await;
        assert_eq!((&aborted["status"], &aborted["output"]), (&json!("aborted"), &json!("tidy")));
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
        worker.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_ignores_the_cancel_is_killed_with_its_children() {
    with_settings(brisk(), async |t| {
        let folder = Folder::new();
        let up = folder.join("up");
        let script = format!("trap '' TERM; sleep 1000 & echo $! > {up}; while :; do sleep 0.05; done");
        let mut worker = hire(&t.client, "w-b", &["--kill-after", "200ms"], &script);
        under_way(&t.client, "r", &up).await;
        let child = lines(&up, 1).await.remove(0);
        t.client.cancel("r").await.ok();
        assert_eq!(t.client.finished("r").await["status"], "aborted");
        let command = format!("/proc/{child}/cmdline");
        // Nothing of a zombie, which nobody may be there to reap.
        until("its child is gone", async || {
            std::fs::read(&command).is_ok_and(|line| line.is_empty()) || !std::path::Path::new(&command).exists()
        })
        .await;
        worker.stop().await;
    })
    .await;
}

/// B05: a worker that leaves takes nothing more; what it has, it finishes.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_asked_to_stop_finishes_what_runs_takes_nothing_more_and_leaves() {
    with(async |t| {
        let folder = Folder::new();
        let (up, go) = (folder.join("up"), folder.join("go"));
        let script = format!("echo up >> {up}; until test -e {go}; do sleep 0.02; done; echo done");
        let mut worker = hire(&t.client, "w-b", &[], &script);
        under_way(&t.client, "r", &up).await;
        worker.signal(Signal::SIGTERM);
        until("it drains", async || state(&t.client, "w-b").await == "draining").await;
        dispatch(&t.client, "later").await;
        assert!(worker.runs());
        std::fs::write(&go, "").unwrap();
        assert_eq!(worker.ended_within(IN_TIME).await.code(), Some(0), "{}", worker.log());
        let run = t.client.run("r").await;
        assert_eq!((&run["status"], &run["output"]), (&json!("succeeded"), &json!("done")));
        assert_eq!(state(&t.client, "w-b").await, "ended");
        assert_eq!(t.client.run("later").await["status"], "queued");
        assert_eq!(lines(&up, 1).await.len(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_kills_what_runs() {
    with(async |t| {
        let folder = Folder::new();
        let up = folder.join("up");
        let script = format!("echo $$ > {up}; sleep 1000");
        let mut worker = hire(&t.client, "w-b", &[], &script);
        under_way(&t.client, "r", &up).await;
        worker.signal(Signal::SIGTERM);
        worker.logged("finishing what runs").await;
        worker.signal(Signal::SIGTERM);
        assert!(!worker.ended_within(Duration::from_secs(2)).await.success());
        let command = lines(&up, 1).await.remove(0);
        until("its command is gone", async || {
            std::fs::read(format!("/proc/{command}/cmdline")).map_or(true, |line| line.is_empty())
        })
        .await;
        t.advance_forgetting(t.config.coordinator.lease_ttl * 2, Some("")).await;
        assert_eq!(t.client.finished("r").await["failure"]["reason"], "lease_lost");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn once_takes_one_task_and_exits_with_its_outcome() {
    with(async |t| {
        for (run_id, script, code) in [("a", "exit 0", 0), ("b", "exit 7", 1)] {
            dispatch(&t.client, run_id).await;
            let mut worker = hire(&t.client, "w-b", &["--once"], script);
            assert_eq!(worker.ended_within(IN_TIME).await.code(), Some(code), "{}", worker.log());
            assert!(t.client.run(run_id).await["finished_at"].is_string());
            assert_eq!(state(&t.client, "w-b").await, "ended");
        }
        dispatch(&t.client, "c").await;
        dispatch(&t.client, "d").await;
        let mut worker = hire(&t.client, "w-b", &["--once"], "exit 0");
        assert_eq!(worker.ended_within(IN_TIME).await.code(), Some(0));
        assert_eq!(t.client.run("c").await["status"], "succeeded");
        assert_eq!(t.client.run("d").await["status"], "queued");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_slots_run_two_at_a_time() {
    with(async |t| {
        let folder = Folder::new();
        let (up, go) = (folder.join("up"), folder.join("go"));
        let script =
            format!("echo $ROADSTEAD_RUN_ID >> {up}; until test -e {go}-$ROADSTEAD_RUN_ID; do sleep 0.02; done");
        let mut worker = hire(&t.client, "w-b", &["--slots", "2"], &script);
        for run_id in ["r1", "r2", "r3"] {
            dispatch(&t.client, run_id).await;
        }
        let mut begun = lines(&up, 2).await;
        begun.sort_unstable();
        assert_eq!(begun, ["r1", "r2"]);
        assert_eq!(t.client.run("r3").await["status"], "queued");
        std::fs::write(format!("{go}-r2"), "").unwrap();
        assert_eq!(lines(&up, 3).await[2], "r3");
        assert_eq!(t.client.run("r1").await["status"], "running");
        for run_id in ["r1", "r3"] {
            std::fs::write(format!("{go}-{run_id}"), "").unwrap();
        }
        for run_id in ["r1", "r2", "r3"] {
            assert_eq!(t.client.finished(run_id).await["status"], "succeeded");
        }
        worker.stop().await;
    })
    .await;
}

/// B83: the newest life of a name wins; the other stops its work and does not fight for the name.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_session_was_replaced_stops_its_work_and_gives_up() {
    with_settings(brisk(), async |t| {
        let folder = Folder::new();
        let up = folder.join("up");
        let script = format!("echo $$ > {up}; sleep 1000");
        let mut worker = hire(&t.client, "w-b", &["--kill-after", "1s"], &script);
        under_way(&t.client, "r", &up).await;
        Worker::register(&t.client, "w-b", json!({"zone": "b"})).await;
        assert_eq!(t.client.finished("r").await["failure"]["reason"], "lease_lost");
        let status = worker.ended_within(Duration::from_secs(20)).await;
        assert_eq!(status.code(), Some(1), "{}", worker.log());
        let command = lines(&up, 1).await.remove(0);
        until("its command is gone", async || {
            std::fs::read(format!("/proc/{command}/cmdline")).map_or(true, |line| line.is_empty())
        })
        .await;
        assert_eq!(state(&t.client, "w-b").await, "healthy", "the new one's session was left alone");
    })
    .await;
}

/// B19: the service is gone and comes back while a task runs: it is finished, and its report counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_finished_and_reported_across_the_sudden_end_of_the_service() {
    with_process(async |t, service| {
        let folder = Folder::new();
        let (up, go) = (folder.join("up"), folder.join("go"));
        let script = format!("echo up >> {up}; until test -e {go}; do sleep 0.02; done; echo done");
        let mut worker = hire(&t.client, "w-b", &[], &script);
        under_way(&t.client, "r", &up).await;
        let attempt = t.client.run("r").await["attempt"].clone();
        service.kill_hard().await;
        // It ends while nobody is there to hear of it.
        std::fs::write(&go, "").unwrap();
        worker.logged("no answer to the report").await;
        let listen = t.client.url().strip_prefix("http://").unwrap();
        *service = Program::start(&["serve", "--listen", listen, "--database-url", &t.database_url]);
        service.address().await;
        let run = t.client.finished("r").await;
        assert_eq!((&run["status"], &run["output"], &run["attempt"]), (&json!("succeeded"), &json!("done"), &attempt));
        // The same session goes on: the next task finds it.
        dispatch(&t.client, "next").await;
        assert_eq!(t.client.finished("next").await["status"], "succeeded");
        worker.stop().await;
    })
    .await;
}

/// Whoever read its log has gone, and with that nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_works_on_and_leaves_though_nobody_hears_it() {
    with(async |t| {
        let url = t.client.url();
        let mut worker =
            Program::start_unheard(&["worker", "--url", url, "--label", "zone=b", "--", "sh", "-c", "echo done"]);
        for run_id in ["one", "two"] {
            dispatch(&t.client, run_id).await;
            let run = t.client.finished(run_id).await;
            assert_eq!(run["status"], "succeeded", "{run:#}");
        }
        worker.signal(Signal::SIGTERM);
        assert_eq!(worker.ended_within(IN_TIME).await.code(), Some(0));
    })
    .await;
}

/// Nor is the service silenced by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_serves_and_stops_though_nobody_hears_it() {
    let database = crate::harness::database::create_empty().await;
    let listen = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut service = Program::start_unheard(&["serve", "--listen", &listen, "--database-url", &database.url]);
    let client = Client::new(&format!("http://{listen}"));
    until("it is ready", async || {
        let asked = client.try_send(client.request(reqwest::Method::GET, "/readyz")).await;
        asked.is_ok_and(|reply| reply.status == 200)
    })
    .await;
    client.dispatch("r", json!({})).await.ok();
    client.cancel("r").await.ok();
    service.signal(Signal::SIGTERM);
    assert_eq!(service.ended_within(IN_TIME).await.code(), Some(0));
    database.drop().await;
}
