//! Namespaces: made when they are first configured.

use super::error::Fault;
use super::{Coordinator, Error};
use crate::ids::NamespaceId;
use crate::store;

impl Coordinator {
    /// The namespace of this name, made if it is not there. Any number of replicas may do so at once.
    ///
    /// # Errors
    /// Of the database.
    pub async fn namespace(&self, name: &str) -> Result<NamespaceId, Error> {
        let mut conn = self.0.db.conn().await.map_err(Fault::from)?;
        loop {
            if let Some(found) = store::namespace::find(&mut conn, name).await.map_err(Fault::from)? {
                return Ok(found);
            }
            store::namespace::create(&mut conn, name).await.map_err(Fault::from)?;
        }
    }
}
