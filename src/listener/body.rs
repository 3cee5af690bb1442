//! Bodies: a request's, which must come in time, and an answer's, with which its request ends.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep_until};

use super::pulse::InFlight;

/// What a body may come as slowly as, in bytes a second, once its patience is used up.
const LEAST_RATE: u32 = 8 * 1024;

/// A request's body with a deadline, which each byte moves on a little: one a second is not enough.
pub(super) struct Timed {
    body: Incoming,
    deadline: Instant,
    waiting: Option<Pin<Box<Sleep>>>,
    too_slow: Option<oneshot::Sender<()>>,
}

impl Timed {
    /// The body, and the word that it came too slowly, after which it never comes to its end.
    pub(super) fn new(body: Incoming, patience: Duration) -> (Self, oneshot::Receiver<()>) {
        let (too_slow, told) = oneshot::channel();
        (Self { body, deadline: Instant::now() + patience, waiting: None, too_slow: Some(too_slow) }, told)
    }
}

impl HttpBody for Timed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
            self.deadline += Duration::from_secs(1) * u32::try_from(bytes).unwrap_or(u32::MAX) / LEAST_RATE;
            return Poll::Ready(frame);
        }
        let deadline = self.deadline;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if waiting.deadline() != deadline {
            waiting.as_mut().reset(deadline);
        }
        ready!(waiting.as_mut().poll(context));
        if let Some(too_slow) = self.too_slow.take() {
            // Nobody to tell: the answer is on its way already.
            let _ = too_slow.send(());
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request's body that two have: the handler, who reads it if it wants to, and whoever sees to the rest.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<Timed>>);

/// How much of what a handler left of a body is read away, and for how long.
const REST: (usize, Duration) = (64 * 1024, Duration::from_millis(500));

impl Shared {
    pub(super) fn new(body: Timed) -> Self {
        Self(Arc::new(Mutex::new(body)))
    }

    fn body(&self) -> MutexGuard<'_, Timed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads away what the handler left of it, if that is little and comes soon. Over HTTP/2 what is not read is reset
    /// behind the answer, and there are clients that throw the answer away with it.
    pub(super) async fn read_away(mut self) {
        let rest = async {
            let mut left = REST.0;
            while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut self).poll_frame(context)).await {
                match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                    Some(less) => left = less,
                    None => return,
                }
            }
        };
        _ = tokio::time::timeout(REST.1, rest).await;
    }
}

impl HttpBody for Shared {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut *self.body()).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body().size_hint()
    }
}

/// An answer's body: when it has been taken or dropped, its request is over.
pub(super) struct Answer {
    body: Body,
    _in_flight: InFlight,
}

impl Answer {
    pub(super) const fn new(body: Body, in_flight: InFlight) -> Self {
        Self { body, _in_flight: in_flight }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
