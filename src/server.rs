//! The service as a whole: started, serving, stopped.

use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::{Grant, Keyring};
use crate::config::{Auth, Config};
use crate::coordinator::{Coordinator, sweep::SweepMemory};
use crate::listener::{Door, TlsError};
use crate::store::migrate::{self, NotMigrated};
use crate::store::{Db, pool};
use crate::{background, http};

/// How long requests under way may take after a stop was asked for.
const DRAIN: Duration = Duration::from_secs(8);

/// Open files that are no connections of clients: the database's, logs, sockets, and what comes and goes.
const FILES_OF_OUR_OWN: usize = 64;

/// How long a start waits for its database.
const DATABASE: Duration = Duration::from_secs(30);

/// Why the service did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The database's URL cannot be read.
    #[error("the database's URL cannot be read: {0}")]
    Url(#[source] crate::store::Error),
    /// The database did not answer in time, or its schema could not be brought up to date.
    #[error("the database cannot be used: {0}")]
    Database(#[source] NotMigrated),
    /// A namespace of the tokens could not be made.
    #[error("the namespaces of the tokens cannot be made: {0}")]
    Namespace(#[source] crate::coordinator::Error),
    /// The first sweep failed.
    #[error("the first sweep failed: {0}")]
    Sweep(#[source] crate::coordinator::Error),
    /// The certificate or its key cannot be used.
    #[error("TLS cannot be offered: {0}")]
    Tls(#[from] TlsError),
    /// The address cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, #[source] std::io::Error),
}

/// A running service.
pub struct Server {
    address: SocketAddr,
    has_tls: bool,
    coordinator: Coordinator,
    db: Db,
    closing: CancellationToken,
    cut: CancellationToken,
    loops: TaskTracker,
    serving: TaskTracker,
}

impl Server {
    /// Whether the address can be listened on, for those who have much to do before they start.
    ///
    /// # Errors
    /// [`ServerError::Listen`].
    pub async fn check_address(config: &Config) -> Result<(), ServerError> {
        let listen = config.http.listen;
        TcpListener::bind(listen).await.map(drop).map_err(|error| ServerError::Listen(listen, error))
    }

    /// Brings the schema up to date, sweeps once, and listens.
    ///
    /// Raises the process's limit of open files to what the system allows it. The sweep comes first so that an outage is on record before anybody judges a clock across it.
    ///
    /// # Errors
    /// [`ServerError`]; nothing is left running then.
    pub async fn start(config: &Config, database_url: &str) -> Result<Self, ServerError> {
        let mut limits = config.http.clone();
        if let Some(most) = connections_for(allow_many_files()) {
            limits.max_connections = limits.max_connections.min(most);
        }
        let db = Db::open(database_url, config.database.max_connections).map_err(ServerError::Url)?;
        Box::pin(migrate_when_there(db.pool())).await?;
        let coordinator = Coordinator::new(db.clone(), config.coordinator.clone());
        let keyring = keyring(&coordinator, &config.auth).await.map_err(ServerError::Namespace)?;
        Box::pin(coordinator.sweep(&mut SweepMemory::default())).await.map_err(ServerError::Sweep)?;

        let listen = limits.listen;
        let listener = TcpListener::bind(listen).await.map_err(|error| ServerError::Listen(listen, error))?;
        let address = listener.local_addr().map_err(|error| ServerError::Listen(listen, error))?;
        let (closing, cut) = (CancellationToken::new(), CancellationToken::new());
        let door = Door::new(http::router(coordinator.clone(), keyring), limits, closing.clone(), cut.clone())?;
        let has_tls = door.has_tls();
        let loops = background::start(&coordinator, &closing);
        let serving = TaskTracker::new();
        serving.spawn(door.serve(listener));
        serving.close();
        tracing::info!(%address, tokens = config.auth.tokens.len(), "listening");
        if config.auth.tokens.is_empty() && !address.ip().to_canonical().is_loopback() {
            tracing::warn!(%address, "there are no tokens: everyone who reaches it is let in");
        }
        Ok(Self { address, has_tls, coordinator, db, closing, cut, loops, serving })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients reach it, as a URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}", if self.has_tls { "https" } else { "http" }, self.address)
    }

    /// Stops: polls answer empty, requests under way finish, within 10 s in all.
    pub async fn stop(self) {
        tracing::info!("stopping");
        self.coordinator.close();
        self.closing.cancel();
        if tokio::time::timeout(DRAIN, self.serving.wait()).await.is_err() {
            tracing::warn!("requests were still under way after {DRAIN:?}; they are cut");
        }
        self.cut.cancel();
        let rest = async {
            self.loops.wait().await;
            self.coordinator.finished().await;
            self.db.close().await;
        };
        if tokio::time::timeout(Duration::from_millis(1_500), rest).await.is_err() {
            tracing::warn!("transactions were still under way; the database decides them");
        }
        tracing::info!("stopped");
    }
}

/// The configured tokens, with the namespaces they belong to.
async fn keyring(coordinator: &Coordinator, auth: &Auth) -> Result<Keyring, crate::coordinator::Error> {
    let mut grants = Vec::new();
    for entry in auth.tokens.iter().cloned() {
        let namespace = coordinator.namespace(&entry.namespace).await?;
        let grant = Grant {
            name: Some(entry.name),
            namespace,
            scopes: entry.scopes,
            bounds: entry.labels,
            expires_at: entry.expires_at,
        };
        grants.push((entry.digest, grant));
    }
    Ok(Keyring::new(grants))
}

/// Lifts the limit of open files to the most that the system allows this process, and says how many that is. Every
/// parked poll is a connection, and the usual limit of 1,024, which is that low for the sake of old programs, would be
/// the number of workers.
fn allow_many_files() -> Option<u64> {
    let lifted = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most).map(|()| most));
    match lifted {
        Ok(most) => {
            tracing::debug!(most, "open files are allowed");
            Some(most)
        }
        Err(error) => {
            tracing::warn!(%error, "the limit of open files stays as it is");
            getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(now, _)| now)
        }
    }
}

/// How many connections of clients that many open files leave room for: a client without a file is refused by the
/// system, and so is the next connection to the database.
fn connections_for(files: Option<u64>) -> Option<usize> {
    let most = usize::try_from(files?).unwrap_or(usize::MAX).saturating_sub(FILES_OF_OUR_OWN).max(16);
    Some(most)
}

/// Brings the schema of a database up to date, as a start does, and no more.
///
/// # Errors
/// [`ServerError::Url`] and [`ServerError::Database`].
pub async fn migrate(database_url: &str) -> Result<(), ServerError> {
    let pool = pool::open(database_url).map_err(ServerError::Url)?;
    let migrated = migrate_when_there(&pool).await;
    pool.close().await;
    migrated
}

/// Applies migrations as soon as the database answers. For a database that does not answer there is a deadline; for
/// another replica that migrates there is none, since a migration takes as long as it takes.
async fn migrate_when_there(pool: &sqlx::PgPool) -> Result<(), ServerError> {
    let deadline = tokio::time::Instant::now() + DATABASE;
    loop {
        match migrate::run(pool).await {
            Ok(()) => return Ok(()),
            Err(NotMigrated::Locked(error)) => tracing::warn!(%error, "waiting for the migration of another"),
            Err(NotMigrated::Unavailable(error)) if tokio::time::Instant::now() < deadline => {
                tracing::warn!(%error, "waiting for the database");
            }
            Err(error) => return Err(ServerError::Database(error)),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
