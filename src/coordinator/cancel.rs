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
    /// next; with `force` its attempt ends now. A terminal run stays as it is.
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
        let Some(transition) = locked.cancel(reason, force, now) else {
            drop(tx);
            return self.read(namespace, key).await;
        };
        let recorded = self.record(&mut tx, namespace, std::slice::from_ref(&transition)).await?;
        Db::commit(tx).await?;
        tracing::info!(run = %key, status = %transition.run().status, "cancelled");
        if let (Status::Running, Some(session)) = (transition.run().status, &locked.attempt.session) {
            self.0.matchmaker.news(namespace, session);
        }
        Ok(self.announce(namespace, recorded).await.swap_remove(0))
    }
}
