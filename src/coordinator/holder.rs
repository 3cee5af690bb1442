//! What the verbs that show a token share: find the attempt, keep its session from ending, lock its run.

use super::signs::touch_one;
use super::{Coordinator, Fault};
use crate::domain::Timestamp;
use crate::domain::attempt::Locked;
use crate::domain::refusal::Refusal;
use crate::ids::{AttemptId, Digest, NamespaceId, SessionKey};
use crate::store::lock::Whereabouts;
use crate::store::{self, Tx};

/// An attempt whose holder speaks: everything locked, in the order of every transaction.
pub(super) struct Held {
    /// The transaction that holds the locks.
    pub tx: Tx,
    /// The run, the attempt and its task.
    pub locked: Locked,
    /// The session that has it, if any.
    pub session: Option<SessionKey>,
    /// That session's lease.
    pub lease: Option<store::session::Lease>,
    /// The moment after the locks.
    pub now: Timestamp,
}

impl Held {
    /// Whether the session that has it is gone.
    pub fn session_ended(&self) -> bool {
        self.lease.is_none_or(|lease| lease.ended)
    }
}

impl Coordinator {
    /// Finds and locks what an attempt's holder speaks of. Whether the caller is that holder, the rule decides.
    pub(super) async fn lock_held(&self, namespace: NamespaceId, attempt_id: AttemptId) -> Result<Held, Fault> {
        let whereabouts = self.whereabouts(namespace, attempt_id).await?;
        self.lock_at(namespace, attempt_id, whereabouts).await
    }

    /// The same for who shows a token as a sign of life. The right one is heard before anything else: a sweep that comes
    /// between an answer and the sign of life after it would end the session that was just answered.
    pub(super) async fn lock_heard(
        &self,
        namespace: NamespaceId,
        attempt_id: AttemptId,
        token: Digest,
    ) -> Result<Held, Fault> {
        let whereabouts = self.whereabouts(namespace, attempt_id).await?;
        if let Some(session) = whereabouts.session.as_ref().filter(|_| whereabouts.is_silent)
            && whereabouts.token == Some(token)
        {
            let mut conn = self.0.db.conn().await?;
            // One that has ended is not revived; the rule will say so.
            touch_one(&mut conn, namespace, session).await?;
        }
        self.lock_at(namespace, attempt_id, whereabouts).await
    }

    async fn whereabouts(&self, namespace: NamespaceId, attempt_id: AttemptId) -> Result<Whereabouts, Fault> {
        let mut conn = self.0.db.conn().await?;
        let whereabouts = store::lock::whereabouts(&mut conn, namespace, attempt_id).await?;
        Ok(whereabouts.ok_or(Refusal::NoSuchAttempt(attempt_id))?)
    }

    async fn lock_at(
        &self,
        namespace: NamespaceId,
        attempt_id: AttemptId,
        whereabouts: Whereabouts,
    ) -> Result<Held, Fault> {
        let mut tx = self.0.db.begin().await?;
        let lease = match &whereabouts.session {
            Some(session) => store::session::hold_lease(&mut tx, namespace, session).await?,
            None => None,
        };
        let (locked, now) = store::lock::run(&mut tx, namespace, &whereabouts.key, Some(attempt_id))
            .await?
            .ok_or(Refusal::NoSuchAttempt(attempt_id))?;
        Ok(Held { tx, locked, session: whereabouts.session, lease, now })
    }
}
