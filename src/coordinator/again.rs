//! Retry and resume: a run's next attempt, through the same door as its first.

use std::collections::HashMap;
use std::sync::Arc;

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::refusal::Refusal;
use crate::domain::rules::again::Changes;
use crate::domain::run::Operation;
use crate::domain::snapshot::RunSnapshot;
use crate::ids::{AttemptId, Digest, NamespaceId, RunKey, new_uuid};
use crate::store::attempts::Follower;
use crate::store::create::Payload;
use crate::store::{self, Db};

pub use crate::store::attempts::AttemptView;

/// A retry or a resume, decoded and valid by itself.
#[derive(Debug, Clone)]
pub struct Again {
    /// Which of the two.
    pub operation: Operation,
    /// The attempt it follows: a repeat names the same one, and makes nothing more.
    pub after: AttemptId,
    /// What is asked for otherwise than before.
    pub changes: Changes,
    /// What it carries otherwise than before.
    pub payload: Payload,
    /// The digest of the request, which tells a repeat from another request.
    pub digest: Digest,
}

impl Coordinator {
    /// Queues a run's next attempt with its task and its event in one transaction, and wakes polls that may take it.
    /// Locks the run, its attempt and its payload.
    ///
    /// A repeat answers the run as it is now. Cancellation safe, as a dispatch is.
    ///
    /// # Errors
    /// [`Refusal::RunNotFinished`] and [`Refusal::RunNotWaiting`]; [`Refusal::AttemptSuperseded`] when the run has gone
    /// on from the attempt named by another request; the refusals of a dispatch that would not wait. The run stays as
    /// it is then.
    pub async fn dispatch_again(
        &self,
        namespace: NamespaceId,
        key: RunKey,
        again: Again,
    ) -> Result<RunSnapshot, Error> {
        let request = Arc::new((key, again));
        self.shielded(move |coordinator: Self| {
            let request = Arc::clone(&request);
            async move { coordinator.again_once(namespace, &request.0, &request.1).await }
        })
        .await
    }

    async fn again_once(&self, namespace: NamespaceId, key: &RunKey, again: &Again) -> Result<RunSnapshot, Fault> {
        let parts = &self.0;
        // What is as before is read without a lock: it is what it is as long as the run is at the attempt named.
        let before = {
            let mut conn = parts.db.conn().await?;
            let found = store::read::runs(&mut conn, namespace, std::slice::from_ref(key)).await?;
            found.into_iter().next().ok_or_else(|| Refusal::NoSuchRun(key.clone()))??.run
        };
        if before.attempt.attempt_id != again.after {
            return self.gone_on(namespace, key, again, before.attempt.attempt_id).await;
        }
        if before.status.is_terminal() {
            // Its cancel, if there was one, covers the children it had, not those it will have.
            self.finish_cascades(namespace, Some(key)).await?;
        }
        let dispatch = again.changes.clone().of(&before, again.operation);
        let selector_no = parts.catalog.selector_no(&parts.db, namespace, &dispatch.selector).await?;
        let mut tx = parts.db.begin().await?;
        let found = store::lock::run(&mut tx, namespace, key, None).await?;
        let (locked, _) = found.ok_or_else(|| Refusal::NoSuchRun(key.clone()))?;
        if locked.attempt.id != again.after {
            Db::roll_back(tx).await?;
            return self.gone_on(namespace, key, again, locked.attempt.id).await;
        }
        if store::family::is_cascading(&mut tx, namespace, key).await? {
            // Somebody of its family is locked and has not been told of its cancel, which another attempt would end.
            Db::roll_back(tx).await?;
            return Err(store::Error::Full.into());
        }
        self.needs_parent(&mut tx, namespace, dispatch.parent.as_ref()).await??;
        let situation = parts.catalog.situation(&mut tx, namespace, selector_no).await?;
        let next = AttemptId(new_uuid());
        let transition = locked.dispatch_again(dispatch, selector_no, &situation.0, next, again.digest)?;
        if let Some(labels) = &again.changes.labels {
            store::again::relabel(&mut tx, namespace, key, labels).await?;
        }
        let seen = HashMap::from([(selector_no, situation)]);
        let recorded = self.record_seen(&mut tx, namespace, std::slice::from_ref(&transition), seen).await?;
        if again.payload != Payload::default() {
            store::again::carry(&mut tx, namespace, key, &again.payload).await?;
        }
        Db::commit(tx).await?;
        let run = self.announce(namespace, recorded).await.swap_remove(0);
        tracing::info!(run = %key, attempt = %next, operation = %again.operation, "dispatched again");
        Ok(run)
    }

    /// The answer to a request to follow an attempt that is no longer the run's: a repeat, or too late.
    async fn gone_on(
        &self,
        namespace: NamespaceId,
        key: &RunKey,
        again: &Again,
        current: AttemptId,
    ) -> Result<RunSnapshot, Fault> {
        let follower = {
            let mut conn = self.0.db.conn().await?;
            store::attempts::follower(&mut conn, namespace, key, again.after, again.digest).await?
        };
        match follower {
            Follower::Same => self.read(namespace, key).await,
            Follower::Other => Err(Refusal::AttemptSuperseded { attempt_id: again.after, current }.into()),
            Follower::NoSuchAttempt => Err(Refusal::NoSuchAttempt(again.after).into()),
        }
    }

    /// A run's attempts, the first one first: at most `limit` after the number `after`.
    ///
    /// # Errors
    /// [`Refusal::NoSuchRun`].
    pub async fn list_attempts(
        &self,
        namespace: NamespaceId,
        key: &RunKey,
        after: i32,
        limit: i64,
    ) -> Result<Vec<AttemptView>, Error> {
        let read = async {
            let mut conn = self.0.db.conn().await?;
            let attempts = store::attempts::of_run(&mut conn, namespace, key, after, limit).await?;
            if attempts.is_empty()
                && store::read::versions(&mut conn, namespace, std::slice::from_ref(key)).await?.is_empty()
            {
                return Err(Fault::from(Refusal::NoSuchRun(key.clone())));
            }
            Ok(attempts)
        };
        super::patiently(read).await
    }
}
