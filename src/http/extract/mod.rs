//! Extractors: how a request becomes what a verb takes, or a problem that says everything that is wrong with it.

mod body;
mod caller;
mod fields;
pub mod headers;
mod path;
pub mod query;
pub mod read;

pub use body::Json;
pub use caller::Caller;
pub use fields::{Faults, Fields, FromFields, Reading};
pub use headers::{BatchHeaders, DispatchHeaders};
pub use path::{AttemptPath, Path, RunPath, WorkerPath};
pub use query::{NoQuery, Query};

/// The settings that bound what requests may ask for.
pub type Settings = crate::config::Coordinator;

#[cfg(test)]
mod tests;
