//! Poll: a worker asks for tasks, and waits for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::error::Fault;
use super::{Coordinator, Error};
use crate::domain::labels::Labels;
use crate::domain::refusal::Refusal;
use crate::domain::run::Operation;
use crate::domain::selector::Selector;
use crate::domain::session::{EndReason, Session};
use crate::ids::{AttemptId, NamespaceId, RunKey, SessionKey, Token};
use crate::matchmaker::{Group, Outcome};
use crate::store::claim::Contents;
use crate::store::create::Payload;
use crate::store::{self, Db};

/// How soon a poll that was answered early, with nothing, should be repeated.
const POLL_AFTER: Duration = Duration::from_secs(1);

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

impl Coordinator {
    /// Waits for tasks that the session may take, at the most as long as asked. A sign of life, also while it waits.
    ///
    /// The wait holds no connection. Dropping the future withdraws the poll; what it was being given then returns to
    /// the queue. The same `poll_id` again is given that poll's unacknowledged claims, with fresh tokens.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`].
    pub async fn poll_tasks(&self, namespace: NamespaceId, poll: Poll) -> Result<PollAnswer, Error> {
        let until = Instant::now() + poll.wait;
        let session = self.arrive(namespace, &poll).await?;
        if session.present_from.is_none() {
            return Ok(PollAnswer { drain: true, ..self.empty(namespace, &poll.session).await? });
        }
        if let Some(again) = self.repeated(namespace, &poll).await? {
            return Ok(PollAnswer { tasks: again, ..PollAnswer::default() });
        }
        let answer = self.empty(namespace, &poll.session).await?;
        if !answer.cancel.is_empty() || self.0.closing.is_cancelled() {
            return Ok(answer);
        }
        let key = (namespace, session.label_set_no);
        let max_tasks = usize::try_from(poll.max_tasks).unwrap_or(1);
        let matchmaker = &self.0.matchmaker;
        let (ticket, mut outcome, fresh) = matchmaker.park(key, poll.session.clone(), max_tasks, poll.poll_id.clone());
        if let Some(group) = fresh {
            self.run_group(group);
        }
        let waited = tokio::select! {
            biased;
            outcome = &mut outcome => Some(outcome),
            () = tokio::time::sleep_until(until) => None,
            () = self.0.closing.cancelled() => None,
        };
        let outcome = match waited {
            Some(outcome) => outcome.ok(),
            None if matchmaker.withdraw(&ticket) => None,
            // It is being looked for at this moment, or about to be: what it is given must not be lost.
            None => match outcome.await {
                Ok(Outcome::Given(tasks)) if tasks.is_empty() => None,
                outcome => outcome.ok(),
            },
        };
        match outcome {
            Some(Outcome::Given(tasks)) if !tasks.is_empty() => Ok(PollAnswer { tasks, ..PollAnswer::default() }),
            Some(Outcome::Ended(reason @ (EndReason::Replaced | EndReason::Lapsed))) => {
                Err(Refusal::UnknownSession { session: poll.session, ended: Some(reason) }.into())
            }
            Some(Outcome::Draining) => Ok(PollAnswer { drain: true, ..self.empty(namespace, &poll.session).await? }),
            Some(Outcome::Given(_) | Outcome::Ended(EndReason::Left)) => self.empty(namespace, &poll.session).await,
            None => {
                let mut answer = self.empty(namespace, &poll.session).await?;
                if !self.0.closing.is_cancelled() && answer.cancel.is_empty() {
                    answer.poll_after = None;
                }
                Ok(answer)
            }
        }
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
    async fn empty(&self, namespace: NamespaceId, session: &SessionKey) -> Result<PollAnswer, Error> {
        let read = async {
            let mut conn = self.0.db.conn().await?;
            store::worker::to_cancel(&mut conn, namespace, session).await
        };
        let cancel = read.await.map_err(Fault::from)?;
        Ok(PollAnswer { cancel, poll_after: Some(POLL_AFTER), ..PollAnswer::default() })
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
        let contents = store::claim::contents(&mut tx, namespace, &ids).await?;
        Db::commit(tx).await?;
        Ok(given(contents, tokens))
    }

    /// Runs a new group of parked polls until it is empty.
    fn run_group(&self, group: Arc<Group<GivenTask>>) {
        let coordinator = self.clone();
        self.0.tasks.spawn(async move {
            let (namespace, label_set_no) = group.key;
            let fallback = coordinator.settings().fallback_interval;
            group
                .run(
                    fallback,
                    |polls| coordinator.look(namespace, label_set_no, polls),
                    |tasks| coordinator.take_back(namespace, tasks),
                    || coordinator.0.matchmaker.retire(group.key, &group),
                )
                .await;
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
