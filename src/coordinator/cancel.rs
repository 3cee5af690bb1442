//! Cancel: a run that waits is aborted at once, one that runs is asked to stop.

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::refusal::Refusal;
use crate::domain::run::Status;
use crate::domain::snapshot::RunSnapshot;
use crate::ids::{NamespaceId, RunKey};
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
        let (run, has_children) = self.cancel_alone(namespace, key, reason, force).await?;
        if has_children {
            self.cascade(namespace, key, run.cancel_reason.as_deref(), force).await?;
        }
        Ok(run)
    }

    /// Cancels a run, and says whether it has children that have not ended; they are marked to be told.
    pub(super) async fn cancel_alone(
        &self,
        namespace: NamespaceId,
        key: &RunKey,
        reason: Option<String>,
        force: bool,
    ) -> Result<(RunSnapshot, bool), Fault> {
        let mut tx = self.0.db.begin().await?;
        let found = store::lock::run(&mut tx, namespace, key, None).await?;
        let (locked, now) = found.ok_or_else(|| Refusal::NoSuchRun(key.clone()))?;
        let has_children =
            !store::family::parents_among(&mut tx, namespace, std::slice::from_ref(key)).await?.is_empty();
        let Some(transition) = locked.cancel(reason, force, now) else {
            drop(tx);
            return Ok((self.read(namespace, key).await?, has_children));
        };
        let transition = transition.cascading(has_children.then_some(force));
        let recorded = self.record(&mut tx, namespace, std::slice::from_ref(&transition)).await?;
        Db::commit(tx).await?;
        tracing::info!(run = %key, status = %transition.run().status, "cancelled");
        if let (Status::Running, Some(session)) = (transition.run().status, &locked.attempt.session) {
            self.0.matchmaker.news(namespace, session);
        }
        Ok((self.announce(namespace, recorded).await.swap_remove(0), has_children))
    }
}
