//! What the verbs that show a token share: find the attempt, keep its session from ending, lock its run.

use super::{Coordinator, Fault};
use crate::domain::Timestamp;
use crate::domain::attempt::Locked;
use crate::domain::refusal::Refusal;
use crate::ids::{AttemptId, NamespaceId, SessionKey};
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
        let whereabouts = {
            let mut conn = self.0.db.conn().await?;
            store::lock::whereabouts(&mut conn, namespace, attempt_id).await?
        };
        let whereabouts = whereabouts.ok_or(Refusal::NoSuchAttempt(attempt_id))?;
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
