//! Bounds: the labels that a token's workers must offer.

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::labels::{self, Labels};
use crate::domain::refusal::Refusal;
use crate::ids::{NamespaceId, SessionId, SessionKey, WorkerId};
use crate::store;

impl Coordinator {
    /// Whether a session offers what a token obliges its workers to offer, and goes on doing so with the labels it is
    /// about to have. A session that is not known is for the verb to refuse.
    ///
    /// # Errors
    /// [`Refusal::OutOfBounds`].
    pub async fn oblige(
        &self,
        namespace: NamespaceId,
        session: &SessionKey,
        bounds: &Labels,
        next: Option<&Labels>,
    ) -> Result<(), Error> {
        if bounds.is_empty() {
            return Ok(());
        }
        let read = async {
            let mut conn = self.0.db.conn().await?;
            match store::session::label_set_no(&mut conn, namespace, session).await? {
                None => Ok(None),
                Some(no) => self.0.catalog.label_set(&mut conn, namespace, no).await.map(Some),
            }
        };
        let offered = read.await.map_err(|error: store::Error| Error::from(Fault::from(error)))?;
        for labels in offered.iter().map(|offered| &offered.labels).chain(next) {
            within(bounds, labels)?;
        }
        Ok(())
    }

    /// The same of a session that is to end: the one named, or the worker's latest.
    ///
    /// # Errors
    /// [`Refusal::OutOfBounds`]; [`Refusal::NoSuchWorker`].
    pub async fn oblige_worker(
        &self,
        namespace: NamespaceId,
        worker_id: &WorkerId,
        session_id: Option<&SessionId>,
        bounds: &Labels,
    ) -> Result<(), Error> {
        if bounds.is_empty() {
            return Ok(());
        }
        let session_id = match session_id {
            Some(session_id) => session_id.clone(),
            None => self.get_worker(namespace, worker_id).await?.session_id,
        };
        let session = SessionKey { worker_id: worker_id.clone(), session_id };
        self.oblige(namespace, &session, bounds, None).await
    }
}

/// Whether labels hold what a token obliges its workers to offer.
///
/// # Errors
/// [`Refusal::OutOfBounds`].
pub fn within(bounds: &Labels, labels: &Labels) -> Result<(), Error> {
    match labels::unmet(bounds, labels) {
        None => Ok(()),
        Some((key, value)) => {
            Err(Refusal::OutOfBounds { key: key.clone(), required: value.clone(), offered: labels.get(key).cloned() }
                .into())
        }
    }
}
