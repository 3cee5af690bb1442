//! Reading one run, with a wait for its change.

use std::time::Duration;

use tokio::time::Instant;

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::refusal::Refusal;
use crate::domain::snapshot::RunSnapshot;
use crate::ids::{NamespaceId, RunKey};
use crate::store::{self, create::Payload};

/// What a read waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// A version above this one; without one, above the version at the call.
    Change {
        /// The version the caller knows.
        since_version: Option<i64>,
    },
    /// A terminal status.
    Finished,
}

/// How a read waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// For what.
    pub until: WaitFor,
    /// How long, at the most; the run as it is is answered then.
    pub at_most: Duration,
}

/// A run with what only its own read shows.
#[derive(Debug, Clone)]
pub struct RunDetail {
    /// The run.
    pub run: RunSnapshot,
    /// Its output, JSON as reported.
    pub output: Option<String>,
    /// Its progress, JSON as reported.
    pub progress: Option<String>,
    /// What its dispatch carried, if asked for.
    pub payload: Option<Payload>,
}

impl Coordinator {
    /// Reads a run, and waits for what is asked first. A wait holds no connection; it ends early on shutdown.
    ///
    /// # Errors
    /// [`Refusal::NoSuchRun`].
    pub async fn get_run(
        &self,
        namespace: NamespaceId,
        key: &RunKey,
        wait: Option<Wait>,
        with_payload: bool,
    ) -> Result<RunDetail, Error> {
        let mut watcher = wait.map(|_| self.0.watch.watch(namespace, key));
        let until = wait.map(|wait| Instant::now() + wait.at_most);
        let mut known = match wait {
            Some(Wait { until: WaitFor::Change { since_version }, .. }) => since_version,
            _ => None,
        };
        loop {
            let run = super::patiently(self.read(namespace, key)).await?;
            let (Some(wait), Some(watcher), Some(until)) = (wait, &mut watcher, until) else {
                return self.detail(namespace, key, run, with_payload).await;
            };
            let done = match wait.until {
                WaitFor::Finished => run.status.is_terminal(),
                WaitFor::Change { .. } => run.version > *known.get_or_insert(run.version) || run.status.is_terminal(),
            };
            if done || Instant::now() >= until || self.0.closing.is_cancelled() {
                return self.detail(namespace, key, run, with_payload).await;
            }
            tokio::select! {
                () = watcher.changed() => {}
                () = tokio::time::sleep_until(until) => {}
                () = self.0.closing.cancelled() => {}
            }
        }
    }

    /// A run as it is now.
    pub(super) async fn read(&self, namespace: NamespaceId, key: &RunKey) -> Result<RunSnapshot, Fault> {
        let mut conn = self.0.db.conn().await?;
        let found = store::read::runs(&mut conn, namespace, std::slice::from_ref(key)).await?;
        let found = found.into_iter().collect::<store::Result<Vec<_>>>()?;
        let found = self.snapshots(&mut conn, namespace, &found).await?;
        found.into_iter().next().ok_or_else(|| Refusal::NoSuchRun(key.clone()).into())
    }

    async fn detail(
        &self,
        namespace: NamespaceId,
        key: &RunKey,
        run: RunSnapshot,
        with_payload: bool,
    ) -> Result<RunDetail, Error> {
        let read = async {
            let mut conn = self.0.db.conn().await?;
            store::read::detail(&mut conn, namespace, key, with_payload).await
        };
        let detail = super::patiently::<_, store::Error>(read).await?;
        Ok(RunDetail {
            run,
            output: detail.output,
            progress: detail.progress,
            payload: with_payload.then_some(detail.payload),
        })
    }
}
