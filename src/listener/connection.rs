//! One connection, from its first byte to its last.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tower::ServiceExt as _;

use super::body::{Answer, Shared, Timed};
use super::pulse::{Overdue, Pulse};
use super::stream::Watched;
use super::{Door, tls};
use crate::http;

/// The most headers of a request. What exceeds it, or one of the next two, is refused without a problem document: they
/// are twice what the interface takes, which refuses with one.
const MAX_HEADERS: usize = 2 * http::MAX_HEADERS;

/// The most bytes of a request's headers where the protocol counts them alone.
const MAX_HEADER_BYTES: u32 = 2 * http::MAX_HEAD_BYTES;

/// The most bytes of a request's head, and of an answer that waits to be read.
const MAX_HEAD_BYTES: usize = MAX_HEADER_BYTES as usize;

/// The most requests at a time on a connection that many share.
const MAX_STREAMS: u32 = 100;

/// How often a shared connection with requests under way is asked whether anybody is there, and how long that may take.
const PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// How long an idle client may take to hear that its connection ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// A body came too slowly. The connection is closed, or the stream reset, without an answer: that is what tells clients
/// to send the same again.
#[derive(Debug, thiserror::Error)]
#[error("the body came too slowly")]
struct TooSlow;

/// HTTP/1.1 and HTTP/2, whichever the client begins with. The waits for clients are not hyper's but those of [`Pulse`]:
/// hyper does not mind a connection that says nothing at all, and takes idleness for a slow head.
pub(super) fn protocols() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1);
    builder
}

/// Serves a client until it leaves, is overdue, or the service stops.
pub(super) async fn serve(stream: TcpStream, door: &Door) {
    // Answers are small, and somebody waits for each.
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = &door.tls else { return talk(stream, door).await };
    match tokio::time::timeout(tls::HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => talk(stream, door).await,
        Ok(Err(error)) => tracing::debug!(%error, "no TLS was agreed on"),
        Err(_) => tracing::debug!("a client took too long to agree on TLS"),
    }
}

async fn talk<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, door: &Door) {
    let pulse = Pulse::new();
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let shared = request.version() == hyper::Version::HTTP_2;
        let in_flight = pulse.begin(shared);
        let (parts, body) = request.into_parts();
        let (body, too_slow) = Timed::new(body, door.limits.body_read_timeout);
        let body = Shared::new(body);
        let rest = shared.then(|| body.clone());
        let answered = door.router.clone().oneshot(Request::from_parts(parts, Body::new(body)));
        async move {
            let answered: Result<Response, Infallible> = tokio::select! {
                biased;
                answered = answered => answered,
                Ok(()) = too_slow => {
                    tracing::debug!("a body came too slowly");
                    return Err(TooSlow);
                }
            };
            let Ok(response) = answered;
            if let Some(rest) = rest.filter(|rest| !rest.is_end_stream()) {
                rest.read_away().await;
            }
            Ok(response.map(|body| Answer::new(body, in_flight)))
        }
    });
    let io = TokioIo::new(Watched::new(stream, pulse.clone()));
    let mut connection = pin!(door.protocols.serve_connection(io, service));
    let mut overdue = pin!(pulse.overdue(&door.limits));
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(error, "a connection broke off");
                }
                return;
            }
            why = overdue.as_mut() => {
                tracing::debug!(?why, "a connection is cut off");
                if why == Overdue::Idle {
                    connection.as_mut().graceful_shutdown();
                    let _ = tokio::time::timeout(FAREWELL, connection.as_mut()).await;
                }
                return;
            }
            () = door.closing.cancelled(), if !stopping => {
                connection.as_mut().graceful_shutdown();
                pulse.leave();
                overdue.set(pulse.overdue(&door.limits));
                stopping = true;
            }
            () = door.cut.cancelled() => return,
        }
    }
}
