//! Logs: readable on a terminal, JSON otherwise, always on standard error. Never a payload, never a token.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::console::Log;

/// What is logged unless `ROADSTEAD_LOG` says otherwise: our own doings; of the database driver what is wrong.
pub const DEFAULT: &str = "info,sqlx=warn";

/// Starts logging at the level of `ROADSTEAD_LOG`, which is written as a filter (`info`, `roadstead=debug`), or at
/// `default`. The first call wins.
pub fn start(default: &str) {
    let filter = std::env::var("ROADSTEAD_LOG").ok().and_then(|text| EnvFilter::try_new(text).ok());
    let filter = filter.unwrap_or_else(|| EnvFilter::new(default));
    let to = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Log).log_internal_errors(false);
    let started = if std::io::stderr().is_terminal() {
        to.with_target(false).try_init()
    } else {
        to.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init()
    };
    drop(started);
}
