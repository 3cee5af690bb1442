//! Signs of life: every call that names a session, or shows its token, is one.

use std::collections::HashMap;
use std::time::Duration;

use super::{Coordinator, Fault};
use crate::domain::Timestamp;
use crate::domain::refusal::Refusal;
use crate::domain::session::{EndReason, Session};
use crate::ids::{NamespaceId, SessionKey};
use crate::store::signs::Wait;
use crate::store::{self, Conn};

impl Coordinator {
    /// Takes a sign of life from a call that names its session, and answers with the session.
    pub(super) async fn alive(&self, namespace: NamespaceId, session: &SessionKey) -> Result<Session, Fault> {
        let mut conn = self.0.db.conn().await?;
        if let Some(touched) = touch_one(&mut conn, namespace, session).await? {
            return Ok(touched);
        }
        let ended = store::session::end_reason(&mut conn, namespace, session).await?.flatten();
        Err(Refusal::UnknownSession { session: session.clone(), ended }.into())
    }

    /// Takes a sign of life from a call that has shown the right token, and answers with the lease it may count on. Called
    /// after the verb's commit: a wrong token keeps nobody alive. `lease` is what the verb found of it at `now`: if that is
    /// recent, nothing is asked.
    pub(super) async fn showed_token(
        &self,
        namespace: NamespaceId,
        session: &SessionKey,
        lease: store::session::Lease,
        now: Timestamp,
    ) -> Result<(Timestamp, Duration), Fault> {
        if now >= lease.until - lease.ttl + store::signs::WRITTEN_EVERY {
            let mut conn = self.0.db.conn().await?;
            if let Some(touched) = touch_one(&mut conn, namespace, session).await? {
                return Ok((touched.lease_until(), touched.lease_ttl));
            }
        }
        Ok((lease.until, lease.ttl))
    }

    /// Takes a sign of life from every session that has a poll parked here. One that somebody has locked is left to the
    /// next round.
    ///
    /// # Errors
    /// Of the database; the next round makes up for it.
    pub async fn keep_parked_alive(&self) -> Result<(), super::Error> {
        for (namespace, sessions) in self.parked_sessions() {
            let mut conn = self.0.db.conn().await.map_err(Fault::from)?;
            for some in sessions.chunks(500) {
                let found = store::signs::recent(&mut conn, namespace, some).await.map_err(Fault::from)?;
                store::signs::touch(&mut conn, namespace, found, Wait::ForNobody).await.map_err(Fault::from)?;
            }
        }
        Ok(())
    }

    /// Tells the polls parked here what other replicas changed of their sessions: that one has ended, drains, or offers
    /// something else. One statement that writes nothing, so that it can be as frequent as a look.
    ///
    /// # Errors
    /// Of the database; the next round makes up for it.
    pub async fn tell_parked(&self) -> Result<(), super::Error> {
        for (namespace, sessions) in self.parked_sessions() {
            // One connection for all of them: each that comes back is checked by a statement of its own.
            let mut conn = self.0.db.conn().await.map_err(Fault::from)?;
            for some in sessions.chunks(1_000) {
                let found = store::session::standing(&mut conn, namespace, some).await.map_err(Fault::from)?;
                let found: HashMap<_, _> = found.into_iter().map(|session| (session.key.clone(), session)).collect();
                for key in some {
                    match found.get(key) {
                        None => self.0.matchmaker.ended(namespace, key, EndReason::Lapsed),
                        Some(Session { ended: Some(reason), .. }) => {
                            self.0.matchmaker.ended(namespace, key, *reason);
                        }
                        Some(Session { present_from: None, .. }) => self.0.matchmaker.draining(namespace, key),
                        Some(session) => self.0.matchmaker.offers(namespace, key, session.label_set_no),
                    }
                }
            }
        }
        Ok(())
    }

    /// The sessions with a poll parked here, each once, in key order.
    fn parked_sessions(&self) -> HashMap<NamespaceId, Vec<SessionKey>> {
        let mut parked = self.0.matchmaker.parked();
        for sessions in parked.values_mut() {
            sessions.sort_unstable();
            sessions.dedup();
        }
        parked
    }
}

/// Takes a sign of life of one session, and waits for it; none if it has ended, or never was.
pub(super) async fn touch_one(
    conn: &mut Conn,
    namespace: NamespaceId,
    session: &SessionKey,
) -> store::Result<Option<Session>> {
    let found = store::signs::recent(conn, namespace, std::slice::from_ref(session)).await?;
    Ok(store::signs::touch(conn, namespace, found, Wait::ForIt).await?.into_iter().next())
}
