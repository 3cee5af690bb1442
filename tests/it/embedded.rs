//! The embedded Postgres, with the Postgres installed on this machine; as root as well as any other user.

use std::fs;
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use roadstead::embedded::{Embedded, EmbeddedError, Settings};
use sqlx::{Connection, PgConnection, PgPool, Row};

use crate::harness::Folder;

impl Folder {
    fn settings(&self) -> Settings {
        Settings::new(self.path().join("data"))
    }

    async fn start(&self) -> Embedded {
        Embedded::start(self.settings()).await.unwrap()
    }
}

/// Waits until the condition holds; fails the test after a minute.
async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

async fn one(url: &str, query: &'static str) -> String {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let row = sqlx::query(query).fetch_one(&mut connection).await.unwrap();
    row.get(0)
}

async fn execute(url: &str, statement: &'static str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(statement).execute(&mut connection).await.unwrap();
}

fn kill_hard(pid: u32) {
    kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL).unwrap();
}

/// Also false for a zombie, which nobody may be there to reap.
fn lives(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

fn socket_dir(embedded: &Embedded) -> PathBuf {
    let folder = embedded.url().split("host=").nth(1).unwrap();
    PathBuf::from(folder.replace("%2F", "/"))
}

/// Waits until a new server can have the folder, and shows that it runs.
async fn until_free(folder: &Folder) {
    until("the folder is free", || async {
        match Embedded::start(folder.settings()).await {
            Ok(embedded) => {
                embedded.stop().await;
                true
            }
            Err(EmbeddedError::Locked { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    })
    .await;
}

const ROWS: &str = "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n";
const COUNT: &str = "SELECT count(*)::text FROM kept";

#[tokio::test]
async fn it_answers_safely_and_off_the_network() {
    let folder = Folder::new();
    let mut settings = folder.settings();
    settings.extra = vec![("work_mem".to_owned(), "5MB".to_owned())];
    let embedded = Embedded::start(settings).await.unwrap();
    assert_eq!(one(embedded.url(), "SELECT 'hello'").await, "hello");
    for (query, value) in [
        ("SHOW fsync", "on"),
        ("SHOW data_checksums", "on"),
        ("SHOW synchronous_commit", "on"),
        ("SHOW listen_addresses", ""),
        ("SHOW shared_buffers", "64MB"),
        ("SHOW max_connections", "200"),
        ("SHOW log_min_error_statement", "panic"),
        ("SHOW work_mem", "5MB"),
        ("SHOW server_encoding", "UTF8"),
        ("SELECT current_user::text", "roadstead"),
        ("SELECT current_database()::text", "roadstead"),
    ] {
        assert_eq!(one(embedded.url(), query).await, value, "{query}");
    }
    assert!(one(embedded.url(), "SHOW server_version").await.starts_with(embedded.version()));
    let socket = socket_dir(&embedded);
    assert!(socket.starts_with(embedded.data_dir()), "{socket:?}");
    assert_eq!(fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o700);
    embedded.stop().await;
}

#[tokio::test]
async fn data_survives_a_stop_and_the_folder_is_left_clean() {
    let folder = Folder::new();
    let embedded = folder.start().await;
    execute(embedded.url(), ROWS).await;
    let (pid, socket) = (embedded.pid().unwrap(), socket_dir(&embedded));
    let data = embedded.data_dir().to_owned();
    embedded.stop().await;
    assert!(!lives(pid));
    assert!(!socket.exists());
    assert!(!data.join("pg/postmaster.pid").exists(), "a fast shutdown leaves none");
    let embedded = folder.start().await;
    assert_eq!(one(embedded.url(), COUNT).await, "1000");
    embedded.stop().await;
}

#[tokio::test]
async fn a_second_server_on_the_folder_is_refused_by_name() {
    let folder = Folder::new();
    let embedded = folder.start().await;
    let refused = Embedded::start(folder.settings()).await.unwrap_err();
    assert!(matches!(refused, EmbeddedError::Locked { .. }), "{refused:?}");
    assert!(refused.to_string().contains(embedded.data_dir().to_str().unwrap()), "{refused}");
    assert_eq!(refused.exit_code(), 75);
    assert_eq!(one(embedded.url(), "SELECT 'unharmed'").await, "unharmed");
    embedded.stop().await;
}

#[tokio::test]
async fn killed_postgres_comes_back_for_the_same_pool() {
    let folder = Folder::new();
    let embedded = folder.start().await;
    let pool = PgPool::connect(embedded.url()).await.unwrap();
    sqlx::raw_sql(ROWS).execute(&pool).await.unwrap();
    let killed = embedded.pid().unwrap();
    kill_hard(killed);
    until("Postgres is back", || async { embedded.pid().is_some_and(|pid| pid != killed) }).await;
    until("the pool answers", || async { sqlx::query(COUNT).fetch_one(&pool).await.is_ok() }).await;
    let row = sqlx::query(COUNT).fetch_one(&pool).await.unwrap();
    assert_eq!(row.get::<String, _>(0), "1000");
    pool.close().await;
    embedded.stop().await;
}

#[tokio::test]
async fn it_is_given_up_when_it_ends_too_often() {
    let folder = Folder::new();
    let mut settings = folder.settings();
    settings.restarts = 1;
    let embedded = Embedded::start(settings).await.unwrap();
    let first = embedded.pid().unwrap();
    kill_hard(first);
    until("Postgres is back", || async { embedded.pid().is_some_and(|pid| pid != first) }).await;
    kill_hard(embedded.pid().unwrap());
    let failed = tokio::time::timeout(Duration::from_mins(1), embedded.failed()).await.unwrap();
    assert!(matches!(*failed, EmbeddedError::GaveUp { times: 2, .. }), "{failed:?}");
    assert_eq!(embedded.pid(), None);
    embedded.stop().await;
}

#[tokio::test]
async fn dropped_without_a_stop_it_stops_all_the_same() {
    let folder = Folder::new();
    let embedded = folder.start().await;
    let pid = embedded.pid().unwrap();
    drop(embedded);
    until("Postgres is gone", || async { !lives(pid) }).await;
    until_free(&folder).await;
}

#[tokio::test]
async fn a_start_that_is_given_up_leaves_the_folder_usable() {
    let folder = Folder::new();
    let start = Embedded::start(folder.settings());
    assert!(tokio::time::timeout(Duration::from_millis(200), start).await.is_err(), "initdb takes longer");
    let data_dir = folder.settings().data_dir;
    until("the lock is free", || async {
        fs::File::open(data_dir.join("server.lock")).is_ok_and(|lock| lock.try_lock().is_ok())
    })
    .await;
    assert!(!data_dir.join("pg").exists(), "initdb was not waited for");
    until_free(&folder).await;
    let left = fs::read_dir(folder.path().join("data")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_str().unwrap().contains('-')).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_folder_without_postgres_is_refused_with_ways_out() {
    let folder = Folder::new();
    let mut settings = folder.settings();
    settings.bin_dir = Some(folder.path().join("no-such-folder"));
    let refused = Embedded::start(settings).await.unwrap_err();
    let text = refused.to_string();
    for way_out in ["no-such-folder", "apt install", "dnf install", "brew install", "--pg-bin-dir", "DATABASE_URL"] {
        assert!(text.contains(way_out), "{way_out} is missing in: {text}");
    }
    assert_eq!(refused.exit_code(), 69);
}

#[tokio::test]
async fn data_of_another_major_is_refused_with_the_one_it_needs() {
    let folder = Folder::new();
    let embedded = folder.start().await;
    let version_file = embedded.data_dir().join("pg/PG_VERSION");
    embedded.stop().await;
    // A version that never was, so that no machine has it.
    fs::write(&version_file, "11\n").unwrap();
    let refused = Embedded::start(folder.settings()).await.unwrap_err();
    assert!(matches!(refused, EmbeddedError::OtherMajor { needed: 11, .. }), "{refused:?}");
    assert!(refused.to_string().contains("belongs to PostgreSQL 11"), "{refused}");
    assert_eq!(refused.exit_code(), 1);
}

#[tokio::test]
async fn a_foreign_folder_in_the_place_of_the_cluster_is_left_alone() {
    let folder = Folder::new();
    let photo = folder.path().join("data/pg/photo");
    fs::create_dir_all(photo.parent().unwrap()).unwrap();
    fs::write(&photo, "x").unwrap();
    let refused = Embedded::start(folder.settings()).await.unwrap_err();
    assert!(matches!(refused, EmbeddedError::NotACluster { .. }), "{refused:?}");
    assert!(photo.exists());
}

#[tokio::test]
async fn a_deep_data_folder_gets_its_socket_elsewhere() {
    let folder = Folder::new();
    let deep = folder.path().join("a".repeat(90)).join("data");
    let embedded = Embedded::start(Settings::new(&deep)).await.unwrap();
    assert_eq!(one(embedded.url(), "SELECT 'hello'").await, "hello");
    let socket = socket_dir(&embedded);
    assert!(!socket.starts_with(&deep), "{socket:?}");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o700);
    embedded.stop().await;
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_parameter_that_postgres_refuses_is_told_in_its_words() {
    let folder = Folder::new();
    let mut settings = folder.settings();
    settings.shared_buffers = "many".to_owned();
    let refused = Embedded::start(settings).await.unwrap_err();
    assert!(matches!(refused, EmbeddedError::Start { .. }), "{refused:?}");
    assert!(refused.to_string().contains("shared_buffers"), "{refused}");
}

/// Where the process that is to be killed keeps its data; set for that process only.
const DATA_DIR: &str = "EMBEDDED_TEST_DATA_DIR";

/// A process with an embedded Postgres, to be killed.
struct Parent {
    process: Child,
    postgres: u32,
}

impl Parent {
    /// Starts this test binary again, for nothing but the helper below.
    fn start(data_dir: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "embedded::helper_to_be_killed", "--ignored", "--nocapture"])
            .env(DATA_DIR, data_dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let postgres = lines.find_map(|line| line.unwrap().split_once("postgres=")?.1.parse().ok());
        Self { process, postgres: postgres.expect("the helper tells the process id of Postgres") }
    }

    fn kill_hard(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
#[ignore = "run by other tests, in a process of its own"]
async fn helper_to_be_killed() {
    let Some(data_dir) = std::env::var_os(DATA_DIR) else {
        return;
    };
    let embedded = Embedded::start(Settings::new(data_dir)).await.unwrap();
    execute(embedded.url(), ROWS).await;
    println!("\npostgres={}", embedded.pid().unwrap());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn when_its_parent_is_killed_postgres_stops_in_good_order() {
    let folder = Folder::new();
    let data_dir = folder.settings().data_dir;
    let mut parent = Parent::start(&data_dir);
    parent.kill_hard();
    until("Postgres is gone", || async { !lives(parent.postgres) }).await;
    assert!(!data_dir.join("pg/postmaster.pid").exists());
    let embedded = folder.start().await;
    assert_eq!(one(embedded.url(), COUNT).await, "1000");
    embedded.stop().await;
}

#[tokio::test]
async fn a_start_right_after_a_kill_waits_for_the_orphan() {
    let folder = Folder::new();
    let mut parent = Parent::start(&folder.settings().data_dir);
    parent.kill_hard();
    let embedded = folder.start().await;
    assert_ne!(embedded.pid(), Some(parent.postgres));
    assert_eq!(one(embedded.url(), COUNT).await, "1000");
    embedded.stop().await;
}

#[tokio::test]
async fn an_orphan_that_nobody_told_to_stop_is_stopped() {
    let folder = Folder::new();
    let embedded = folder.start().await;
    execute(embedded.url(), ROWS).await;
    let cluster = embedded.data_dir().join("pg");
    embedded.stop().await;
    let notes = fs::read(folder.settings().data_dir.join("embedded.json")).unwrap();
    let notes: serde_json::Value = serde_json::from_slice(&notes).unwrap();
    let owner = fs::metadata(&cluster).unwrap();
    let mut orphan = Command::new(Path::new(notes["bin_dir"].as_str().unwrap()).join("postgres"));
    orphan.arg("-D").arg(&cluster).args(["-c", "listen_addresses=", "-k"]).arg(&cluster);
    if nix::unistd::geteuid().is_root() {
        orphan.uid(owner.uid()).gid(owner.gid());
    }
    let mut orphan = orphan.current_dir("/").stderr(Stdio::null()).spawn().unwrap();
    let pid_file = cluster.join("postmaster.pid");
    until("the orphan is up", || async { fs::read_to_string(&pid_file).is_ok_and(|text| text.contains("ready")) })
        .await;
    // Nobody reaps it until the end of the test: a zombie, as in a container without an init process.
    let embedded = folder.start().await;
    assert!(orphan.try_wait().unwrap().is_some_and(|status| status.success()), "it was asked politely");
    assert_eq!(one(embedded.url(), COUNT).await, "1000");
    embedded.stop().await;
}

#[tokio::test]
async fn killed_together_they_recover_even_when_the_number_is_taken() {
    let folder = Folder::new();
    let data_dir = folder.settings().data_dir;
    let mut parent = Parent::start(&data_dir);
    // Stopped first, so that it cannot start Postgres again in between.
    kill(Pid::from_raw(parent.process.id().try_into().unwrap()), Signal::SIGSTOP).unwrap();
    kill_hard(parent.postgres);
    parent.kill_hard();
    let pid_file = data_dir.join("pg/postmaster.pid");
    let text = fs::read_to_string(&pid_file).unwrap();
    let (_, rest) = text.split_once('\n').unwrap();
    // Not our own number: Postgres knows that its parent is no other server.
    let mut bystander = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    fs::write(&pid_file, format!("{}\n{rest}", bystander.id())).unwrap();
    let embedded = folder.start().await;
    assert_eq!(one(embedded.url(), COUNT).await, "1000");
    let runs = fs::read_dir(&data_dir)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with("run-"));
    assert_eq!(runs.count(), 1, "the socket folder of the killed one is removed");
    assert_eq!(bystander.try_wait().unwrap(), None, "the process of that number is left alone");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    embedded.stop().await;
}
