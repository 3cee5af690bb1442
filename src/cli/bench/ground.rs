//! What scenarios stand on: a client of the service, and what may be known of its process and database.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::BenchError;
use super::child;
use super::cpu::Taken;
use super::database::Database;
use super::figure::Times;
use crate::cli::client::{Client, DispatchRequest, Labels};
use crate::ids::new_uuid;

/// The service under measurement.
pub(super) struct Ground {
    /// Speaks to it.
    pub(super) client: Client,
    /// Where it is.
    pub(super) url: String,
    /// Its database, if it is a service of the bench's own.
    pub(super) database: Option<Database>,
    /// Whether to be short rather than exact.
    pub(super) quick: bool,
    pid: Option<u32>,
    tag: String,
    names: AtomicU64,
}

impl Ground {
    pub(super) fn new(client: Client, url: String, pid: Option<u32>, database: Option<Database>, quick: bool) -> Self {
        // The end of the id is chance; its beginning is the time.
        let id = new_uuid().simple().to_string();
        let tag = id[id.len() - 8..].to_owned();
        Self { client, url, database, quick, pid, tag, names: AtomicU64::new(0) }
    }

    /// A name that nothing else has in this service.
    pub(super) fn name(&self, what: &str) -> String {
        format!("bench-{}-{what}-{}", self.tag, self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// A label, for a worker or a selector, that nothing else in this service has.
    pub(super) fn label(&self) -> Labels {
        BTreeMap::from([("bench".to_owned(), self.name("label"))])
    }

    /// A run of a DAG for a worker with these labels, which may be held so long.
    pub(super) fn request(&self, dag_name: &str, selector: &Labels, wait: Duration) -> DispatchRequest {
        DispatchRequest {
            dag_name: dag_name.to_owned(),
            run_id: Some(self.name("run")),
            worker_selector: selector.clone(),
            worker_wait_timeout_seconds: Some(wait.as_secs_f64()),
            params: Some(serde_json::json!({ "day": "2026-01-31" })),
            ..DispatchRequest::default()
        }
    }

    /// The one value, or the other when it is to be quick.
    pub(super) fn sized<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// The memory that the service has resident, in MiB, if that can be known.
    pub(super) fn memory(&self) -> Option<f64> {
        self.pid.and_then(child::resident_mebibytes)
    }

    /// What the service has taken of the processors so far, if that can be known.
    pub(super) fn service_cpu(&self) -> Option<Taken> {
        self.pid.and_then(Taken::by)
    }

    /// What its database has, if that can be known: it is the bench's to look into, and runs on this machine.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub(super) async fn database_cpu(&self) -> Result<Option<Taken>, BenchError> {
        let Some(database) = &self.database else { return Ok(None) };
        Ok(database.pid().await?.and_then(Taken::by_family_of))
    }

    /// What a commit takes in the service's database at this moment.
    ///
    /// # Errors
    ///
    /// When `pgbench` fails.
    pub(super) async fn commits(&self) -> Result<Option<Times>, BenchError> {
        match &self.database {
            Some(database) => database.commits(self.sized(2_000, 100)).await,
            None => Ok(None),
        }
    }
}
