//! The feed: every event of a namespace in one order, read by position.
//!
//! Any replica may stamp, and whichever commits a change stamps soon after; there is no leader. Readers wait without a
//! connection: one follower per replica tells them all when positions were given.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::refusal::Refusal;
use crate::ids::NamespaceId;
use crate::store::{self, Db};

pub use crate::store::feed::{Entry, EventFilter, Page};

/// What a replica knows of the feeds: when to stamp, and how far each has come.
#[derive(Default)]
pub(super) struct Feeds {
    unstamped: Notify,
    last: Mutex<HashMap<NamespaceId, watch::Sender<i64>>>,
}

impl Feeds {
    /// Something was committed that has no position yet.
    pub fn committed(&self) {
        self.unstamped.notify_one();
    }

    /// A feed has come this far.
    fn reached(&self, namespace: NamespaceId, last: i64) {
        let mut feeds = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = feeds.entry(namespace).or_insert_with(|| watch::Sender::new(0));
        sender.send_if_modified(|known| std::mem::replace(known, last.max(*known)) < last);
    }

    fn watch(&self, namespace: NamespaceId) -> watch::Receiver<i64> {
        let mut feeds = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        feeds.entry(namespace).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    /// The namespaces whose feed somebody waits for.
    fn watched(&self) -> Vec<NamespaceId> {
        let feeds = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        feeds.iter().filter(|(_, sender)| sender.receiver_count() > 0).map(|(namespace, _)| *namespace).collect()
    }
}

impl Coordinator {
    /// Reads the feed after a position. Without events there, waits for some, at the most as long as asked; ends early
    /// on shutdown. The wait holds no connection.
    ///
    /// # Errors
    /// [`Refusal::PositionExpired`] when events after it are no longer kept.
    pub async fn list_events(
        &self,
        namespace: NamespaceId,
        after: i64,
        filter: &EventFilter,
        limit: i64,
        wait: Duration,
    ) -> Result<Page, Error> {
        let until = Instant::now() + wait;
        let mut reached = self.0.feeds.watch(namespace);
        let mut after = after;
        loop {
            // Marked before the read: what is stamped from here on ends the wait.
            reached.mark_unchanged();
            let page = super::patiently(self.page(namespace, after, filter, limit)).await?;
            let full_look = page.seen - after >= store::feed::SCAN;
            if !page.entries.is_empty() || Instant::now() >= until || self.0.closing.is_cancelled() {
                return Ok(page);
            }
            after = page.seen;
            if full_look {
                continue;
            }
            tokio::select! {
                _ = reached.changed() => {}
                () = tokio::time::sleep_until(until) => {}
                () = self.0.closing.cancelled() => {}
            }
        }
    }

    async fn page(&self, namespace: NamespaceId, after: i64, filter: &EventFilter, limit: i64) -> Result<Page, Fault> {
        let mut conn = self.0.db.conn().await?;
        let page = store::feed::page(&mut conn, namespace, after, filter, limit).await?;
        // Judged after the read: what was dropped before it is missing from it.
        let (first, _) = store::feed::bounds(&mut conn, namespace).await?;
        if after + 1 < first {
            return Err(Refusal::PositionExpired { after, first }.into());
        }
        Ok(page)
    }

    /// Gives positions to all events that have none. Answers whether it could: false when another replica is at it,
    /// which may have begun too early to see what was committed here.
    ///
    /// # Errors
    /// Of the database; the next call makes up for it.
    pub async fn stamp_events(&self) -> Result<bool, Error> {
        let namespaces = {
            let mut conn = self.0.db.conn().await.map_err(Fault::from)?;
            store::sweep::namespaces(&mut conn).await.map_err(Fault::from)?
        };
        let mut all = true;
        for namespace in namespaces {
            all &= self.stamp_feed(namespace).await?;
        }
        Ok(all)
    }

    async fn stamp_feed(&self, namespace: NamespaceId) -> Result<bool, Fault> {
        loop {
            {
                let mut conn = self.0.db.conn().await?;
                if !store::feed::has_unstamped(&mut conn, namespace).await? {
                    return Ok(true);
                }
            }
            let mut tx = self.0.db.begin().await?;
            if !store::feed::become_stamper(&mut tx, namespace).await? {
                return Ok(false);
            }
            let last = store::feed::stamp(&mut tx, namespace).await?;
            Db::commit(tx).await?;
            self.0.feeds.reached(namespace, last);
        }
    }

    /// Completes when something was committed here that has no position yet.
    pub async fn something_unstamped(&self) {
        self.0.feeds.unstamped.notified().await;
    }

    /// Looks how far the feeds have come that somebody here waits for: other replicas stamp too.
    ///
    /// # Errors
    /// Of the database; the next look makes up for it.
    pub async fn follow_feeds(&self) -> Result<(), Error> {
        for namespace in self.0.feeds.watched() {
            let mut conn = self.0.db.conn().await.map_err(Fault::from)?;
            let (_, last) = store::feed::bounds(&mut conn, namespace).await.map_err(Fault::from)?;
            self.0.feeds.reached(namespace, last);
        }
        Ok(())
    }
}
