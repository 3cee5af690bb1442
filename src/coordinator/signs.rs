//! Signs of life: every call that names a session, or shows its token, is one.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Coordinator, Fault};
use crate::domain::Timestamp;
use crate::domain::refusal::Refusal;
use crate::domain::session::{EndReason, Session};
use crate::ids::{NamespaceId, SessionKey};
use crate::store;

/// How often the signs of one session that come with acks, renewals and reports are written, at the most.
const WRITTEN_EVERY: Duration = Duration::from_secs(1);

/// When each session's last sign was written by this replica. A hint that saves writes; never what a lease is judged by.
#[derive(Default)]
pub(super) struct Signs(Mutex<HashMap<(NamespaceId, SessionKey), Instant>>);

impl Signs {
    fn due(&self, namespace: NamespaceId, session: &SessionKey) -> bool {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if written.len() > 10_000 {
            written.retain(|_, at| now.duration_since(*at) < WRITTEN_EVERY);
        }
        match written.insert((namespace, session.clone()), now) {
            Some(before) if now.duration_since(before) < WRITTEN_EVERY => {
                written.insert((namespace, session.clone()), before);
                false
            }
            _ => true,
        }
    }
}

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

    /// Takes a sign of life from a call that has shown the right token, unless one was written a moment ago, and
    /// answers with the lease it may count on. Called after the verb's commit: a wrong token keeps nobody alive.
    pub(super) async fn showed_token(
        &self,
        namespace: NamespaceId,
        session: &SessionKey,
        lease: store::session::Lease,
    ) -> Result<(Timestamp, Duration), Fault> {
        if self.0.signs.due(namespace, session) {
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
                    if let Some(session) = alive.get(key) {
                        self.0.matchmaker.offers(namespace, key, session.label_set_no);
                    } else {
                        let ended = store::session::end_reason(&mut conn, namespace, key).await.map_err(Fault::from)?;
                        self.0.matchmaker.ended(namespace, key, ended.flatten().unwrap_or(EndReason::Lapsed));
                    }
                }
            }
        }
        Ok(())
    }
}
