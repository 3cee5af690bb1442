//! Who gets a connection when not all can: requests by class, the words of workers about what they run first.
//!
//! A lease that is not renewed and a result that cannot be reported make more work than they are; a read can wait. So
//! some connections are kept for them, and a flood of anything else fills its own queue and no other.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::{Error, Result};

/// How long a request waits for its turn. Later its client would rather have an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is asked for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Our own loops. Few by nature, and everybody's clocks depend on them.
    Own,
    /// Workers about themselves and what they run: renewals, heartbeats, acknowledgements, reports.
    Sign,
    /// Dispatches, polls, cancels.
    Work,
    /// Looks for tasks on behalf of parked polls, one at a time for each set of labels.
    Look,
    /// Reads.
    Read,
}

tokio::task_local! {
    static CLASS: Class;
}

impl Class {
    /// The class of the task that asks.
    #[must_use]
    pub fn current() -> Self {
        CLASS.try_with(|class| *class).unwrap_or(Self::Own)
    }

    /// Runs something as of this class. Tasks that it spawns are not.
    pub fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> + use<F> {
        // Boxed, for a verb's whole work is large, and would be moved through each layer around it.
        CLASS.scope(self, Box::pin(work))
    }
}

/// The turns of all classes.
#[derive(Debug)]
pub(super) struct Gate {
    /// All connections but those kept for what comes first.
    common: Arc<Semaphore>,
    sign: Lane,
    work: Lane,
    look: Lane,
    read: Lane,
}

/// A turn, over when dropped.
#[derive(Debug)]
pub(super) struct Pass {
    _held: Vec<OwnedSemaphorePermit>,
}

/// The turns of one class, and those who wait for one.
#[derive(Debug)]
struct Lane {
    turns: Arc<Semaphore>,
    places: Arc<Semaphore>,
}

impl Lane {
    fn new(turns: usize, queue: usize) -> Self {
        Self { turns: Arc::new(Semaphore::new(turns)), places: Arc::new(Semaphore::new(turns + queue)) }
    }

    async fn pass(&self, common: Option<&Arc<Semaphore>>) -> Result<Pass> {
        let mut held = vec![Arc::clone(&self.places).try_acquire_owned().map_err(|_| Error::Full)?];
        for semaphore in [Some(&self.turns), common].into_iter().flatten() {
            held.push(Arc::clone(semaphore).acquire_owned().await.map_err(|_| Error::Full)?);
        }
        Ok(Pass { _held: held })
    }
}

impl Gate {
    /// Shares out so many connections: a fifth, one at least, is for signs of life and our own loops only; reads have a
    /// quarter at the most, everything else five eighths.
    pub(super) fn new(connections: u32) -> Self {
        let all = usize::try_from(connections).unwrap_or(usize::MAX).max(2);
        let (common, most, few) = (all - (all / 5).max(1), (all * 5 / 8).max(1), (all / 4).max(1));
        Self {
            common: Arc::new(Semaphore::new(common)),
            sign: Lane::new(all, 8_192),
            work: Lane::new(most, 1_024),
            look: Lane::new(most, 65_536),
            read: Lane::new(few, 256),
        }
    }

    /// Waits for a turn of the asking task's class.
    ///
    /// # Errors
    /// [`Error::Full`] when too many wait already, or the wait is too long.
    pub(super) async fn pass(&self) -> Result<Pass> {
        let turn = async {
            match Class::current() {
                Class::Own => Ok(Pass { _held: Vec::new() }),
                Class::Sign => self.sign.pass(None).await,
                Class::Work => self.work.pass(Some(&self.common)).await,
                Class::Look => self.look.pass(Some(&self.common)).await,
                Class::Read => self.read.pass(Some(&self.common)).await,
            }
        };
        tokio::time::timeout(PATIENCE, turn).await.unwrap_or(Err(Error::Full))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn take(gate: &Gate, class: Class) -> Option<Pass> {
        // A turn that is free is had without waiting.
        let turn = tokio::time::timeout(Duration::from_millis(20), class.scope(gate.pass()));
        turn.await.ok().and_then(Result::ok)
    }

    #[tokio::test]
    async fn a_flood_leaves_turns_for_signs_of_life() {
        let gate = Gate::new(16);
        let mut held = Vec::new();
        for class in [Class::Read, Class::Work, Class::Look] {
            while let Some(pass) = take(&gate, class).await {
                held.push(pass);
            }
        }
        assert_eq!(held.len(), 13, "three of sixteen are kept");
        assert!(take(&gate, Class::Sign).await.is_some() && take(&gate, Class::Own).await.is_some());
        held.pop();
        assert!(take(&gate, Class::Work).await.is_some() || take(&gate, Class::Look).await.is_some());
    }

    #[tokio::test]
    async fn reads_are_few_and_the_queue_has_an_end() {
        let gate = Arc::new(Gate::new(4));
        let _one = take(&gate, Class::Read).await.unwrap();
        let waiting: Vec<_> = (0..256).map(|_| Box::pin(Class::Read.scope(gate.read.pass(None)))).collect();
        let mut waiting = futures_util::future::join_all(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        assert!(matches!(Class::Read.scope(gate.pass()).await, Err(Error::Full)), "at once");
        assert!(take(&gate, Class::Work).await.is_some());
    }
}
