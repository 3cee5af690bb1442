//! Ack: the worker's word that it has the task.

use std::time::Duration;

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::Timestamp;
use crate::domain::refusal::Refusal;
use crate::domain::rules::ack::Acked;
use crate::ids::{AttemptId, Digest, NamespaceId, SessionKey, Token};
use crate::store::{self, Db};

/// The right to go on working.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lease {
    /// When it ends without a further sign of life.
    pub until: Timestamp,
    /// Its length.
    pub ttl: Duration,
    /// How often to renew it.
    pub renew_every: Duration,
    /// Whether the run's cancel was asked for.
    pub cancel_requested: bool,
}

impl Coordinator {
    /// Starts a claimed run, under a lease of its worker's session. A repeat is answered alike.
    ///
    /// Locks the session against its end, then the run, its attempt and its task.
    ///
    /// # Errors
    /// [`Refusal::ClaimExpired`] when the claim lapsed, returned or never was; [`Refusal::LeaseLost`],
    /// [`Refusal::AttemptSuperseded`] or [`Refusal::RunFinished`] when the attempt has ended;
    /// [`Refusal::NoSuchAttempt`].
    pub async fn ack_attempt(
        &self,
        namespace: NamespaceId,
        attempt_id: AttemptId,
        token: Token,
    ) -> Result<Lease, Error> {
        let token = token.digest();
        self.shielded(move |coordinator: Self| async move { coordinator.ack_once(namespace, attempt_id, token).await })
            .await
    }

    async fn ack_once(&self, namespace: NamespaceId, attempt_id: AttemptId, token: Digest) -> Result<Lease, Fault> {
        let mut held = self.lock_heard(namespace, attempt_id, token).await?;
        // Only a claim that is overdue needs to know of an amnesty.
        let overdue = held.locked.claim().is_some_and(|claim| held.now >= claim.until);
        let amnesty_until = if overdue { store::presence::amnesty(&mut held.tx, namespace).await? } else { None };
        let acked = held.locked.ack(token, held.session_ended(), amnesty_until, held.now)?;
        let mut cancel_requested = held.locked.run.cancel_requested_at.is_some();
        if let Acked::Started(transition) = acked {
            let recorded = self.record(&mut held.tx, namespace, std::slice::from_ref(&*transition)).await?;
            Db::commit(held.tx).await?;
            cancel_requested = false;
            tracing::info!(run = %transition.run().key, attempt = %attempt_id, "started");
            self.announce(namespace, recorded).await;
        } else {
            drop(held.tx);
        }
        let holder = held.session.zip(held.lease);
        self.lease_of(namespace, attempt_id, holder, held.now, cancel_requested).await
    }

    /// What the holder of a lease is told: how long it has, counted from this sign of life.
    pub(super) async fn lease_of(
        &self,
        namespace: NamespaceId,
        attempt_id: AttemptId,
        holder: Option<(SessionKey, store::session::Lease)>,
        now: Timestamp,
        cancel_requested: bool,
    ) -> Result<Lease, Fault> {
        let (session, lease) = holder.ok_or(Refusal::LeaseLost(attempt_id))?;
        let (until, ttl) = self.showed_token(namespace, &session, lease, now).await?;
        let renew_every = self.settings().heartbeat_between(ttl);
        Ok(Lease { until, ttl, renew_every, cancel_requested })
    }
}
