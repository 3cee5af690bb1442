//! Attempts: acknowledged, renewed, given back and reported by the worker that has them.

use axum::extract::State;

use super::extract::{AttemptPath, Caller, Json, NoQuery, Path};
use super::problem::{Problem, Verb, translate};
use super::wire::attempts::{
    AckAnswer, ReleaseRequest, RenewAnswer, ReportAnswer, ReportRequest, Standing, TokenRequest,
};
use crate::coordinator::{Coordinator, Error};
use crate::ids::{AttemptId, Token};

fn problem(error: Error) -> Problem {
    translate(error, Verb::Attempt)
}

/// Acknowledge a task
///
/// Only after this may the work begin. The same again is answered alike while the lease holds. Problems of its own:
/// `claim-expired`, `lease-lost`, `attempt-superseded`, `run-finished`.
#[utoipa::path(
    post,
    path = "/v1/attempts/{attempt_id}/ack",
    operation_id = "ackAttempt",
    tag = "attempts",
    params(AttemptPath),
    request_body = TokenRequest,
    responses((status = 200, description = "The lease.", body = AckAnswer)),
)]
pub(super) async fn ack_attempt(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(attempt): Path<AttemptPath>,
    _: NoQuery,
    Json(request): Json<TokenRequest>,
) -> Result<Json<AckAnswer>, Problem> {
    acked(&coordinator, &caller, attempt.attempt_id, request.token).await.map(Json)
}

/// Acknowledges, alone or in a batch.
pub(super) async fn acked(
    coordinator: &Coordinator,
    caller: &Caller,
    attempt_id: AttemptId,
    token: Token,
) -> Result<AckAnswer, Problem> {
    let lease = coordinator.ack_attempt(caller.namespace, attempt_id, token).await.map_err(problem)?;
    Ok(AckAnswer {
        lease_until: lease.until,
        lease_seconds: lease.ttl.as_secs_f64(),
        renew_every_seconds: lease.renew_every.as_secs_f64(),
    })
}

/// Renew a lease
///
/// For a worker that keeps a single attempt alive. Problems of its own: `lease-lost`, `attempt-superseded`,
/// `run-finished`.
#[utoipa::path(
    post,
    path = "/v1/attempts/{attempt_id}/renew",
    operation_id = "renewAttempt",
    tag = "attempts",
    params(AttemptPath),
    request_body = TokenRequest,
    responses((status = 200, description = "The lease, and whether to stop.", body = RenewAnswer)),
)]
pub(super) async fn renew_attempt(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(attempt): Path<AttemptPath>,
    _: NoQuery,
    Json(request): Json<TokenRequest>,
) -> Result<Json<RenewAnswer>, Problem> {
    let lease =
        coordinator.renew_attempt(caller.namespace, attempt.attempt_id, request.token).await.map_err(problem)?;
    Ok(Json(RenewAnswer {
        lease_until: lease.until,
        lease_seconds: lease.ttl.as_secs_f64(),
        cancel_requested: lease.cancel_requested,
    }))
}

/// Give back a task or an attempt
///
/// A task that was not acknowledged goes back to its place in the queue; an attempt that was ends like one whose lease
/// was lost. It is not offered to the same session for 30 s. Problems of its own: `claim-expired`, `lease-lost`,
/// `attempt-superseded`, `run-finished`.
#[utoipa::path(
    post,
    path = "/v1/attempts/{attempt_id}/release",
    operation_id = "releaseAttempt",
    tag = "attempts",
    params(AttemptPath),
    request_body = ReleaseRequest,
    responses((status = 200, description = "Where the run stands now.", body = Standing)),
)]
pub(super) async fn release_attempt(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(attempt): Path<AttemptPath>,
    _: NoQuery,
    Json(request): Json<ReleaseRequest>,
) -> Result<Json<Standing>, Problem> {
    let ReleaseRequest { token, reason, delay_seconds } = request;
    let standing =
        coordinator.release_attempt(caller.namespace, attempt.attempt_id, token, reason, delay_seconds).await;
    Ok(Json(standing.map_err(problem)?.into()))
}

/// Report on an attempt
///
/// Progress, a pause or an end. The same end again is answered alike, also after a retry. Problems of its own:
/// `claim-expired`, `lease-lost`, `attempt-superseded`, `run-finished`.
#[utoipa::path(
    post,
    path = "/v1/attempts/{attempt_id}/report",
    operation_id = "reportAttempt",
    tag = "attempts",
    params(AttemptPath),
    request_body = ReportRequest,
    responses((status = 200, description = "Where the run stands now, and whether to stop.", body = ReportAnswer)),
)]
pub(super) async fn report_attempt(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(attempt): Path<AttemptPath>,
    _: NoQuery,
    Json(request): Json<ReportRequest>,
) -> Result<Json<ReportAnswer>, Problem> {
    reported(&coordinator, &caller, attempt.attempt_id, request).await.map(Json)
}

/// Reports, alone or in a batch.
pub(super) async fn reported(
    coordinator: &Coordinator,
    caller: &Caller,
    attempt_id: AttemptId,
    request: ReportRequest,
) -> Result<ReportAnswer, Problem> {
    let (token, report) = request.into_report();
    let standing = coordinator.report_attempt(caller.namespace, attempt_id, token, report).await;
    standing.map(ReportAnswer::from).map_err(problem)
}
