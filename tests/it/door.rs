//! The front door: clients that do their part too slowly or not at all, more of them than there is room for, and the
//! ways in besides plain HTTP/1.1.

use std::time::{Duration, Instant};

use reqwest::Method;
use roadstead::config::Config;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use crate::harness::{
    Client, Folder, Program, Raw, Worker, autopsy_of, database, settings, until, with, with_settings,
};

/// Settings with this much patience for clients.
fn impatient(patience: Duration) -> Config {
    let mut config = settings();
    config.http.header_read_timeout = patience;
    config.http.body_read_timeout = patience;
    config.http.write_timeout = patience;
    config.http.keep_alive_timeout = patience * 3;
    config
}

const PATIENCE: Duration = Duration::from_millis(300);

fn head(path: &str, length: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n")
}

/// How long each of so many rounds of honest work takes, the shortest first.
async fn honest_work(client: &Client, worker: &Worker, label: &str, rounds: usize) -> Vec<Duration> {
    let mut took = Vec::new();
    for round in 0..rounds {
        let asked = Instant::now();
        client.dispatch(&format!("{label}-{round}"), json!({"worker_selector": {"zone": "b"}})).await.ok();
        worker.work_one().await;
        took.push(asked.elapsed());
    }
    took.sort();
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_silent_and_dripping_connections_leave_honest_clients_alone() {
    with(async |t| {
        let worker = Worker::register(&t.client, "w", json!({"zone": "b"})).await;
        honest_work(&t.client, &worker, "warm", 5).await;
        let alone = honest_work(&t.client, &worker, "alone", 40).await;
        let mut crowd = Vec::new();
        for number in 0..2_000 {
            crowd.push(match number % 3 {
                0 => Raw::say(&t.client, "").await,
                1 => Raw::say(&t.client, "GET /livez HTTP/1.1\r\nhost: ").await,
                _ => Raw::say(&t.client, &(head("/v1/runs", 100) + "{")).await,
            });
        }
        let mut dripping = JoinSet::new();
        dripping.spawn(async move {
            loop {
                for slow in &mut crowd {
                    slow.go_on("x").await;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        let beside = honest_work(&t.client, &worker, "beside", 40).await;
        println!(
            "median alone {:?}, beside 2,000 others {:?}; worst {:?}, {:?}",
            alone[20], beside[20], alone[39], beside[39]
        );
        assert!(beside[20] < alone[20] * 4 + Duration::from_millis(20), "{:?} beside {:?}", beside[20], alone[20]);
        dripping.abort_all();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_or_drips_a_head_is_cut_off() {
    with_settings(impatient(PATIENCE), async |t| {
        for beginning in ["", "G", "GET /livez HTTP/1.1\r\nhost: h\r\nx-a: ", "PRI * HTTP/2.0\r\n"] {
            let asked = Instant::now();
            let mut slow = Raw::say(&t.client, beginning).await;
            let mut drops = 0;
            while !beginning.is_empty() && slow.go_on("a").await && drops < 200 {
                drops += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let answer = slow.read_to_end().await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{beginning:?}: {answer}");
            let took = asked.elapsed();
            assert!(took < Duration::from_secs(3), "{beginning:?} took {took:?}");
            assert!(took >= PATIENCE || !answer.is_empty(), "{beginning:?} took {took:?}");
        }
        // One that has been served may be idle for longer, and no longer than that.
        let asked = Instant::now();
        let mut idle = Raw::say(&t.client, "GET /livez HTTP/1.1\r\nhost: h\r\n\r\n").await;
        assert!(idle.read_to_end().await.ends_with("alive\n"));
        assert!(asked.elapsed() >= PATIENCE * 3 && asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
        // And a poll is not idle.
        let worker = Worker::register(&t.client, "w", json!({})).await;
        assert_eq!(worker.poll_reply(2.0).await.ok()["tasks"], json!([]));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_drips_is_cut_off_and_did_nothing() {
    with_settings(impatient(PATIENCE), async |t| {
        let body = json!({"dag_name": "dag", "run_id": "slow"}).to_string();
        let asked = Instant::now();
        let mut slow = Raw::say(&t.client, &head("/v1/runs", body.len())).await;
        for byte in body[..body.len() - 1].chars() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if !slow.go_on(&byte.to_string()).await {
                break;
            }
        }
        assert_eq!(slow.read_to_end().await, "", "a broken connection is what tells to send the same again");
        assert!(asked.elapsed() >= PATIENCE && asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
        t.client.get("/v1/dags/dag/runs/slow").await.problem(404, "not-found");
        // One that comes steadily may take longer than that.
        let long = json!({"dag_name": "dag", "run_id": "long", "params": {"text": "x".repeat(12_000)}}).to_string();
        let mut steady = Raw::say(&t.client, &head("/v1/runs", long.len())).await;
        let asked = Instant::now();
        for part in long.as_bytes().chunks(1_000) {
            assert!(steady.go_on(std::str::from_utf8(part).unwrap()).await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(asked.elapsed() > PATIENCE);
        assert!(steady.read_to_end().await.starts_with("HTTP/1.1 201"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_nothing_is_cut_off() {
    with_settings(impatient(PATIENCE), async |t| {
        let question = "GET /openapi.json HTTP/1.1\r\nhost: h\r\n\r\n".repeat(300);
        let mut deaf = Raw::say(&t.client, &question).await;
        until("it is cut off", async || !deaf.go_on("GET /livez HTTP/1.1\r\nhost: h\r\n\r\n").await).await;
        assert_eq!(t.client.get("/livez").await.status, 200);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_house_says_so_and_takes_the_next_when_one_leaves() {
    let mut config = settings();
    config.http.max_connections = 3;
    with_settings(config, async |t| {
        let mut inside = Vec::new();
        for _ in 0..3 {
            inside.push(Raw::say(&t.client, "").await);
        }
        let answer = Raw::say(&t.client, "GET /livez HTTP/1.1\r\nhost: h\r\n\r\n").await.read_to_end().await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!((&body["code"], &body["action"]), (&json!("overloaded"), &json!("retry")));
        t.client.get("/livez").await.problem(503, "overloaded");
        drop(inside.pop());
        until("there is a seat", async || t.client.get("/livez").await.status == 200).await;
    })
    .await;
}

/// Files run out; what is open goes on, and so does everything once there are files again.
#[tokio::test(flavor = "multi_thread")]
async fn a_listener_without_files_waits_for_some() {
    let database = database::create().await;
    let mut service = Program::start_after(
        "ulimit -n 40; export ROADSTEAD_HTTP__HEADER_READ_TIMEOUT=2s",
        &["serve", "--listen", "127.0.0.1:0", "--database-url", &database.url],
    );
    let client = service.client().await;
    client.dispatch("before", json!({})).await.ok();
    let mut crowd = Vec::new();
    for _ in 0..100 {
        crowd.push(Raw::say(&client, "").await);
    }
    service.logged("no connection can be taken for now").await;
    assert_eq!(client.get("/livez").await.status, 200, "the connection that it has goes on");
    // Another waits in the queue behind those who say nothing, until they are cut off and there are files again, for
    // the database as well.
    let late = Client::new(client.url());
    until("all is well again", async || late.dispatch("behind", json!({})).await.status == 201).await;
    let complaints = service.log().matches("no connection can be taken for now").count();
    assert!(complaints < 100, "it spins: {complaints}");
    drop(crowd);
    service.stop().await;
    autopsy_of(&client, &database.url).await;
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_of_http_2_carries_a_hundred_requests_at_a_time() {
    with(async |t| {
        let http = reqwest::Client::builder().http2_prior_knowledge().no_proxy().build().unwrap();
        let workers = Worker::register_with(&t.client, "w", json!({"slots": 100})).await;
        let path = format!("{}/v1/workers/{}/poll", t.client.url(), workers.worker_id);
        let mut polls = JoinSet::new();
        for _ in 0..90 {
            let poll = http.post(&path).json(&json!({"session_id": workers.session_id, "wait_seconds": 30}));
            polls.spawn(async move { poll.send().await.unwrap().json::<Value>().await.unwrap() });
        }
        let answer = http.get(format!("{}/livez", t.client.url())).send().await.unwrap();
        assert_eq!((answer.version(), answer.status().as_u16()), (reqwest::Version::HTTP_2, 200));
        let polled = "SELECT count(*) FROM worker_session WHERE last_seen > started_at";
        until("they poll", async || t.count(polled).await == 1).await;
        t.client.dispatch("r", json!({})).await.ok();
        assert_eq!(polls.join_next().await.unwrap().unwrap()["tasks"][0]["run_id"], "r");
        polls.abort_all();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_spoken_with_a_certificate_and_only_then() {
    let folder = Folder::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let mut config = settings();
    config.http.tls_cert = Some(cert.clone().into());
    config.http.tls_key = Some(key.into());
    with_settings(config.clone(), async |t| {
        let trusted = reqwest::Certificate::from_pem(made.cert.pem().as_bytes()).unwrap();
        let http = reqwest::Client::builder().tls_certs_only([trusted]).no_proxy().build().unwrap();
        let url = t.client.url().replace("http://127.0.0.1", "https://localhost");
        let dispatched = http.post(format!("{url}/v1/runs")).json(&json!({"dag_name": "dag"})).send().await.unwrap();
        assert_eq!((dispatched.status().as_u16(), dispatched.version()), (201, reqwest::Version::HTTP_2));
        let plain = t.client.request(Method::GET, "/livez");
        assert!(t.client.try_send(plain).await.is_err());
    })
    .await;
    config.http.tls_key = Some(cert.into());
    let database = database::create().await;
    let refused = roadstead::server::Server::start(&config, &database.url).await.err().unwrap().to_string();
    assert!(refused.starts_with("TLS cannot be offered: cannot read "), "{refused}");
    database.drop().await;
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A refusal that does not need the body lets it come all the same: a stream that is reset behind its answer takes the
/// answer with it, for some clients.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_over_http_2_is_not_followed_by_a_reset() {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RESET: u8 = 3;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    with(async |t| {
        let address = t.client.url().strip_prefix("http://").unwrap();
        for (path, refused) in [("/nope", "404"), ("/v1/runs", "422"), ("/v1/workers/w/poll?x=1", "422")] {
            let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
            // POST, http, the path, an authority, and JSON.
            let mut head = vec![0x83, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
            head.extend(path.as_bytes());
            head.extend([0x01, 1, b'x', 0x0f, 0x10, 16]);
            head.extend(b"application/json");
            let opening =
                [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &[]), frame(HEADERS, 4, 1, &head)];
            socket.write_all(&opening.concat()).await.unwrap();
            socket.flush().await.unwrap();
            // The body comes a moment later, as it does where the network is no wire.
            tokio::time::sleep(Duration::from_millis(50)).await;
            socket.write_all(&[frame(DATA, 1, 1, b"{}"), frame(PING, 0, 0, &[7; 8])].concat()).await.unwrap();
            let (mut ended, mut pinged) = (false, false);
            while !(ended && pinged) {
                let mut head = [0; 9];
                socket.read_exact(&mut head).await.unwrap();
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                let mut payload = vec![0; usize::try_from(length).unwrap()];
                socket.read_exact(&mut payload).await.unwrap();
                assert_ne!(head[3], RESET, "{path}, which is to be refused with {refused}");
                ended |= matches!(head[3], DATA | HEADERS) && head[4] & 1 == 1;
                pinged |= head[3] == PING && head[4] == 1;
            }
            // What follows the answer has come by the answer to another ping.
            socket.write_all(&frame(PING, 0, 0, &[8; 8])).await.unwrap();
            let mut rest = [0; 17];
            socket.read_exact(&mut rest).await.unwrap();
            assert_eq!(rest[3], PING, "nothing came between: {rest:?}");
        }
    })
    .await;
}
