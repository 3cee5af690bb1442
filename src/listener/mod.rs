//! The front door: takes connections, gives each a task, and cuts off who does not do their part.
//!
//! A client costs a seat, a task and some memory for as long as it is connected; each wait for it has an end, and none
//! of it holds a connection to the database. Bounds are settings under `http`, see [`crate::config::Http`].

mod body;
mod connection;
mod pulse;
mod seats;
mod stream;
mod tls;

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Http;
use crate::http;
use seats::Seats;
pub use tls::TlsError;

/// How long to wait when the system has no means for another connection. Clients wait in its queue meanwhile.
const WITHOUT_MEANS: Duration = Duration::from_millis(100);

/// How many clients at a time are told that there is no seat for them; the others just see their connection close.
const TOLD: usize = 256;

/// How long telling it may take.
const TELLING: Duration = Duration::from_secs(1);

/// A listener with all that its connections need.
pub struct Door {
    router: Router,
    limits: Http,
    protocols: Builder<TokioExecutor>,
    tls: Option<TlsAcceptor>,
    seats: Arc<Seats>,
    closing: CancellationToken,
    cut: CancellationToken,
}

impl Door {
    /// Makes ready to serve. When `closing` is cancelled no more connections are taken and those there are end after
    /// what is under way; when `cut` is, they end at once.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn new(
        router: Router,
        limits: Http,
        closing: CancellationToken,
        cut: CancellationToken,
    ) -> Result<Arc<Self>, TlsError> {
        Ok(Arc::new(Self {
            router,
            protocols: connection::protocols(),
            tls: tls::acceptor(&limits)?,
            seats: Seats::new(limits.max_connections, limits.max_connections_per_address),
            limits,
            closing,
            cut,
        }))
    }

    /// Whether clients must speak TLS.
    #[must_use]
    pub const fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Takes connections until the service stops, then waits for them.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        let connections = TaskTracker::new();
        let told = Arc::new(Semaphore::new(TOLD));
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.closing.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    if let Some(seat) = self.seats.take(peer.ip()) {
                        let door = Arc::clone(&self);
                        connections.spawn(async move {
                            connection::serve(stream, &door).await;
                            drop(seat);
                        });
                        continue;
                    }
                    tracing::debug!(%peer, "there is no seat for another connection");
                    if let (None, Ok(told)) = (&self.tls, Arc::clone(&told).try_acquire_owned()) {
                        connections.spawn(async move {
                            let _ = tokio::time::timeout(TELLING, turn_away(stream)).await;
                            drop(told);
                        });
                    }
                }
                Err(error) => self.refused(&error).await,
            }
        }
        drop(listener);
        connections.close();
        connections.wait().await;
    }

    /// A connection could not be taken: that one went away, or the system has no means for any.
    async fn refused(&self, error: &io::Error) {
        if matches!(
            error.kind(),
            ErrorKind::ConnectionRefused | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset
        ) {
            return;
        }
        tracing::warn!(%error, "no connection can be taken for now");
        tokio::select! {
            () = tokio::time::sleep(WITHOUT_MEANS) => {}
            () = self.closing.cancelled() => {}
        }
    }
}

/// Says that the service is full. Only to a client that has asked for something: an answer without a request is no
/// answer to most.
async fn turn_away(mut stream: TcpStream) -> io::Result<()> {
    let mut thrown_away = [0; 4096];
    if stream.read(&mut thrown_away).await? == 0 {
        return Ok(());
    }
    stream.write_all(http::full().as_bytes()).await?;
    stream.shutdown().await?;
    // Closed with the rest of its request unread, the connection would be reset, and the answer with it.
    while stream.read(&mut thrown_away).await? > 0 {}
    Ok(())
}
