//! Register: a worker's process begins a session, or changes what its session offers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::labels::{LabelSet, Labels};
use crate::domain::refusal::Refusal;
use crate::domain::session::{EndReason, Offer, Session};
use crate::ids::{LabelSetNo, NamespaceId, SessionId, SessionKey, WorkerId};
use crate::store::{self, Db};

/// What a worker says of itself.
#[derive(Debug, Clone)]
pub struct Registration {
    /// Its name.
    pub worker_id: WorkerId,
    /// The process's own choice of session, one per process; else one is drawn.
    pub session_id: Option<SessionId>,
    /// What it offers.
    pub labels: Labels,
    /// Keys it keeps for those who mention them.
    pub exclusive: BTreeSet<String>,
    /// How many tasks it may have at a time.
    pub slots: i32,
    /// Its own version.
    pub version: Option<String>,
    /// The lease it wants; else the configured one.
    pub lease: Option<Duration>,
}

/// What a registered worker needs to know.
#[derive(Debug, Clone)]
pub struct Registered {
    /// Its name.
    pub worker_id: WorkerId,
    /// Its session, to be named in every call.
    pub session_id: SessionId,
    /// How often to beat.
    pub heartbeat_every: Duration,
    /// How long without a sign of life until it is no match.
    pub stale_after: Duration,
    /// How long without a sign of life until what it runs is lost.
    pub lease: Duration,
}

impl Coordinator {
    /// Begins a session, which ends the worker's earlier one at once: its claims return, its attempts are lost.
    /// Registering the same session again replaces labels, slots and lease and loses nothing.
    ///
    /// Locks the worker, then its sessions.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`] when the session named has ended: a process that comes back takes a new one.
    pub async fn register_worker(
        &self,
        namespace: NamespaceId,
        registration: Registration,
    ) -> Result<Registered, Error> {
        let session_id = registration.session_id.clone().unwrap_or_else(SessionId::draw);
        let registration = Arc::new(registration);
        self.shielded(move |coordinator: Self| {
            let (registration, session_id) = (Arc::clone(&registration), session_id.clone());
            async move { coordinator.register_once(namespace, &registration, session_id).await }
        })
        .await
    }

    async fn register_once(
        &self,
        namespace: NamespaceId,
        registration: &Registration,
        session_id: SessionId,
    ) -> Result<Registered, Fault> {
        let parts = &self.0;
        let offer = LabelSet {
            labels: registration.labels.clone(),
            exclusive: registration.exclusive.clone(),
            worker_id: registration.worker_id.clone(),
        };
        let label_set_no = parts.catalog.label_set_no(&parts.db, namespace, &offer).await?;
        let key = SessionKey { worker_id: registration.worker_id.clone(), session_id };
        let mut tx = parts.db.begin().await?;
        let drained = store::worker::lock(&mut tx, namespace, &key.worker_id, &key.session_id).await?;
        let session = Session {
            key: key.clone(),
            label_set_no,
            slots: registration.slots,
            stale_after: parts.settings.stale_after,
            lease_ttl: registration.lease.unwrap_or(parts.settings.lease_ttl),
            last_seen: store::sweep::now(&mut tx).await?,
            present_from: None,
            draining: false,
            ended: None,
        };
        let replaced = self.begin_or_change(&mut tx, namespace, session.clone(), drained, registration).await?;
        Db::commit(tx).await?;
        tracing::info!(worker = %key.worker_id, session = %key.session_id, labels = ?registration.labels, "registered");
        if let Some(replaced) = replaced {
            parts.matchmaker.ended(namespace, &replaced, EndReason::Replaced);
            self.settle(namespace, &replaced).await;
        }
        parts.matchmaker.offers(namespace, &key, label_set_no);
        Ok(Registered {
            worker_id: key.worker_id,
            session_id: key.session_id,
            heartbeat_every: parts.settings.heartbeat_between(session.lease_ttl),
            stale_after: session.stale_after,
            lease: session.lease_ttl,
        })
    }

    /// Changes the session if it lives, else begins it and ends the one before; answers which that was.
    async fn begin_or_change(
        &self,
        tx: &mut store::Conn,
        namespace: NamespaceId,
        mut session: Session,
        drained: bool,
        registration: &Registration,
    ) -> Result<Option<SessionKey>, Fault> {
        let offer = Offer { label_set_no: session.label_set_no, slots: session.slots, draining: false, drained };
        if let Some((known, now)) = store::session::lock(tx, namespace, &session.key).await? {
            if known.ended.is_some() {
                return Err(Refusal::UnknownSession { session: session.key, ended: known.ended }.into());
            }
            let mut change = known.beat(&offer, now);
            change.session.lease_ttl = session.lease_ttl;
            change.session.stale_after = session.stale_after;
            store::session::save(tx, namespace, &change, now).await?;
            return Ok(None);
        }
        let mut replaced = None;
        if let Some(before) = store::session::living(tx, namespace, &session.key.worker_id).await?
            && let Some((before, now)) = store::session::lock(tx, namespace, &before).await?
            && before.ended.is_none()
        {
            // One instant: what both fit is matched without a break.
            session.last_seen = now;
            store::session::save(tx, namespace, &before.end(EndReason::Replaced, now), now).await?;
            replaced = Some(before.key);
        }
        session.present_from = (!drained).then_some(session.last_seen);
        store::session::begin(tx, namespace, &session, registration.version.as_deref()).await?;
        Ok(replaced)
    }

    /// Tells parked polls of a session what it offers now.
    pub(super) fn offers(&self, namespace: NamespaceId, session: &SessionKey, label_set_no: LabelSetNo) {
        self.0.matchmaker.offers(namespace, session, label_set_no);
    }
}
