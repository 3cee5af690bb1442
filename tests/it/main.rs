//! The integration tests: one binary, one embedded PostgreSQL, a database and a service for each test. They speak
//! through the front door, move the database's clock and never sleep to make something true.

#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect has failed")]
#![expect(clippy::disallowed_methods, reason = "what a test spawns ends with the test's runtime")]

mod embedded;
mod harness;
mod hold_model;
mod holds;
mod reads;
mod seed;
mod selectors;
