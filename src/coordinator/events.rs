//! Reading a run's events.

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::refusal::Refusal;
use crate::ids::{NamespaceId, RunKey};
use crate::store;

pub use crate::store::event::Event;

impl Coordinator {
    /// A run's events after `after` (a version), in the run's order.
    ///
    /// # Errors
    /// [`Refusal::NoSuchRun`].
    pub async fn list_run_events(
        &self,
        namespace: NamespaceId,
        key: &RunKey,
        after: i64,
        limit: i64,
    ) -> Result<Vec<Event>, Error> {
        let read = async {
            let mut conn = self.0.db.conn().await?;
            let events = store::event::of_run(&mut conn, namespace, key, after, limit).await?;
            if events.is_empty()
                && store::read::versions(&mut conn, namespace, std::slice::from_ref(key)).await?.is_empty()
            {
                return Err(Fault::from(Refusal::NoSuchRun(key.clone())));
            }
            Ok(events)
        };
        super::patiently(read).await
    }
}
