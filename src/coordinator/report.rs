//! Report: what a worker says of its attempt.

use std::sync::Arc;

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::rules::report::{Report, Reported};
use crate::domain::run::{Run, Status};
use crate::ids::{AttemptId, Digest, NamespaceId, RunKey, Token, new_uuid};
use crate::store::{self, Db};

/// Where a run stands after a worker's word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The run.
    pub key: RunKey,
    /// Its status.
    pub status: Status,
    /// Its version.
    pub version: i64,
    /// Whether it runs and its cancel was asked for.
    pub cancel_requested: bool,
}

impl Standing {
    /// Of a run as it is.
    pub(super) fn of(run: &Run) -> Self {
        let cancel_requested = run.status == Status::Running && run.cancel_requested_at.is_some();
        Self { key: run.key.clone(), status: run.status, version: run.version, cancel_requested }
    }
}

impl Coordinator {
    /// Takes progress, a pause or an end from the holder of the lease. A sign of life.
    ///
    /// Locks the session against its end, then the run, its attempt and its payload. The repeat of a report that
    /// ended its attempt is answered from the attempt's record.
    ///
    /// # Errors
    /// [`crate::domain::refusal::Refusal::LeaseLost`] and what else a stale token is told; nothing changes then.
    pub async fn report_attempt(
        &self,
        namespace: NamespaceId,
        attempt_id: AttemptId,
        token: Token,
        report: Report,
    ) -> Result<Standing, Error> {
        let token = token.digest();
        let report = Arc::new(report);
        self.shielded(move |coordinator: Self| {
            let report = Report::clone(&report);
            async move { coordinator.report_once(namespace, attempt_id, token, report).await }
        })
        .await
    }

    async fn report_once(
        &self,
        namespace: NamespaceId,
        attempt_id: AttemptId,
        token: Digest,
        report: Report,
    ) -> Result<Standing, Fault> {
        let mut held = self.lock_heard(namespace, attempt_id, token).await?;
        let key = held.locked.run.key.clone();
        let standing = match held.locked.report(token, report, held.session_ended(), AttemptId(new_uuid()), held.now)? {
            Reported::Changed(transition) => {
                let recorded = self.record(&mut held.tx, namespace, std::slice::from_ref(&*transition)).await?;
                if transition.run().status == Status::Running {
                    store::beats::renewed(&mut held.tx, namespace, attempt_id, false).await?;
                }
                Db::commit(held.tx).await?;
                let run = transition.run();
                tracing::info!(run = %key, attempt = %attempt_id, status = %run.status, "reported");
                self.announce(namespace, recorded).await;
                Standing::of(run)
            }
            Reported::Kept(left) => {
                store::save::leave(&mut held.tx, namespace, &key, &left).await?;
                store::beats::renewed(&mut held.tx, namespace, attempt_id, false).await?;
                Db::commit(held.tx).await?;
                Standing::of(&held.locked.run)
            }
            Reported::Unchanged { status, version } => {
                if status == Status::Running {
                    store::beats::renewed(&mut held.tx, namespace, attempt_id, false).await?;
                }
                // Before the sign of life, which takes a connection of its own.
                Db::commit(held.tx).await?;
                Standing { status, version, ..Standing::of(&held.locked.run) }
            }
        };
        if let (Some(session), Some(lease)) = (&held.session, held.lease) {
            self.showed_token(namespace, session, lease, held.now).await?;
        }
        Ok(standing)
    }
}
