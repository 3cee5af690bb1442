//! Health: whether the process lives, and whether it can serve. Outside the document.

use axum::extract::State;

use super::extract::NoQuery;
use super::problem::{Problem, Verb, translate};
use crate::coordinator::Coordinator;

/// The process answers.
pub(super) async fn live(_: NoQuery) -> &'static str {
    "alive\n"
}

/// The process can serve: its database answers.
pub(super) async fn ready(State(coordinator): State<Coordinator>, _: NoQuery) -> Result<&'static str, Problem> {
    coordinator.ready().await.map_err(|error| translate(error, Verb::Run))?;
    Ok("ready\n")
}
