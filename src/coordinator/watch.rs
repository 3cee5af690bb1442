//! Those who wait: reads for a run to change, and parked polls for a task. They hold no connection: a change made here
//! tells them at once, and one statement per fallback interval looks for all of them whether a change was made elsewhere.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::catalog::Fitting;
use super::{Coordinator, Error, Fault};
use crate::ids::{NamespaceId, RunKey};
use crate::store;

/// The runs somebody waits for, with the last version known of each.
#[derive(Default)]
pub(super) struct Watch(Mutex<Watched>);

type Watched = HashMap<(NamespaceId, RunKey), Arc<watch::Sender<i64>>>;

/// One who waits for a run to change. Stops waiting when dropped.
pub(super) struct Watcher {
    versions: watch::Receiver<i64>,
    _sender: Arc<watch::Sender<i64>>,
}

impl Watcher {
    /// Completes when the run has changed, or may have, since this was last called or made.
    pub async fn changed(&mut self) {
        // The sender cannot be gone: this watcher keeps it.
        let _ = self.versions.changed().await;
    }
}

impl Watch {
    /// Starts waiting. To be called before the read whose change is waited for.
    pub fn watch(&self, namespace: NamespaceId, key: &RunKey) -> Watcher {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = watched.entry((namespace, key.clone())).or_insert_with(|| Arc::new(watch::Sender::new(0)));
        Watcher { versions: sender.subscribe(), _sender: Arc::clone(sender) }
    }

    /// Tells that a run is at this version now.
    pub fn changed(&self, namespace: NamespaceId, key: &RunKey, version: i64) {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (namespace, key.clone());
        if let Some(sender) = watched.get(&key) {
            if sender.receiver_count() == 0 {
                watched.remove(&key);
            } else {
                sender.send_if_modified(|known| std::mem::replace(known, version.max(*known)) < version);
            }
        }
    }

    /// The runs somebody still waits for, by namespace.
    fn watched(&self) -> HashMap<NamespaceId, Vec<RunKey>> {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|_, sender| sender.receiver_count() > 0);
        let mut by_namespace: HashMap<NamespaceId, Vec<RunKey>> = HashMap::new();
        for (namespace, key) in watched.keys() {
            by_namespace.entry(*namespace).or_default().push(key.clone());
        }
        by_namespace
    }
}

impl Coordinator {
    /// Looks once whether any run that somebody waits for was changed elsewhere.
    ///
    /// # Errors
    /// Of the database; the next look makes up for it.
    pub async fn look_for_changes(&self) -> Result<(), Error> {
        for (namespace, keys) in self.0.watch.watched() {
            let mut conn = self.0.db.conn().await.map_err(Fault::from)?;
            for (key, version) in store::read::versions(&mut conn, namespace, &keys).await.map_err(Fault::from)? {
                self.0.watch.changed(namespace, &key, version);
            }
        }
        Ok(())
    }

    /// Looks once for all groups of polls parked here, and wakes those that have something to take: by a wake-up that was
    /// lost, or dispatched at another replica. One statement a namespace, however many are parked.
    ///
    /// # Errors
    /// Of the database; the next look makes up for it.
    pub async fn look_for_parked(&self) -> Result<(), Error> {
        for (namespace, label_sets) in self.0.matchmaker.groups() {
            let known: Vec<_> =
                label_sets.into_iter().map(|no| (no, self.0.catalog.known_to_fit(namespace, no))).collect();
            let fitting = known.iter().flat_map(|(_, known)| known.iter().flat_map(|known| known.numbers.iter()));
            let fitting: Vec<i64> = fitting.copied().collect::<BTreeSet<_>>().into_iter().collect();
            let (last, claimable) = {
                let mut conn = self.0.db.conn().await.map_err(Fault::from)?;
                store::claim::claimable(&mut conn, namespace, &fitting).await.map_err(Fault::from)?
            };
            let has_some = |numbers: &[i64]| numbers.iter().any(|no| claimable.contains(no));
            // Whoever does not know of every selector learns of the rest by a look of its own.
            let wanting = |known: &Option<Fitting>| {
                known.as_ref().is_none_or(|known| known.upto < last || has_some(&known.numbers))
            };
            let mut woken: Vec<i64> =
                known.into_iter().filter(|(_, known)| wanting(known)).map(|(no, _)| no.0).collect();
            woken.sort_unstable();
            self.wake(namespace, &woken);
        }
        Ok(())
    }
}
