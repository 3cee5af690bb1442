//! Expiry: the part of a sweep that fails runs whose hold has run its full wait without a match.
//!
//! Which selectors to visit is decided by what may have changed for them since the last pass; what is due in a selector
//! follows from its gaps and its distinct waits, so a visit costs by these and by what is due, never by what waits.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::Coordinator;
use super::error::Fault;
use crate::domain::Timestamp;
use crate::domain::attempt::Locked;
use crate::domain::hold::{Stretch, gaps};
use crate::ids::{AttemptId, LabelSetNo, NamespaceId, SelectorNo};
use crate::store;
use crate::store::sweep::{Due, Wait};

/// What is remembered of a namespace's holds from pass to pass: hints, found again when they are forgotten.
#[derive(Default)]
pub(super) struct Remembered {
    /// When the last complete pass began; none before the first.
    since: Option<Timestamp>,
    /// Selectors to visit again, and not before when: nothing fitted them at their last visit, or not all that was due
    /// could be moved.
    again: HashMap<SelectorNo, Timestamp>,
    /// How far the round through all selectors has come, and whether one was completed since the start.
    round: i64,
    rounded: bool,
}

/// How far back a pass looks for what was committed late, with a time before the last pass.
const OVERLAP: Duration = Duration::from_secs(2);

/// How many selectors are visited with the same few statements.
const VISITED_TOGETHER: usize = 500;

/// How long a selector without a match is left unvisited at the most, though nothing is known to be due: a claim that
/// another replica returned just before it died is heard of by nobody.
const LEFT_ALONE: Duration = Duration::from_secs(10);

/// Before every pass: a selector to be visited again by the next one, whenever that is.
const NEXT_TIME: Timestamp = Timestamp::UNIX_EPOCH;

impl Remembered {
    /// How long after the last pass began the next hold runs out, of those of a selector without a match.
    pub fn next(&self) -> Option<Duration> {
        let since = self.since?;
        self.again.values().filter(|at| **at > since).min().and_then(|at| (*at - since).to_std().ok())
    }
}

impl Coordinator {
    /// Fails runs whose hold has expired.
    pub(super) async fn expire_holds(
        &self,
        namespace: NamespaceId,
        remembered: &mut Remembered,
    ) -> Result<usize, Fault> {
        let mut expired = 0;
        let (started, visits) = self.to_visit(namespace, remembered).await?;
        for some in visits.chunks(VISITED_TOGETHER) {
            match self.expire_selectors(namespace, some).await {
                Ok((count, again)) => {
                    expired += count;
                    remembered.again.extend(again.into_iter().map(|(no, next)| (no, next.min(started + LEFT_ALONE))));
                }
                Err(error) => {
                    tracing::warn!(selectors = some.len(), %error, "their holds are left to the next pass");
                    remembered.again.extend(some.iter().map(|no| (*no, NEXT_TIME)));
                }
            }
        }
        remembered.since = Some(started);
        Ok(expired)
    }

    /// The selectors to visit in this pass: those with a hold that could first have expired since the last one; those
    /// that something stopped to fit since, for however short a moment; and those without a match, when a hold of them
    /// runs out.
    async fn to_visit(
        &self,
        namespace: NamespaceId,
        remembered: &mut Remembered,
    ) -> Result<(Timestamp, Vec<SelectorNo>), Fault> {
        let mut conn = self.0.db.conn().await?;
        let started = store::sweep::now(&mut conn).await?;
        let since = remembered.since.map_or(Timestamp::UNIX_EPOCH, |since| since - OVERLAP);
        let (present, ceased) = store::presence::label_sets(&mut conn, namespace, since).await?;
        let round = store::sweep::selectors(&mut conn, namespace, remembered.round).await?;
        let everything = !remembered.rounded;
        let mut due: HashSet<SelectorNo> = self.suspects(namespace).into_iter().collect();
        if remembered.since.is_some() {
            due.extend(store::sweep::newly_due(&mut conn, namespace, since).await?);
            due.extend(self.once_fitted(&mut conn, namespace, &ceased).await?);
        }
        if round.len() < store::sweep::ROUND {
            (remembered.round, remembered.rounded) = (0, true);
        } else {
            remembered.round = round.last().map_or(0, |no| no.0);
        }
        let again = std::mem::take(&mut remembered.again);
        let all: HashSet<SelectorNo> =
            round.into_iter().chain(again.keys().copied()).chain(due.iter().copied()).collect();
        let mut visits = Vec::new();
        for no in all {
            let not_before = again.get(&no).copied();
            let fitting = match self.0.catalog.label_sets_fitting(&mut conn, namespace, no, 0).await {
                Ok(fitting) => fitting,
                Err(store::Error::Unreadable(error)) => {
                    if not_before.is_none_or(|until| until <= started) {
                        tracing::error!(selector = no.0, error, "its holds are left for later");
                    }
                    let later = not_before.filter(|until| *until > started).unwrap_or(started + LEFT_ALONE);
                    remembered.again.insert(no, later);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let matched = present.iter().any(|no| fitting.numbers.binary_search(no).is_ok());
            match not_before {
                _ if due.contains(&no) => visits.push(no),
                Some(until) if !matched && until > started => _ = remembered.again.insert(no, until),
                None if matched && !everything => {}
                // Newly without a match or with one again: the gap may have begun, or ended, since its last visit.
                Some(_) | None => visits.push(no),
            }
        }
        Ok((started, visits))
    }

    /// The selectors with tasks that one of these label sets fits.
    async fn once_fitted(
        &self,
        conn: &mut store::Conn,
        namespace: NamespaceId,
        label_sets: &[i64],
    ) -> Result<Vec<SelectorNo>, Fault> {
        if label_sets.is_empty() {
            return Ok(Vec::new());
        }
        // Among all that are there by now: one that is missed here would be missed until its round comes.
        let (upto, _) = store::intern::counters(conn, namespace).await?;
        let mut fitted = Vec::new();
        for no in label_sets {
            match self.0.catalog.selectors_fitting(conn, namespace, LabelSetNo(*no), upto).await {
                Ok(fitting) => fitted.extend_from_slice(&fitting.numbers),
                Err(store::Error::Unreadable(error)) => {
                    tracing::error!(label_set = no, error, "a label set cannot be read");
                }
                Err(error) => return Err(error.into()),
            }
        }
        fitted.sort_unstable();
        fitted.dedup();
        Ok(store::sweep::with_tasks(conn, namespace, &fitted).await?)
    }

    /// Fails the runs of these selectors whose hold ran out in one of their gaps: how many, and when to look again at
    /// which of them if nothing changes. In the next pass while something was due, for more may be behind it or could not
    /// be moved.
    async fn expire_selectors(
        &self,
        namespace: NamespaceId,
        selectors: &[SelectorNo],
    ) -> Result<(usize, Vec<(SelectorNo, Timestamp)>), Fault> {
        let (holds, now) = self.holds_and_gaps(namespace, selectors).await?;
        let mut due = Vec::new();
        let mut again = Vec::new();
        for (no, (waits, gaps)) in &holds {
            let before = due.len();
            for gap in gaps {
                let lasted = (gap.until - gap.from).to_std().unwrap_or_default();
                let over = waits.iter().filter(|wait| wait.wait <= lasted && wait.hold_until <= gap.until);
                due.extend(over.map(|wait| Due { selector_no: *no, wait: wait.wait, gap: *gap }));
            }
            let open = gaps.last().filter(|gap| gap.until == now);
            let next = open.and_then(|open| waits.iter().map(|wait| wait.hold_until.max(open.from + wait.wait)).min());
            again.extend((if due.len() > before { Some(NEXT_TIME) } else { next }).map(|next| (*no, next)));
        }
        if due.is_empty() {
            return Ok((0, again));
        }
        // The start clock may have run out before, and says why then.
        let outages = {
            let mut conn = self.0.db.conn().await?;
            store::presence::outages(&mut conn, namespace, Timestamp::UNIX_EPOCH).await?
        };
        // A gap that has been is never taken back, so what was read before the lock still holds after it.
        let judge = |locked: &Locked, _, now| locked.expire(&holds.get(&locked.run.selector_no)?.1, &outages, now);
        let (mut expired, mut after) = (0, None);
        loop {
            let found = {
                let mut conn = self.0.db.conn().await?;
                store::sweep::expired_in(&mut conn, namespace, &due, after).await?
            };
            let Some(last) = found.last() else { break };
            after = Some(*last);
            self.stamp_again(namespace).await?;
            let ids: Vec<AttemptId> = found.iter().map(|(_, _, id)| *id).collect();
            expired += self.move_tasks(namespace, &ids, &judge).await?;
        }
        Ok((expired, again))
    }

    /// The distinct waits and the gaps of those of these selectors that have tasks, and the moment up to which the gaps
    /// were looked for.
    pub(super) async fn holds_and_gaps(
        &self,
        namespace: NamespaceId,
        selectors: &[SelectorNo],
    ) -> Result<(HashMap<SelectorNo, (Vec<Wait>, Vec<Stretch>)>, Timestamp), Fault> {
        let mut conn = self.0.db.conn().await?;
        // The clock first, then the counter, then what is offered: no presence before this moment is unknown.
        let now = store::sweep::now(&mut conn).await?;
        let (_, upto) = store::intern::counters(&mut conn, namespace).await?;
        let waits = store::sweep::waits(&mut conn, namespace, selectors).await?;
        let longest = waits.iter().map(|wait| wait.wait).max().unwrap_or_default();
        let mut by_selector: HashMap<SelectorNo, Vec<Wait>> = HashMap::new();
        for wait in waits {
            by_selector.entry(wait.selector_no).or_default().push(wait);
        }
        let mut fitting = HashMap::new();
        for no in by_selector.keys() {
            fitting.insert(*no, self.0.catalog.label_sets_fitting(&mut conn, namespace, *no, upto).await?);
        }
        let began = |waits: &[Wait]| waits.iter().map(|wait| wait.hold_until - wait.wait).min().unwrap_or(now);
        let earliest = now - self.reach(longest);
        let from = by_selector.values().map(|waits| began(waits)).min().unwrap_or(now).max(earliest);
        let mut offered: Vec<i64> = fitting.values().flat_map(|fitting| fitting.numbers.iter().copied()).collect();
        offered.sort_unstable();
        offered.dedup();
        let mut outages = Vec::new();
        let mut matched: HashMap<i64, Vec<Stretch>> = HashMap::new();
        for (label_set, stretch) in store::presence::stretches(&mut conn, namespace, &offered, from).await? {
            match label_set {
                Some(no) => matched.entry(no).or_default().push(stretch),
                None => outages.push(stretch),
            }
        }
        let holds = by_selector.into_iter().map(|(no, waits)| {
            let of_fitting = fitting[&no].numbers.iter().filter_map(|no| matched.get(no)).flatten();
            let gaps = gaps(of_fitting.chain(&outages).copied().collect(), began(&waits).max(earliest), now);
            (no, (waits, gaps))
        });
        Ok((holds.collect(), now))
    }
}
