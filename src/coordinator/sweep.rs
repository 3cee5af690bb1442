//! Sweep: one pass that moves what time has moved.
//!
//! Any replica may sweep, and all do: what is due is found by hint, judged again under lock, and passed over when
//! somebody else has it. A pass costs by what is due, not by what waits: it visits a selector when a hold of it could
//! first have expired since the last pass, and while nothing fits it. What it remembers is a hint; what it forgets, or
//! never knew, it finds again in its round through the selectors that have tasks.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::error::Fault;
use super::expiry::Remembered;
use super::{Coordinator, Error};
use crate::domain::Timestamp;
use crate::domain::attempt::Locked;
use crate::domain::session::EndReason;
use crate::domain::transition::Transition;
use crate::ids::{AttemptId, NamespaceId};
use crate::store::{self, Db};

/// What a sweeper remembers from pass to pass, by namespace.
#[derive(Default)]
pub struct SweepMemory(HashMap<NamespaceId, Remembered>);

/// What a pass did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// Runs failed because a clock of theirs ran out.
    pub expired: usize,
    /// Claims returned to the queue.
    pub returned: usize,
    /// Attempts lost with their session, or neglected by it.
    pub lost: usize,
    /// How long until something may be due, if that is known.
    pub next: Option<Duration>,
}

impl Coordinator {
    /// Sweeps every namespace once. Row by row where a batch fails, so that one row that cannot be moved does not stop
    /// the others.
    ///
    /// # Errors
    /// Of the database; what was moved before stays moved, and the next pass goes on.
    pub async fn sweep(&self, memory: &mut SweepMemory) -> Result<Swept, Error> {
        Ok(self.sweep_all(memory).await?)
    }

    async fn sweep_all(&self, memory: &mut SweepMemory) -> Result<Swept, Fault> {
        let mut swept = Swept::default();
        self.0.alarm.reset();
        let namespaces = {
            let mut conn = self.0.db.conn().await?;
            self.0.clock.read(store::sweep::now(&mut conn).await?);
            store::sweep::namespaces(&mut conn).await?
        };
        for namespace in namespaces {
            let remembered = memory.0.entry(namespace).or_default();
            let amnesty_until = self.stamp(namespace).await?;
            if amnesty_until.is_none() {
                self.end_silent_sessions(namespace).await?;
                swept.lost += self.lose_neglected(namespace).await?;
            }
            let (returned, lost) = self.settle_all(namespace).await?;
            swept.returned += returned + self.return_lapsed(namespace, amnesty_until).await?;
            swept.lost += lost;
            swept.expired += self.expire_holds(namespace, remembered).await?;
            let (not_started, next_start) = self.expire_starts(namespace).await?;
            swept.expired += not_started;
            self.finish_cascades(namespace, None).await?;
            let mut conn = self.0.db.conn().await?;
            let next = store::sweep::next_due(&mut conn, namespace).await?;
            swept.next = [swept.next, next, next_start, remembered.next()].into_iter().flatten().min();
        }
        Ok(swept)
    }

    /// Says that this namespace is being swept, and learns whether an amnesty is on.
    async fn stamp(&self, namespace: NamespaceId) -> Result<Option<Timestamp>, Fault> {
        let settings = self.settings();
        let mut conn = self.0.db.conn().await?;
        self.0.stamped.lock().unwrap_or_else(PoisonError::into_inner).insert(namespace, Instant::now());
        Ok(store::presence::stamp(&mut conn, namespace, settings.heartbeat_interval, settings.lease_ttl).await?)
    }

    /// Stamps in the midst of a long pass, which would pass for an outage otherwise.
    pub(super) async fn stamp_again(&self, namespace: NamespaceId) -> Result<(), Fault> {
        let stamped = self.0.stamped.lock().unwrap_or_else(PoisonError::into_inner).get(&namespace).copied();
        if stamped.is_none_or(|at| at.elapsed() > self.settings().heartbeat_interval / 4) {
            self.stamp(namespace).await?;
        }
        Ok(())
    }

    async fn end_silent_sessions(&self, namespace: NamespaceId) -> Result<(), Fault> {
        let silent = {
            let mut conn = self.0.db.conn().await?;
            store::sweep::silent_sessions(&mut conn, namespace).await?
        };
        for key in silent {
            let ended = self.end_session(namespace, &key, EndReason::Lapsed, |session, now| session.lapsed(now, None));
            match ended.await {
                Ok(_) => {}
                Err(error) => tracing::warn!(worker = %key.worker_id, %error, "a silent session could not be ended"),
            }
        }
        Ok(())
    }

    /// Returns those of these claims whose session has ended. One may have returned already, and be another's by now.
    pub(super) async fn return_claims(&self, namespace: NamespaceId, ids: &[AttemptId]) -> Result<usize, Fault> {
        let judge = |locked: &Locked, ended: bool, now| if ended { locked.lapse(true, None, now) } else { None };
        self.move_tasks(namespace, ids, &judge).await
    }

    /// Returns claims that were not acknowledged in time, outside of an amnesty.
    async fn return_lapsed(&self, namespace: NamespaceId, amnesty_until: Option<Timestamp>) -> Result<usize, Fault> {
        let (mut returned, mut after) = (0, None);
        loop {
            let due = {
                let mut conn = self.0.db.conn().await?;
                store::sweep::lapsed_claims(&mut conn, namespace, after).await?
            };
            let Some(last) = due.last() else { return Ok(returned) };
            after = Some(*last);
            self.stamp_again(namespace).await?;
            let ids: Vec<AttemptId> = due.iter().map(|(_, id)| *id).collect();
            let judge = |locked: &Locked, ended, now| locked.lapse(ended, amnesty_until, now);
            returned += self.move_tasks(namespace, &ids, &judge).await?;
        }
    }

    /// Moves those of these tasks that a rule moves, in one transaction; each alone if that fails.
    pub(super) async fn move_tasks(
        &self,
        namespace: NamespaceId,
        ids: &[AttemptId],
        judge: &(dyn Fn(&Locked, bool, Timestamp) -> Option<Transition> + Sync),
    ) -> Result<usize, Fault> {
        if ids.is_empty() {
            return Ok(0);
        }
        let failed = match self.move_batch(namespace, ids, judge).await {
            Ok(moved) => return Ok(moved),
            Err(error) if ids.len() == 1 => error,
            Err(error) => {
                tracing::warn!(%error, rows = ids.len(), "a batch could not be moved; trying each row alone");
                let mut moved = 0;
                for id in ids {
                    match self.move_batch(namespace, std::slice::from_ref(id), judge).await {
                        Ok(one) => moved += one,
                        Err(error) => tracing::warn!(attempt = %id, %error, "left to the next pass"),
                    }
                }
                return Ok(moved);
            }
        };
        match failed {
            Fault::Store(store::Error::Unavailable(_) | store::Error::Locked(_) | store::Error::Away) => Err(failed),
            error => {
                tracing::warn!(attempt = %ids[0], %error, "left to the next pass");
                Ok(0)
            }
        }
    }

    async fn move_batch(
        &self,
        namespace: NamespaceId,
        ids: &[AttemptId],
        judge: &(dyn Fn(&Locked, bool, Timestamp) -> Option<Transition> + Sync),
    ) -> Result<usize, Fault> {
        let raw: Vec<_> = ids.iter().map(|id| id.0).collect();
        let mut tx = self.0.db.begin().await?;
        let found = store::from_tasks::lock(&mut tx, namespace, &raw).await?;
        if found.len() < ids.len() {
            store::sweep::drop_orphans(&mut tx, namespace, &raw).await?;
        }
        let mut transitions = Vec::with_capacity(found.len());
        for store::from_tasks::FromTask { attempt_id, locked, session_ended, now } in found {
            match locked {
                Ok(locked) => transitions.extend(judge(&locked, session_ended, now)),
                Err(error) => tracing::error!(attempt = %attempt_id, %error, "its task stays for the next pass"),
            }
        }
        let recorded = self.record(&mut tx, namespace, &transitions).await?;
        Db::commit(tx).await?;
        for transition in &transitions {
            let run = transition.run();
            tracing::info!(run = %run.key, attempt = %run.attempt.attempt_id, status = %run.status,
                           error = run.error.as_deref(), "swept");
        }
        self.announce(namespace, recorded).await;
        Ok(transitions.len())
    }
}
