//! Batches: many dispatches, cancels, acks or reports in one request. The answer is 200 and says of each item what it
//! would have been answered alone.

use std::hash::{DefaultHasher, Hash, Hasher as _};

use axum::extract::State;
use futures_util::future::join_all;

use super::attempts::{acked, reported};
use super::extract::{BatchHeaders, Caller, DispatchHeaders, Json, NoQuery};
use super::problem::{FieldError, Problem, Verb, translate};
use super::wire::batch::{
    AckAttemptsRequest, AckResult, AckResults, BatchedAck, BatchedDispatch, BatchedReport, CancelRunsRequest,
    DispatchRunsRequest, Items, ReportAttemptsRequest, ReportResult, ReportResults, RunResult, RunResults,
};
use crate::coordinator::Coordinator;

/// How many items of a batch are under way at a time: as many as a few single requests, which it leaves room for.
const LANES: usize = 4;

/// Dispatch many runs
///
/// Each item is a dispatch of its own, recorded or refused whatever becomes of the others, and carries its own
/// `idempotency_key`. To repeat the whole batch is safe for every item that has a key or names its run.
#[utoipa::path(
    post,
    path = "/v1/batch/runs",
    operation_id = "dispatchRuns",
    tag = "runs",
    params(BatchHeaders),
    request_body = DispatchRunsRequest,
    responses((status = 200, description = "What became of each, in their order.", body = RunResults)),
)]
pub(super) async fn dispatch_runs(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    _: NoQuery,
    headers: BatchHeaders,
    Json(batch): Json<DispatchRunsRequest>,
) -> Json<RunResults> {
    let identity = |item: &BatchedDispatch| (item.request.dag_name.clone(), item.request.run_id.clone());
    let done = each("/runs", batch.runs, identity, |BatchedDispatch { idempotency_key, request }| {
        let headers = DispatchHeaders { idempotency_key, traceparent: headers.traceparent.clone() };
        let request = request.into_request(headers, coordinator.settings());
        let dispatching = coordinator.dispatch(caller.namespace, request);
        async { dispatching.await.map_err(|error| translate(error, Verb::Run)) }
    });
    Json(RunResults { results: done.await.into_iter().map(RunResult::of_dispatch).collect() })
}

/// Cancel many runs
///
/// Each with its descendants, as if it were cancelled alone.
#[utoipa::path(
    post,
    path = "/v1/batch/cancels",
    operation_id = "cancelRuns",
    tag = "runs",
    request_body = CancelRunsRequest,
    responses((status = 200, description = "What became of each, in their order.", body = RunResults)),
)]
pub(super) async fn cancel_runs(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    _: NoQuery,
    Json(CancelRunsRequest { runs, reason, force }): Json<CancelRunsRequest>,
) -> Json<RunResults> {
    let done = each("/runs", runs, Clone::clone, |key| {
        let (coordinator, reason) = (&coordinator, reason.clone());
        async move {
            let cancelled = coordinator.cancel_run(caller.namespace, &key, reason, force).await;
            cancelled.map_err(|error| translate(error, Verb::Run))
        }
    });
    Json(RunResults { results: done.await.into_iter().map(RunResult::of_cancel).collect() })
}

/// Acknowledge many tasks
///
/// Such as all that one poll was answered with.
#[utoipa::path(
    post,
    path = "/v1/batch/acks",
    operation_id = "ackAttempts",
    tag = "attempts",
    request_body = AckAttemptsRequest,
    responses((status = 200, description = "What became of each, in their order.", body = AckResults)),
)]
pub(super) async fn ack_attempts(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    _: NoQuery,
    Json(batch): Json<AckAttemptsRequest>,
) -> Json<AckResults> {
    let done = each(
        "/items",
        batch.items,
        |item| item.attempt_id,
        |BatchedAck { attempt_id, token }| acked(&coordinator, &caller, attempt_id, token),
    );
    Json(AckResults { results: done.await.into_iter().map(AckResult::from).collect() })
}

/// Report on many attempts
///
/// Those on the same attempt are taken in their order. No text in one is ever a reason to refuse it, or another.
#[utoipa::path(
    post,
    path = "/v1/batch/reports",
    operation_id = "reportAttempts",
    tag = "attempts",
    request_body = ReportAttemptsRequest,
    responses((status = 200, description = "What became of each, in their order.", body = ReportResults)),
)]
pub(super) async fn report_attempts(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    _: NoQuery,
    Json(batch): Json<ReportAttemptsRequest>,
) -> Json<ReportResults> {
    let done = each(
        "/items",
        batch.items,
        |item| item.attempt_id,
        |BatchedReport { attempt_id, report }| reported(&coordinator, &caller, attempt_id, report),
    );
    Json(ReportResults { results: done.await.into_iter().map(ReportResult::from).collect() })
}

/// Does each item by itself and answers in their order. A few are under way at a time; those with the same key one after
/// the other, as they stand. `at` points to the list.
async fn each<T, K: Hash, R, F>(
    at: &str,
    items: Items<T>,
    key: impl Fn(&T) -> K,
    work: impl Fn(T) -> F,
) -> Vec<Result<R, Problem>>
where
    F: Future<Output = Result<R, Problem>>,
{
    let mut results = Vec::with_capacity(items.len());
    let mut lanes: [Vec<(usize, T)>; LANES] = Default::default();
    for (index, item) in items.into_iter().enumerate() {
        results.push(None);
        match item {
            Ok(item) => lanes[lane(&key(&item))].push((index, item)),
            Err(faults) => {
                let within =
                    |error: FieldError| FieldError::new(format!("{at}/{index}{}", error.pointer), error.detail);
                results[index] = Some(Err(Problem::invalid(faults.0.into_iter().map(within).collect())));
            }
        }
    }
    let worked = lanes.map(|lane| async {
        let mut done = Vec::with_capacity(lane.len());
        for (index, item) in lane {
            done.push((index, work(item).await));
        }
        done
    });
    for (index, result) in join_all(worked).await.into_iter().flatten() {
        results[index] = Some(result);
    }
    results.into_iter().flatten().collect()
}

fn lane(key: &impl Hash) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    usize::try_from(hasher.finish() % LANES as u64).expect("there are few lanes")
}
