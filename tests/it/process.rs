//! The program as a process: how it starts, what it survives, how it stops, and what it writes into its log.

mod crashes;
mod logs;
mod migrating;
mod starting;
mod stopping;
