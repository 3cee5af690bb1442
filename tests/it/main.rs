//! The integration tests: one binary, one embedded PostgreSQL, a database and a service for each test. They speak
//! through the front door, move the database's clock and never sleep to make something true.

#[path = "../architecture.rs"]
mod architecture;
mod embedded;
mod harness;
mod plans;
mod seed;
