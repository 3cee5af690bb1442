//! Shared statements: what many ask for at the same time is done by one of them for all.
//!
//! There is no timer and nobody is waited for. The first ones go straight through, each alone; while all slots are busy,
//! what comes waits, and goes together as soon as a slot is free. The more there is to do, the more go together.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Coordinator, Error, Fault, LONGEST, PATIENCE};
use crate::ids::NamespaceId;
use crate::store::{self, Class};

/// How many statements of a kind are under way at a time.
const SLOTS: usize = 2;

/// How many go together at the most.
const TOGETHER: usize = 500;

/// How many may wait.
const WAITING: usize = 10_000;

/// What can be done for many at once.
pub(super) trait Shared: Sized + Clone + Send + 'static {
    /// What one asks for. No two of the same go together.
    type Key: Eq + Hash;
    /// What one is told.
    type Answer: Send + 'static;
    /// How long it may wait for a connection.
    const CLASS: Class;

    /// The key.
    fn key(&self) -> Self::Key;

    /// Does it for all of these, of which no two have the same key, and answers in their order. `None` is for one that
    /// must be done alone: what it needs is locked by somebody, and the others are not to wait for that.
    fn together(
        coordinator: &Coordinator,
        namespace: NamespaceId,
        all: &[Self],
    ) -> impl Future<Output = Result<Answers<Self::Answer>, Fault>> + Send;

    /// Does it for one.
    fn alone(
        &self,
        coordinator: &Coordinator,
        namespace: NamespaceId,
    ) -> impl Future<Output = Result<Self::Answer, Fault>> + Send;
}

/// Of each what it is told; none if it must be done alone.
pub(super) type Answers<A> = Vec<Option<Result<A, Fault>>>;

/// Those that wait for a slot.
pub(super) struct Queue<S: Shared>(Arc<Mutex<State<S>>>);

struct State<S: Shared> {
    waiting: VecDeque<Waiting<S>>,
    busy: usize,
}

struct Waiting<S: Shared> {
    namespace: NamespaceId,
    item: S,
    tell: oneshot::Sender<Result<S::Answer, Error>>,
}

impl<S: Shared> Default for Queue<S> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State { waiting: VecDeque::new(), busy: 0 })))
    }
}

impl<S: Shared> Clone for Queue<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Shared> Queue<S> {
    /// Does this together with what else waits, in a task that a caller who goes away does not cancel.
    ///
    /// # Errors
    /// Its own; [`Error::Overloaded`] when too many wait.
    pub(super) async fn ask(
        &self,
        coordinator: &Coordinator,
        namespace: NamespaceId,
        item: S,
    ) -> Result<S::Answer, Error> {
        let (tell, told) = oneshot::channel();
        {
            let mut state = self.state();
            if state.waiting.len() >= WAITING {
                return Err(Error::Overloaded);
            }
            state.waiting.push_back(Waiting { namespace, item, tell });
            if state.busy < SLOTS {
                state.busy += 1;
                let (queue, coordinator) = (self.clone(), coordinator.clone());
                let tasks = coordinator.0.tasks.clone();
                tasks.spawn(S::CLASS.scope(async move { queue.work(&coordinator).await }));
            }
        }
        match timeout(PATIENCE, told).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Error::Internal("a shared statement ended without an answer".to_owned())),
            Err(_) => Err(coordinator.unanswered(PATIENCE)),
        }
    }

    /// Takes what waits, until nothing does.
    async fn work(&self, coordinator: &Coordinator) {
        while let Some((namespace, batch)) = self.next() {
            // In a task of its own: a panic in one batch must not leave the slot busy for ever.
            let done = S::CLASS.scope(run(coordinator.clone(), namespace, batch));
            if let Err(panic) = coordinator.0.tasks.spawn(done).await {
                tracing::error!(%panic, "a shared statement ended without an answer");
            }
        }
    }

    /// The first that waits with those of the same namespace that can go with it; else the slot is free.
    fn next(&self) -> Option<(NamespaceId, Vec<Waiting<S>>)> {
        let mut state = self.state();
        let Some(namespace) = state.waiting.front().map(|first| first.namespace) else {
            state.busy -= 1;
            return None;
        };
        let (mut batch, mut keys, mut left) = (Vec::new(), HashSet::new(), VecDeque::new());
        for waiting in std::mem::take(&mut state.waiting) {
            let goes = waiting.namespace == namespace && batch.len() < TOGETHER && keys.insert(waiting.item.key());
            if goes { batch.push(waiting) } else { left.push_back(waiting) }
        }
        state.waiting = left;
        Some((namespace, batch))
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does it for all of these; each alone if that fails for another reason than that the database is away.
async fn run<S: Shared>(coordinator: Coordinator, namespace: NamespaceId, batch: Vec<Waiting<S>>) {
    let (items, tells): (Vec<S>, Vec<_>) = batch.into_iter().map(|waiting| (waiting.item, waiting.tell)).unzip();
    let mut tries = 0;
    let done = loop {
        match timeout(LONGEST, S::together(&coordinator, namespace, &items)).await {
            Ok(Err(Fault::Store(store::Error::Conflict(_)))) if tries < 3 => tries += 1,
            Ok(done) => break done,
            Err(_) => break Err(Fault::Store(store::Error::Away)),
        }
    };
    let answers = match done {
        Ok(answers) => answers,
        Err(Fault::Store(error @ (store::Error::Statement(_) | store::Error::Unreadable(_)))) if items.len() > 1 => {
            tracing::warn!(%error, items = items.len(), "they could not be done together; trying each alone");
            items.iter().map(|_| None).collect()
        }
        Err(fault) => {
            let error = Error::from(fault);
            for tell in tells {
                // A caller who has gone is told nothing.
                let _ = tell.send(Err(error.clone()));
            }
            return;
        }
    };
    for ((item, tell), answer) in items.into_iter().zip(tells).zip(answers) {
        let Some(answer) = answer else {
            // Outside of the slots: whoever has locked what it needs keeps nobody else waiting.
            let coordinator = coordinator.clone();
            let tasks = coordinator.0.tasks.clone();
            tasks.spawn(S::CLASS.scope(async move {
                let done = coordinator.shielded(move |coordinator: Coordinator| {
                    let item = item.clone();
                    async move { item.alone(&coordinator, namespace).await }
                });
                let _ = tell.send(done.await);
            }));
            continue;
        };
        let _ = tell.send(answer.map_err(Error::from));
    }
}
