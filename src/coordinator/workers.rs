//! Reading one worker.

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::refusal::Refusal;
use crate::ids::{NamespaceId, WorkerId};
use crate::store;

pub use crate::store::worker::WorkerView;

impl Coordinator {
    /// A worker as its latest session stands.
    ///
    /// # Errors
    /// [`Refusal::NoSuchWorker`].
    pub async fn get_worker(&self, namespace: NamespaceId, worker_id: &WorkerId) -> Result<WorkerView, Error> {
        super::patiently(self.worker(namespace, worker_id)).await
    }

    pub(super) async fn worker(&self, namespace: NamespaceId, worker_id: &WorkerId) -> Result<WorkerView, Fault> {
        let mut conn = self.0.db.conn().await?;
        let found = store::worker::views(&mut conn, namespace, std::slice::from_ref(worker_id)).await?;
        Ok(found.into_iter().next().ok_or_else(|| Refusal::NoSuchWorker(worker_id.clone()))??)
    }
}
