//! The integration tests: one binary, one embedded Postgres, a database and a service for each test. They speak
//! through the front door, move the database's clock and never sleep to make something true.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cancel;
mod claims;
mod crowds;
mod embedded;
mod harness;
mod leases;
mod seed;
mod tokens;
