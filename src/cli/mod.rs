//! The command line's own clients of the service: they speak the public HTTP contract and nothing else.

mod ambient;
pub mod bench;
pub mod client;
pub mod demo;
pub mod token;
pub mod worker;
