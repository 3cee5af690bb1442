//! Renew: one attempt's holder says that it goes on.

use super::ack::Lease;
use super::error::Fault;
use super::{Coordinator, Error};
use crate::ids::{AttemptId, Digest, NamespaceId, Token};
use crate::store::{self, Db};

impl Coordinator {
    /// Renews a lease: a sign of life of the session that holds it. Writes nothing of the run, and of the attempt that it
    /// is kept by this from now on, unless heartbeats name it.
    ///
    /// # Errors
    /// [`crate::domain::refusal::Refusal::LeaseLost`] and what else a stale token is told.
    pub async fn renew_attempt(
        &self,
        namespace: NamespaceId,
        attempt_id: AttemptId,
        token: Token,
    ) -> Result<Lease, Error> {
        let token = token.digest();
        self.shielded(
            move |coordinator: Self| async move { coordinator.renew_once(namespace, attempt_id, token).await },
        )
        .await
    }

    async fn renew_once(&self, namespace: NamespaceId, attempt_id: AttemptId, token: Digest) -> Result<Lease, Fault> {
        let mut held = self.lock_heard(namespace, attempt_id, token).await?;
        held.locked.renew(token, held.session_ended())?;
        store::beats::renewed(&mut held.tx, namespace, attempt_id, true).await?;
        Db::commit(held.tx).await?;
        let cancel_requested = held.locked.run.cancel_requested_at.is_some();
        self.lease_of(namespace, attempt_id, held.session.zip(held.lease), held.now, cancel_requested).await
    }
}
