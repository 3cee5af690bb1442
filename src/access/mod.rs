//! Who may do what: tokens, the scopes they carry, and the namespace that each belongs to.
//!
//! A token is known by its SHA-256 alone. The configuration lists them as [`Entry`]s, the front door asks the
//! [`Keyring`] whose token it is shown.

mod entry;
mod keyring;
mod scope;
mod secret;

pub use crate::domain::labels::Labels;
pub use entry::{DEFAULT_NAMESPACE, Entry, check_labels, check_name, read_digest, read_time};
pub use keyring::{Grant, Keyring};
pub use scope::Scope;
pub use secret::{Form, Secret};
