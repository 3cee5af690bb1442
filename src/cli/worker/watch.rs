//! What happens beside a running command: orders, the lease, the renewal.

use std::{convert::Infallible, future::pending, io, process::ExitStatus, time::Duration};

use tokio::{
    sync::watch,
    time::{sleep, sleep_until},
};
use tracing::{info, warn};

use super::{
    backoff::Backoff,
    holdings::{Holding, Known, Lease, Order},
    process::Process,
    session::Session,
};
use crate::cli::{
    ambient::now,
    client::{Task, seconds},
};

/// How the command came to its end.
pub(super) enum Stopped {
    /// By itself.
    Exited(io::Result<ExitStatus>),
    /// Because somebody wanted it.
    Cancelled,
    /// Because the attempt is no longer ours.
    Lost,
}

/// Lets the command run to its end, or ends it when it is cancelled, lost, or out of lease.
pub(super) async fn watch_over(process: &mut Process, holding: &mut Holding<'_>, kill_after: Duration) -> Stopped {
    loop {
        let Known { order, lease } = holding.known();
        // Without a lease there is no right to work.
        let until = lease.map_or_else(now, |lease| lease.until);
        if order == Order::Lost || now() >= until {
            warn!(lapsed = now() >= until, "lost; stopping the command");
            process.stop(kill_after).await;
            return Stopped::Lost;
        }
        if order == Order::Cancel {
            info!("cancelled; stopping the command");
            process.stop(kill_after).await;
            return Stopped::Cancelled;
        }
        tokio::select! {
            biased;
            ended = process.ended() => return Stopped::Exited(ended),
            () = holding.changed() => {}
            () = sleep_until(until) => {}
        }
    }
}

/// Renews the lease of this attempt alone when the heartbeats, which renew it too, have been silent for too long.
pub(super) async fn keep_renewed(
    session: &Session,
    task: &Task,
    mut known: watch::Receiver<Known>,
    every_seconds: f64,
) -> Infallible {
    let every = seconds(every_seconds);
    let id = [task.attempt_id.as_str()];
    let mut backoff = Backoff::up_to(every);
    loop {
        let Some(lease) = known.borrow_and_update().lease else {
            return pending().await;
        };
        tokio::select! {
            changed = known.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return pending().await,
            },
            () = sleep_until(lease.renewed_at + every + session.heartbeat_every) => {}
        }
        let asked_at = now();
        match session.client.renew(&task.attempt_id, &task.token).await {
            Ok(answer) => {
                session.holdings.renew(id, Lease::granted(asked_at, seconds(answer.lease_seconds)));
                if answer.cancel_requested {
                    session.holdings.order(id, Order::Cancel);
                }
                backoff = Backoff::up_to(every);
            }
            Err(problem) if session.drops_attempt(&problem) => {
                warn!(%problem, "not renewed");
                session.holdings.order(id, Order::Lost);
                return pending().await;
            }
            Err(problem) => {
                warn!(%problem, "no answer to a renewal");
                sleep(backoff.next(problem.retry_after())).await;
            }
        }
    }
}
