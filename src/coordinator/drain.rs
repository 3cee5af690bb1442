//! Drain: an operator wants a worker given no more tasks, in this session and in later ones, or undoes it.

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::refusal::Refusal;
use crate::ids::{NamespaceId, WorkerId};
use crate::store::worker::WorkerView;
use crate::store::{self, Db};

impl Coordinator {
    /// Drains a worker, or undoes it, and answers with the worker as it is now. Locks the worker, then its session.
    ///
    /// From the commit on the worker is no match; what it has it keeps. Its parked polls return at once. Not a sign of
    /// life.
    ///
    /// # Errors
    /// [`Refusal::NoSuchWorker`].
    pub async fn drain_worker(
        &self,
        namespace: NamespaceId,
        worker_id: WorkerId,
        drain: bool,
        comment: Option<String>,
    ) -> Result<WorkerView, Error> {
        self.shielded(move |coordinator: Self| {
            let (worker_id, comment) = (worker_id.clone(), comment.clone());
            async move { coordinator.drain_once(namespace, &worker_id, drain, comment.as_deref()).await }
        })
        .await
    }

    async fn drain_once(
        &self,
        namespace: NamespaceId,
        worker_id: &WorkerId,
        drain: bool,
        comment: Option<&str>,
    ) -> Result<WorkerView, Fault> {
        let mut tx = self.0.db.begin().await?;
        if !store::worker::drain(&mut tx, namespace, worker_id, drain.then_some(comment)).await? {
            return Err(Refusal::NoSuchWorker(worker_id.clone()).into());
        }
        let mut turned = None;
        if let Some(living) = store::session::living(&mut tx, namespace, worker_id).await?
            && let Some((session, now)) = store::session::lock(&mut tx, namespace, &living).await?
            && session.ended.is_none()
        {
            let change = session.turn(drain, now);
            store::session::save(&mut tx, namespace, &change, now).await?;
            turned = Some(change.session);
        }
        Db::commit(tx).await?;
        tracing::info!(worker = %worker_id, drain, comment, "drained by an operator");
        if let Some(session) = turned.filter(|session| session.present_from.is_none()) {
            self.0.matchmaker.draining(namespace, &session.key);
        }
        // A selector may have lost its last match, or may have one again.
        self.sweep_soon();
        self.worker(namespace, worker_id).await
    }
}
