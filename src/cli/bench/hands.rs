//! Workers of the bench: each has one poll parked at a time, and does what it is given at once.

use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::BenchError;
use super::ground::Ground;
use crate::cli::ambient::now;
use crate::cli::client::{Client, Labels, NamedAttempt, Problem, Registration, Report, Task};

/// How long a poll waits.
const POLL: Duration = Duration::from_secs(20);

/// How many tasks a poll takes, and a worker at a time.
const TASKS: usize = 10;
const SLOTS: usize = 1_000;

/// A task that a worker holds in its hands.
#[derive(Debug)]
pub(super) struct Taken {
    /// The run.
    pub(super) run_id: String,
    /// Since when.
    pub(super) at: Instant,
}

/// A registered worker that polls, acknowledges and reports.
pub(super) struct Hands {
    client: Client,
    worker_id: String,
    session_id: String,
    stop: CancellationToken,
    polls: JoinSet<Result<(), Problem>>,
}

impl Hands {
    /// Registers a worker and parks its first poll; what it takes is told to `taken`.
    ///
    /// # Errors
    ///
    /// When it is not let in.
    pub(super) async fn start(
        ground: &Ground,
        labels: &Labels,
        taken: UnboundedSender<Taken>,
    ) -> Result<Self, BenchError> {
        let (client, worker_id, session_id) = (ground.client.clone(), ground.name("worker"), ground.name("session"));
        register(&client, &worker_id, &session_id, labels).await?;
        let (stop, mut polls) = (CancellationToken::new(), JoinSet::new());
        polls.spawn(work(client.clone(), worker_id.clone(), session_id.clone(), taken, stop.clone()));
        Ok(Self { client, worker_id, session_id, stop, polls })
    }

    /// Ends the worker, when it has done what it has.
    ///
    /// # Errors
    ///
    /// When anything of what it did was refused.
    pub(super) async fn stop(mut self) -> Result<(), BenchError> {
        self.stop.cancel();
        while let Some(ended) = self.polls.join_next().await {
            ended.map_err(|error| BenchError::Missing(format!("a worker of the bench: {error}")))??;
        }
        self.client.deregister(&self.worker_id, &self.session_id).await?;
        Ok(())
    }
}

/// Registers a session with more slots than it will need.
///
/// # Errors
///
/// Of the service.
pub(super) async fn register(
    client: &Client,
    worker_id: &str,
    session_id: &str,
    labels: &Labels,
) -> Result<(), Problem> {
    register_with(client, worker_id, session_id, labels, SLOTS).await
}

/// Registers a session with so many slots.
///
/// # Errors
///
/// Of the service.
pub(super) async fn register_with(
    client: &Client,
    worker_id: &str,
    session_id: &str,
    labels: &Labels,
    slots: usize,
) -> Result<(), Problem> {
    let registration = Registration { session_id, labels, slots, version: env!("CARGO_PKG_VERSION") };
    client.register(worker_id, &registration).await.map(drop)
}

/// Takes so many tasks with this session, and acknowledges them.
///
/// # Errors
///
/// Of the service; that there are not so many.
pub(super) async fn take_and_ack(
    client: &Client,
    worker_id: &str,
    session_id: &str,
    number: usize,
) -> Result<Vec<NamedAttempt>, BenchError> {
    let mut held = Vec::with_capacity(number);
    for poll in 0.. {
        let answer = client.poll(worker_id, session_id, &format!("take-{poll}"), number - held.len(), POLL).await?;
        if answer.tasks.is_empty() {
            return Err(BenchError::Missing(format!("{worker_id} was given {} of {number} tasks", held.len())));
        }
        let taken =
            answer.tasks.into_iter().map(|task| NamedAttempt { attempt_id: task.attempt_id, token: task.token });
        let taken: Vec<NamedAttempt> = taken.collect();
        client.ack_all(&taken).await?;
        held.extend(taken);
        if held.len() == number {
            break;
        }
    }
    Ok(held)
}

async fn work(
    client: Client,
    worker_id: String,
    session_id: String,
    taken: UnboundedSender<Taken>,
    stop: CancellationToken,
) -> Result<(), Problem> {
    let mut finishing = JoinSet::new();
    for poll in 0_u64.. {
        let poll_id = format!("poll-{poll}");
        let answered = client.poll(&worker_id, &session_id, &poll_id, TASKS, POLL);
        let Some(answer) = stop.run_until_cancelled(answered).await else { break };
        let at = now();
        for task in answer?.tasks {
            // Nobody listens any more: then the measurement is over.
            let _ = taken.send(Taken { run_id: task.run_id.clone(), at });
            finishing.spawn(finish(client.clone(), task));
        }
        while let Some(done) = finishing.try_join_next() {
            over(done)?;
        }
    }
    while let Some(done) = finishing.join_next().await {
        over(done)?;
    }
    Ok(())
}

async fn finish(client: Client, task: Task) -> Result<(), Problem> {
    client.ack(&task.attempt_id, &task.token).await?;
    let report = Report { token: &task.token, status: "succeeded", error: None, output: None };
    client.report(&task.attempt_id, &report).await.map(drop)
}

/// What came of a task; one that panicked did so loudly already.
fn over(done: Result<Result<(), Problem>, tokio::task::JoinError>) -> Result<(), Problem> {
    done.unwrap_or(Ok(()))
}
