//! The reference worker: it runs one command per task and keeps the contract's rules to the letter.
//!
//! It is also the contract's worked example. [`session`] is one life of the process as the service knows it: registration,
//! heartbeats, end. [`lane`] polls, [`attempt`] is the life of one claim from ack to report, [`process`] the command that
//! does the work, and [`holdings`] the table through which the first three tell each other what was cancelled, lost or renewed.

mod args;
mod attempt;
mod backoff;
mod holdings;
mod lane;
mod outcome;
mod process;
mod session;
mod stop;
mod tail;
mod watch;

use std::{process::ExitCode, sync::Arc, time::Duration};

use tracing::{error, info, warn};

use self::{
    backoff::Backoff,
    session::{Ending, Session, Settings},
    stop::Stop,
};
use super::{
    ambient::now,
    client::{Client, Problem},
};

pub use args::WorkerArgs;
pub(super) use args::token;
pub(super) use process::Process;
use tail::Tail;

/// A session that has lived this long was no victim of a quarrel about the worker's name.
const SETTLED: Duration = Duration::from_mins(1);

/// Works until a signal asks it to stop, or with `--once` until one task has been finished.
///
/// The first SIGTERM or SIGINT ends the polling and lets what runs come to its end; the second kills it. Fails when the
/// service refused the worker for good, when work was killed by a second signal, and with `--once` when the task did not
/// succeed.
pub async fn run(args: WorkerArgs) -> ExitCode {
    match work(args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            error!(code = problem.code, "{problem}");
            ExitCode::FAILURE
        }
    }
}

/// The worker from start to end; false if something was left undone.
async fn work(args: WorkerArgs) -> Result<bool, Problem> {
    let stop = Stop::default();
    let _signals = stop.on_signals()?;
    let client = Client::new(&args.url(), args::token())?;
    let settings = Arc::new(Settings::from(args));
    live(&client, &settings, &stop).await?;
    Ok(!stop.is_hard() && settings.verdict.get().copied().unwrap_or(true))
}

/// One session after another, until the worker stops. Nothing of a session that has ended is carried into the next.
async fn live(client: &Client, settings: &Arc<Settings>, stop: &Stop) -> Result<(), Problem> {
    let mut backoff = Backoff::default();
    while let Some(session) = Session::register(client, settings, stop).await? {
        let began_at = now();
        match session.run().await {
            Ending::Stopped => break,
            Ending::Refused(problem) => return Err(problem),
            Ending::Register => {
                // Two workers of one name end each other's sessions: whoever keeps losing its own slows down.
                if now() - began_at > SETTLED {
                    backoff = Backoff::default();
                }
                let pause = backoff.next(None);
                warn!(pause_seconds = pause.as_secs_f64(), "the session is over; registering anew");
                stop.or_elapsed(pause).await;
            }
        }
    }
    info!("stopped");
    Ok(())
}
