//! Reading workers.

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::refusal::Refusal;
use crate::ids::{NamespaceId, WorkerId};
use crate::store;

pub use crate::store::worker::{WorkerFilter, WorkerView};

impl Coordinator {
    /// A worker as its latest session stands.
    ///
    /// # Errors
    /// [`Refusal::NoSuchWorker`].
    pub async fn get_worker(&self, namespace: NamespaceId, worker_id: &WorkerId) -> Result<WorkerView, Error> {
        super::patiently(self.worker(namespace, worker_id)).await
    }

    /// A page of workers, by name.
    ///
    /// # Errors
    /// Of the database.
    pub async fn list_workers(&self, namespace: NamespaceId, filter: WorkerFilter) -> Result<Vec<WorkerView>, Error> {
        let read = async {
            let mut conn = self.0.db.conn().await?;
            store::worker::views(&mut conn, namespace, None, &filter).await
        };
        super::patiently::<_, store::Error>(read).await
    }

    pub(super) async fn worker(&self, namespace: NamespaceId, worker_id: &WorkerId) -> Result<WorkerView, Fault> {
        let mut conn = self.0.db.conn().await?;
        let filter = WorkerFilter { limit: 1, ..WorkerFilter::default() };
        let found = store::worker::views(&mut conn, namespace, Some(worker_id), &filter).await?;
        found.into_iter().next().ok_or_else(|| Refusal::NoSuchWorker(worker_id.clone()).into())
    }
}
