//! Runs in each state, for the tests of the rules.

use std::sync::Arc;
use std::time::Duration;

use super::dispatch::Dispatch;
use crate::domain::Timestamp;
use crate::domain::attempt::{Attempt, AttemptStatus, Claim, Locked, Task};
use crate::domain::condition::Situation;
use crate::domain::hold::Hold;
use crate::domain::labels::Labels;
use crate::domain::run::{Operation, Status};
use crate::domain::selector::Selector;
use crate::ids::{AttemptId, DagName, Digest, RunId, RunKey, SelectorNo, SessionId, SessionKey, WorkerId};

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_timestamp(1_700_000_000 + second, 0).unwrap()
}

pub fn token(n: u8) -> Digest {
    Digest::of([n])
}

pub fn attempt_id(n: u128) -> AttemptId {
    AttemptId(uuid::Uuid::from_u128(n))
}

pub fn session() -> SessionKey {
    SessionKey { worker_id: WorkerId::parse("w-b").unwrap(), session_id: SessionId::parse("s-1").unwrap() }
}

pub fn dispatch(wait: u64) -> Dispatch {
    Dispatch {
        key: RunKey { dag_name: DagName::parse("etl").unwrap(), run_id: RunId::parse("r-1").unwrap() },
        operation: Operation::Start,
        selector: Arc::new(Selector { equal: Labels::from([("zone".into(), "b".into())]), ..Selector::default() }),
        wait: Duration::from_secs(wait),
        start_timeout: Duration::ZERO,
        park: false,
        direct: false,
        priority: 0,
        max_attempts: 1,
        retry: None,
        not_before: None,
        labels: Labels::new(),
        root: None,
        parent: None,
        traceparent: None,
    }
}

/// No session at all.
pub fn nobody(at: Timestamp) -> Situation {
    Situation { at, any_healthy: false, matched: false, free: false, draining: false, since: None }
}

/// A session that fits, with a free slot.
pub fn matched(at: Timestamp) -> Situation {
    Situation { at, any_healthy: true, matched: true, free: true, draining: false, since: None }
}

/// Queued, without a task.
pub fn parked() -> Locked {
    let mut locked = queued();
    locked.run.park = true;
    locked.task = None;
    locked
}

pub fn queued() -> Locked {
    let started = dispatch(120).start(SelectorNo(1), &nobody(at(0)), attempt_id(1)).unwrap();
    Locked {
        run: started.run().clone(),
        attempt: Attempt {
            id: attempt_id(1),
            number: 1,
            operation: Operation::Start,
            status: AttemptStatus::Queued,
            session: None,
            token: None,
            reported: None,
            ended_version: None,
            released: Vec::new(),
        },
        task: Some(Task {
            hold: Hold { from: at(0), wait: Duration::from_secs(120) },
            start: None,
            fence: 0,
            claim: None,
        }),
    }
}

pub fn claimed(until: i64) -> Locked {
    let mut locked = queued();
    let task = locked.task.as_mut().unwrap();
    task.fence = 1;
    task.claim = Some(Claim { session: session(), token: token(1), claimed_at: at(0), until: at(until) });
    locked
}

pub fn running() -> Locked {
    let mut locked = claimed(15);
    locked.run.status = Status::Running;
    locked.run.version = 2;
    locked.run.worker_id = Some(session().worker_id);
    locked.run.started_at = Some(at(1));
    locked.run.updated_at = at(1);
    locked.attempt.status = AttemptStatus::Running;
    locked.attempt.session = Some(session());
    locked.attempt.token = Some(token(1));
    locked.task = None;
    locked
}

pub fn ended(status: Status, attempt: AttemptStatus) -> Locked {
    let mut locked = running();
    locked.run.status = status;
    locked.run.version = 3;
    locked.run.finished_at = Some(at(2));
    locked.attempt.status = attempt;
    locked
}

pub fn waiting() -> Locked {
    let mut locked = ended(Status::Waiting, AttemptStatus::Waiting);
    locked.run.finished_at = None;
    locked
}
