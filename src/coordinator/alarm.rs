//! The sweeper's alarm: whoever makes something fall due before the sweeper would look by itself says so.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// When something falls due, as far as it was told since the last pass began. What is told is a hint: the pass finds
/// what is due, and one too many does no harm.
#[derive(Default)]
pub(super) struct Alarm {
    told: Mutex<Option<Instant>>,
    sooner: Notify,
}

impl Alarm {
    /// Something falls due after this time, and is committed.
    pub fn set(&self, after: Duration) {
        let at = Instant::now() + after;
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|told| at < told) {
            *told = Some(at);
            self.sooner.notify_one();
        }
    }

    /// A pass begins: it finds by itself what was told until now.
    pub fn reset(&self) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Completes after this time, or when something falls due before. Cancellation safe.
    pub async fn wait(&self, at_most: Duration) {
        let latest = Instant::now() + at_most;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(self.next(latest)) => return,
                () = self.sooner.notified() => {}
            }
        }
    }

    fn next(&self, latest: Instant) -> Instant {
        let told = *self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.map_or(latest, |told| told.min(latest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn it_is_set_to_the_first_that_falls_due() {
        let (alarm, now) = (Alarm::default(), Instant::now());
        assert_eq!(alarm.next(now + HOUR), now + HOUR);
        for minutes in [30, 20, 40] {
            alarm.set(Duration::from_secs(minutes * 60));
        }
        assert_eq!((alarm.next(now + HOUR) - now).as_secs(), 20 * 60);
        alarm.reset();
        assert_eq!(alarm.next(now + HOUR), now + HOUR, "a pass has seen to it");
    }

    #[tokio::test]
    async fn it_rings_for_what_is_told_before_the_wait_and_during_it() {
        let alarm = Alarm::default();
        alarm.set(Duration::ZERO);
        let rung = tokio::time::timeout(HOUR / 60, alarm.wait(HOUR)).await;
        assert!(rung.is_ok(), "told between the pass and the wait");
        alarm.reset();
        let telling = async {
            tokio::task::yield_now().await;
            alarm.set(Duration::from_millis(1));
        };
        let rung = async { tokio::join!(alarm.wait(HOUR), telling) };
        assert!(tokio::time::timeout(HOUR / 60, rung).await.is_ok(), "told during the wait");
    }
}
