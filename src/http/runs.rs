//! Runs: dispatch, list, read, cancel, and what happened to them.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tracing::Span;

use super::extract::{Caller, DispatchHeaders, Json, NoQuery, Path, Query, RunPath};
use super::problem::{Problem, Verb, translate};
use super::wire::dispatch::DispatchRequest;
use super::wire::events::{EventList, ListRunEvents};
use super::wire::runs::{CancelRequest, DetailedRun, GetRun, Include, ListRuns, RunList};
use crate::coordinator::{Coordinator, Error};
use crate::domain::snapshot::RunSnapshot;

const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// What stands for itself in a path segment: RFC 3986's unreserved characters.
const UNRESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn problem(error: Error) -> Problem {
    translate(error, Verb::Run)
}

/// Dispatch a run
///
/// Records the run and lets it wait for a worker that matches its selector. A repeat with the same `Idempotency-Key`,
/// or without a key with the same identity, and with the same body answers the run as it is now, with
/// `Idempotent-Replayed: true`. Problems of its own: `no-available-worker` and `no-matching-worker` when it would not
/// wait, `no-parked-poll` with a `delivery` of `direct`, `run-exists`, `idempotency-mismatch`.
#[utoipa::path(
    post,
    path = "/v1/runs",
    operation_id = "dispatchRun",
    tag = "runs",
    params(DispatchHeaders),
    request_body = DispatchRequest,
    responses((
        status = 201,
        description = "The run, as it is now.",
        body = RunSnapshot,
        headers(
            ("Location" = String, description = "The run's path."),
            ("Idempotent-Replayed" = String, description = "`true` on a repeat; absent otherwise."),
        ),
    )),
)]
pub(super) async fn dispatch_run(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    _: NoQuery,
    headers: DispatchHeaders,
    Json(request): Json<DispatchRequest>,
) -> Result<impl IntoResponse, Problem> {
    let request = request.into_request(headers, coordinator.settings());
    let key = request.dispatch.key.clone();
    Span::current().record("dag_name", key.dag_name.as_str()).record("run_id", key.run_id.as_str());
    let dispatched = coordinator.dispatch(caller.namespace, request).await.map_err(problem)?;
    let mut headers = HeaderMap::new();
    let location = path(&dispatched.run.dag_name, &dispatched.run.run_id);
    headers.insert(header::LOCATION, HeaderValue::from_str(&location).expect("percent-encoded text is ASCII"));
    if dispatched.replayed {
        headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    }
    Ok((StatusCode::CREATED, headers, Json(dispatched.run)))
}

/// Where a run is read.
fn path(dag_name: &str, run_id: &str) -> String {
    let [dag_name, run_id] = [dag_name, run_id].map(|text| utf8_percent_encode(text, &UNRESERVED));
    format!("/v1/dags/{dag_name}/runs/{run_id}")
}

/// List runs
///
/// The newest first, or the oldest, by when they were first dispatched. Read on with `next_cursor` as `cursor`: every
/// run that passes the filter all the while comes exactly once, whatever happens meanwhile. A page may be short, even
/// empty, although more follows. A list never carries payloads, outputs or progress.
#[utoipa::path(
    get,
    path = "/v1/runs",
    operation_id = "listRuns",
    tag = "runs",
    params(ListRuns),
    responses((status = 200, description = "The runs that fit.", body = RunList)),
)]
pub(super) async fn list_runs(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Query(list): Query<ListRuns>,
) -> Result<Json<RunList>, Problem> {
    let (mark, reason, limit) = (list.mark(), list.reason, list.limit);
    let after = list.cursor.clone();
    let page = coordinator.list_runs(caller.namespace, list.into(), reason, after, limit).await.map_err(problem)?;
    Ok(Json(RunList { runs: page.items, next_cursor: page.next.map(|ended| mark.cursor(&ended)) }))
}

/// Read a run
///
/// With `wait_seconds` the answer comes when the run has changed or finished, or when the wait is over, whichever is
/// first; in each case it is the run as it is then.
#[utoipa::path(
    get,
    path = "/v1/dags/{dag_name}/runs/{run_id}",
    operation_id = "getRun",
    tag = "runs",
    params(RunPath, GetRun),
    responses((status = 200, description = "The run.", body = DetailedRun)),
)]
pub(super) async fn get_run(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(run): Path<RunPath>,
    Query(get): Query<GetRun>,
) -> Result<Json<DetailedRun>, Problem> {
    let with_payload = get.include == Some(Include::Payload);
    let key = run.key();
    let read = coordinator.get_run(caller.namespace, &key, get.wait(), with_payload);
    Ok(Json(caller.while_valid(read).await?.map_err(problem)?.into()))
}

/// Cancel a run
///
/// A run that waits is aborted at once; one that runs is asked to stop, and its worker is told by its next sign of
/// life. A run that has ended stays as it is. All its descendants that have not ended are cancelled with it.
#[utoipa::path(
    post,
    path = "/v1/dags/{dag_name}/runs/{run_id}/cancel",
    operation_id = "cancelRun",
    tag = "runs",
    params(RunPath),
    request_body = CancelRequest,
    responses((status = 200, description = "The run, as it is now.", body = RunSnapshot)),
)]
pub(super) async fn cancel_run(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(run): Path<RunPath>,
    _: NoQuery,
    Json(cancel): Json<CancelRequest>,
) -> Result<Json<RunSnapshot>, Problem> {
    let cancelled = coordinator.cancel_run(caller.namespace, &run.key(), cancel.reason, cancel.force).await;
    cancelled.map(Json).map_err(problem)
}

/// List a run's events
///
/// Every change of its version has exactly one event, in order.
#[utoipa::path(
    get,
    path = "/v1/dags/{dag_name}/runs/{run_id}/events",
    operation_id = "listRunEvents",
    tag = "events",
    params(RunPath, ListRunEvents),
    responses((status = 200, description = "The events that follow.", body = EventList)),
)]
pub(super) async fn list_run_events(
    State(coordinator): State<Coordinator>,
    caller: Caller,
    Path(run): Path<RunPath>,
    Query(list): Query<ListRunEvents>,
) -> Result<Json<EventList>, Problem> {
    let key = run.key();
    let events = coordinator.list_run_events(caller.namespace, &key, list.after, list.limit).await;
    Ok(Json(EventList::of(&key, events.map_err(problem)?, list.after)))
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::http::Request;
    use axum::routing::get;
    use proptest::prelude::*;
    use tower::ServiceExt;

    use super::*;
    use crate::ids::DagName;

    #[test]
    fn a_path_is_percent_encoded() {
        assert_eq!(path("täglich / Bericht", "a-b.c_d~e"), "/v1/dags/t%C3%A4glich%20%2F%20Bericht/runs/a-b.c_d~e");
        assert_eq!(path("%2F", "a:@+="), "/v1/dags/%252F/runs/a%3A%40%2B%3D");
    }

    proptest! {
        /// B157: whatever a run is called, its path leads to it.
        #[test]
        fn every_name_comes_back_from_its_path(
            dag_name in "\\PC{1,20}".prop_filter("is a name", |name| DagName::parse(name.as_str()).is_ok()),
            run_id in "[A-Za-z0-9_:@+~=-][A-Za-z0-9._:@+~=-]{0,20}",
        ) {
            let echo = |Path(run): Path<RunPath>| async move { run.key().to_string() };
            let router: Router = Router::new().route("/v1/dags/{dag_name}/runs/{run_id}", get(echo));
            let request = Request::get(path(&dag_name, &run_id)).body(Body::empty()).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let answered = runtime.block_on(async {
                let response = router.oneshot(request).await.unwrap();
                axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap()
            });
            prop_assert_eq!(answered, format!("{dag_name}/{run_id}"));
        }
    }
}
