//! Deregister: a worker's process says goodbye.

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::refusal::Refusal;
use crate::domain::session::EndReason;
use crate::ids::{NamespaceId, SessionId, SessionKey, WorkerId};
use crate::store::worker::WorkerView;
use crate::store::{self, Db};

impl Coordinator {
    /// Ends a session, the named one or the worker's latest: its parked polls return empty, its claims return, its
    /// attempts are lost at once. One that has ended stays as it is.
    ///
    /// # Errors
    /// [`Refusal::NoSuchWorker`]; [`Refusal::UnknownSession`] when the session named never was.
    pub async fn deregister_worker(
        &self,
        namespace: NamespaceId,
        worker_id: &WorkerId,
        session_id: Option<&SessionId>,
    ) -> Result<WorkerView, Error> {
        let (worker_id, session_id) = (worker_id.clone(), session_id.cloned());
        self.shielded(move |coordinator: Self| {
            let (worker_id, session_id) = (worker_id.clone(), session_id.clone());
            async move { coordinator.deregister_once(namespace, worker_id, session_id).await }
        })
        .await
    }

    async fn deregister_once(
        &self,
        namespace: NamespaceId,
        worker_id: WorkerId,
        session_id: Option<SessionId>,
    ) -> Result<WorkerView, Fault> {
        let latest = self.worker(namespace, &worker_id).await?;
        let named = session_id.is_some();
        let key = SessionKey { worker_id, session_id: session_id.unwrap_or(latest.session_id) };
        if !self.end_session(namespace, &key, EndReason::Left, |_, _| true).await? && named {
            let mut conn = self.0.db.conn().await?;
            if store::session::end_reason(&mut conn, namespace, &key).await?.is_none() {
                return Err(Refusal::UnknownSession { session: key, ended: None }.into());
            }
        }
        self.worker(namespace, &key.worker_id).await
    }

    /// Ends a living session if it is to be ended, judged under its lock, and settles what it held.
    pub(super) async fn end_session(
        &self,
        namespace: NamespaceId,
        key: &SessionKey,
        reason: EndReason,
        judge: impl FnOnce(&crate::domain::session::Session, crate::domain::Timestamp) -> bool + Send,
    ) -> Result<bool, Fault> {
        let mut tx = self.0.db.begin().await?;
        let Some((session, now)) = store::session::lock(&mut tx, namespace, key).await? else { return Ok(false) };
        if session.ended.is_some() || !judge(&session, now) {
            return Ok(false);
        }
        store::session::save(&mut tx, namespace, &session.end(reason, now), now).await?;
        Db::commit(tx).await?;
        tracing::info!(worker = %key.worker_id, session = %key.session_id, %reason, "session ended");
        self.0.matchmaker.ended(namespace, key, reason);
        self.settle(namespace, key).await;
        Ok(true)
    }
}
