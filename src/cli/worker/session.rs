//! One life of the worker as the service knows it: from its registration to its end.

use std::{
    ffi::OsString,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{sync::Semaphore, task::JoinSet, time::sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    backoff::Backoff,
    holdings::{Holdings, Lease, Order},
    lane,
    stop::Stop,
};
use crate::{
    cli::{
        ambient::now,
        client::{Action, Client, HeartbeatAnswer, Labels, Problem, Registration, seconds},
    },
    ids::new_uuid,
};

/// How often a farewell is tried before the service is left to find out by itself.
const FAREWELLS: usize = 3;

/// What stays the same from session to session.
#[derive(Debug)]
pub(super) struct Settings {
    /// The worker's name.
    pub(super) worker_id: String,
    /// What it offers.
    pub(super) labels: Labels,
    /// How many tasks it takes at once.
    pub(super) slots: usize,
    /// Stop after one task.
    pub(super) once: bool,
    /// How long a poll may wait at the service.
    pub(super) max_wait: Duration,
    /// How long a command has between being told to stop and being killed.
    pub(super) kill_after: Duration,
    /// The command, with its arguments.
    pub(super) command: Vec<OsString>,
    /// With `once`: whether the one task succeeded.
    pub(super) verdict: OnceLock<bool>,
}

/// How a session ended.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// The worker was asked to stop.
    Stopped,
    /// The service does not know the session any more.
    Register,
    /// The service will not have this worker.
    Refused(Problem),
}

/// A registered session and all that its parts share.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) settings: Arc<Settings>,
    pub(super) stop: Stop,
    /// One life of the process, named by itself.
    pub(super) id: String,
    pub(super) heartbeat_every: Duration,
    pub(super) holdings: Holdings,
    pub(super) slots: Arc<Semaphore>,
    over: CancellationToken,
    ending: OnceLock<Ending>,
}

impl Session {
    /// Registers under a new session id, as often as it takes; `None` if the worker was asked to stop before.
    ///
    /// # Errors
    ///
    /// If the service refuses the registration for good.
    pub(super) async fn register(
        client: &Client,
        settings: &Arc<Settings>,
        stop: &Stop,
    ) -> Result<Option<Arc<Self>>, Problem> {
        // The same id for every try: a registration whose answer was lost is then found again instead of ended.
        let session_id = new_uuid().to_string();
        let registration = Registration {
            session_id: &session_id,
            labels: &settings.labels,
            slots: settings.slots,
            version: env!("CARGO_PKG_VERSION"),
        };
        let mut backoff = Backoff::default();
        while !stop.is_soft() {
            let registered = tokio::select! {
                biased;
                () = stop.soft_asked() => break,
                registered = client.register(&settings.worker_id, &registration) => registered,
            };
            match registered {
                Ok(answer) => {
                    info!(worker_id = settings.worker_id, session_id, labels = ?settings.labels, "registered");
                    return Ok(Some(Arc::new(Self {
                        client: client.clone(),
                        settings: Arc::clone(settings),
                        stop: stop.clone(),
                        id: session_id,
                        // Whatever an answer says, a worker never beats without a pause.
                        heartbeat_every: seconds(answer.heartbeat_every_seconds).max(Duration::from_millis(100)),
                        holdings: Holdings::default(),
                        slots: Arc::new(Semaphore::new(settings.slots)),
                        over: CancellationToken::new(),
                        ending: OnceLock::new(),
                    })));
                }
                Err(problem) if matches!(problem.action, Action::Retry | Action::Register) => {
                    let pause = backoff.next(problem.retry_after());
                    warn!(%problem, pause_seconds = pause.as_secs_f64(), "not registered");
                    stop.or_elapsed(pause).await;
                }
                Err(problem) => return Err(problem),
            }
        }
        Ok(None)
    }

    /// Polls, works and beats until the session is over or the worker is asked to stop; then finishes what runs.
    pub(super) async fn run(self: Arc<Self>) -> Ending {
        let mut attempts = JoinSet::new();
        let mut beats = JoinSet::new();
        beats.spawn(Arc::clone(&self).beat());
        let finished = async {
            lane::poll(&self, &mut attempts).await;
            while attempts.join_next().await.is_some() {}
        };
        tokio::select! {
            biased;
            () = self.stop.hard_asked() => {}
            () = finished => {}
        }
        // After a hard stop this ends the carriers of attempts, and with each of them its command.
        attempts.shutdown().await;
        beats.shutdown().await;
        if let Some(ending) = self.ending.get() {
            return ending.clone();
        }
        if !self.stop.is_hard() {
            self.farewell().await;
        }
        Ending::Stopped
    }

    /// Ends when the session is over for another reason than the worker's own wish to stop.
    pub(super) async fn over(&self) {
        self.over.cancelled().await;
    }

    /// Ends the session if a problem with the session says so, and tells whether it did. Everything held is lost with it.
    pub(super) fn ends_by(&self, problem: &Problem) -> bool {
        let ending = match problem.action {
            Action::Retry | Action::StopAttempt => return false,
            Action::Register => Ending::Register,
            Action::FixRequest | Action::GiveUp => Ending::Refused(problem.clone()),
        };
        // The first reason stands; a second one is a consequence of it.
        let _ = self.ending.set(ending);
        self.over.cancel();
        self.holdings.lose_all();
        true
    }

    /// Whether a problem with one attempt is the end of it here. What is wrong with one attempt is no reason to give up
    /// the others: only a session that has ended does that.
    pub(super) fn drops_attempt(&self, problem: &Problem) -> bool {
        match problem.action {
            Action::Retry => false,
            Action::Register => self.ends_by(problem),
            Action::StopAttempt | Action::FixRequest | Action::GiveUp => true,
        }
    }

    /// Gives a sign of life every `heartbeat_every`, naming the attempts that are worked on.
    async fn beat(self: Arc<Self>) {
        let mut backoff = Backoff::up_to(self.heartbeat_every);
        let mut next_at = now() + self.heartbeat_every;
        let mut draining = false;
        loop {
            tokio::select! {
                () = sleep_until(next_at) => {}
                // The service should hear of it at once, so that it counts no capacity here that will not come back.
                () = self.stop.soft_asked(), if !draining => draining = true,
            }
            let named = self.holdings.named();
            let asked_at = now();
            let beat = self.client.heartbeat(&self.settings.worker_id, &self.id, &named, draining).await;
            match beat {
                Ok(answer) => {
                    let lease = Lease::granted(asked_at, seconds(answer.lease_seconds));
                    self.heed(&answer);
                    let kept = named.iter().map(|named| named.attempt_id.as_str());
                    self.holdings.renew(kept.filter(|id| !answer.lost.iter().any(|lost| lost == id)), lease);
                    backoff = Backoff::up_to(self.heartbeat_every);
                    next_at = asked_at + self.heartbeat_every;
                }
                Err(problem) => {
                    if self.ends_by(&problem) {
                        return;
                    }
                    let pause = backoff.next(problem.retry_after());
                    warn!(%problem, pause_seconds = pause.as_secs_f64(), "no answer to a heartbeat");
                    next_at = now() + pause;
                }
            }
        }
    }

    fn heed(&self, answer: &HeartbeatAnswer) {
        self.holdings.order(answer.lost.iter().map(String::as_str), Order::Lost);
        self.holdings.order(answer.cancel.iter().map(String::as_str), Order::Cancel);
    }

    /// Deregisters. Without an answer the service ends the session itself, when it has heard nothing for long enough.
    async fn farewell(&self) {
        let mut backoff = Backoff::default();
        for _ in 0..FAREWELLS {
            let farewell = tokio::select! {
                biased;
                () = self.stop.hard_asked() => return,
                farewell = self.client.deregister(&self.settings.worker_id, &self.id) => farewell,
            };
            match farewell {
                Ok(_) => return info!(session_id = self.id, "deregistered"),
                Err(problem) if problem.action == Action::Retry => {
                    warn!(%problem, "not deregistered");
                    tokio::time::sleep(backoff.next(problem.retry_after())).await;
                }
                Err(problem) => return warn!(%problem, "not deregistered"),
            }
        }
    }
}
