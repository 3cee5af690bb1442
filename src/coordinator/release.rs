//! Release: a worker gives back what it was given.

use std::time::Duration;

use super::error::Fault;
use super::report::Standing;
use super::{Coordinator, Error};
use crate::domain::rules::release::Released;
use crate::ids::{AttemptId, Digest, NamespaceId, Token, new_uuid};
use crate::store::Db;

impl Coordinator {
    /// Takes a claim back to its place in the queue; an acknowledged attempt ends like a lost lease, at once.
    ///
    /// Not offered to the same session for a while. With a delay, its hold begins at the delay's end.
    ///
    /// # Errors
    /// What a stale token is told; nothing changes then.
    pub async fn release_attempt(
        &self,
        namespace: NamespaceId,
        attempt_id: AttemptId,
        token: Token,
        reason: Option<String>,
        delay: Duration,
    ) -> Result<Standing, Error> {
        let token = token.digest();
        self.shielded(move |coordinator: Self| {
            let reason = reason.clone();
            async move { coordinator.release_once(namespace, attempt_id, token, reason.as_deref(), delay).await }
        })
        .await
    }

    async fn release_once(
        &self,
        namespace: NamespaceId,
        attempt_id: AttemptId,
        token: Digest,
        reason: Option<&str>,
        delay: Duration,
    ) -> Result<Standing, Fault> {
        let mut held = self.lock_held(namespace, attempt_id).await?;
        let run =
            match held.locked.release(token, reason, delay, held.session_ended(), AttemptId(new_uuid()), held.now)? {
                Released::Changed(transition) => {
                    let recorded = self.record(&mut held.tx, namespace, std::slice::from_ref(&*transition)).await?;
                    Db::commit(held.tx).await?;
                    tracing::info!(run = %transition.run().key, attempt = %attempt_id, "released");
                    self.announce(namespace, recorded).await;
                    self.sweep_soon();
                    transition.run().clone()
                }
                Released::Already => held.locked.run,
            };
        Ok(Standing::of(&run))
    }
}
