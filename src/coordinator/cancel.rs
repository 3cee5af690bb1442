//! Cancel: a run that waits is aborted at once, one that runs is asked to stop.

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::refusal::Refusal;
use crate::domain::run::Status;
use crate::domain::snapshot::RunSnapshot;
use crate::ids::{NamespaceId, RunKey};
use crate::store::family::Cascade;
use crate::store::{self, Db};

impl Coordinator {
    /// Cancels a run and answers with it as it is now. Locks the run, its attempt and its task.
    ///
    /// A queued or waiting run is aborted and its task dropped in the same transaction: no poll is given it from then
    /// on. A running one is asked to stop: its worker is told by a poll it has parked here, and by whatever it asks
    /// next; with `force` its attempt ends now. A terminal run stays as it is. What has not ended of its descendants is
    /// cancelled likewise, also if the run itself has ended.
    ///
    /// # Errors
    /// [`Refusal::NoSuchRun`].
    pub async fn cancel_run(
        &self,
        namespace: NamespaceId,
        key: &RunKey,
        reason: Option<String>,
        force: bool,
    ) -> Result<RunSnapshot, Error> {
        let key = key.clone();
        self.shielded(move |coordinator: Self| {
            let (key, reason) = (key.clone(), reason.clone());
            async move { coordinator.cancel_once(namespace, &key, reason, force).await }
        })
        .await
    }

    async fn cancel_once(
        &self,
        namespace: NamespaceId,
        key: &RunKey,
        reason: Option<String>,
        force: bool,
    ) -> Result<RunSnapshot, Fault> {
        let mut tx = self.0.db.begin().await?;
        let found = store::lock::run(&mut tx, namespace, key, None).await?;
        let (locked, now) = found.ok_or_else(|| Refusal::NoSuchRun(key.clone()))?;
        let transition = locked.cancel(reason.clone(), force, now);
        let mut recorded = None;
        if let Some(transition) = &transition {
            recorded = Some(self.record(&mut tx, namespace, std::slice::from_ref(transition)).await?);
        }
        // Under the lock: a child that is being dispatched is there by now, and one that comes later is refused.
        let has_children =
            !store::family::parents_among(&mut tx, namespace, std::slice::from_ref(key)).await?.is_empty();
        let reason = transition.as_ref().and_then(|change| change.run().cancel_reason.clone()).or(reason);
        let cascade = Cascade { of: key.clone(), since: now, reason, force };
        if has_children {
            store::family::mark(&mut tx, namespace, &cascade).await?;
        }
        Db::commit(tx).await?;
        let run = match (recorded, &transition) {
            (Some(recorded), Some(transition)) => {
                tracing::info!(run = %key, status = %transition.run().status, "cancelled");
                if let (Status::Running, Some(session)) = (transition.run().status, &locked.attempt.session) {
                    self.0.matchmaker.news(namespace, session);
                }
                self.announce(namespace, recorded).await.swap_remove(0)
            }
            _ => self.read(namespace, key).await?,
        };
        if has_children && let Err(error) = self.cascade_soon(namespace, &cascade).await {
            // It is noted, and the sweep goes on with it.
            tracing::warn!(run = %key, %error, "its family has not all been told of its cancel");
        }
        Ok(run)
    }
}
