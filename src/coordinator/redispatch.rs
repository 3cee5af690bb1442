//! Re-dispatch: a run that its scheduler has parked is to be taken now, or stays parked.

use std::collections::HashMap;

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::refusal::Refusal;
use crate::domain::rules::redispatch::Redispatched;
use crate::domain::snapshot::RunSnapshot;
use crate::ids::{AttemptId, NamespaceId, RunKey};
use crate::store::{self, Db};

impl Coordinator {
    /// Gives a parked run a task, with its event in one transaction, if something matches, and wakes polls that may take
    /// it. Locks the run and its attempt, and keeps its parent from ending.
    ///
    /// What has a task, or runs, under this attempt is answered as it is. Cancellation safe, as a dispatch is.
    ///
    /// # Errors
    /// [`Refusal::NoAvailableWorker`] and [`Refusal::NoMatchingWorker`]: the run stays parked. [`Refusal::StaleDispatch`],
    /// [`Refusal::RunFinished`], [`Refusal::ParentFinished`], [`Refusal::NoSuchRun`].
    pub async fn redispatch(
        &self,
        namespace: NamespaceId,
        key: RunKey,
        attempt_id: AttemptId,
    ) -> Result<RunSnapshot, Error> {
        self.shielded(move |coordinator: Self| {
            let key = key.clone();
            async move { coordinator.redispatch_once(namespace, &key, attempt_id).await }
        })
        .await
    }

    async fn redispatch_once(
        &self,
        namespace: NamespaceId,
        key: &RunKey,
        attempt_id: AttemptId,
    ) -> Result<RunSnapshot, Fault> {
        let mut tx = self.0.db.begin().await?;
        let found = store::lock::run(&mut tx, namespace, key, None).await?;
        let (locked, _) = found.ok_or_else(|| Refusal::NoSuchRun(key.clone()))?;
        let selector_no = locked.run.selector_no;
        let situation = self.0.catalog.situation(&mut tx, namespace, selector_no).await?;
        let Redispatched::Queued(transition) = locked.redispatch(attempt_id, &situation.0)? else {
            Db::roll_back(tx).await?;
            return self.read(namespace, key).await;
        };
        self.needs_parent(&mut tx, namespace, locked.run.parent.as_ref()).await??;
        let seen = HashMap::from([(selector_no, situation)]);
        let recorded = self.record_seen(&mut tx, namespace, std::slice::from_ref(&*transition), seen).await?;
        Db::commit(tx).await?;
        let run = self.announce(namespace, recorded).await.swap_remove(0);
        tracing::info!(run = %key, attempt = %attempt_id, "dispatched again by its scheduler");
        Ok(run)
    }
}
