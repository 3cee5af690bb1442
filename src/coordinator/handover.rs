//! Hand-over: a dispatch that meets a parked poll is saved already claimed for it, and the poll answered at once.
//!
//! Only a poll that nothing was left for is given it: whoever waits longer than the new task has been looked for before.

use std::time::Duration;

use super::Coordinator;
use super::catalog::Fitting;
use super::dispatch::Request;
use super::poll::GivenTask;
use crate::domain::Timestamp;
use crate::domain::condition::Situation;
use crate::domain::transition::{TaskChange, Transition};
use crate::ids::{AttemptId, NamespaceId, Token, WorkerId};
use crate::matchmaker::Reservation;
use crate::store;

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

impl Coordinator {
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
