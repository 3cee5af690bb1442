//! One embedded Postgres for the whole test binary, and a migrated database for each test, copied from a template.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use roadstead::embedded::{Embedded, Settings};
use roadstead::store::{migrate, pool};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::runtime::Runtime;

/// A test's database.
pub struct Database {
    pub url: String,
    name: String,
}

/// Creates a database with the schema.
pub async fn create() -> Database {
    create_from("template_roadstead").await
}

/// Creates a database with nothing in it.
pub async fn create_empty() -> Database {
    create_from("template0").await
}

async fn create_from(template: &str) -> Database {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let server = server();
    let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let statement = format!("CREATE DATABASE {name} TEMPLATE {template}");
    run(&server.url, statement).await;
    Database { url: server.url_of(&name), name }
}

impl Database {
    /// Removes it, and with it whoever is still connected.
    pub async fn drop(self) {
        run(&server().url, format!("DROP DATABASE {} WITH (FORCE)", self.name)).await;
    }
}

/// Creating and dropping databases copies files: one at a time is as fast and does not fail on a busy template.
static COPYING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn run(url: &str, statement: String) {
    let _one_at_a_time = COPYING.lock().await;
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

struct Shared {
    url: String,
    /// Kept running by a runtime of its own, since each test's ends with the test.
    _runtime: Runtime,
    _embedded: Mutex<Embedded>,
}

impl Shared {
    fn url_of(&self, name: &str) -> String {
        self.url.replace("/roadstead?", &format!("/{name}?"))
    }
}

/// The shared server, started by the first test that needs it. It ends with the process, which it is told by the
/// kernel; the next run clears the folder away.
fn server() -> &'static Shared {
    static SERVER: OnceLock<Shared> = OnceLock::new();
    SERVER.get_or_init(|| std::thread::spawn(start).join().expect("the shared PostgreSQL starts"))
}

fn start() -> Shared {
    clear_old_folders();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let embedded = runtime.block_on(async {
        let mut settings = Settings::new(folder(std::process::id()));
        settings.max_connections = 400;
        let embedded = Embedded::start(settings).await.unwrap();
        let mut connection = PgConnection::connect(embedded.url()).await.unwrap();
        sqlx::raw_sql("CREATE DATABASE template_roadstead").execute(&mut connection).await.unwrap();
        let template = pool::open(&embedded.url().replace("/roadstead?", "/template_roadstead?")).unwrap();
        migrate::run(&template).await.unwrap();
        template.close().await;
        embedded
    });
    Shared { url: embedded.url().to_owned(), _runtime: runtime, _embedded: Mutex::new(embedded) }
}

fn folder(pid: u32) -> PathBuf {
    std::env::temp_dir().join(format!("roadstead-it-{pid}"))
}

/// Removes what earlier runs left whose process is gone.
fn clear_old_folders() {
    for entry in std::fs::read_dir(std::env::temp_dir()).unwrap().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix("roadstead-it-")).and_then(|pid| pid.parse().ok());
        if pid.is_some_and(|pid: u32| !PathBuf::from(format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
