//! The poll loop: as long as a slot is free, ask for work.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;
use tracing::{info, warn};

use super::{attempt, backoff::Backoff, holdings::Order, session::Session};
use crate::{
    cli::{
        ambient::now,
        client::{PollAnswer, Task, seconds},
    },
    ids::new_uuid,
};

/// The shortest time between two polls that bring nothing, should the service not name one.
const UNHURRIED: Duration = Duration::from_secs(1);

/// Polls until the session is over or the worker is asked to stop, and starts an attempt for every task.
pub(super) async fn poll(session: &Arc<Session>, attempts: &mut JoinSet<()>) {
    tokio::select! {
        biased;
        // The parked poll is dropped here. A claim that crossed it on the way comes back to the queue by itself.
        () = session.stop.soft_asked() => {}
        () = session.over() => {}
        () = poll_on(session, attempts) => {}
    }
}

/// Ends only when the session does.
async fn poll_on(session: &Arc<Session>, attempts: &mut JoinSet<()>) {
    let mut draining = false;
    loop {
        while attempts.try_join_next().is_some() {}
        let Ok(free) = session.slots.acquire().await else {
            return;
        };
        drop(free);
        // Only this loop takes slots: what is free now is still free when the answer comes.
        let asked_at = now();
        let Some(answer) = poll_once(session, session.slots.available_permits()).await else {
            return;
        };
        session.holdings.order(answer.lost.iter().map(String::as_str), Order::Lost);
        session.holdings.order(answer.cancel.iter().map(String::as_str), Order::Cancel);
        if answer.drain != draining {
            draining = answer.drain;
            info!(draining, "an operator changed the drain of this worker");
        }
        let nothing = answer.tasks.is_empty();
        for task in answer.tasks {
            take(session, attempts, task).await;
        }
        let pause = answer.poll_after_seconds.map(seconds);
        let unhurried = if nothing { UNHURRIED.saturating_sub(now() - asked_at) } else { Duration::ZERO };
        tokio::time::sleep(pause.unwrap_or(unhurried)).await;
    }
}

/// One poll, sent under the same id until it is answered: the claims of a lost answer are given again. `None` if the
/// session is over.
async fn poll_once(session: &Session, max_tasks: usize) -> Option<PollAnswer> {
    let poll_id = new_uuid().to_string();
    let mut backoff = Backoff::default();
    loop {
        let settings = &session.settings;
        let polled =
            session.client.poll(&settings.worker_id, &session.id, &poll_id, max_tasks, settings.max_wait).await;
        match polled {
            Ok(answer) => return Some(answer),
            Err(problem) => {
                if session.ends_by(&problem) {
                    return None;
                }
                let pause = backoff.next(problem.retry_after());
                warn!(%problem, pause_seconds = pause.as_secs_f64(), "no answer to a poll");
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// Begins an attempt, or gives the claim back if there is no room for it.
async fn take(session: &Arc<Session>, attempts: &mut JoinSet<()>, task: Task) {
    if let Ok(slot) = Arc::clone(&session.slots).try_acquire_owned() {
        attempts.spawn(attempt::carry(Arc::clone(session), task, now(), slot));
        return;
    }
    warn!(run_id = task.run_id, attempt_id = task.attempt_id, "more tasks than slots; giving one back");
    if let Err(problem) = session.client.release(&task.attempt_id, &task.token, "no free slot").await {
        // Unacknowledged, it goes back by itself when its time is over.
        warn!(%problem, attempt_id = task.attempt_id, "not given back");
    }
}
