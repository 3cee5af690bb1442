//! A Postgres of our own: found, initialised, started, watched and stopped with the service.
//!
//! It speaks through a Unix socket in a folder closed to other users, and listens on no network. Settings follow the
//! promise that a held run survives: `fsync` and data checksums are on.

mod account;
mod child;
mod cluster;
mod error;
mod fetch;
mod find;
mod folder;
mod lock;
mod pidfile;
mod server;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection};
use tokio::sync::{oneshot, watch};

use child::Wish;
pub use error::EmbeddedError;
pub use find::program;
use server::State;

/// The name of the superuser and of the database.
const NAME: &str = "roadstead";

/// How to run the embedded Postgres.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The folder for all of it; made when missing.
    pub data_dir: PathBuf,
    /// The folder with `postgres` and `initdb`; searched for when absent.
    pub bin_dir: Option<PathBuf>,
    /// The folder that programs are fetched into, once, when the search finds none; they are not when it is absent.
    /// Default: `roadstead` in the user's folder for caches, as root in `/var/cache`.
    pub cache_dir: Option<PathBuf>,
    /// Memory for cached pages, in Postgres's notation. Default `64MB`.
    pub shared_buffers: String,
    /// Connections at a time. Default 200.
    pub max_connections: u32,
    /// Further parameters of Postgres. They win over ours, except over those that keep it off the network.
    pub extra: Vec<(String, String)>,
    /// How long a start may take, recovery included. Default 120 s.
    pub start_timeout: Duration,
    /// How many times in a row Postgres is started again after it ended by itself. Default 8.
    pub restarts: u32,
}

impl Settings {
    /// Defaults for everything but the folder.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            bin_dir: None,
            cache_dir: fetch::default_folder(),
            shared_buffers: "64MB".to_owned(),
            max_connections: 200,
            extra: Vec::new(),
            start_timeout: Duration::from_mins(2),
            restarts: 8,
        }
    }

    /// The parameters of the command line, where of two with the same name the last one counts.
    fn parameters(&self, socket_dir: &str) -> Vec<(String, String)> {
        let defaults = [
            ("cluster_name", NAME),
            ("shared_buffers", &self.shared_buffers),
            ("max_connections", &self.max_connections.to_string()),
            ("fsync", "on"),
            ("full_page_writes", "on"),
            ("synchronous_commit", "on"),
            // A plan that was made on empty tables, where every index looks alike, is kept until they are analyzed.
            ("autovacuum_naptime", "5s"),
            ("log_destination", "stderr"),
            ("logging_collector", "off"),
            ("log_timezone", "UTC"),
            // Statements carry what people dispatched; none of it belongs in a log.
            ("log_statement", "none"),
            ("log_min_duration_statement", "-1"),
            ("log_min_error_statement", "panic"),
        ];
        // A comma would end the first of several folders, a quoted one does not.
        let socket_dir = format!("\"{}\"", socket_dir.replace('"', "\"\""));
        let fixed = [
            ("listen_addresses", ""),
            ("port", "5432"),
            ("unix_socket_directories", &socket_dir),
            ("unix_socket_permissions", "0700"),
        ];
        let own = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            pairs.collect::<Vec<_>>()
        };
        [own(&defaults), self.extra.clone(), own(&fixed)].concat()
    }
}

/// A running Postgres. Dropped without [`Embedded::stop`] it is told to stop as well, but nobody waits for that.
#[derive(Debug)]
pub struct Embedded {
    url: String,
    version: String,
    data_dir: PathBuf,
    states: watch::Receiver<State>,
    /// Kept for its being dropped: that is the word to stop.
    wish: mpsc::Sender<Infallible>,
}

impl Embedded {
    /// Starts Postgres on the data folder, making the cluster and the database `roadstead` when they are missing.
    ///
    /// Takes seconds the first time, a tenth of one later, and longer after a crash: see `start_timeout`. When the
    /// future is dropped, all that it began is stopped in the background.
    ///
    /// # Errors
    ///
    /// See [`EmbeddedError`]; its [`exit_code`](EmbeddedError::exit_code) is meant for the process.
    pub async fn start(settings: Settings) -> Result<Self, EmbeddedError> {
        let (wish, wished) = mpsc::channel();
        let (tell_state, states) = watch::channel(State::Down);
        let (tell_booted, booted) = oneshot::channel();
        let data_dir = settings.data_dir.clone();
        std::thread::Builder::new()
            .name("embedded-pg".to_owned())
            .spawn(move || server::run(settings, Wish(wished), &tell_state, tell_booted))
            .map_err(error::io("start a thread for", &data_dir))?;
        let booted = booted.await.unwrap_or(Err(EmbeddedError::Abandoned))?;
        let url = url(&booted.socket_dir);
        let embedded = Self { url, version: booted.version, data_dir: booted.folder.root().to_owned(), states, wish };
        create_database(&embedded.url).await.map_err(EmbeddedError::Connect)?;
        tracing::info!(
            version = embedded.version,
            folder = %embedded.data_dir.display(),
            "embedded Postgres is up; set DATABASE_URL to use a server of your own"
        );
        Ok(embedded)
    }

    /// Where to connect. Stays the same when Postgres is started again after a crash, but not over [`Embedded::stop`].
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The version of Postgres, such as `15.16`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The data folder's absolute path.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The process id of the postmaster; `None` while it is being started again or is given up.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        match *self.states.borrow() {
            State::Up(pid) => Some(pid),
            State::Down | State::Stopped | State::Failed(_) => None,
        }
    }

    /// Waits until Postgres has ended and is not started any more. Cancellation safe; for a `select!` beside the server.
    pub async fn failed(&self) -> Arc<EmbeddedError> {
        let mut states = self.states.clone();
        let state = states.wait_for(|state| matches!(state, State::Failed(_) | State::Stopped)).await;
        match state.as_deref() {
            Ok(State::Failed(error)) => Arc::clone(error),
            _ => Arc::new(EmbeddedError::Abandoned),
        }
    }

    /// Stops Postgres and waits until it is gone and the data folder is free: a fast shutdown, which breaks open
    /// connections, and after 30 s a hard one. Close the pools first.
    ///
    /// When the future is dropped, the stop goes on in the background.
    pub async fn stop(self) {
        let Self { wish, mut states, .. } = self;
        drop(wish);
        // An error means that the watching thread is gone, and with it, by its parent-death signal, Postgres.
        let _ = states.wait_for(|state| matches!(state, State::Stopped | State::Failed(_))).await;
    }
}

/// Port and SSL mode are named because the environment (`PGPORT`, `PGSSLMODE`) would fill them in otherwise.
fn url(socket_dir: &Path) -> String {
    let folder = socket_dir.as_os_str().as_encoded_bytes().iter().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(*byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    format!("postgres://{NAME}@localhost:5432/{NAME}?sslmode=disable&host={}", folder.collect::<String>())
}

async fn create_database(url: &str) -> Result<(), sqlx::Error> {
    let options = PgConnectOptions::from_str(url)?.database("postgres").disable_statement_logging();
    let mut connection = options.connect().await?;
    let found = sqlx::query("SELECT FROM pg_database WHERE datname = 'roadstead'");
    if found.fetch_optional(&mut connection).await?.is_none() {
        sqlx::query("CREATE DATABASE roadstead").execute(&mut connection).await?;
    }
    connection.close().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_survives_any_folder() {
        let url = url(Path::new("/srv/a b/ü&/run-1"));
        assert_eq!(
            url,
            "postgres://roadstead@localhost:5432/roadstead?sslmode=disable&host=%2Fsrv%2Fa%20b%2F%C3%BC%26%2Frun-1"
        );
    }

    #[test]
    fn extra_parameters_win_but_open_no_network() {
        let mut settings = Settings::new("/data");
        settings.extra =
            ["work_mem", "shared_buffers", "listen_addresses"].map(|name| (name.to_owned(), "*".to_owned())).into();
        let parameters = settings.parameters("/run");
        let last = |name: &str| parameters.iter().rfind(|(found, _)| found == name).map(|(_, value)| value.as_str());
        assert_eq!(last("work_mem"), Some("*"));
        assert_eq!(last("shared_buffers"), Some("*"));
        assert_eq!(last("listen_addresses"), Some(""));
        assert_eq!(last("fsync"), Some("on"));
    }
}
