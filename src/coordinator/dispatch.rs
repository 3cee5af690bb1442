//! Dispatch: a run is recorded and waits for its worker, or is refused because it would not wait.

use std::sync::Arc;

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::refusal::Refusal;
use crate::domain::rules::dispatch::Dispatch;
use crate::domain::snapshot::RunSnapshot;
use crate::ids::{AttemptId, Digest, NamespaceId, RunKey, new_uuid};
use crate::store::create::{Identity, Taken};
use crate::store::{self, Db};

pub use crate::store::create::Payload;

/// A dispatch, decoded and valid by itself.
#[derive(Debug, Clone)]
pub struct Request {
    /// What it asks for.
    pub dispatch: Dispatch,
    /// What it carries for its worker.
    pub payload: Payload,
    /// The client's key, under which a repeat is the same dispatch.
    pub idempotency_key: Option<String>,
    /// The digest of the request, which tells a repeat from another request.
    pub digest: Digest,
}

/// A run that a dispatch made, or had made before.
#[derive(Debug, Clone)]
pub struct Dispatched {
    /// The run as it is now.
    pub run: RunSnapshot,
    /// Whether an earlier request had made it.
    pub replayed: bool,
}

impl Coordinator {
    /// Records a run with its task and its event in one transaction, and wakes polls that may take it.
    ///
    /// A repeat, by key or without a key by identity, answers the run as it is now. Cancellation safe: once called,
    /// the dispatch is recorded or refused whether or not the caller stays.
    ///
    /// # Errors
    /// [`Refusal::NoAvailableWorker`] and [`Refusal::NoMatchingWorker`] when it would not wait and nothing matches;
    /// [`Refusal::ParentFinished`] when its parent has ended or is to be cancelled;
    /// [`Refusal::RunExists`] and [`Refusal::IdempotencyMismatch`] for what only looks like a repeat.
    pub async fn dispatch(&self, namespace: NamespaceId, request: Request) -> Result<Dispatched, Error> {
        let request = Arc::new(request);
        self.shielded(move |coordinator: Self| {
            let request = Arc::clone(&request);
            async move { coordinator.dispatch_once(namespace, &request).await }
        })
        .await
    }

    async fn dispatch_once(&self, namespace: NamespaceId, request: &Request) -> Result<Dispatched, Fault> {
        let parts = &self.0;
        let selector_no = parts.catalog.selector_no(&parts.db, namespace, &request.dispatch.selector).await?;
        let identity = Identity { key: request.idempotency_key.clone(), digest: request.digest };
        let mut tx = parts.db.begin().await?;
        let parent = self.needs_parent(&mut tx, namespace, request.dispatch.parent.as_ref()).await?;
        let situation = parts.catalog.situation(&mut tx, namespace, selector_no).await?;
        let start = || request.dispatch.clone().start(selector_no, &situation.0, AttemptId(new_uuid()));
        let started = parent.and_then(|()| start());
        let recorded = match &started {
            Ok(transition) => {
                self.record_new(&mut tx, namespace, transition, situation, &identity, &request.payload).await?
            }
            Err(_) => None,
        };
        if let Some(recorded) = recorded {
            Db::commit(tx).await?;
            let run = self.announce(namespace, recorded).await.swap_remove(0);
            tracing::info!(run = %request.dispatch.key, selector = %request.dispatch.selector, "dispatched");
            return Ok(Dispatched { run, replayed: false });
        }
        // Refused, or a twin was first. A repeat of what was accepted is answered even if it would be refused now.
        // Looked for after the rollback, which takes the key that this very dispatch wrote before it met its twin.
        let key = &request.dispatch.key;
        Db::roll_back(tx).await?;
        let twin = {
            let mut conn = parts.db.conn().await?;
            store::create::taken(&mut conn, namespace, key, identity.key.as_deref()).await?
        };
        match (repeat_of(key, &identity, twin)?, started) {
            (Some(key), _) => Ok(Dispatched { run: self.read(namespace, &key).await?, replayed: true }),
            (None, Err(refusal)) => Err(refusal.into()),
            (None, Ok(_)) => Err(store::Error::Unreadable(format!("{key} exists and cannot be found")).into()),
        }
    }
}

/// Which run a dispatch repeats, if what is in its way is its twin.
fn repeat_of(key: &RunKey, identity: &Identity, taken: Taken) -> Result<Option<RunKey>, Refusal> {
    match taken {
        Taken::Key(run, digest) if digest == identity.digest => Ok(Some(run)),
        Taken::Key(..) => Err(Refusal::IdempotencyMismatch),
        Taken::Identity(other) if other == *identity => Ok(Some(key.clone())),
        Taken::Identity(_) => Err(Refusal::RunExists(key.clone())),
        Taken::Nothing => Ok(None),
    }
}
