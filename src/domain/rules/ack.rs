//! Ack: the worker's word that it has the task. Only then is the run running and under a lease.

use crate::domain::Timestamp;
use crate::domain::attempt::{AttemptStatus, Claim, Locked};
use crate::domain::event::EventType;
use crate::domain::refusal::Refusal;
use crate::domain::run::Status;
use crate::domain::transition::{AttemptChange, TaskChange, Transition};
use crate::ids::Digest;

/// How an ack was taken.
#[derive(Debug, Clone, PartialEq)]
pub enum Acked {
    /// The run starts with it.
    Started(Box<Transition>),
    /// It was acknowledged before with this token, and its lease still holds.
    Already,
}

impl Locked {
    /// Takes the ack of this token's claim. In time is enough: the hold may have passed meanwhile. During an amnesty
    /// every claim that is still there is in time.
    ///
    /// # Errors
    /// [`Refusal::ClaimExpired`] when the claim lapsed, returned or never was; [`Refusal::LeaseLost`] when it was
    /// acknowledged and is lost; otherwise what an attempt that has ended answers.
    pub fn ack(
        &self,
        token: Digest,
        session_ended: bool,
        amnesty_until: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Acked, Refusal> {
        if self.attempt.status == AttemptStatus::Running && self.attempt.token != Some(token) {
            return Err(Refusal::ClaimExpired(self.attempt.id));
        }
        if self.attempt.status != AttemptStatus::Queued {
            return self.holds_lease(token, session_ended).map(|()| Acked::Already);
        }
        let until = |claim: &Claim| amnesty_until.map_or(claim.until, |amnesty| amnesty.max(claim.until));
        match self.claim() {
            Some(claim) if claim.token == token && now < until(claim) && !session_ended => {
                let run = self.next(now, |run| {
                    run.status = Status::Running;
                    run.worker_id = Some(claim.session.worker_id.clone());
                    run.claimed_at = Some(claim.claimed_at);
                    run.started_at = Some(now);
                });
                let start = AttemptChange::Start { session: claim.session.clone(), token };
                Ok(Acked::Started(Box::new(Transition::new(run, start, TaskChange::Drop, EventType::Running, now))))
            }
            _ => Err(Refusal::ClaimExpired(self.attempt.id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{at, claimed, ended, queued, running, token};
    use super::*;

    #[test]
    fn in_time_it_starts_the_run() {
        let Acked::Started(started) = claimed(15).ack(token(1), false, None, at(14)).unwrap() else { panic!("starts") };
        assert_eq!(started.run().status, Status::Running);
        assert_eq!(started.run().version, 2);
        assert_eq!(started.run().fence, 1);
        assert_eq!(started.task(), &TaskChange::Drop);
    }

    #[test]
    fn late_wrong_or_for_an_ended_session_it_is_refused() {
        let refused = Err(Refusal::ClaimExpired(claimed(15).attempt.id));
        assert_eq!(claimed(15).ack(token(1), false, None, at(15)), refused);
        assert_eq!(claimed(15).ack(token(2), false, None, at(1)), refused);
        assert_eq!(claimed(15).ack(token(1), true, None, at(1)), refused);
        assert_eq!(queued().ack(token(1), false, None, at(1)), refused);
        assert_eq!(running().ack(token(2), false, None, at(1)), refused);
    }

    #[test]
    fn during_an_amnesty_no_ack_is_late() {
        assert!(matches!(claimed(15).ack(token(1), false, Some(at(30)), at(29)), Ok(Acked::Started(_))));
        assert!(claimed(15).ack(token(1), false, Some(at(30)), at(30)).is_err());
        assert!(claimed(15).ack(token(1), false, Some(at(10)), at(14)).is_ok());
    }

    #[test]
    fn a_repeat_is_answered_alike_while_the_lease_holds() {
        assert_eq!(running().ack(token(1), false, None, at(99)), Ok(Acked::Already));
        assert_eq!(running().ack(token(1), true, None, at(99)), Err(Refusal::LeaseLost(running().attempt.id)));
    }

    /// B33: the ack of a claim whose run was cancelled meanwhile.
    #[test]
    fn after_the_end_it_says_so() {
        assert_eq!(
            ended(Status::Aborted, AttemptStatus::Aborted).ack(token(1), false, None, at(1)),
            Err(Refusal::RunFinished(Status::Aborted))
        );
        let lost = ended(Status::Failed, AttemptStatus::Lost);
        assert_eq!(lost.ack(token(1), false, None, at(1)), Err(Refusal::LeaseLost(lost.attempt.id)));
    }
}
