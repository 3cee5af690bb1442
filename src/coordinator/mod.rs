//! The verbs, one file each: reading this list is learning the product.
//!
//! Every change follows *lock, decide, save*: the store locks and reads, a rule in [`crate::domain`] decides, and the
//! store's one writer saves the transition. Each runs in a task of its own, so a caller that goes away cannot cut a
//! transaction in half.

pub mod ack;
pub mod cancel;
pub mod deregister;
pub mod dispatch;
pub mod error;
pub mod events;
pub mod heartbeat;
pub mod poll;
pub mod register;
pub mod release;
pub mod renew;
pub mod report;
pub mod runs;
pub mod workers;

pub use error::Error;
