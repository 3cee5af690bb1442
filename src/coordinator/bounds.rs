//! Bounds: the labels that a token's workers must offer.

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::labels::{self, Labels};
use crate::domain::refusal::Refusal;
use crate::ids::{NamespaceId, SessionKey};
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
