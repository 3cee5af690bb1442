//! The integration tests: one binary, one embedded PostgreSQL, a database and a service for each test. They speak
//! through the front door, move the database's clock and never sleep to make something true.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and its harness is for tests only")]

#[path = "../architecture.rs"]
mod architecture;
mod embedded;
mod harness;
mod plans;
mod seed;
