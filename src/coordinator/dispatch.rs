//! Dispatch: a run is recorded and waits for its worker, or is refused because it would not wait.

use std::sync::Arc;

use super::error::Fault;
use super::handover::HandOver;
use super::record::Recorded;
use super::{Coordinator, Error};
use crate::domain::refusal::Refusal;
use crate::domain::rules::dispatch::Dispatch;
use crate::domain::snapshot::RunSnapshot;
use crate::ids::{AttemptId, Digest, NamespaceId, RunKey, SelectorNo, new_uuid};
use crate::store::create::{Identity, Taken};
use crate::store::{self, Conn, Db};

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

impl Request {
    /// What makes it the same as another.
    pub(super) fn identity(&self) -> Identity {
        Identity { key: self.idempotency_key.clone(), digest: self.digest }
    }
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
    /// Records a run with its task and its event in one transaction, and wakes polls that may take it; a poll that waits
    /// here for nothing else is given it by the same transaction.
    ///
    /// A repeat, by key or without a key by identity, answers the run as it is now. Cancellation safe: once called,
    /// the dispatch is recorded or refused whether or not the caller stays.
    ///
    /// # Errors
    /// [`Refusal::NoAvailableWorker`] and [`Refusal::NoMatchingWorker`] when it would not wait and nothing matches;
    /// [`Refusal::NoParkedPoll`] when it is to be handed to a poll and none that fits is parked here;
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
        let identity = request.identity();
        let (started, recorded) = if request.dispatch.parent.is_none() && identity.key.is_none() {
            // What is written is one statement, which leaves nothing behind when a twin was first: it needs no transaction
            // around it.
            let mut conn = parts.db.conn().await?;
            self.start(&mut conn, namespace, request, selector_no).await?
        } else {
            let mut tx = parts.db.begin().await?;
            let (started, recorded) = self.start(&mut tx, namespace, request, selector_no).await?;
            match recorded {
                Some(_) => Db::commit(tx).await?,
                // It takes the key that this very dispatch wrote before it met its twin.
                None => Db::roll_back(tx).await?,
            }
            (started, recorded)
        };
        if let Some((recorded, poll)) = recorded {
            if let Some(poll) = poll {
                // Before all else: somebody waits for it.
                let gone = poll.give(self.settings().ack_timeout, request);
                if !gone.is_empty() {
                    self.take_back(namespace, gone).await;
                }
            }
            let run = self.announce(namespace, recorded).await.swap_remove(0);
            tracing::info!(run = %request.dispatch.key, selector = %request.dispatch.selector, "dispatched");
            return Ok(Dispatched { run, replayed: false });
        }
        // Refused, or a twin was first. A repeat of what was accepted is answered even if it would be refused now.
        let key = &request.dispatch.key;
        let twin = {
            let mut conn = parts.db.conn().await?;
            store::create::taken(&mut conn, namespace, key, identity.key.as_deref()).await?
        };
        match (repeat_of(key, &identity, twin)?, started) {
            (Some(key), _) => Ok(Dispatched { run: self.read(namespace, &key).await?, replayed: true }),
            (None, Err(refusal)) => Err(refusal.into()),
            // Nobody was first, and the poll could not have it after all.
            (None, Ok(())) if request.dispatch.direct => {
                Err(Refusal::NoParkedPoll(Arc::clone(&request.dispatch.selector)).into())
            }
            (None, Ok(())) => Err(store::Error::Unreadable(format!("{key} exists and cannot be found")).into()),
        }
    }

    /// Decides by the situation of this moment whether the run may wait, and records it; nothing is recorded when it is
    /// refused, or its twin was first.
    async fn start(
        &self,
        conn: &mut Conn,
        namespace: NamespaceId,
        request: &Request,
        selector_no: SelectorNo,
    ) -> store::Result<Started> {
        let dispatch = &request.dispatch;
        if let Err(refusal) = self.needs_parent(conn, namespace, dispatch.parent.as_ref()).await? {
            return Ok((Err(refusal), None));
        }
        let situation = self.0.catalog.situation(conn, namespace, selector_no).await?;
        match dispatch.clone().start(selector_no, &situation.0, AttemptId(new_uuid())) {
            Ok(transition) => {
                if dispatch.direct {
                    return self.deliver(conn, namespace, &transition, &situation, request).await;
                }
                let poll = self.poll_for(namespace, &transition, &situation);
                let recorded = self.record_new(conn, namespace, &transition, situation, request, poll.as_ref()).await?;
                Ok((Ok(()), recorded.map(|(recorded, given)| (recorded, poll.filter(|_| given)))))
            }
            Err(refusal) => Ok((Err(refusal), None)),
        }
    }
}

/// Whether a dispatch was accepted, and what was recorded for which poll; nothing, if its twin was first.
pub(super) type Started = (Result<(), Refusal>, Option<(Recorded, Option<HandOver>)>);

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
