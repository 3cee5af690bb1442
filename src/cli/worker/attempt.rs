//! The life of one claim: ack, work, report.

use std::{io, sync::Arc};

use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep},
};
use tracing::{Instrument, info, info_span, warn};

use super::{
    backoff::Backoff,
    holdings::{Holding, Lease, Order},
    outcome::Outcome,
    process::Process,
    session::Session,
    watch::{keep_renewed, watch_over},
};
use crate::cli::{
    ambient::now,
    client::{AckAnswer, Report, Secret, Task, seconds},
};

/// How a claim came to its end here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It was never ours to work on.
    NotTaken,
    /// It was taken from us.
    Lost,
    /// It was worked on and reported as this.
    Reported(&'static str),
}

/// Carries a claim from its ack to its report. The slot is free again afterwards.
pub(super) async fn carry(session: Arc<Session>, task: Task, claimed_at: Instant, slot: OwnedSemaphorePermit) {
    let span = info_span!(
        "attempt",
        dag_name = task.dag_name,
        run_id = task.run_id,
        attempt_id = task.attempt_id,
        number = task.attempt_number
    );
    let end = live(&session, task, claimed_at).instrument(span).await;
    if session.settings.once && end != End::NotTaken {
        // Set before the slot is free, so that the lane cannot poll for a second task in between.
        let _ = session.settings.verdict.set(end == End::Reported("succeeded"));
        session.stop.softly();
    }
    drop(slot);
}

async fn live(session: &Session, mut task: Task, claimed_at: Instant) -> End {
    let mut holding = session.holdings.enter(&task.attempt_id, &task.token);
    let Some(acked) = ack(session, &task, &mut holding, claimed_at).await else {
        return End::NotTaken;
    };
    let document = std::mem::take(&mut task.document);
    let outcome = match start(session, &task, document) {
        Ok(mut process) => {
            info!("started");
            let known = holding.listener();
            let stopped = tokio::select! {
                stopped = watch_over(&mut process, &mut holding, session.settings.kill_after) => stopped,
                never = keep_renewed(session, &task, known, acked.renew_every_seconds) => match never {},
            };
            Outcome::of(stopped, process).await
        }
        Err(error) => Some(Outcome::not_started(&error)),
    };
    let Some(outcome) = outcome else {
        warn!("stopped and not reported: the attempt is lost");
        return End::Lost;
    };
    report(session, &task.attempt_id, &task.token, &mut holding, &outcome).await
}

/// Acknowledges the claim and enters its lease. `None` if there is nothing to start.
async fn ack(session: &Session, task: &Task, holding: &mut Holding<'_>, claimed_at: Instant) -> Option<AckAnswer> {
    let window = seconds(task.ack_within_seconds);
    let mut backoff = Backoff::default();
    while holding.known().order != Order::Lost {
        let asked_at = now();
        let problem = match session.client.ack(&task.attempt_id, &task.token).await {
            Ok(answer) => {
                let lease = Lease::granted(asked_at, seconds(answer.lease_seconds));
                session.holdings.renew([task.attempt_id.as_str()], lease);
                info!(fence = task.fence, "acknowledged");
                return Some(answer);
            }
            Err(problem) => problem,
        };
        if session.drops_attempt(&problem) {
            warn!(%problem, "not taken");
            return None;
        }
        let pause = backoff.next(problem.retry_after());
        if now() + pause >= claimed_at + window {
            warn!(%problem, "not acknowledged in time; left to the queue");
            return None;
        }
        warn!(%problem, pause_seconds = pause.as_secs_f64(), "no answer to the ack");
        tokio::select! {
            () = holding.lost() => {}
            () = sleep(pause) => {}
        }
    }
    None
}

fn start(session: &Session, task: &Task, document: String) -> io::Result<Process> {
    let (number, fence) = (task.attempt_number.to_string(), task.fence.to_string());
    let variables = [
        ("ROADSTEAD_DAG_NAME", task.dag_name.as_str()),
        ("ROADSTEAD_RUN_ID", &task.run_id),
        ("ROADSTEAD_ATTEMPT_ID", &task.attempt_id),
        ("ROADSTEAD_ATTEMPT_NUMBER", &number),
        ("ROADSTEAD_OPERATION", &task.operation),
        ("ROADSTEAD_FENCE", &fence),
        ("ROADSTEAD_WORKER_ID", &session.settings.worker_id),
    ];
    Process::start(&session.settings.command, document, &variables)
}

/// Reports until it is answered or the attempt is lost.
///
/// A lapsed lease does not end this: a report with the right token still counts until the service has said otherwise.
async fn report(
    session: &Session,
    attempt_id: &str,
    token: &Secret,
    holding: &mut Holding<'_>,
    outcome: &Outcome,
) -> End {
    let Outcome { status, error, output } = outcome;
    let report = Report { token, status, error: error.as_deref(), output: output.as_deref() };
    let mut backoff = Backoff::default();
    // Looked at between two tries and never during one: what arrives may be the answer to this very report.
    while holding.known().order != Order::Lost {
        let problem = match session.client.report(attempt_id, &report).await {
            Ok(answer) => {
                info!(status, run_status = answer.status, "reported");
                return End::Reported(status);
            }
            Err(problem) => problem,
        };
        if session.drops_attempt(&problem) {
            warn!(%problem, status, "the report was refused");
            return End::Lost;
        }
        let pause = backoff.next(problem.retry_after());
        warn!(%problem, status, pause_seconds = pause.as_secs_f64(), "no answer to the report");
        tokio::select! {
            () = holding.lost() => {}
            () = sleep(pause) => {}
        }
    }
    warn!(status, "not reported: the attempt is lost");
    End::Lost
}
