//! Paths: the ids in them, decoded and checked, and noted in the span of the request.

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use tracing::Span;
use utoipa::IntoParams;
use uuid::Uuid;

use crate::http::problem::{Action, Code, FieldError, Problem};
use crate::ids::{AttemptId, DagName, InvalidName, RunId, RunKey, WorkerId};

/// The parts of a path.
#[derive(Debug, Clone)]
pub struct Path<T>(pub T);

/// What is read from the parts of a path.
pub trait FromPath: Sized {
    /// Reads them; the argument finds a part by its name in the route.
    fn from_path(part: &dyn Fn(&str) -> Option<String>) -> Result<Self, Problem>;
}

impl<S: Send + Sync, T: FromPath> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let decoded = RawPathParams::from_request_parts(parts, state)
            .await
            .map_err(|_| Problem::invalid(vec![FieldError::new("{path}", "must be percent-encoded UTF-8")]))?;
        let part = |name: &str| decoded.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned());
        T::from_path(&part).map(Path)
    }
}

/// Which run.
#[derive(Debug, Clone, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct RunPath {
    /// The DAG's name, percent-encoded.
    #[param(value_type = String, min_length = 1, max_length = 250, example = "etl")]
    pub dag_name: DagName,
    /// The run's id within the DAG.
    #[param(value_type = String, min_length = 1, max_length = 255, example = "2026-01-31")]
    pub run_id: RunId,
}

impl RunPath {
    /// The run's identity.
    pub fn key(self) -> RunKey {
        RunKey { dag_name: self.dag_name, run_id: self.run_id }
    }
}

impl FromPath for RunPath {
    fn from_path(part: &dyn Fn(&str) -> Option<String>) -> Result<Self, Problem> {
        let mut errors = Vec::new();
        let dag_name = name::<DagName>(part, "dag_name").map_err(|error| errors.push(error));
        let run_id = name::<RunId>(part, "run_id").map_err(|error| errors.push(error));
        let (Ok(dag_name), Ok(run_id)) = (dag_name, run_id) else { return Err(Problem::invalid(errors)) };
        Span::current().record("dag_name", dag_name.as_str()).record("run_id", run_id.as_str());
        Ok(Self { dag_name, run_id })
    }
}

/// Which worker.
#[derive(Debug, Clone, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct WorkerPath {
    /// The worker's name.
    #[param(value_type = String, min_length = 1, max_length = 255, example = "w-7")]
    pub worker_id: WorkerId,
}

impl FromPath for WorkerPath {
    fn from_path(part: &dyn Fn(&str) -> Option<String>) -> Result<Self, Problem> {
        let worker_id: WorkerId = name(part, "worker_id").map_err(|error| Problem::invalid(vec![error]))?;
        Span::current().record("worker_id", worker_id.as_str());
        Ok(Self { worker_id })
    }
}

/// Which attempt.
#[derive(Debug, Clone, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct AttemptPath {
    /// The attempt's id, as its task has it.
    #[param(value_type = Uuid)]
    pub attempt_id: AttemptId,
}

impl FromPath for AttemptPath {
    /// What is no id of ours names no attempt: whoever works on it must stop.
    fn from_path(part: &dyn Fn(&str) -> Option<String>) -> Result<Self, Problem> {
        let given = part("attempt_id").unwrap_or_default();
        let attempt_id = Uuid::parse_str(&given).map(AttemptId).map_err(|_| {
            Problem::new(Code::NotFound, format!("there is no attempt {given:?}: attempt ids are UUIDs"))
                .with_action(Action::StopAttempt)
        })?;
        Span::current().record("attempt_id", tracing::field::display(attempt_id));
        Ok(Self { attempt_id })
    }
}

fn name<T: TryFrom<String, Error = InvalidName>>(
    part: &dyn Fn(&str) -> Option<String>,
    name: &str,
) -> Result<T, FieldError> {
    let pointer = || format!("{{{name}}}");
    let given = part(name).ok_or_else(|| FieldError::new(pointer(), "is required"))?;
    T::try_from(given).map_err(|invalid| FieldError::new(pointer(), invalid.to_string()))
}
