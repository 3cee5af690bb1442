//! Roadstead: a dispatch coordinator. A dispatched run waits, safely and visibly, until the right worker comes
//! alongside. `docs/architecture.md` walks one dispatch from the socket to the disk and back.

pub mod config;
pub mod domain;
pub mod duration;
pub mod ids;
