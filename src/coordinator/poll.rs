//! Poll: a worker asks for tasks, and waits for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::Fault;
use super::{Class, Coordinator, Error, PATIENCE};
use crate::domain::labels::Labels;
use crate::domain::refusal::Refusal;
use crate::domain::run::Operation;
use crate::domain::selector::Selector;
use crate::domain::session::{EndReason, Session};
use crate::ids::{AttemptId, NamespaceId, RunKey, SessionKey, Token};
use crate::matchmaker::{Group, GroupKey, Matchmaker, Outcome, Place};
use crate::store::contents::Contents;
use crate::store::create::Payload;
use crate::store::{self, Db};

/// How soon a poll that was answered early, with nothing, should be repeated.
const POLL_AFTER: Duration = Duration::from_secs(1);

/// How old may be what an answer tells of cancels and drains: the next poll, which comes at once, tells the rest.
const NEWS_AGE: Duration = Duration::from_secs(1);

/// A worker's question for tasks.
#[derive(Debug, Clone)]
pub struct Poll {
    /// Its session.
    pub session: SessionKey,
    /// How many tasks it takes at the most.
    pub max_tasks: i64,
    /// How long it waits for the first.
    pub wait: Duration,
    /// Its client's name for it, by which a repeat is given the same again.
    pub poll_id: Option<String>,
}

/// A task as it is given to a worker: a claim, to be acknowledged in time.
#[derive(Debug, Clone)]
pub struct GivenTask {
    /// The run.
    pub key: RunKey,
    /// The attempt.
    pub attempt_id: AttemptId,
    /// Its number within the run.
    pub attempt_number: i32,
    /// What its dispatch asked for.
    pub operation: Operation,
    /// The claim's token, to be shown with every word about it.
    pub token: Token,
    /// Rises with each claim of the run, for what the worker writes to.
    pub fence: i64,
    /// How long it may take to acknowledge it.
    pub ack_within: Duration,
    /// What it carries.
    pub payload: Payload,
    /// What it asked for.
    pub selector: Arc<Selector>,
    /// The run at the top of its family.
    pub root: Option<RunKey>,
    /// The run that dispatched it.
    pub parent: Option<RunKey>,
    /// Its labels.
    pub labels: Labels,
    /// W3C trace context of its dispatch.
    pub traceparent: Option<String>,
}

/// What a poll is answered.
#[derive(Debug, Clone, Default)]
pub struct PollAnswer {
    /// What the worker is given.
    pub tasks: Vec<GivenTask>,
    /// Attempts it runs whose cancel was asked for.
    pub cancel: Vec<AttemptId>,
    /// Attempts it no longer holds.
    pub lost: Vec<AttemptId>,
    /// Whether it is given no more tasks.
    pub drain: bool,
    /// How long to wait before the next poll, when this one was answered early with nothing.
    pub poll_after: Option<Duration>,
}

/// Completes when a wait is over, or all waits are.
async fn ended(until: Instant, closing: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep_until(until) => {}
        () = closing.cancelled() => {}
    }
}

impl Coordinator {
    /// Waits for tasks that the session may take, at the most as long as asked. A sign of life, also while it waits.
    ///
    /// The wait holds no connection. Dropping the future withdraws the poll; what it was being given then returns to
    /// the queue. The same `poll_id` again is given that poll's unacknowledged claims, with fresh tokens. A session
    /// that has something to cancel is not kept waiting: it is given what there is, and told.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`].
    pub async fn poll_tasks(&self, namespace: NamespaceId, poll: Poll) -> Result<PollAnswer, Error> {
        let mut until = Instant::now() + poll.wait;
        let mut session = self.arrive(namespace, &poll).await?;
        if let Some(again) = self.repeated(namespace, &poll).await? {
            return Ok(PollAnswer { tasks: again, poll_after: None, ..self.news(namespace, &poll.session).await? });
        }
        loop {
            if session.present_from.is_none() || self.0.closing.is_cancelled() {
                return self.news(namespace, &poll.session).await;
            }
            let key = (namespace, session.label_set_no);
            let max_tasks = usize::try_from(poll.max_tasks).unwrap_or(1);
            let Place { ticket, mut outcome, fresh } =
                self.0.matchmaker.park(key, poll.session.clone(), max_tasks, poll.poll_id.clone());
            if let Some(group) = fresh {
                self.run_group(group);
            }
            // After it was parked: what becomes of the session from here on is told to its polls, what became of it
            // before is read.
            let news = self.news(namespace, &poll.session).await?;
            let read_at = Instant::now();
            if news.drain || !news.cancel.is_empty() {
                until = read_at;
            }
            let outcome = tokio::select! {
                biased;
                outcome = &mut outcome => outcome.ok(),
                () = ended(until, &self.0.closing) => {
                    // What it is given at this moment must not be lost.
                    if Matchmaker::withdraw(&ticket) {
                        None
                    } else {
                        tokio::time::timeout(PATIENCE, outcome).await.ok().and_then(Result::ok)
                    }
                }
            };
            if matches!(outcome, Some(Outcome::Relabelled)) && Instant::now() < until {
                session = self.arrive(namespace, &poll).await?;
                continue;
            }
            return self.answer(namespace, &poll, news, read_at, until, outcome).await;
        }
    }

    /// The answer to a poll that has waited, with news that are no older than [`NEWS_AGE`]; those of a poll that is given
    /// something are as they were, for nothing may come between it and its tasks.
    async fn answer(
        &self,
        namespace: NamespaceId,
        poll: &Poll,
        news: PollAnswer,
        read_at: Instant,
        until: Instant,
        outcome: Option<Outcome<GivenTask>>,
    ) -> Result<PollAnswer, Error> {
        let fresh = read_at.elapsed() < NEWS_AGE && !matches!(outcome, Some(Outcome::News));
        let drain = match outcome {
            Some(Outcome::Given(tasks)) if !tasks.is_empty() => {
                return Ok(PollAnswer { tasks, poll_after: None, ..news });
            }
            Some(Outcome::Ended(reason @ (EndReason::Replaced | EndReason::Lapsed))) => {
                return Err(Refusal::UnknownSession { session: poll.session.clone(), ended: Some(reason) }.into());
            }
            Some(Outcome::Ended(EndReason::Left)) => {
                return Ok(PollAnswer { poll_after: Some(POLL_AFTER), ..PollAnswer::default() });
            }
            Some(Outcome::Draining) => true,
            Some(Outcome::Given(_) | Outcome::News | Outcome::Relabelled) | None => false,
        };
        let mut answer = if fresh { news } else { self.news(namespace, &poll.session).await? };
        answer.drain |= drain;
        let in_time = Instant::now() >= until && answer.cancel.is_empty() && !answer.drain;
        if in_time && !self.0.closing.is_cancelled() {
            answer.poll_after = None;
        }
        Ok(answer)
    }

    /// Takes the poll's sign of life.
    async fn arrive(&self, namespace: NamespaceId, poll: &Poll) -> Result<Session, Error> {
        let session = poll.session.clone();
        self.shielded(move |coordinator: Self| {
            let session = session.clone();
            async move { coordinator.alive(namespace, &session).await }
        })
        .await
    }

    /// An answer with nothing but what its session should hear.
    async fn news(&self, namespace: NamespaceId, session: &SessionKey) -> Result<PollAnswer, Error> {
        let read = async {
            let mut conn = self.0.db.conn().await?;
            store::worker::news(&mut conn, namespace, session).await
        };
        match super::patiently::<_, store::Error>(read).await? {
            Some(store::worker::News { ended: None, drain, cancel }) => {
                Ok(PollAnswer { cancel, drain, poll_after: Some(POLL_AFTER), ..PollAnswer::default() })
            }
            gone => {
                let ended = gone.and_then(|news| news.ended);
                Err(Refusal::UnknownSession { session: session.clone(), ended }.into())
            }
        }
    }

    /// What the same poll was given before and has not acknowledged.
    async fn repeated(&self, namespace: NamespaceId, poll: &Poll) -> Result<Option<Vec<GivenTask>>, Error> {
        let Some(poll_id) = poll.poll_id.clone() else { return Ok(None) };
        let session = poll.session.clone();
        let again = self
            .shielded(move |coordinator: Self| {
                let (session, poll_id) = (session.clone(), poll_id.clone());
                async move { coordinator.repeated_once(namespace, &session, &poll_id).await }
            })
            .await?;
        Ok((!again.is_empty()).then_some(again))
    }

    async fn repeated_once(
        &self,
        namespace: NamespaceId,
        session: &SessionKey,
        poll_id: &str,
    ) -> Result<Vec<GivenTask>, Fault> {
        let mut tx = self.0.db.begin().await?;
        let ids = store::claim::of_poll(&mut tx, namespace, session, poll_id).await?;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let tokens: Vec<(AttemptId, Token)> = ids.into_iter().map(|id| (id, Token::draw())).collect();
        let digests: Vec<_> = tokens.iter().map(|(id, token)| (*id, token.digest())).collect();
        store::claim::renew_tokens(&mut tx, namespace, &digests).await?;
        let ids: Vec<_> = tokens.iter().map(|(id, _)| id.0).collect();
        let contents = store::contents::read(&mut tx, namespace, &ids).await?;
        Db::commit(tx).await?;
        Ok(given(contents, tokens))
    }

    /// Runs a new group of parked polls until it is empty.
    fn run_group(&self, group: Arc<Group<GivenTask>>) {
        let coordinator = self.clone();
        self.0.tasks.spawn(async move {
            let (namespace, label_set_no) = group.key;
            // On the heap while they last: a group that waits, as most do, keeps no room for them.
            let looks = group.run(
                |polls| Box::pin(coordinator.look(namespace, label_set_no, polls)),
                |tasks| Box::pin(coordinator.take_back(namespace, tasks)),
                |next: &[GroupKey]| coordinator.0.matchmaker.pass_on(next),
                || coordinator.0.matchmaker.retire(group.key, &group),
            );
            Class::Look.scope(looks).await;
        });
    }
}

/// Joins what tasks hold with the tokens of their claims.
pub(super) fn given(contents: Vec<Contents>, tokens: Vec<(AttemptId, Token)>) -> Vec<GivenTask> {
    let mut by_id: std::collections::HashMap<AttemptId, Contents> =
        contents.into_iter().map(|contents| (contents.attempt_id, contents)).collect();
    let tasks = tokens.into_iter().filter_map(|(attempt_id, token)| {
        let contents = by_id.remove(&attempt_id)?;
        Some(GivenTask {
            key: contents.key,
            attempt_id,
            attempt_number: contents.attempt_number,
            operation: contents.operation,
            token,
            fence: contents.fence,
            ack_within: (contents.claim_until - contents.now).to_std().unwrap_or_default(),
            payload: contents.payload,
            selector: Arc::new(contents.selector),
            root: contents.root,
            parent: contents.parent,
            labels: contents.labels,
            traceparent: contents.traceparent,
        })
    });
    tasks.collect()
}
