//! Workers: they register, poll, give signs of life and say goodbye; others read them.

use axum::extract::State;

use super::extract::{Caller, Json, NoQuery, Path, Query, WorkerPath};
use super::problem::{Problem, Verb, translate};
use super::wire::sessions::{HeartbeatAnswer, HeartbeatRequest, RegisterAnswer, RegisterRequest};
use super::wire::tasks::{PollRequest, Polled};
use super::wire::workers::{Deregister, DrainRequest, ListWorkers, Worker, WorkerList};
use crate::coordinator::bounds::within;
use crate::coordinator::{Coordinator, Error};

fn problem(error: Error) -> Problem {
    translate(error, Verb::Worker)
}

/// Register a worker
///
/// Begins a session, or changes the labels and slots of the one it names, which then takes tasks again if it said that it
/// was draining. Another session of the same worker ends, and
/// what it had is lost at once.
#[utoipa::path(
    put,
    path = "/v1/workers/{worker_id}",
    operation_id = "registerWorker",
    tag = "workers",
    params(WorkerPath),
    request_body = RegisterRequest,
    responses((status = 200, description = "The session.", body = RegisterAnswer)),
)]
pub(super) async fn register_worker(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(worker): Path<WorkerPath>,
    _: NoQuery,
    Json(request): Json<RegisterRequest>,
) -> Result<Json<RegisterAnswer>, Problem> {
    let registration = request.into_registration(worker.worker_id);
    within(caller.bounds(), &registration.labels).map_err(problem)?;
    let registered = coordinator.register_worker(caller.namespace, registration).await.map_err(problem)?;
    Ok(Json(registered.into()))
}

/// Ask for work
///
/// Waits until there is a task that matches, or for `wait_seconds`. What is given must be acknowledged in time, else it
/// goes back into the queue. Waiting is a sign of life. Problems of its own: `unknown-session`.
#[utoipa::path(
    post,
    path = "/v1/workers/{worker_id}/poll",
    operation_id = "pollTasks",
    tag = "workers",
    params(WorkerPath),
    request_body = PollRequest,
    responses((status = 200, description = "Tasks, if there are any, and what the worker must know.", body = Polled)),
)]
pub(super) async fn poll_tasks(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(worker): Path<WorkerPath>,
    _: NoQuery,
    Json(request): Json<PollRequest>,
) -> Result<Json<Polled>, Problem> {
    let poll = request.into_poll(worker.worker_id);
    coordinator.oblige(caller.namespace, &poll.session, caller.bounds(), None).await.map_err(problem)?;
    // A poll that is dropped loses nothing: what it was being given goes back to its place.
    let answer = caller.while_valid(coordinator.poll_tasks(caller.namespace, poll)).await?;
    Ok(Json(answer.map_err(problem)?.into()))
}

/// Give a sign of life
///
/// Keeps the leases of the attempts it names. Problems of its own: `unknown-session`.
#[utoipa::path(
    post,
    path = "/v1/workers/{worker_id}/heartbeat",
    operation_id = "heartbeatWorker",
    tag = "workers",
    params(WorkerPath),
    request_body = HeartbeatRequest,
    responses((status = 200, description = "The lease, and what the worker must know.", body = HeartbeatAnswer)),
)]
pub(super) async fn heartbeat_worker(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(worker): Path<WorkerPath>,
    _: NoQuery,
    Json(request): Json<HeartbeatRequest>,
) -> Result<Json<HeartbeatAnswer>, Problem> {
    let beat = request.into_beat(worker.worker_id);
    let bounds = caller.bounds();
    coordinator.oblige(caller.namespace, &beat.session, bounds, beat.labels.as_ref()).await.map_err(problem)?;
    let answer = coordinator.heartbeat_worker(caller.namespace, beat).await;
    Ok(Json(answer.map_err(problem)?.into()))
}

/// Drain a worker, or undo it
///
/// A drained worker finishes what it has and is given nothing, also in later sessions, until the drain is undone. Its
/// polls return at once with `drain`. To the hold clock it is no match. No sign of life of the worker's.
#[utoipa::path(
    post,
    path = "/v1/workers/{worker_id}/drain",
    operation_id = "drainWorker",
    tag = "workers",
    params(WorkerPath),
    request_body = DrainRequest,
    responses((status = 200, description = "The worker, as it is now.", body = Worker)),
)]
pub(super) async fn drain_worker(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(worker): Path<WorkerPath>,
    _: NoQuery,
    Json(request): Json<DrainRequest>,
) -> Result<Json<Worker>, Problem> {
    let drained = coordinator.drain_worker(caller.namespace, worker.worker_id, request.drain, request.comment).await;
    Ok(Json(drained.map_err(problem)?.into()))
}

/// Say goodbye
///
/// Ends the session: its claims go back into the queue, and its attempts are lost at once.
#[utoipa::path(
    delete,
    path = "/v1/workers/{worker_id}",
    operation_id = "deregisterWorker",
    tag = "workers",
    params(WorkerPath, Deregister),
    responses((status = 200, description = "The worker, as it is now.", body = Worker)),
)]
pub(super) async fn deregister_worker(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(worker): Path<WorkerPath>,
    Query(goodbye): Query<Deregister>,
) -> Result<Json<Worker>, Problem> {
    let (worker_id, session_id) = (&worker.worker_id, goodbye.session_id.as_ref());
    coordinator.oblige_worker(caller.namespace, worker_id, session_id, caller.bounds()).await.map_err(problem)?;
    let view = coordinator.deregister_worker(caller.namespace, worker_id, session_id).await.map_err(problem)?;
    Ok(Json(view.into()))
}

/// List workers
///
/// By name, each with its latest session. Read on with `next_cursor` as `cursor`. A page may be short, even empty,
/// although more follows.
#[utoipa::path(
    get,
    path = "/v1/workers",
    operation_id = "listWorkers",
    tag = "workers",
    params(ListWorkers),
    responses((status = 200, description = "The workers that fit.", body = WorkerList)),
)]
pub(super) async fn list_workers(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Query(list): Query<ListWorkers>,
) -> Result<Json<WorkerList>, Problem> {
    let (mark, limit) = (list.mark(), list.limit);
    let after = list.cursor.clone();
    let page = coordinator.list_workers(caller.namespace, list.into(), after, limit).await.map_err(problem)?;
    let workers = page.items.into_iter().map(Worker::from).collect();
    Ok(Json(WorkerList { workers, next_cursor: page.next.map(|ended| mark.cursor(&ended)) }))
}

/// Read a worker
///
/// With its latest session.
#[utoipa::path(
    get,
    path = "/v1/workers/{worker_id}",
    operation_id = "getWorker",
    tag = "workers",
    params(WorkerPath),
    responses((status = 200, description = "The worker.", body = Worker)),
)]
pub(super) async fn get_worker(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(worker): Path<WorkerPath>,
    _: NoQuery,
) -> Result<Json<Worker>, Problem> {
    let view = coordinator.get_worker(caller.namespace, &worker.worker_id).await.map_err(problem)?;
    Ok(Json(view.into()))
}
