//! Families: a child needs a living parent, and a cancel covers all descendants.
//!
//! A cancel marks one level and commits; only then it reads that level's children, in a new statement: a child whose
//! dispatch locked its parent first is there by then, and one that comes later is refused. The mark stays until all
//! children have been told, so that the sweep finishes what a crash cut.

use super::Coordinator;
use super::error::Fault;
use crate::domain::attempt::Locked;
use crate::domain::refusal::Refusal;
use crate::domain::run::Status;
use crate::domain::transition::Transition;
use crate::ids::{NamespaceId, RunKey};
use crate::store::{self, Conn, Db};

impl Coordinator {
    /// Makes sure that the parent of a run about to be queued lives, and keeps it so until the transaction ends. One
    /// that was never seen here is recorded and no more.
    pub(super) async fn needs_parent(
        &self,
        tx: &mut Conn,
        namespace: NamespaceId,
        parent: Option<&RunKey>,
    ) -> store::Result<Result<(), Refusal>> {
        let Some(key) = parent else { return Ok(Ok(())) };
        Ok(match store::family::lock_parent(tx, namespace, key).await? {
            Some(parent) if parent.status.is_terminal() || parent.cancel_requested => {
                Err(Refusal::ParentFinished { parent: key.clone(), status: parent.status })
            }
            Some(_) | None => Ok(()),
        })
    }

    /// Tells all descendants of a run of its cancel, those that wait are aborted and those that run are asked to stop.
    pub(super) async fn cascade(
        &self,
        namespace: NamespaceId,
        key: &RunKey,
        reason: Option<&str>,
        force: bool,
    ) -> Result<(), Fault> {
        let mut parents = vec![key.clone()];
        while let Some(parent) = parents.pop() {
            let mut after = None;
            loop {
                let children = {
                    let mut conn = self.0.db.conn().await?;
                    store::family::untold_children(&mut conn, namespace, &parent, force, after.as_ref()).await?
                };
                let Some(last) = children.last() else { break };
                after = Some(last.clone());
                parents.extend(self.cancel_batch(namespace, &children, reason, force).await?);
            }
            let mut conn = self.0.db.conn().await?;
            store::family::told(&mut conn, namespace, &parent, force).await?;
        }
        Ok(())
    }

    /// Cancels runs together, and those that somebody else has locked one by one; answers which of them have children.
    async fn cancel_batch(
        &self,
        namespace: NamespaceId,
        keys: &[RunKey],
        reason: Option<&str>,
        force: bool,
    ) -> Result<Vec<RunKey>, Fault> {
        let mut tx = self.0.db.begin().await?;
        let found = store::lock::runs(&mut tx, namespace, keys).await?;
        let with_children = store::family::parents_among(&mut tx, namespace, keys).await?;
        let mut transitions = Vec::with_capacity(found.len());
        let mut told = Vec::new();
        for (key, locked) in &found {
            match locked {
                Ok((locked, now)) => {
                    let change = locked.cancel(reason.map(str::to_owned), force, *now);
                    told.push((key, locked));
                    transitions
                        .extend(change.map(|change| change.cascading(with_children.contains(key).then_some(force))));
                }
                Err(error) => tracing::error!(run = %key, %error, "it is not told of its parent's cancel"),
            }
        }
        let recorded = self.record(&mut tx, namespace, &transitions).await?;
        Db::commit(tx).await?;
        self.tell_workers(namespace, &transitions, &told);
        self.announce(namespace, recorded).await;
        let mut parents: Vec<RunKey> = with_children.into_iter().collect();
        for key in keys.iter().filter(|key| !found.iter().any(|(found, _)| found == *key)) {
            if let Err(error) = self.cancel_alone(namespace, key, reason.map(str::to_owned), force).await {
                tracing::warn!(run = %key, %error, "left to the next pass");
                parents.retain(|parent| parent != key);
            }
        }
        Ok(parents)
    }

    /// Workers whose attempts are to stop are told by the polls they have parked here.
    fn tell_workers(&self, namespace: NamespaceId, transitions: &[Transition], locked: &[(&RunKey, &Locked)]) {
        for transition in transitions {
            tracing::info!(run = %transition.run().key, status = %transition.run().status, "cancelled with its parent");
            if transition.run().status != Status::Running {
                continue;
            }
            let holder = locked.iter().find(|(key, _)| **key == transition.run().key);
            if let Some(session) = holder.and_then(|(_, locked)| locked.attempt.session.as_ref()) {
                self.0.matchmaker.news(namespace, session);
            }
        }
    }

    /// Finishes cancels that were cut short.
    pub(super) async fn finish_cascades(&self, namespace: NamespaceId) -> Result<(), Fault> {
        let cut = {
            let mut conn = self.0.db.conn().await?;
            store::family::cascading(&mut conn, namespace, None).await?
        };
        for cascade in cut {
            let store::family::Cascade { parent, reason, force } = cascade;
            if let Err(error) = self.cascade(namespace, &parent, reason.as_deref(), force).await {
                tracing::warn!(run = %parent, %error, "its children are left to the next pass");
            }
        }
        Ok(())
    }

    /// Finishes the cancel of this run, if it was cut short.
    pub(super) async fn finish_cascade(&self, namespace: NamespaceId, key: &RunKey) -> Result<(), Fault> {
        let cut = {
            let mut conn = self.0.db.conn().await?;
            store::family::cascading(&mut conn, namespace, Some(key)).await?
        };
        for cascade in cut {
            self.cascade(namespace, key, cascade.reason.as_deref(), cascade.force).await?;
        }
        Ok(())
    }
}
