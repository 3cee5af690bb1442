//! Sweep: one pass that moves what time has moved.
//!
//! Any replica may sweep, and all do: what is due is found by hint, judged again under lock, and passed over when
//! somebody else has it. A pass costs by what is due, not by what waits: it visits a selector when a hold of it could
//! first have expired since the last pass, and while nothing fits it. What it remembers is a hint; what it forgets, or
//! never knew, it finds again in its round through the selectors that have tasks.

use std::collections::{HashMap, HashSet};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::Timestamp;
use crate::domain::attempt::Locked;
use crate::domain::hold::{Stretch, gaps};
use crate::domain::session::EndReason;
use crate::domain::transition::Transition;
use crate::ids::{AttemptId, LabelSetNo, NamespaceId, SelectorNo, SessionKey};
use crate::store::sweep::{Due, Wait};
use crate::store::{self, Db};

/// What a sweeper remembers from pass to pass, by namespace.
#[derive(Default)]
pub struct SweepMemory(HashMap<NamespaceId, Remembered>);

#[derive(Default)]
struct Remembered {
    /// When the last complete pass began; none before the first.
    since: Option<Timestamp>,
    /// Selectors to visit again, and not before when: nothing fitted them at their last visit, or not all that was due
    /// could be moved.
    again: HashMap<SelectorNo, Timestamp>,
    /// How far the round through all selectors has come, and whether one was completed since the start.
    round: i64,
    rounded: bool,
}

/// What a pass did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// Runs failed because their hold expired.
    pub expired: usize,
    /// Claims returned to the queue.
    pub returned: usize,
    /// Attempts lost with their session.
    pub lost: usize,
    /// How long until something may be due, if that is known.
    pub next: Option<Duration>,
}

/// How far back a pass looks for what was committed late, with a time before the last pass.
const OVERLAP: Duration = Duration::from_secs(2);

/// How many selectors are visited with the same few statements.
const VISITED_TOGETHER: usize = 500;

/// How long a selector without a match is left unvisited at the most, though nothing is known to be due: a claim that
/// another replica returned just before it died is heard of by nobody.
const LEFT_ALONE: Duration = Duration::from_secs(10);

impl Coordinator {
    /// Sweeps every namespace once. Row by row where a batch fails, so that one row that cannot be moved does not stop
    /// the others.
    ///
    /// # Errors
    /// Of the database; what was moved before stays moved, and the next pass goes on.
    pub async fn sweep(&self, memory: &mut SweepMemory) -> Result<Swept, Error> {
        Ok(self.sweep_all(memory).await?)
    }

    async fn sweep_all(&self, memory: &mut SweepMemory) -> Result<Swept, Fault> {
        let mut swept = Swept::default();
        let namespaces = {
            let mut conn = self.0.db.conn().await?;
            store::sweep::namespaces(&mut conn).await?
        };
        for namespace in namespaces {
            let remembered = memory.0.entry(namespace).or_default();
            let amnesty_until = self.stamp(namespace).await?;
            if amnesty_until.is_none() {
                self.end_silent_sessions(namespace).await?;
            }
            let (returned, lost) = self.settle_all(namespace).await?;
            swept.returned += returned + self.return_lapsed(namespace, amnesty_until).await?;
            swept.lost += lost;
            swept.expired += self.expire_holds(namespace, remembered).await?;
            let mut conn = self.0.db.conn().await?;
            let next = store::sweep::next_due(&mut conn, namespace).await?;
            swept.next = [swept.next, next].into_iter().flatten().min();
        }
        Ok(swept)
    }

    /// Says that this namespace is being swept, and learns whether an amnesty is on.
    async fn stamp(&self, namespace: NamespaceId) -> Result<Option<Timestamp>, Fault> {
        let settings = self.settings();
        let mut conn = self.0.db.conn().await?;
        self.0.stamped.lock().unwrap_or_else(PoisonError::into_inner).insert(namespace, Instant::now());
        Ok(store::presence::stamp(&mut conn, namespace, settings.heartbeat_interval, settings.lease_ttl).await?)
    }

    /// Stamps in the midst of a long pass, which would pass for an outage otherwise.
    async fn stamp_again(&self, namespace: NamespaceId) -> Result<(), Fault> {
        let stamped = self.0.stamped.lock().unwrap_or_else(PoisonError::into_inner).get(&namespace).copied();
        if stamped.is_none_or(|at| at.elapsed() > self.settings().heartbeat_interval / 4) {
            self.stamp(namespace).await?;
        }
        Ok(())
    }

    async fn end_silent_sessions(&self, namespace: NamespaceId) -> Result<(), Fault> {
        let silent = {
            let mut conn = self.0.db.conn().await?;
            store::sweep::silent_sessions(&mut conn, namespace).await?
        };
        for key in silent {
            let ended = self.end_session(namespace, &key, EndReason::Lapsed, |session, now| session.lapsed(now, None));
            match ended.await {
                Ok(_) => {}
                Err(error) => tracing::warn!(worker = %key.worker_id, %error, "a silent session could not be ended"),
            }
        }
        Ok(())
    }

    /// Returns what sessions that have ended still hold, and loses what they ran.
    async fn settle_all(&self, namespace: NamespaceId) -> Result<(usize, usize), Fault> {
        let holders = {
            let mut conn = self.0.db.conn().await?;
            store::sweep::ended_holders(&mut conn, namespace).await?
        };
        let (mut returned, mut lost) = (0, 0);
        for session in holders {
            let done = self.settle_session(namespace, &session).await?;
            returned += done.0;
            lost += done.1;
        }
        Ok((returned, lost))
    }

    /// Settles what an ended session held, at once; the sweep makes up for a failure.
    pub(super) async fn settle(&self, namespace: NamespaceId, session: &SessionKey) {
        if let Err(error) = self.settle_session(namespace, session).await {
            tracing::warn!(worker = %session.worker_id, %error, "what an ended session held is left to the sweep");
            self.sweep_soon();
        }
    }

    async fn settle_session(&self, namespace: NamespaceId, session: &SessionKey) -> Result<(usize, usize), Fault> {
        let (claims, running) = {
            let mut conn = self.0.db.conn().await?;
            store::sweep::held_by(&mut conn, namespace, session).await?
        };
        let returned = self.return_claims(namespace, &claims).await?;
        let mut lost = 0;
        for attempt_id in running {
            match self.lose(namespace, attempt_id).await {
                Ok(changed) => lost += usize::from(changed),
                Err(error) => {
                    tracing::warn!(attempt = %attempt_id, %error, "an attempt could not be ended; left to the next pass");
                }
            }
        }
        Ok((returned, lost))
    }

    /// Ends a running attempt whose session has ended.
    async fn lose(&self, namespace: NamespaceId, attempt_id: AttemptId) -> Result<bool, Fault> {
        let mut held = self.lock_held(namespace, attempt_id).await?;
        let Some(transition) = held.locked.lose(held.session_ended(), held.now) else { return Ok(false) };
        let recorded = self.record(&mut held.tx, namespace, std::slice::from_ref(&transition)).await?;
        Db::commit(held.tx).await?;
        tracing::info!(run = %transition.run().key, attempt = %attempt_id, status = %transition.run().status, "lost");
        self.announce(namespace, recorded).await;
        Ok(true)
    }

    /// Returns those of these claims whose session has ended. One may have returned already, and be another's by now.
    async fn return_claims(&self, namespace: NamespaceId, ids: &[AttemptId]) -> Result<usize, Fault> {
        let judge = |locked: &Locked, ended: bool, now| if ended { locked.lapse(true, None, now) } else { None };
        self.move_tasks(namespace, ids, &judge).await
    }

    /// Returns claims that were not acknowledged in time, outside of an amnesty.
    async fn return_lapsed(&self, namespace: NamespaceId, amnesty_until: Option<Timestamp>) -> Result<usize, Fault> {
        let (mut returned, mut after) = (0, None);
        loop {
            let due = {
                let mut conn = self.0.db.conn().await?;
                store::sweep::lapsed_claims(&mut conn, namespace, after).await?
            };
            let Some(last) = due.last() else { return Ok(returned) };
            after = Some(*last);
            self.stamp_again(namespace).await?;
            let ids: Vec<AttemptId> = due.iter().map(|(_, id)| *id).collect();
            let judge = |locked: &Locked, ended, now| locked.lapse(ended, amnesty_until, now);
            returned += self.move_tasks(namespace, &ids, &judge).await?;
        }
    }

    /// Fails runs whose hold has expired.
    async fn expire_holds(&self, namespace: NamespaceId, remembered: &mut Remembered) -> Result<usize, Fault> {
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
                    remembered.again.extend(some.iter().map(|no| (*no, started)));
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
    /// which of them if nothing changes. At once while something was due, for more may be behind it or could not be
    /// moved.
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
            again.extend((if due.len() > before { Some(now) } else { next }).map(|next| (*no, next)));
        }
        // A gap that has been is never taken back, so what was read before the lock still holds after it.
        let judge = |locked: &Locked, _, now| locked.expire(&holds.get(&locked.run.selector_no)?.1, now);
        let (mut expired, mut after) = (0, None);
        while !due.is_empty() {
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
    async fn holds_and_gaps(
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

    /// Moves those of these tasks that a rule moves, in one transaction; each alone if that fails.
    pub(super) async fn move_tasks(
        &self,
        namespace: NamespaceId,
        ids: &[AttemptId],
        judge: &(dyn Fn(&Locked, bool, Timestamp) -> Option<Transition> + Sync),
    ) -> Result<usize, Fault> {
        if ids.is_empty() {
            return Ok(0);
        }
        let failed = match self.move_batch(namespace, ids, judge).await {
            Ok(moved) => return Ok(moved),
            Err(error) if ids.len() == 1 => error,
            Err(error) => {
                tracing::warn!(%error, rows = ids.len(), "a batch could not be moved; trying each row alone");
                let mut moved = 0;
                for id in ids {
                    match self.move_batch(namespace, std::slice::from_ref(id), judge).await {
                        Ok(one) => moved += one,
                        Err(error) => tracing::warn!(attempt = %id, %error, "left to the next pass"),
                    }
                }
                return Ok(moved);
            }
        };
        match failed {
            Fault::Store(store::Error::Unavailable(_)) => Err(failed),
            error => {
                tracing::warn!(attempt = %ids[0], %error, "left to the next pass");
                Ok(0)
            }
        }
    }

    async fn move_batch(
        &self,
        namespace: NamespaceId,
        ids: &[AttemptId],
        judge: &(dyn Fn(&Locked, bool, Timestamp) -> Option<Transition> + Sync),
    ) -> Result<usize, Fault> {
        let raw: Vec<_> = ids.iter().map(|id| id.0).collect();
        let mut tx = self.0.db.begin().await?;
        let found = store::lock::from_tasks(&mut tx, namespace, &raw).await?;
        if found.len() < ids.len() {
            store::sweep::drop_orphans(&mut tx, namespace, &raw).await?;
        }
        let mut transitions = Vec::with_capacity(found.len());
        for store::lock::FromTask { attempt_id, locked, session_ended, now } in found {
            match locked {
                Ok(locked) => transitions.extend(judge(&locked, session_ended, now)),
                Err(error) => tracing::error!(attempt = %attempt_id, %error, "its task stays for the next pass"),
            }
        }
        let recorded = self.record(&mut tx, namespace, &transitions).await?;
        Db::commit(tx).await?;
        for transition in &transitions {
            let run = transition.run();
            tracing::info!(run = %run.key, attempt = %run.attempt.attempt_id, status = %run.status,
                           error = run.error.as_deref(), "swept");
        }
        self.announce(namespace, recorded).await;
        Ok(transitions.len())
    }
}
