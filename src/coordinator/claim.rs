//! Claim: a look for what a group of parked polls may take, and the reservation of it.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use uuid::Uuid;

use super::error::Fault;
use super::poll::{GivenTask, given};
use super::{Coordinator, Error, PATIENCE};
use crate::domain::Timestamp;
use crate::domain::attempt::Locked;
use crate::domain::hold::{Stretch, gaps};
use crate::domain::session::WorkerState;
use crate::ids::{AttemptId, Digest, LabelSetNo, NamespaceId, SelectorNo, SessionKey, Token};
use crate::matchmaker::{LookEnd, Looked, Parked};
use crate::store::claim::{Candidate, NewClaim};
use crate::store::contents::Contents;
use crate::store::{self, Conn, Db};

/// A poll answer stops before it is larger than this.
const ANSWER_BYTES: usize = 8 << 20;

/// How much longer than the longest wait presence is looked back upon.
const KEPT_LONGER: Duration = Duration::from_hours(24);

/// A poll that may be given something: who asks, how many it may still have, and how large its answer is so far.
struct Asking {
    session: SessionKey,
    poll_id: Option<String>,
    room: usize,
    bytes: usize,
    /// Whether its answer was too large already for a task that it could have had.
    full: bool,
    claims: Vec<(AttemptId, Token)>,
}

impl Asking {
    /// The attempts it is given.
    fn ids(&self) -> impl Iterator<Item = Uuid> {
        self.claims.iter().map(|(id, _)| id.0)
    }
}

/// What a look came to: for each poll what it is given, in the order of the polls, and how it went.
#[derive(Default)]
struct Claimed {
    given: Vec<Vec<GivenTask>>,
    end: LookEnd,
    /// Whether it saw something that nobody has taken.
    more: bool,
}

impl Claimed {
    /// Of a look that does not know what there is.
    fn failed() -> Self {
        Self { given: Vec::new(), end: LookEnd::Failed, more: true }
    }

    /// Of a look that may give nothing of what there is.
    fn nothing_of_some() -> Self {
        Self { more: true, ..Self::default() }
    }
}

impl Coordinator {
    /// Looks once for all these polls. A look that fails gives nothing, is logged, and is repeated soon.
    pub(super) async fn look(
        &self,
        namespace: NamespaceId,
        label_set_no: LabelSetNo,
        polls: Vec<Parked<GivenTask>>,
    ) -> Looked<GivenTask> {
        // Neither a panic nor a question that the network has swallowed must take the group with it, whose polls nobody
        // would look for any more.
        let claim = tokio::time::timeout(PATIENCE, self.claim(namespace, label_set_no, &polls));
        let claimed = match AssertUnwindSafe(claim).catch_unwind().await {
            Ok(Ok(Ok(claimed))) => claimed,
            Ok(Err(_)) => {
                let error = self.unanswered(PATIENCE);
                tracing::warn!(%error, "a look for tasks failed; its polls stay parked");
                Claimed::failed()
            }
            Ok(Ok(Err(error))) => {
                tracing::warn!(%error, "a look for tasks failed; its polls stay parked");
                Claimed::failed()
            }
            Err(_) => {
                tracing::error!("a look for tasks panicked; its polls stay parked");
                Claimed::failed()
            }
        };
        let mut given = claimed.given;
        given.resize_with(polls.len(), Vec::new);
        Looked { polls: polls.into_iter().zip(given).collect(), end: claimed.end, more: claimed.more }
    }

    async fn claim(
        &self,
        namespace: NamespaceId,
        label_set_no: LabelSetNo,
        polls: &[Parked<GivenTask>],
    ) -> Result<Claimed, Fault> {
        let found = self.find(namespace, label_set_no, sole(polls)).await?;
        if found.is_empty() {
            return Ok(Claimed::default());
        }
        let mut tx = self.0.db.begin().await?;
        let (mut asking, present_from, at) = self.who_may(&mut tx, namespace, label_set_no, polls).await?;
        let Some(present_from) = present_from.filter(|_| room(&asking) > 0) else {
            return Ok(Claimed::nothing_of_some());
        };
        let full_look = found.len() == store::claim::LOOK_LIMIT;
        let soon = at + PATIENCE;
        let ending = found.iter().filter_map(|candidate| candidate.start).filter(|start| start.until() <= soon);
        let outages = self.outages_of(&mut tx, namespace, ending).await?;
        let mut left = self.not_expired(&mut tx, namespace, found, present_from).await?;
        let seen = left.len();
        let (mut others, mut clock, mut sole_contents) = (0, None, None);
        // What cannot be given to those who ask, because others have it or it cannot be read, makes room for what comes
        // after it.
        loop {
            let chosen = choose(&asking, &left, at);
            if chosen.is_empty() || asking.iter().flatten().any(|poll| poll.full) {
                break;
            }
            left.retain(|candidate| !chosen.contains(&candidate.attempt_id.0));
            let (locked, now) = store::claim::lock(&mut tx, namespace, &chosen).await?;
            others += chosen.len() - locked.len();
            let Some(now) = now else { continue };
            clock = Some(now);
            // Of one task all is read at once; of many first the sizes, for not all may go into an answer.
            sole_contents = if let [one] = chosen[..] { sole_task(&mut tx, namespace, one).await? } else { None };
            let sizes = match &sole_contents {
                Some(contents) => HashMap::from([(contents.attempt_id, contents.size())]),
                None => store::contents::sizes(&mut tx, namespace, &chosen).await?,
            };
            let mut locked: HashMap<_, _> = locked.into_iter().map(|task| (task.attempt_id.0, task)).collect();
            for task in chosen.iter().filter_map(|id| locked.remove(id)).filter(|task| task.hold.from <= now) {
                if task.start.is_some_and(|start| start.ends_at(&outages) <= now) {
                    // Nobody is to have it any more, and it is failed at once.
                    self.sweep_soon();
                    continue;
                }
                if let Some(bytes) = sizes.get(&task.attempt_id) {
                    assign(&mut asking, &task, *bytes, now);
                }
            }
        }
        let end = if others > 0 { LookEnd::Beaten } else { LookEnd::Done };
        let taken: usize = asking.iter().flatten().map(|poll| poll.claims.len()).sum();
        let more = full_look || taken + others < seen;
        let Some(now) = clock else { return Ok(Claimed { given: Vec::new(), end, more }) };
        let until = self.claim_until(now);
        reserve(&mut tx, namespace, &asking, now, until).await?;
        let contents = if let Some(contents) = sole_contents.filter(|_| taken == 1) {
            vec![contents.claimed(until)]
        } else {
            let ids: Vec<_> = asking.iter().flatten().flat_map(Asking::ids).collect();
            store::contents::read(&mut tx, namespace, &ids).await?
        };
        let given = hand_out(contents, asking);
        Db::commit(tx).await?;
        Ok(Claimed { given, end, more })
    }

    /// The first tasks of the selectors that the label set fits, newly interned selectors included.
    ///
    /// What a session released is none of them for a group in which nobody else asks.
    async fn find(
        &self,
        namespace: NamespaceId,
        label_set_no: LabelSetNo,
        sole: Option<&SessionKey>,
    ) -> Result<Vec<Candidate>, Fault> {
        let mut conn = self.0.db.conn().await?;
        let mut upto = 0;
        loop {
            let fitting = self.0.catalog.selectors_fitting(&mut conn, namespace, label_set_no, upto).await?;
            let look = store::claim::look(&mut conn, namespace, &fitting.numbers, sole).await?;
            if look.last_selector_no <= fitting.upto {
                return Ok(look.found);
            }
            upto = look.last_selector_no;
        }
    }

    /// Locks the sessions of these polls and tells which may be given how much, and since when the longest has been
    /// present, and when that was judged. A session that has ended, drains, is stale or offers something else by now is given nothing.
    async fn who_may(
        &self,
        tx: &mut Conn,
        namespace: NamespaceId,
        label_set_no: LabelSetNo,
        polls: &[Parked<GivenTask>],
    ) -> Result<(Vec<Option<Asking>>, Option<Timestamp>, Timestamp), Fault> {
        let mut keys: Vec<SessionKey> = polls.iter().map(|poll| poll.session.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        let sessions = store::session::lock_for_claims(tx, namespace, &keys).await?;
        let now = sessions.iter().map(|(_, now)| *now).max().unwrap_or_default();
        let able: Vec<_> = sessions
            .into_iter()
            .map(|(session, _)| session)
            .filter(|session| session.state(now) == WorkerState::Healthy && session.label_set_no == label_set_no)
            .collect();
        let present_from = able.iter().filter_map(|session| session.present_from).min();
        let keys: Vec<SessionKey> = able.iter().map(|session| session.key.clone()).collect();
        let used = store::session::used_slots(tx, namespace, &keys).await?;
        let mut free: HashMap<SessionKey, usize> = able
            .into_iter()
            .zip(used)
            .map(|(session, used)| (session.key, usize::try_from(i64::from(session.slots) - used).unwrap_or(0)))
            .collect();
        let asking = polls.iter().map(|poll| {
            let free = free.get_mut(&poll.session).filter(|_| !poll.answer.is_closed())?;
            let room = poll.max_tasks.min(*free);
            *free -= room;
            Some(Asking {
                session: poll.session.clone(),
                poll_id: poll.poll_id.clone(),
                room,
                bytes: 0,
                full: false,
                claims: Vec::new(),
            })
        });
        Ok((asking.collect(), present_from, now))
    }

    /// Leaves out what has expired and is not failed yet; the sweeper is told.
    ///
    /// A hold that could not end before the session came cannot have ended since: the session matches. Only older ones
    /// need the gaps, once per selector.
    async fn not_expired(
        &self,
        tx: &mut Conn,
        namespace: NamespaceId,
        found: Vec<Candidate>,
        present_from: Timestamp,
    ) -> Result<Vec<Candidate>, Fault> {
        let mut known: HashMap<SelectorNo, Vec<Stretch>> = HashMap::new();
        let mut asked: HashMap<SelectorNo, (Timestamp, Duration)> = HashMap::new();
        let doubtful = |candidate: &Candidate| candidate.hold.until() <= present_from;
        for candidate in found.iter().filter(|candidate| doubtful(candidate)) {
            let hold = candidate.hold;
            let (oldest, longest) = asked.entry(candidate.selector_no).or_insert((hold.from, hold.wait));
            (*oldest, *longest) = ((*oldest).min(hold.from), (*longest).max(hold.wait));
        }
        for (no, (oldest, longest)) in asked {
            known.insert(no, self.gaps_of(tx, namespace, no, oldest, longest).await?);
        }
        let (fresh, expired) = found.into_iter().partition::<Vec<_>, _>(|candidate| {
            !doubtful(candidate) || known.get(&candidate.selector_no).is_none_or(|gaps| !candidate.hold.expired(gaps))
        });
        for candidate in expired {
            self.suspect(namespace, candidate.selector_no);
        }
        Ok(fresh)
    }

    /// The gaps of a selector since `from`, but no further back than [`Self::reach`].
    async fn gaps_of(
        &self,
        tx: &mut Conn,
        namespace: NamespaceId,
        no: SelectorNo,
        from: Timestamp,
        longest: Duration,
    ) -> Result<Vec<Stretch>, store::Error> {
        // The situation's read makes sure that no label set is unknown.
        let (situation, fitting) = self.0.catalog.situation(tx, namespace, no).await?;
        let from = from.max(situation.at - self.reach(longest));
        let matched = store::presence::stretches(tx, namespace, &fitting.numbers, from).await?;
        Ok(gaps(matched.into_iter().map(|(_, stretch)| stretch).collect(), from, situation.at))
    }

    /// How far back gaps are looked for, for holds that wait so long at the most: a day more than the longest wait that
    /// is allowed, or that was when they began. So long presence is kept.
    pub(super) fn reach(&self, longest: Duration) -> Duration {
        self.settings().worker_wait_timeout_max.max(longest) + KEPT_LONGER
    }

    /// Until when a claim made now must be acknowledged.
    pub(super) fn claim_until(&self, now: Timestamp) -> Timestamp {
        now + self.settings().ack_timeout
    }

    /// Takes back what was claimed for a poll whose client had gone when it was to be handed over; not what has gone on
    /// under another token since.
    pub(super) async fn take_back(&self, namespace: NamespaceId, tasks: Vec<GivenTask>) {
        let tokens: HashMap<AttemptId, Digest> =
            tasks.iter().map(|task| (task.attempt_id, task.token.digest())).collect();
        let ids: Vec<AttemptId> = tokens.keys().copied().collect();
        let judge = |locked: &Locked, _, now| {
            let undelivered = locked.claim().is_some_and(|claim| tokens.get(&locked.attempt.id) == Some(&claim.token));
            if undelivered { locked.lapse(true, None, now) } else { None }
        };
        if let Err(error) = self.move_tasks(namespace, &ids, &judge).await {
            let error = Error::from(error);
            tracing::warn!(%error, "a claim could not be taken back; it returns when it is not acknowledged in time");
        }
    }
}

/// The session of these polls, if it is the same for all.
fn sole(polls: &[Parked<GivenTask>]) -> Option<&SessionKey> {
    let first = &polls.first()?.session;
    polls.iter().all(|poll| poll.session == *first).then_some(first)
}

/// Which of these tasks the polls may have between them, in order: as many as there is room for, and none that nobody
/// may be offered.
fn choose(asking: &[Option<Asking>], found: &[Candidate], now: Timestamp) -> Vec<Uuid> {
    let mut room: Vec<(&Asking, usize)> =
        asking.iter().flatten().map(|poll| (poll, poll.room - poll.claims.len())).collect();
    let mut chosen = Vec::new();
    for candidate in found {
        let most = room.iter_mut().filter(|(poll, room)| *room > 0 && !barred(poll, candidate, now));
        if let Some((_, room)) = most.max_by_key(|(_, room)| *room) {
            *room -= 1;
            chosen.push(candidate.attempt_id.0);
        }
    }
    chosen
}

/// Whether the poll's session released the task a moment ago.
fn barred(poll: &Asking, candidate: &Candidate, now: Timestamp) -> bool {
    candidate.barred.as_ref().is_some_and(|(session, until)| *session == poll.session && now < *until)
}

/// How many tasks these polls may still be given.
fn room(asking: &[Option<Asking>]) -> usize {
    asking.iter().flatten().map(|poll| poll.room - poll.claims.len()).sum()
}

/// Gives a task to the next poll in turn that may have it: the one with the fewest so far, the longest parked first.
fn assign(asking: &mut [Option<Asking>], candidate: &Candidate, bytes: usize, now: Timestamp) {
    let able =
        asking.iter_mut().flatten().filter(|poll| poll.claims.len() < poll.room && !barred(poll, candidate, now));
    let (small, large): (Vec<_>, Vec<_>) =
        able.partition(|poll| poll.claims.is_empty() || poll.bytes + bytes <= ANSWER_BYTES);
    match small.into_iter().min_by_key(|poll| poll.claims.len()) {
        Some(poll) => {
            poll.bytes += bytes;
            poll.claims.push((candidate.attempt_id, Token::draw()));
        }
        None => large.into_iter().for_each(|poll| poll.full = true),
    }
}

/// Writes what the polls are given.
async fn reserve(
    tx: &mut Conn,
    namespace: NamespaceId,
    asking: &[Option<Asking>],
    now: Timestamp,
    until: Timestamp,
) -> Result<(), Fault> {
    let claims: Vec<NewClaim> = asking
        .iter()
        .flatten()
        .flat_map(|poll| {
            poll.claims.iter().map(|(attempt_id, token)| NewClaim {
                attempt_id: *attempt_id,
                session: poll.session.clone(),
                poll_id: poll.poll_id.clone(),
                token: token.digest(),
            })
        })
        .collect();
    store::claim::write(tx, namespace, &claims, now, until).await?;
    Ok(())
}

/// What a task holds that is about to be claimed; nothing if it cannot be read.
async fn sole_task(tx: &mut Conn, namespace: NamespaceId, id: Uuid) -> Result<Option<Contents>, Fault> {
    match store::contents::read(tx, namespace, &[id]).await {
        Ok(read) => Ok(read.into_iter().next()),
        // Its size will say so, and that it is not given to anybody.
        Err(store::Error::Unreadable(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sorts what the claimed tasks hold by poll.
fn hand_out(contents: Vec<Contents>, asking: Vec<Option<Asking>>) -> Vec<Vec<GivenTask>> {
    let mut by_id: HashMap<AttemptId, _> =
        contents.into_iter().map(|contents| (contents.attempt_id, contents)).collect();
    let mut answers = Vec::with_capacity(asking.len());
    for poll in asking {
        let claims = poll.map(|poll| poll.claims).unwrap_or_default();
        let contents = claims.iter().filter_map(|(id, _)| by_id.remove(id)).collect();
        answers.push(given(contents, claims));
    }
    answers
}
