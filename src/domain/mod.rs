//! The rules, pure and synchronous: no I/O, no clock, no randomness.
//!
//! A rule is a method on what was read under lock. It answers with a [`transition::Transition`], which is the only
//! thing the store writes, or with a [`refusal::Refusal`] that carries facts.

pub mod attempt;
pub mod condition;
pub mod event;
pub mod hold;
pub mod kept;
pub mod labels;
pub mod refusal;
pub mod retry;
pub mod rules;
pub mod run;
pub mod selector;
pub mod session;
pub mod snapshot;
pub mod start;
pub mod transition;

/// A moment by the database's clock, the only one that judges.
pub type Timestamp = chrono::DateTime<chrono::Utc>;
