//! The feed of all events: pages, and a stream of the same events in the same order.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName};
use axum::response::IntoResponse;
use axum::response::sse::{Event as Frame, KeepAlive, Sse};
use futures_util::stream;

use super::extract::{Caller, Json, Query};
use super::problem::{FieldError, Problem, Verb, translate};
use super::wire::events::{Event, EventList, HowMuch, ListEvents, Which};
use crate::coordinator::feed::{EventFilter, Page};
use crate::coordinator::{Class, Coordinator, Error};

/// How many events a stream reads at a time.
const PAGE: i64 = 500;

/// How long a stream waits for events before it asks again; what it sends meanwhile are comments.
const WAIT: Duration = Duration::from_secs(50);

/// How often a silent stream sends a comment, so that nothing between it and its reader takes it for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

const LAST_EVENT_ID: &str = "last-event-id";

/// Proxies that buffer answers are asked not to.
const UNBUFFERED: (HeaderName, &str) = (HeaderName::from_static("x-accel-buffering"), "no");

fn problem(error: Error) -> Problem {
    translate(error, Verb::Run)
}

/// List events
///
/// Every event of the namespace, by position. Read on with `next_after` as `after`: no event is skipped or comes twice,
/// and those of one run come in its order. A page may be empty although more follows: `next_after` has moved then.
/// Problem of its own: `position-expired`.
#[utoipa::path(
    get,
    path = "/v1/events",
    operation_id = "listEvents",
    tag = "events",
    params(Which, HowMuch),
    responses((status = 200, description = "The events after the position.", body = EventList)),
)]
pub(super) async fn list_events(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Query(ListEvents { which, how_much }): Query<ListEvents>,
) -> Result<Json<EventList>, Problem> {
    let (after, filter) = (which.after, EventFilter::from(which));
    let read = coordinator.list_events(caller.namespace, after, &filter, how_much.limit, how_much.wait_seconds);
    Ok(Json(EventList::of_feed(caller.while_valid(read).await?.map_err(problem)?)))
}

/// Stream events
///
/// The events of listEvents as server-sent events, each with its position as `id`, its type as `event` and itself as
/// `data`. A reader that comes back with `Last-Event-ID` goes on after it. The stream ends when the service stops, and
/// when the token expires.
#[utoipa::path(
    get,
    path = "/v1/events/stream",
    operation_id = "streamEvents",
    tag = "events",
    params(
        Which,
        ("Last-Event-ID" = Option<String>, Header, nullable = false, description = "The last position read."),
    ),
    responses((status = 200, description = "A stream of events.", content_type = "text/event-stream", body = String)),
)]
pub(super) async fn stream_events(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    headers: HeaderMap,
    Query(which): Query<Which>,
) -> Result<impl IntoResponse, Problem> {
    let after = last_event_id(&headers)?.unwrap_or(which.after);
    let filter = EventFilter::from(which);
    // The first page is read before the stream begins, so that a position that cannot be had is a problem.
    let first = coordinator.list_events(caller.namespace, after, &filter, PAGE, Duration::ZERO).await;
    let mut reader = Reader { coordinator, caller, filter, after, read: VecDeque::new() };
    reader.take(first.map_err(problem)?);
    let events = stream::unfold(reader, async |mut reader| Some((reader.next().await?, reader)));
    let events = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive"));
    Ok(([UNBUFFERED], events))
}

/// The position that a reader names when it comes back.
fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, Problem> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let position =
        value.to_str().ok().and_then(|text| text.trim().parse::<i64>().ok()).filter(|position| *position >= 0);
    match position {
        Some(position) => Ok(Some(position)),
        None => Err(Problem::invalid(vec![FieldError::new("Last-Event-ID", "must be a position of this feed")])),
    }
}

/// One stream's place in the feed.
struct Reader {
    coordinator: Coordinator,
    caller: Caller,
    filter: EventFilter,
    after: i64,
    read: VecDeque<Frame>,
}

impl Reader {
    fn take(&mut self, page: Page) {
        self.after = page.seen;
        self.read.extend(page.entries.into_iter().map(|entry| {
            let position = entry.position;
            let event = Event::from(entry);
            let frame = Frame::default().id(position.to_string()).event(event.kind.clone());
            frame.json_data(event).unwrap_or_else(|_| Frame::default().comment("an event that is no JSON"))
        }));
    }

    /// The next frame; none when the stream is over: the service stops, the token has expired, or the feed cannot be
    /// read on. A reader comes back then, and is told why if it is told anything but events.
    async fn next(&mut self) -> Option<Result<Frame, Infallible>> {
        loop {
            if self.caller.check().is_err() {
                return None;
            }
            if let Some(frame) = self.read.pop_front() {
                return Some(Ok(frame));
            }
            if self.coordinator.is_closing() {
                return None;
            }
            // The answer has begun, so this is no longer part of its request.
            let page = self.coordinator.list_events(self.caller.namespace, self.after, &self.filter, PAGE, WAIT);
            match Class::Read.scope(self.caller.while_valid(page)).await {
                Ok(Ok(page)) => self.take(page),
                Err(_) => return None,
                Ok(Err(error)) => {
                    tracing::info!(%error, "a stream of events ends");
                    return None;
                }
            }
        }
    }
}
