//! All SQL. Each statement stands beside the function that runs it and opens with a comment that names it; each write
//! says how many rows it expects. Functions take a connection, so that a verb decides what is one transaction.
//!
//! `lock` reads under lock, `save` is the only writer of run state and takes nothing but transitions; the rest reads,
//! or keeps what is not run state: sessions, claims, interned selectors and label sets.

pub mod again;
pub mod attempts;
pub mod beats;
pub mod claim;
pub mod contents;
pub mod create;
pub mod db;
pub mod error;
pub mod event;
pub mod family;
pub mod feed;
pub mod from_tasks;
pub mod gate;
mod health;
pub mod intern;
pub mod list;
pub mod lock;
pub mod migrate;
pub mod namespace;
pub mod pool;
pub mod presence;
pub mod read;
pub mod rows;
pub mod save;
pub mod session;
pub mod signs;
pub mod situation;
pub mod sweep;
pub mod worker;

pub use db::{Db, Tx};
pub use error::{Error, Result};
pub use gate::Class;

/// A connection, in a transaction or not: what every function of the store takes.
pub type Conn = sqlx::PgConnection;
