//! Settle: what an ended session held is let go, its claims returned and its attempts lost.

use std::collections::HashMap;

use super::Coordinator;
use super::error::Fault;
use crate::domain::transition::Transition;
use crate::ids::{AttemptId, NamespaceId, RunKey, SessionKey, new_uuid};
use crate::store::{self, Db};

/// How many attempts of one session are lost in one transaction.
const TOGETHER: usize = 100;

impl Coordinator {
    /// Returns what sessions that have ended still hold, and loses what they ran.
    pub(super) async fn settle_all(&self, namespace: NamespaceId) -> Result<(usize, usize), Fault> {
        let holders = {
            let mut conn = self.0.db.conn().await?;
            store::sweep::ended_holders(&mut conn, namespace).await?
        };
        let (mut returned, mut lost) = (0, 0);
        for session in holders {
            let done = self.settle_session(namespace, &session).await?;
            returned += done.0;
            lost += done.1;
        }
        Ok((returned, lost))
    }

    /// Settles what an ended session held, at once; the sweep makes up for a failure.
    pub(super) async fn settle(&self, namespace: NamespaceId, session: &SessionKey) {
        if let Err(error) = self.settle_session(namespace, session).await {
            tracing::warn!(worker = %session.worker_id, %error, "what an ended session held is left to the sweep");
            self.sweep_soon();
        }
    }

    async fn settle_session(&self, namespace: NamespaceId, session: &SessionKey) -> Result<(usize, usize), Fault> {
        let (claims, running) = {
            let mut conn = self.0.db.conn().await?;
            store::sweep::held_by(&mut conn, namespace, session).await?
        };
        let returned = self.return_claims(namespace, &claims).await?;
        let mut lost = 0;
        for some in running.chunks(TOGETHER) {
            self.stamp_again(namespace).await?;
            let left = match self.lose_together(namespace, session, some).await {
                Ok((ended, left)) => {
                    lost += ended;
                    left
                }
                Err(error) => {
                    tracing::warn!(%error, attempts = some.len(), "they could not be ended together; trying each alone");
                    some.iter().map(|(id, _)| *id).collect()
                }
            };
            for attempt_id in left {
                match self.lose(namespace, attempt_id).await {
                    Ok(changed) => lost += usize::from(changed),
                    Err(error) => {
                        tracing::warn!(attempt = %attempt_id, %error, "an attempt could not be ended; left to the next pass");
                    }
                }
            }
        }
        Ok((returned, lost))
    }

    /// Ends running attempts of an ended session in one transaction. Answers how many, and those that are to be looked at
    /// alone: somebody has locked their run, or it cannot be read.
    async fn lose_together(
        &self,
        namespace: NamespaceId,
        session: &SessionKey,
        running: &[(AttemptId, RunKey)],
    ) -> Result<(usize, Vec<AttemptId>), Fault> {
        let keys: Vec<RunKey> = running.iter().map(|(_, key)| key.clone()).collect();
        let mut tx = self.0.db.begin().await?;
        let lease = store::session::hold_lease(&mut tx, namespace, session).await?;
        let ended = lease.is_none_or(|lease| lease.ended);
        let found = store::lock::runs(&mut tx, namespace, &keys).await?;
        let locked: HashMap<_, _> = found.into_iter().filter_map(|(key, locked)| Some((key, locked.ok()?))).collect();
        let (mut lost, mut transitions, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for (attempt_id, key) in running {
            match locked.get(key) {
                // It has ended, and its run has gone on.
                Some((locked, _)) if locked.attempt.id != *attempt_id => {}
                Some((locked, now)) => {
                    if let Some(transition) = locked.lose(ended, AttemptId(new_uuid()), *now) {
                        lost.push(*attempt_id);
                        transitions.push(transition);
                    }
                }
                None => left.push(*attempt_id),
            }
        }
        let recorded = self.record(&mut tx, namespace, &transitions).await?;
        Db::commit(tx).await?;
        transitions.iter().zip(lost).for_each(|(transition, attempt_id)| log(transition, attempt_id));
        self.announce(namespace, recorded).await;
        Ok((transitions.len(), left))
    }

    /// Ends a running attempt whose session has ended.
    async fn lose(&self, namespace: NamespaceId, attempt_id: AttemptId) -> Result<bool, Fault> {
        let mut held = self.lock_held(namespace, attempt_id).await?;
        let Some(transition) = held.locked.lose(held.session_ended(), AttemptId(new_uuid()), held.now) else {
            return Ok(false);
        };
        let recorded = self.record(&mut held.tx, namespace, std::slice::from_ref(&transition)).await?;
        Db::commit(held.tx).await?;
        log(&transition, attempt_id);
        self.announce(namespace, recorded).await;
        Ok(true)
    }
}

fn log(transition: &Transition, attempt_id: AttemptId) {
    let run = transition.run();
    tracing::info!(run = %run.key, attempt = %attempt_id, status = %run.status, "lost");
}
