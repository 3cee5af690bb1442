//! Roadstead: a dispatch coordinator. A dispatched run waits, safely and visibly, until the right worker comes
//! alongside. `docs/architecture.md` walks one dispatch from the socket to the disk and back.

pub mod access;
pub mod background;
pub mod cli;
pub mod config;
pub mod console;
pub mod coordinator;
pub mod domain;
pub mod duration;
pub mod embedded;
pub mod http;
pub mod ids;
pub mod listener;
pub mod matchmaker;
pub mod server;
pub mod store;
pub mod telemetry;
