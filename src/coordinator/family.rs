//! Families: a child needs a living parent, and a cancel covers all descendants.
//!
//! A cancel marks one level and commits; only then it reads that level's children, in a new statement: a child whose
//! dispatch locked its parent first is there by then, and one that comes later is refused. The mark stays until all
//! children have been told, so that the sweep finishes what a crash cut.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::Coordinator;
use super::error::Fault;
use crate::domain::attempt::Locked;
use crate::domain::refusal::Refusal;
use crate::domain::run::Status;
use crate::ids::{NamespaceId, RunKey};
use crate::store::family::{Cascade, Child};
use crate::store::{self, Conn, Db};

/// The pauses after which a cancel tries again to tell those that somebody has locked.
const PASSED_OVER: [Duration; 4] =
    [Duration::from_millis(10), Duration::from_millis(40), Duration::from_millis(150), Duration::ZERO];

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

    /// Tells all descendants of a run of its cancel: those that wait are aborted, those that run are asked to stop or, by
    /// force, ended; it goes on through those that have ended. The mark stays if one of them could not be told.
    ///
    /// Waits for nobody: a descendant that somebody else has locked is passed over, and left to the next pass of the sweep;
    /// answers whether there was none.
    async fn cascade(&self, namespace: NamespaceId, cascade: &Cascade) -> Result<bool, Fault> {
        let mut parents = vec![cascade.of.clone()];
        // A family may lead back to where it began.
        let mut seen = HashSet::from([cascade.of.clone()]);
        let mut all_told = true;
        while let Some(parent) = parents.pop() {
            let mut after = None;
            loop {
                let children = {
                    let mut conn = self.0.db.conn().await?;
                    store::family::children(&mut conn, namespace, &parent, after.as_ref()).await?
                };
                let Some(last) = children.last() else { break };
                after = Some(last.key.clone());
                let Some(told) = self.tell_children(namespace, cascade, &children).await? else { return Ok(true) };
                all_told &= told.all;
                parents.extend(told.parents.into_iter().filter(|key| seen.insert(key.clone())));
            }
        }
        if all_told {
            let mut conn = self.0.db.conn().await?;
            store::family::told(&mut conn, namespace, cascade).await?;
        }
        Ok(all_told)
    }

    /// The same for one who would rather wait a moment than leave somebody out: most locks are of our own making, and are
    /// held for milliseconds.
    pub(super) async fn cascade_soon(&self, namespace: NamespaceId, cascade: &Cascade) -> Result<(), Fault> {
        for pause in PASSED_OVER {
            if self.cascade(namespace, cascade).await? {
                return Ok(());
            }
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Cancels those of these children that live, in one transaction; nothing once the cancel does not stand any more.
    async fn tell_children(
        &self,
        namespace: NamespaceId,
        cascade: &Cascade,
        children: &[Child],
    ) -> Result<Option<Told>, Fault> {
        let living = children.iter().filter(|child| !child.ended && (!child.asked || cascade.force));
        let living: Vec<RunKey> = living.map(|child| child.key.clone()).collect();
        let mut tx = self.0.db.begin().await?;
        if !store::family::stands(&mut tx, namespace, cascade).await? {
            return Ok(None);
        }
        let found = store::lock::runs(&mut tx, namespace, &living).await?;
        let mut transitions = Vec::with_capacity(found.len());
        let mut told: HashMap<&RunKey, &Locked> = HashMap::new();
        for (key, locked) in &found {
            match locked {
                Ok((locked, now)) => {
                    transitions.extend(locked.cancel(cascade.reason.clone(), cascade.force, *now));
                    told.insert(key, locked);
                }
                Err(error) => tracing::error!(run = %key, %error, "it is not told of the cancel of its family"),
            }
        }
        let passed_over: HashSet<&RunKey> = living.iter().filter(|key| !told.contains_key(key)).collect();
        let through = children.iter().map(|child| &child.key).filter(|key| !passed_over.contains(key));
        let through: Vec<RunKey> = through.cloned().collect();
        let parents = store::family::parents_among(&mut tx, namespace, &through).await?;
        let recorded = self.record(&mut tx, namespace, &transitions).await?;
        Db::commit(tx).await?;
        for transition in &transitions {
            let run = transition.run();
            tracing::info!(run = %run.key, status = %run.status, "cancelled with its family");
            let session = told.get(&run.key).and_then(|locked| locked.attempt.session.as_ref());
            if let (Status::Running, Some(session)) = (run.status, session) {
                self.0.matchmaker.news(namespace, session);
            }
        }
        let all = passed_over.is_empty();
        self.announce(namespace, recorded).await;
        Ok(Some(Told { all, parents: parents.into_iter().collect() }))
    }

    /// Finishes cancels that were cut short, or that met somebody else's locks.
    pub(super) async fn finish_cascades(&self, namespace: NamespaceId, of: Option<&RunKey>) -> Result<(), Fault> {
        let cut = {
            let mut conn = self.0.db.conn().await?;
            store::family::cascading(&mut conn, namespace, of).await?
        };
        for cascade in &cut {
            if let Err(error) = self.cascade(namespace, cascade).await {
                tracing::warn!(run = %cascade.of, %error, "its family is left to the next pass");
            }
        }
        Ok(())
    }
}

/// What came of telling some children.
struct Told {
    /// Whether each of them was.
    all: bool,
    /// Those that have children themselves.
    parents: Vec<RunKey>,
}
