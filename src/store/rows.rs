//! From rows to the domain's types and back. A row that cannot be read is an error of that row only.

use std::sync::Arc;
use std::time::Duration;

use sqlx::types::Uuid;

use super::error::{Error, Result};
use crate::domain::Timestamp;
use crate::domain::attempt::{Attempt, Claim, Task};
use crate::domain::hold::Hold;
use crate::domain::run::{AttemptRef, Operation, Run};
use crate::domain::selector::Selector;
use crate::domain::start::StartClock;
use crate::ids::{AttemptId, DagName, Digest, RunId, RunKey, SelectorNo, SessionId, SessionKey, WorkerId};

/// A run's row with its selector's canonical form, as every statement that reads runs selects it.
#[derive(Debug)]
#[expect(missing_docs, reason = "the columns of table run, which the migration describes")]
pub struct RunRow {
    pub dag_name: String,
    pub run_id: String,
    pub status: String,
    pub version: i64,
    pub attempt_id: Uuid,
    pub attempt_number: i32,
    pub operation: String,
    pub fence: i64,
    pub selector_no: i64,
    pub selector: String,
    pub wait_micros: i64,
    pub start_timeout_micros: i64,
    pub park: bool,
    pub direct: bool,
    pub priority: i16,
    pub max_attempts: i32,
    pub counted_from: i32,
    pub retry: Option<serde_json::Value>,
    pub labels: serde_json::Value,
    pub root_dag_name: Option<String>,
    pub root_run_id: Option<String>,
    pub parent_dag_name: Option<String>,
    pub parent_run_id: Option<String>,
    pub traceparent: Option<String>,
    pub worker_id: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub queued_at: Timestamp,
    pub claimed_at: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub cancel_requested_at: Option<Timestamp>,
    pub cancel_reason: Option<String>,
    pub error: Option<String>,
    pub failure: Option<serde_json::Value>,
    pub log_url: Option<String>,
    pub output_dropped: bool,
}

/// The part of a wider row that is a run's: a statement that reads more than runs has a row type of its own.
macro_rules! run_row {
    ($row:ident, selector: $selector:expr) => {
        run_row!($row, $selector, dag_name run_id status version attempt_id attempt_number operation fence selector_no
            wait_micros start_timeout_micros park direct priority max_attempts counted_from retry labels root_dag_name root_run_id parent_dag_name
            parent_run_id traceparent worker_id created_at updated_at queued_at claimed_at started_at finished_at
            cancel_requested_at cancel_reason error failure log_url output_dropped)
    };
    ($row:ident, $selector:expr, $($column:ident)+) => {
        $crate::store::rows::RunRow { selector: $selector, $($column: $row.$column),+ }
    };
}
pub(super) use run_row;

impl RunRow {
    /// The run's identity, even if the rest of the row cannot be read.
    ///
    /// # Errors
    /// [`Error::Unreadable`].
    pub fn key(&self) -> Result<RunKey> {
        key(self.dag_name.clone(), self.run_id.clone())
    }
}

impl TryFrom<RunRow> for Run {
    type Error = Error;

    fn try_from(row: RunRow) -> Result<Self> {
        Ok(Self {
            key: row.key()?,
            status: word("run.status", &row.status, crate::domain::run::Status::from_word)?,
            version: row.version,
            attempt: AttemptRef {
                number: row.attempt_number,
                attempt_id: AttemptId(row.attempt_id),
                operation: word("run.operation", &row.operation, Operation::from_word)?,
            },
            fence: row.fence,
            selector: Arc::new(selector(&row.selector)?),
            selector_no: SelectorNo(row.selector_no),
            wait: duration(row.wait_micros)?,
            start_timeout: duration(row.start_timeout_micros)?,
            park: row.park,
            direct: row.direct,
            priority: row.priority,
            max_attempts: row.max_attempts,
            counted_from: row.counted_from,
            retry: row.retry.map(|retry| json("run.retry", retry)).transpose()?,
            labels: json("run.labels", row.labels)?,
            root: optional_key(row.root_dag_name, row.root_run_id)?,
            parent: optional_key(row.parent_dag_name, row.parent_run_id)?,
            traceparent: row.traceparent,
            worker_id: row.worker_id.map(worker_id).transpose()?,
            created_at: row.created_at,
            updated_at: row.updated_at,
            queued_at: row.queued_at,
            claimed_at: row.claimed_at,
            started_at: row.started_at,
            finished_at: row.finished_at,
            cancel_requested_at: row.cancel_requested_at,
            cancel_reason: row.cancel_reason,
            error: row.error,
            failure: row.failure.map(|failure| json("run.failure", failure)).transpose()?,
            log_url: row.log_url,
            output_dropped: row.output_dropped,
        })
    }
}

/// An attempt's row.
#[derive(Debug)]
#[expect(missing_docs, reason = "the columns of table attempt, which the migration describes")]
pub struct AttemptRow {
    pub attempt_id: Uuid,
    pub number: i32,
    pub operation: String,
    pub status: String,
    pub worker_id: Option<String>,
    pub session_id: Option<String>,
    pub token_digest: Option<Vec<u8>>,
    pub reported: Option<String>,
    pub ended_version: Option<i64>,
    pub released: Vec<Vec<u8>>,
    pub now: Timestamp,
}

impl TryFrom<AttemptRow> for Attempt {
    type Error = Error;

    fn try_from(row: AttemptRow) -> Result<Self> {
        Ok(Self {
            id: AttemptId(row.attempt_id),
            number: row.number,
            operation: word("attempt.operation", &row.operation, Operation::from_word)?,
            status: word("attempt.status", &row.status, crate::domain::attempt::AttemptStatus::from_word)?,
            session: optional_session(row.worker_id, row.session_id)?,
            token: row.token_digest.map(digest).transpose()?,
            reported: row
                .reported
                .map(|text| word("attempt.reported", &text, crate::domain::run::Status::from_word))
                .transpose()?,
            ended_version: row.ended_version,
            released: row.released.into_iter().map(digest).collect::<Result<_>>()?,
        })
    }
}

/// A task's row, with the moment after it was locked.
#[derive(Debug)]
#[expect(missing_docs, reason = "the columns of table task, which the migration describes")]
pub struct TaskRow {
    pub hold_from: Timestamp,
    pub wait_micros: i64,
    pub start_until: Option<Timestamp>,
    pub start_timeout_micros: Option<i64>,
    pub fence: i64,
    pub worker_id: Option<String>,
    pub session_id: Option<String>,
    pub token_digest: Option<Vec<u8>>,
    pub claimed_at: Option<Timestamp>,
    pub claim_until: Option<Timestamp>,
    pub now: Timestamp,
}

impl TryFrom<TaskRow> for Task {
    type Error = Error;

    fn try_from(row: TaskRow) -> Result<Self> {
        let session = optional_session(row.worker_id, row.session_id)?;
        let claim = match (session, row.token_digest, row.claimed_at, row.claim_until) {
            (Some(session), Some(token), Some(claimed_at), Some(until)) => {
                Some(Claim { session, token: digest(token)?, claimed_at, until })
            }
            (None, None, None, None) => None,
            _ => return Err(Error::Unreadable("task has half a claim".into())),
        };
        let hold = Hold { from: row.hold_from, wait: duration(row.wait_micros)? };
        Ok(Self { hold, start: start(row.start_until, row.start_timeout_micros)?, fence: row.fence, claim })
    }
}

/// A word of the schema as its enum.
///
/// # Errors
/// [`Error::Unreadable`].
pub fn word<T>(column: &str, text: &str, from_word: impl Fn(&str) -> Option<T>) -> Result<T> {
    from_word(text).ok_or_else(|| Error::Unreadable(format!("{column} is {text:?}")))
}

/// An interned selector from its canonical form.
///
/// # Errors
/// [`Error::Unreadable`].
pub fn selector(canonical: &str) -> Result<Selector> {
    serde_json::from_str(canonical).map_err(|error| Error::Unreadable(format!("selector.canonical: {error}")))
}

/// A JSON column.
///
/// # Errors
/// [`Error::Unreadable`].
pub fn json<T: serde::de::DeserializeOwned>(column: &str, value: serde_json::Value) -> Result<T> {
    serde_json::from_value(value).map_err(|error| Error::Unreadable(format!("{column}: {error}")))
}

/// An interval selected as microseconds.
///
/// # Errors
/// [`Error::Unreadable`].
pub fn duration(micros: i64) -> Result<Duration> {
    u64::try_from(micros)
        .map(Duration::from_micros)
        .map_err(|_| Error::Unreadable(format!("a duration is {micros} microseconds")))
}

/// A start clock from the task's two columns.
///
/// # Errors
/// [`Error::Unreadable`].
pub fn start(until: Option<Timestamp>, timeout_micros: Option<i64>) -> Result<Option<StartClock>> {
    let Some((until, micros)) = until.zip(timeout_micros) else { return Ok(None) };
    let timeout = duration(micros)?;
    Ok(StartClock::of(timeout, until - timeout))
}

/// A duration as microseconds, for `* interval '1 microsecond'`.
#[must_use]
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A run's identity.
///
/// # Errors
/// [`Error::Unreadable`].
pub fn key(dag_name: String, run_id: String) -> Result<RunKey> {
    Ok(RunKey {
        dag_name: DagName::parse(dag_name).map_err(bad_name)?,
        run_id: RunId::parse(run_id).map_err(bad_name)?,
    })
}

/// A worker's name.
///
/// # Errors
/// [`Error::Unreadable`].
pub fn worker_id(text: String) -> Result<WorkerId> {
    WorkerId::parse(text).map_err(bad_name)
}

/// A session's key.
///
/// # Errors
/// [`Error::Unreadable`].
pub fn session(worker: String, session_id: String) -> Result<SessionKey> {
    Ok(SessionKey { worker_id: worker_id(worker)?, session_id: SessionId::parse(session_id).map_err(bad_name)? })
}

/// A digest column.
///
/// # Errors
/// [`Error::Unreadable`].
pub fn digest(bytes: Vec<u8>) -> Result<Digest> {
    bytes
        .try_into()
        .map(Digest)
        .map_err(|bytes: Vec<u8>| Error::Unreadable(format!("a digest has {} bytes", bytes.len())))
}

/// A reference to another run, if there is one.
///
/// # Errors
/// [`Error::Unreadable`].
pub fn optional_key(dag_name: Option<String>, run_id: Option<String>) -> Result<Option<RunKey>> {
    dag_name.zip(run_id).map(|(dag_name, run_id)| key(dag_name, run_id)).transpose()
}

fn optional_session(worker: Option<String>, session_id: Option<String>) -> Result<Option<SessionKey>> {
    worker.zip(session_id).map(|(worker, session_id)| session(worker, session_id)).transpose()
}

#[expect(clippy::needless_pass_by_value, reason = "its shape is what map_err hands over")]
fn bad_name(error: crate::ids::InvalidName) -> Error {
    Error::Unreadable(format!("a name {error}"))
}
