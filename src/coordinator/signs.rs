//! Signs of life: every call that names a session, or shows its token, is one.

use std::collections::HashMap;
use std::time::Duration;

use super::{Coordinator, Fault};
use crate::domain::Timestamp;
use crate::domain::refusal::Refusal;
use crate::domain::session::{EndReason, Session};
use crate::ids::{NamespaceId, SessionKey};
use crate::store;

/// How often the signs of one session that come with acks, renewals and reports are written, at the most. Counted by
/// the database's clock from what is in its row, so that it holds for all replicas together.
const WRITTEN_EVERY: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Takes a sign of life from a call that names its session, and answers with the session.
    pub(super) async fn alive(&self, namespace: NamespaceId, session: &SessionKey) -> Result<Session, Fault> {
        let mut conn = self.0.db.conn().await?;
        let touched = store::session::touch(&mut conn, namespace, std::slice::from_ref(session)).await?;
        if let Some(touched) = touched.into_iter().next() {
            return Ok(touched);
        }
        let ended = store::session::end_reason(&mut conn, namespace, session).await?.flatten();
        Err(Refusal::UnknownSession { session: session.clone(), ended }.into())
    }

    /// Takes a sign of life from a call that has shown the right token, unless one was written a moment before `now`,
    /// and answers with the lease it may count on. Called after the verb's commit: a wrong token keeps nobody alive.
    pub(super) async fn showed_token(
        &self,
        namespace: NamespaceId,
        session: &SessionKey,
        lease: store::session::Lease,
        now: Timestamp,
    ) -> Result<(Timestamp, Duration), Fault> {
        if now >= lease.until - lease.ttl + WRITTEN_EVERY {
            let mut conn = self.0.db.conn().await?;
            let touched = store::session::touch(&mut conn, namespace, std::slice::from_ref(session)).await?;
            if let Some(touched) = touched.first() {
                return Ok((touched.lease_until(), touched.lease_ttl));
            }
        }
        Ok((lease.until, lease.ttl))
    }

    /// Takes a sign of life from every session that has a poll parked here; polls of ended ones are told.
    ///
    /// # Errors
    /// Of the database; the next round makes up for it.
    pub async fn keep_parked_alive(&self) -> Result<(), super::Error> {
        for (namespace, mut sessions) in self.0.matchmaker.parked() {
            sessions.sort_unstable();
            sessions.dedup();
            for some in sessions.chunks(500) {
                let mut conn = self.0.db.conn().await.map_err(Fault::from)?;
                let alive = store::session::touch(&mut conn, namespace, some).await.map_err(Fault::from)?;
                let alive: HashMap<_, _> = alive.into_iter().map(|session| (session.key.clone(), session)).collect();
                for key in some {
                    match alive.get(key) {
                        Some(session) if session.present_from.is_none() => self.0.matchmaker.draining(namespace, key),
                        Some(session) => self.0.matchmaker.offers(namespace, key, session.label_set_no),
                        None => {
                            let ended = store::session::end_reason(&mut conn, namespace, key).await;
                            let ended = ended.map_err(Fault::from)?.flatten();
                            self.0.matchmaker.ended(namespace, key, ended.unwrap_or(EndReason::Lapsed));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
