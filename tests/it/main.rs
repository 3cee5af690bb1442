//! The integration tests: one binary, one embedded Postgres, a database and a service for each test. They speak
//! through the front door, move the database's clock and never sleep to make something true.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed; helpers of tests are tests, too")]

#[path = "../architecture.rs"]
mod architecture;
mod cancel;
mod claims;
mod connections;
mod crowds;
mod demo;
mod embedded;
mod harness;
mod leases;
mod plans;
mod process;
mod seed;
mod tokens;
mod worker_cli;
