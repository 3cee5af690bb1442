//! Attempts of a run, for those who dispatch it: the next one, and those there were.

use axum::extract::State;

use super::extract::{Caller, Json, NoQuery, Path, Query, RunPath};
use super::problem::{Problem, Verb, translate};
use super::wire::again::{AttemptEntry, AttemptList, ListAttempts, NextAttemptRequest, RedispatchRequest};
use crate::coordinator::Coordinator;
use crate::domain::run::Operation;
use crate::domain::snapshot::RunSnapshot;

/// Retry a run that has ended
///
/// Queues another attempt, from the beginning, with new clocks: it waits for its worker as a new run does. The same
/// request again answers the run as it is then. Problems of its own: `run-not-finished`; `attempt-superseded` when
/// another request was first; `no-available-worker` and `no-matching-worker` when it would not wait. The run stays as
/// it is then.
#[utoipa::path(
    post,
    path = "/v1/dags/{dag_name}/runs/{run_id}/retry",
    operation_id = "retryRun",
    tag = "runs",
    params(RunPath),
    request_body = NextAttemptRequest,
    responses((status = 200, description = "The run, as it is now.", body = RunSnapshot)),
)]
pub(super) async fn retry_run(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(run): Path<RunPath>,
    _: NoQuery,
    Json(request): Json<NextAttemptRequest>,
) -> Result<Json<RunSnapshot>, Problem> {
    again(&coordinator, &caller, run, request, Operation::Retry).await
}

/// Resume a run that waits for a person
///
/// As a retry, from where it paused: the worker is given what the paused attempt left. Problem of its own:
/// `run-not-waiting`.
#[utoipa::path(
    post,
    path = "/v1/dags/{dag_name}/runs/{run_id}/resume",
    operation_id = "resumeRun",
    tag = "runs",
    params(RunPath),
    request_body = NextAttemptRequest,
    responses((status = 200, description = "The run, as it is now.", body = RunSnapshot)),
)]
pub(super) async fn resume_run(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(run): Path<RunPath>,
    _: NoQuery,
    Json(request): Json<NextAttemptRequest>,
) -> Result<Json<RunSnapshot>, Problem> {
    again(&coordinator, &caller, run, request, Operation::Resume).await
}

async fn again(
    coordinator: &Coordinator,
    caller: &Caller,
    run: RunPath,
    request: NextAttemptRequest,
    operation: Operation,
) -> Result<Json<RunSnapshot>, Problem> {
    let again = request.into_again(operation);
    let run = coordinator.dispatch_again(caller.namespace, run.key(), again).await;
    run.map(Json).map_err(|error| translate(error, Verb::Run))
}

/// Dispatch a parked run
///
/// Lets a run that was recorded with `park` be taken, if a worker matches it now; it waits for none. Otherwise it stays
/// parked, with its conditions, and the answer is `no-available-worker` or `no-matching-worker`; it parks again when its
/// last match goes before it is taken. What is on its way or runs under this attempt is answered as it is. Problems of its
/// own: `stale-dispatch` when the run is at another attempt, `run-finished`, `parent-finished`.
#[utoipa::path(
    post,
    path = "/v1/dags/{dag_name}/runs/{run_id}/dispatch",
    operation_id = "redispatchRun",
    tag = "runs",
    params(RunPath),
    request_body = RedispatchRequest,
    responses((status = 200, description = "The run, as it is now.", body = RunSnapshot)),
)]
pub(super) async fn redispatch_run(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(run): Path<RunPath>,
    _: NoQuery,
    Json(request): Json<RedispatchRequest>,
) -> Result<Json<RunSnapshot>, Problem> {
    let run = coordinator.redispatch(caller.namespace, run.key(), request.attempt_id).await;
    run.map(Json).map_err(|error| translate(error, Verb::Run))
}

/// List a run's attempts
///
/// The first one first; read on with the last number as `after`.
#[utoipa::path(
    get,
    path = "/v1/dags/{dag_name}/runs/{run_id}/attempts",
    operation_id = "listAttempts",
    tag = "runs",
    params(RunPath, ListAttempts),
    responses((status = 200, description = "The attempts.", body = AttemptList)),
)]
pub(super) async fn list_attempts(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(run): Path<RunPath>,
    Query(list): Query<ListAttempts>,
) -> Result<Json<AttemptList>, Problem> {
    let attempts = coordinator.list_attempts(caller.namespace, &run.key(), list.after, list.limit).await;
    let attempts = attempts.map_err(|error| translate(error, Verb::Run))?;
    Ok(Json(AttemptList { attempts: attempts.into_iter().map(AttemptEntry::from).collect() }))
}
