//! Neglect: an attempt that its worker no longer names, or no longer renews, is lost though the session lives.

use super::Coordinator;
use super::error::Fault;
use crate::ids::{AttemptId, NamespaceId, new_uuid};
use crate::store::{self, Db};

impl Coordinator {
    /// Ends running attempts that nobody has cared for long enough; not to be called in an amnesty.
    pub(super) async fn lose_neglected(&self, namespace: NamespaceId) -> Result<usize, Fault> {
        let doubtful = {
            let mut conn = self.0.db.conn().await?;
            store::beats::doubtful(&mut conn, namespace, self.settings().heartbeat_interval).await?
        };
        let mut lost = 0;
        for attempt_id in doubtful {
            self.stamp_again(namespace).await?;
            match self.lose_if_neglected(namespace, attempt_id).await {
                Ok(changed) => lost += usize::from(changed),
                Err(error) => {
                    tracing::warn!(attempt = %attempt_id, %error, "an attempt could not be ended; left to the next pass");
                }
            }
        }
        Ok(lost)
    }

    async fn lose_if_neglected(&self, namespace: NamespaceId, attempt_id: AttemptId) -> Result<bool, Fault> {
        let mut held = self.lock_held(namespace, attempt_id).await?;
        // An ended session takes what it ran with it.
        let Some(lease) = held.lease.filter(|lease| !lease.ended) else { return Ok(false) };
        let Some((kept, now)) = store::beats::kept(&mut held.tx, namespace, attempt_id).await? else {
            return Ok(false);
        };
        let interval = self.settings().heartbeat_between(lease.ttl);
        let Some(cause) = kept.neglect(interval, lease.ttl, now) else { return Ok(false) };
        let Some(transition) = held.locked.neglect(cause, AttemptId(new_uuid()), now) else { return Ok(false) };
        let recorded = self.record(&mut held.tx, namespace, std::slice::from_ref(&transition)).await?;
        Db::commit(held.tx).await?;
        tracing::info!(run = %transition.run().key, attempt = %attempt_id, status = %transition.run().status, cause, "lost");
        self.announce(namespace, recorded).await;
        Ok(true)
    }
}
