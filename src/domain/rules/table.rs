//! The state table: every verb on every state, worked out by the rules and compared, row by row, with the one in
//! `docs/lifecycle.md`. A change of a rule fails here until the paper says so too.

use std::time::Duration;

use super::ack::Acked;
use super::again::Changes;
use super::fixtures::{at, attempt_id, claimed, ended, matched, nobody, parked, queued, running, token, waiting};
use super::redispatch::Redispatched;
use super::release::Released;
use super::report::{Report, Reported};
use crate::domain::attempt::{AttemptStatus, Locked};
use crate::domain::hold::gaps;
use crate::domain::refusal::Refusal;
use crate::domain::run::{Operation, Status};
use crate::domain::start::StartClock;
use crate::domain::transition::{Left, TaskChange, Transition};

/// Where the right token of the fixtures was used when the attempt ended.
fn with_token(mut locked: Locked, reported: Option<Status>) -> Locked {
    locked.attempt.token = Some(token(1));
    locked.attempt.reported = reported;
    locked.attempt.ended_version = locked.attempt.status.has_ended().then_some(3);
    locked
}

/// Every state that a run and its attempt can be in together, by the name the paper has for it.
fn states() -> Vec<(&'static str, Locked)> {
    let mut cancelled = running();
    cancelled.run.cancel_requested_at = Some(at(3));
    let mut superseded = with_token(ended(Status::Failed, AttemptStatus::Lost), None);
    superseded.run.status = Status::Running;
    superseded.run.attempt.attempt_id = attempt_id(2);
    let finished = |status| with_token(ended(status, AttemptStatus::of_run(status)), Some(status));
    vec![
        ("parked", parked()),
        ("queued", queued()),
        ("queued, claimed", claimed(15)),
        ("running", running()),
        ("running, cancel requested", cancelled),
        ("waiting", with_token(waiting(), Some(Status::Waiting))),
        ("succeeded", finished(Status::Succeeded)),
        ("partially_succeeded", finished(Status::PartiallySucceeded)),
        ("failed", finished(Status::Failed)),
        ("failed, lease lost", with_token(ended(Status::Failed, AttemptStatus::Lost), None)),
        ("rejected", finished(Status::Rejected)),
        ("aborted", finished(Status::Aborted)),
        ("a later attempt", superseded),
    ]
}

fn said(status: Status) -> Report {
    Report { status, error: None, left: Left::default(), log_url: None, output_dropped: false, retryable: None }
}

fn became(change: &Transition) -> String {
    let task = match change.task() {
        TaskChange::Return { .. } => ", unclaimed",
        TaskChange::Create { .. } | TaskChange::Keep | TaskChange::Drop => "",
    };
    let asked = change.run().status == Status::Running && change.run().cancel_requested_at.is_some();
    format!("{}{task}{}", change.run().status, if asked { ", cancel requested" } else { "" })
}

fn refused(refusal: &Refusal) -> String {
    let code = match refusal {
        Refusal::ClaimExpired(_) => "claim-expired",
        Refusal::LeaseLost(_) => "lease-lost",
        Refusal::AttemptSuperseded { .. } => "attempt-superseded",
        Refusal::RunFinished(_) => "run-finished",
        Refusal::RunNotFinished(_) => "run-not-finished",
        Refusal::RunNotWaiting(_) => "run-not-waiting",
        Refusal::StaleDispatch { .. } => "stale-dispatch",
        Refusal::NoAvailableWorker(_) => "no-available-worker",
        other => panic!("no rule of an existing run says {other:?}"),
    };
    format!("409 `{code}`")
}

fn moved(change: Option<&Transition>) -> String {
    change.map_or_else(|| "–".to_owned(), became)
}

/// What each verb does to a state, in the order of [`VERBS`].
fn outcomes(locked: &Locked) -> Vec<String> {
    let now = at(5);
    let ack = |by| match locked.ack(token(by), false, None, now) {
        Ok(Acked::Started(change)) => became(&change),
        Ok(Acked::Already) => "same answer".to_owned(),
        Err(refusal) => refused(&refusal),
    };
    let report = |by, status| match locked.report(token(by), said(status), false, attempt_id(3), now) {
        Ok(Reported::Changed(change)) => became(&change),
        Ok(Reported::Kept(_) | Reported::Unchanged { .. }) => "same answer".to_owned(),
        Err(refusal) => refused(&refusal),
    };
    let release = match locked.release(token(1), None, Duration::ZERO, false, attempt_id(3), now) {
        Ok(Released::Changed(change)) => became(&change),
        Ok(Released::Already) => "same answer".to_owned(),
        Err(refusal) => refused(&refusal),
    };
    let again = |operation| {
        let dispatch = Changes::default().of(&locked.run, operation);
        match locked.dispatch_again(dispatch, locked.run.selector_no, &nobody(now), attempt_id(3), token(9)) {
            Ok(change) => became(&change),
            Err(refusal) => refused(&refusal),
        }
    };
    let redispatch = |situation| match locked.redispatch(locked.attempt.id, &situation) {
        Ok(Redispatched::Queued(change)) => became(&change),
        Ok(Redispatched::Already) => "same answer".to_owned(),
        Err(refusal) => refused(&refusal),
    };
    let mut bounded = locked.clone();
    if let Some(task) = &mut bounded.task {
        task.start = StartClock::of(Duration::from_secs(600), task.hold.from);
    }
    vec![
        ack(1),
        ack(2),
        locked.renew(token(1), false).map_or_else(|refusal| refused(&refusal), |()| "renewed".to_owned()),
        report(1, Status::Succeeded),
        report(1, Status::Waiting),
        report(2, Status::Succeeded),
        release,
        again(Operation::Retry),
        again(Operation::Resume),
        redispatch(matched(now)),
        redispatch(nobody(now)),
        moved(locked.cancel(None, false, now).as_ref()),
        moved(locked.cancel(None, true, now).as_ref()),
        moved(locked.expire(&gaps(vec![], at(0), at(999)), &[], at(999)).as_ref()),
        moved(bounded.expire(&[], &[], at(600)).as_ref()),
        moved(locked.lapse(false, None, at(15)).as_ref()),
        moved(locked.lose(true, attempt_id(3), now).as_ref()),
        moved(locked.neglect("was lost", attempt_id(3), now).as_ref()),
    ]
}

const VERBS: [&str; 18] = [
    "ack",
    "ack, wrong token",
    "renew",
    "report succeeded",
    "report waiting",
    "report, wrong token",
    "release",
    "retry",
    "resume",
    "dispatch again, a match",
    "dispatch again, no match",
    "cancel",
    "cancel, force",
    "hold runs out",
    "start clock runs out",
    "ack clock runs out",
    "session ends",
    "neglected",
];

/// The table as the paper has it: a row a verb, a column a state.
fn table() -> String {
    let states = states();
    let columns: Vec<Vec<String>> = states.iter().map(|(_, locked)| outcomes(locked)).collect();
    let mut lines = vec![
        format!("| | {} |", states.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" | ")),
        format!("|---|{}", "---|".repeat(states.len())),
    ];
    for (row, verb) in VERBS.iter().enumerate() {
        let cells: Vec<&str> = columns.iter().map(|column| column[row].as_str()).collect();
        lines.push(format!("| **{verb}** | {} |", cells.join(" | ")));
    }
    lines.join("\n")
}

#[test]
fn the_paper_has_the_table_of_the_rules() {
    let paper = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/lifecycle.md")).unwrap_or_default();
    let table = table();
    for row in table.lines() {
        assert!(paper.contains(row), "docs/lifecycle.md lacks the row\n{row}\nof the table\n{table}");
    }
}
