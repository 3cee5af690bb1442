//! What a connection is doing, and since when: the clocks by which a client that does its part too slowly is cut off.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::config::Http;

/// How long a client that does not read is waited for once the service stops.
const FAREWELL: Duration = Duration::from_secs(1);

/// The state of one connection, told by its stream and by its requests.
#[derive(Debug)]
pub(super) struct Pulse(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Requests whose answers are not complete.
    in_flight: usize,
    /// Whether there was any request yet.
    served: bool,
    /// Many requests share the connection: what arrives while it is idle may be a ping, not the head of a request.
    shared: bool,
    idle_since: Instant,
    head_since: Option<Instant>,
    blocked_since: Option<Instant>,
    /// The service stops.
    leaving_since: Option<Instant>,
}

/// Why a connection is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overdue {
    /// Nothing was asked for since it was opened, or the head of a request does not come to its end.
    Head,
    /// Nothing more was asked for.
    Idle,
    /// The client does not read.
    Stalled,
}

/// A request whose answer is not complete; it is when this is dropped.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Pulse>);

impl Pulse {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            in_flight: 0,
            served: false,
            shared: false,
            idle_since: Instant::now(),
            head_since: None,
            blocked_since: None,
            leaving_since: None,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes have arrived.
    pub(super) fn read(&self) {
        let mut state = self.state();
        if state.in_flight == 0 && !state.shared {
            state.head_since.get_or_insert_with(Instant::now);
        }
    }

    /// Bytes have been taken, or would not be.
    pub(super) fn wrote(&self, taken: bool) {
        let mut state = self.state();
        if taken {
            state.blocked_since = None;
        } else {
            state.blocked_since.get_or_insert_with(Instant::now);
        }
    }

    /// The head of a request is complete.
    pub(super) fn begin(self: &Arc<Self>, shared: bool) -> InFlight {
        let mut state = self.state();
        state.in_flight += 1;
        state.served = true;
        state.shared = shared;
        state.head_since = None;
        drop(state);
        InFlight(Arc::clone(self))
    }

    /// The service stops: whoever does not read has little time left. To be followed by a new wait for [`Self::overdue`].
    pub(super) fn leave(&self) {
        self.state().leaving_since.get_or_insert_with(Instant::now);
    }

    /// Completes when the client has been waited for long enough. Cancellation safe.
    pub(super) async fn overdue(&self, limits: &Http) -> Overdue {
        // No clock that starts after a look can run out before this has passed.
        let mut shortest = limits.header_read_timeout.min(limits.write_timeout).min(limits.keep_alive_timeout);
        if self.state().leaving_since.is_some() {
            shortest = shortest.min(FAREWELL);
        }
        loop {
            let now = Instant::now();
            let next = match self.state().clock(limits) {
                Some((at, why)) if at <= now => return why,
                Some((at, _)) => at.min(now + shortest),
                None => now + shortest,
            };
            tokio::time::sleep_until(next).await;
        }
    }
}

impl State {
    /// The clock that runs, and what it means when it has run out.
    fn clock(&self, limits: &Http) -> Option<(Instant, Overdue)> {
        let ends = |since: Instant, patience: Duration, why| Some((since + patience, why));
        if let Some(since) = self.blocked_since {
            let patient = since + limits.write_timeout;
            let hurried = self.leaving_since.map(|leaving| since.max(leaving) + FAREWELL);
            return Some((hurried.map_or(patient, |hurried| hurried.min(patient)), Overdue::Stalled));
        }
        if self.in_flight > 0 {
            return None;
        }
        match self.head_since {
            Some(since) => ends(since, limits.header_read_timeout, Overdue::Head),
            None if self.served => ends(self.idle_since, limits.keep_alive_timeout, Overdue::Idle),
            None => ends(self.idle_since, limits.header_read_timeout, Overdue::Head),
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.in_flight -= 1;
        if state.in_flight == 0 {
            state.idle_since = Instant::now();
            state.head_since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Flags};

    fn limits() -> Http {
        Config::load(None, std::iter::empty(), &Flags::default()).unwrap().http
    }

    /// Which clock runs, and how many seconds it takes from `since`.
    fn clock(pulse: &Pulse, since: Instant) -> Option<(Overdue, u64)> {
        let (at, why) = pulse.state().clock(&limits())?;
        Some((why, (at + Duration::from_millis(500) - since).as_secs()))
    }

    #[test]
    fn silence_is_borne_for_ten_seconds_before_the_first_request_and_for_75_after_it() {
        let (pulse, now) = (Pulse::new(), Instant::now());
        assert_eq!(clock(&pulse, now), Some((Overdue::Head, 10)));
        drop(pulse.begin(false));
        assert_eq!(clock(&pulse, now), Some((Overdue::Idle, 75)));
    }

    #[test]
    fn a_head_has_ten_seconds_from_its_first_byte() {
        let (pulse, now) = (Pulse::new(), Instant::now());
        drop(pulse.begin(false));
        pulse.read();
        assert_eq!(clock(&pulse, now), Some((Overdue::Head, 10)));
        let before = pulse.state().clock(&limits());
        pulse.read();
        assert_eq!(pulse.state().clock(&limits()), before, "no byte after the first gives it more time");
    }

    #[test]
    fn a_request_may_take_as_long_as_it_takes_while_its_client_reads() {
        let (pulse, now) = (Pulse::new(), Instant::now());
        let parked = pulse.begin(false);
        pulse.read();
        assert_eq!(clock(&pulse, now), None);
        pulse.wrote(false);
        assert_eq!(clock(&pulse, now), Some((Overdue::Stalled, 30)));
        pulse.wrote(true);
        assert_eq!(clock(&pulse, now), None);
        drop(parked);
        assert_eq!(clock(&pulse, now), Some((Overdue::Idle, 75)));
    }

    #[test]
    fn who_does_not_read_has_a_second_when_the_service_stops() {
        let (pulse, now) = (Pulse::new(), Instant::now());
        let _stream = pulse.begin(false);
        pulse.leave();
        assert_eq!(clock(&pulse, now), None, "one that reads is not hurried");
        pulse.wrote(false);
        assert_eq!(clock(&pulse, now), Some((Overdue::Stalled, 1)));
    }

    #[test]
    fn pings_of_a_shared_connection_are_no_heads() {
        let (pulse, now) = (Pulse::new(), Instant::now());
        drop(pulse.begin(true));
        pulse.read();
        assert_eq!(clock(&pulse, now), Some((Overdue::Idle, 75)));
    }
}
