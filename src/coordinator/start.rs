//! Start clocks: the part of a sweep that fails runs which nobody has started in time, and what they are read by.

use std::collections::HashMap;
use std::time::Duration;

use super::Coordinator;
use super::error::Fault;
use crate::domain::attempt::Locked;
use crate::domain::hold::Stretch;
use crate::domain::start::StartClock;
use crate::ids::{AttemptId, NamespaceId, SelectorNo};
use crate::store::{self, Conn};

impl Coordinator {
    /// The outages that let one of these clocks run longer. Without a clock nothing is asked.
    pub(super) async fn outages_of(
        &self,
        conn: &mut Conn,
        namespace: NamespaceId,
        clocks: impl Iterator<Item = StartClock>,
    ) -> store::Result<Vec<Stretch>> {
        match clocks.map(|clock| clock.from).min() {
            Some(since) => store::presence::outages(conn, namespace, since).await,
            None => Ok(Vec::new()),
        }
    }

    /// Fails runs whose start clock has run out: how many, and how long until the next one does of those that only an
    /// outage has kept.
    ///
    /// Each pass asks the index for what is over, whoever matches. What outages have added to is asked for again until
    /// it is over, too: that is what was due in the time they took, and no more.
    pub(super) async fn expire_starts(&self, namespace: NamespaceId) -> Result<(usize, Option<Duration>), Fault> {
        let (mut failed, mut next, mut after) = (0, None, None);
        loop {
            self.stamp_again(namespace).await?;
            let (now, due, outages) = {
                let mut conn = self.0.db.conn().await?;
                let now = store::sweep::now(&mut conn).await?;
                let due = store::sweep::start_due(&mut conn, namespace, after).await?;
                let outages = self.outages_of(&mut conn, namespace, due.iter().map(|due| due.start)).await?;
                (now, due, outages)
            };
            let Some(last) = due.last() else { return Ok((failed, next)) };
            after = Some((last.start.until(), last.attempt_id));
            let (over, kept): (Vec<_>, Vec<_>) = due.into_iter().partition(|due| due.start.ends_at(&outages) <= now);
            let kept = kept.iter().map(|due| (due.start.ends_at(&outages) - now).to_std().unwrap_or_default()).min();
            next = [next, kept].into_iter().flatten().min();
            let mut selectors: Vec<SelectorNo> = over.iter().map(|due| due.selector_no).collect();
            selectors.sort_unstable();
            selectors.dedup();
            // A hold may have run out before, and says why then.
            let gaps = self.readable_gaps(namespace, &selectors).await?;
            let judge = |locked: &Locked, _, now| {
                let gaps = gaps.get(&locked.run.selector_no).map_or(&[][..], Vec::as_slice);
                locked.expire(gaps, &outages, now)
            };
            let ids: Vec<AttemptId> = over.iter().map(|due| due.attempt_id).collect();
            failed += self.move_tasks(namespace, &ids, &judge).await?;
        }
    }

    /// The gaps of those of these selectors that can be read: one that cannot stops none of the others.
    async fn readable_gaps(
        &self,
        namespace: NamespaceId,
        selectors: &[SelectorNo],
    ) -> Result<HashMap<SelectorNo, Vec<Stretch>>, Fault> {
        if selectors.is_empty() {
            return Ok(HashMap::new());
        }
        let found = match self.holds_and_gaps(namespace, selectors).await {
            Ok((found, _)) => found,
            Err(Fault::Store(store::Error::Unreadable(_))) if selectors.len() > 1 => {
                let mut found = HashMap::new();
                for no in selectors {
                    match self.holds_and_gaps(namespace, std::slice::from_ref(no)).await {
                        Ok((one, _)) => found.extend(one),
                        Err(Fault::Store(store::Error::Unreadable(_))) => {}
                        Err(error) => return Err(error),
                    }
                }
                found
            }
            Err(Fault::Store(store::Error::Unreadable(_))) => HashMap::new(),
            Err(error) => return Err(error),
        };
        Ok(found.into_iter().map(|(no, (_, gaps))| (no, gaps)).collect())
    }
}
