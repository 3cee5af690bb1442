//! The integration tests: one binary, one embedded Postgres, a database and a service for each test. They speak
//! through the front door, move the database's clock and never sleep to make something true.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed; helpers of tests are tests, too")]
#![expect(clippy::disallowed_methods, reason = "what a test spawns ends with the test's runtime")]

mod access;
mod amnesty;
#[path = "../architecture.rs"]
mod architecture;
mod attempts;
mod bad_input;
mod batches;
mod bench;
mod cancel;
mod claims;
mod connections;
mod crowds;
mod demo;
mod direct;
mod door;
mod drain;
mod embedded;
mod families;
mod feed;
mod handover;
mod harness;
mod hold_model;
mod holds;
mod idempotency;
mod large;
mod leases;
#[path = "../migrations.rs"]
mod migrations;
mod model;
mod neglect;
mod order;
mod outages;
mod overload;
mod pages;
mod parked;
mod plans;
mod process;
mod races;
mod readers;
mod reads;
mod redispatch;
mod seed;
mod selectors;
mod shared;
mod stale;
mod start_clock;
mod tokens;
mod wakeups;
mod worker_cli;
