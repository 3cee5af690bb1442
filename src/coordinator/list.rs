//! Pages of runs and of workers.

use super::{Coordinator, Error};
use crate::domain::condition::Reason;
use crate::domain::run::Status;
use crate::domain::snapshot::RunSnapshot;
use crate::ids::{NamespaceId, RunKey};
use crate::store::worker::WorkerView;
use crate::store::{self, Conn};

pub use crate::store::list::{Page, Position, RunFilter, WorkerFilter};

/// How many runs are looked at together when their reasons have to be found out.
const REASONS: i64 = 500;

impl Coordinator {
    /// A page of runs: at most `limit` that follow `after`. It may be short, even empty, although more follows:
    /// `next` says so. A run that cannot be read is left out, and logged.
    ///
    /// Who goes from page to page meets every run that passes the filter all the while, and each once, whatever
    /// happens to runs meanwhile: a run never changes its place.
    ///
    /// # Errors
    /// Of the database.
    pub async fn list_runs(
        &self,
        namespace: NamespaceId,
        filter: RunFilter,
        reason: Option<Reason>,
        after: Option<Position>,
        limit: i64,
    ) -> Result<Page<RunSnapshot, Position>, Error> {
        let read = async {
            let mut conn = self.0.db.conn().await?;
            match reason {
                None => {
                    let found = store::list::keys(&mut conn, namespace, &filter, after.as_ref(), limit).await?;
                    let runs = self.readable(&mut conn, namespace, &filter, &found.items).await?;
                    Ok(Page { items: runs.into_iter().map(|(_, run)| run).collect(), next: found.next })
                }
                Some(reason) => self.waiting_for(&mut conn, namespace, filter, reason, after, limit).await,
            }
        };
        super::patiently::<_, store::Error>(read).await
    }

    /// A page of queued runs with this reason. Reasons are nowhere stored: as many runs as any page may look at are
    /// read, and the reasons of their distinct selectors found out.
    async fn waiting_for(
        &self,
        conn: &mut Conn,
        namespace: NamespaceId,
        filter: RunFilter,
        reason: Reason,
        mut after: Option<Position>,
        limit: i64,
    ) -> store::Result<Page<RunSnapshot, Position>> {
        let mut page = Page { items: Vec::new(), next: None };
        if filter.status.is_some_and(|status| status != Status::Queued) {
            return Ok(page);
        }
        let filter = RunFilter { status: Some(Status::Queued), ..filter };
        let limit = usize::try_from(limit).unwrap_or_default();
        for _ in 0..store::list::WINDOW / REASONS {
            let found = store::list::keys(conn, namespace, &filter, after.as_ref(), REASONS).await?;
            let mut runs = self.readable(conn, namespace, &filter, &found.items).await?.into_iter();
            page.next = found.next;
            while let Some((position, run)) = runs.next() {
                if run.conditions.first().is_some_and(|condition| condition.reason == reason) {
                    page.items.push(run);
                }
                if page.items.len() == limit {
                    if page.next.is_some() || runs.len() > 0 {
                        page.next = Some(position);
                    }
                    return Ok(page);
                }
            }
            if page.next.is_none() {
                break;
            }
            after.clone_from(&page.next);
        }
        Ok(page)
    }

    /// Those of these runs that can be read and have not left the status asked for since they were found.
    async fn readable(
        &self,
        conn: &mut Conn,
        namespace: NamespaceId,
        filter: &RunFilter,
        keys: &[RunKey],
    ) -> store::Result<Vec<(Position, RunSnapshot)>> {
        let mut found = logged(store::read::runs(conn, namespace, keys).await?);
        found.retain(|found| filter.status.is_none_or(|status| found.run.status == status));
        let snapshots = self.snapshots(conn, namespace, &found).await?;
        Ok(found.iter().map(|found| Position::of(&found.run)).zip(snapshots).collect())
    }

    /// A page of workers, by name: at most `limit` that follow the name `after`. As with runs it may be short, and what
    /// cannot be read is left out, and logged.
    ///
    /// # Errors
    /// Of the database.
    pub async fn list_workers(
        &self,
        namespace: NamespaceId,
        filter: WorkerFilter,
        after: Option<String>,
        limit: i64,
    ) -> Result<Page<WorkerView, String>, Error> {
        let read = async {
            let mut conn = self.0.db.conn().await?;
            let found = store::list::workers(&mut conn, namespace, &filter, after.as_deref(), limit).await?;
            let mut views = logged(store::worker::views(&mut conn, namespace, &found.items).await?);
            views.retain(|view| filter.state.is_none_or(|state| view.state == state));
            Ok(Page { items: views, next: found.next })
        };
        super::patiently::<_, store::Error>(read).await
    }
}

/// What could be read; the rest is logged.
fn logged<T>(rows: Vec<store::Result<T>>) -> Vec<T> {
    let readable =
        |row: store::Result<T>| row.inspect_err(|error| tracing::error!(%error, "it is left out of a list")).ok();
    rows.into_iter().filter_map(readable).collect()
}
