//! Hand-over: a dispatch that meets a parked poll is saved already claimed for it, and the poll answered at once.
//!
//! Only a poll that nothing was left for is given it: whoever waits longer than the new task has been looked for before.

use std::sync::Arc;
use std::time::Duration;

use super::Coordinator;
use super::catalog::Fitting;
use super::dispatch::{Request, Started};
use super::poll::GivenTask;
use crate::domain::Timestamp;
use crate::domain::condition::Situation;
use crate::domain::refusal::Refusal;
use crate::domain::transition::{TaskChange, Transition};
use crate::ids::{AttemptId, NamespaceId, Token, WorkerId};
use crate::matchmaker::Reservation;
use crate::store::{self, Conn};

/// A poll in the hands of a dispatch, which is about to claim its task for it. Dropped, the poll goes on waiting. If the
/// answer to the statement that claims the task is lost, so is the claim: it returns when it is not acknowledged in time.
pub(super) struct HandOver {
    reservation: Reservation<GivenTask>,
    attempt_id: AttemptId,
    token: Token,
    until: Timestamp,
}

impl HandOver {
    /// The worker that polls.
    pub fn worker_id(&self) -> &WorkerId {
        &self.reservation.session.worker_id
    }

    /// The claim to be saved, with the event's data if it is.
    pub fn claim<'a>(&'a self, data: &'a str) -> store::create::HandOver<'a> {
        let Reservation { session, label_set_no, poll_id, .. } = &self.reservation;
        store::create::HandOver {
            session,
            label_set_no: *label_set_no,
            poll_id: poll_id.as_deref(),
            token: self.token.digest(),
            until: self.until,
            data,
        }
    }

    /// Answers the poll with what it was claimed for; returns it if the client has gone meanwhile.
    pub fn give(self, ack_within: Duration, request: &Request) -> Vec<GivenTask> {
        let dispatch = request.dispatch.clone();
        self.reservation.give(vec![GivenTask {
            key: dispatch.key,
            attempt_id: self.attempt_id,
            attempt_number: 1,
            operation: dispatch.operation,
            token: self.token,
            fence: 1,
            ack_within,
            payload: request.payload.clone(),
            selector: dispatch.selector,
            root: dispatch.root,
            parent: dispatch.parent,
            labels: dispatch.labels,
            traceparent: dispatch.traceparent,
        }])
    }
}

/// How many polls a run that is to be handed over is tried on: one whose session has changed elsewhere, or is locked just
/// now, cannot have it.
const POLLS_TRIED: usize = 3;

impl Coordinator {
    /// Records a run for a poll that is parked here, or not at all.
    ///
    /// # Errors
    /// Of the database. [`Refusal::NoParkedPoll`] is an answer.
    pub(super) async fn deliver(
        &self,
        conn: &mut Conn,
        namespace: NamespaceId,
        transition: &Transition,
        situation: &(Situation, Fitting),
        request: &Request,
    ) -> store::Result<Started> {
        // They are kept until the end, so that each is tried once.
        let mut tried = Vec::new();
        while tried.len() < POLLS_TRIED {
            let Some(poll) = self.poll_for(namespace, transition, situation) else { break };
            let seen = (situation.0, situation.1.clone());
            if let Some((recorded, given)) =
                self.record_new(conn, namespace, transition, seen, request, Some(&poll)).await?
            {
                return Ok((Ok(()), Some((recorded, Some(poll).filter(|_| given)))));
            }
            tried.push(poll);
        }
        let refused = Refusal::NoParkedPoll(Arc::clone(&request.dispatch.selector));
        Ok((if tried.is_empty() { Err(refused) } else { Ok(()) }, None))
    }

    /// A parked poll for a run that is about to be queued, if one waits here that may have it now.
    pub(super) fn poll_for(
        &self,
        namespace: NamespaceId,
        transition: &Transition,
        (situation, fitting): &(Situation, Fitting),
    ) -> Option<HandOver> {
        let TaskChange::Create { hold, .. } = transition.task() else { return None };
        if !situation.free || hold.from > situation.at {
            return None;
        }
        let reservation = self.0.matchmaker.reserve(namespace, &fitting.numbers)?;
        let (attempt_id, until) = (transition.run().attempt.attempt_id, self.claim_until(transition.at()));
        Some(HandOver { reservation, attempt_id, token: Token::draw(), until })
    }
}
