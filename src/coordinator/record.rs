//! Saving transitions with their events, and telling those who wait for them: the one way a run changes.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use serde::Serialize;

use super::Coordinator;
use super::catalog::Fitting;
use super::dispatch::Request;
use super::handover::HandOver;
use crate::domain::condition::Situation;
use crate::domain::hold::{Hold, Stretch};
use crate::domain::labels::Labels;
use crate::domain::run::{Run, Status};
use crate::domain::selector::Expression;
use crate::domain::snapshot::{HoldSnapshot, RunSnapshot, Waiting, WaitingTask};
use crate::domain::start::StartClock;
use crate::domain::transition::{AttemptChange, TaskChange, Transition};
use crate::ids::{NamespaceId, SelectorNo, WorkerId, new_uuid};
use crate::store::create::Created;
use crate::store::event::NewEvent;
use crate::store::{self, Conn};

/// What was saved and is still to be told: handed out by `record`, to be given to `announce` after the commit.
#[must_use]
pub(super) struct Recorded {
    /// The runs as they are now, in the order of their transitions.
    pub runs: Vec<RunSnapshot>,
    told: Vec<Told>,
    fitting: HashMap<SelectorNo, Fitting>,
}

/// A run that others have to be told of.
struct Told {
    run: Run,
    /// Whether somebody may take it now.
    claimable: bool,
    /// Whether it was only just dispatched, so that nobody has a slot more than before.
    fresh: bool,
    /// The worker that has a slot more than before, and nobody else has.
    freed: Option<WorkerId>,
    /// How long until its hold, or its start clock, could run out.
    due: Option<Duration>,
}

impl Told {
    fn of(transition: &Transition) -> Self {
        Self {
            run: transition.run().clone(),
            claimable: matches!(transition.task(), TaskChange::Create { .. } | TaskChange::Return { .. }),
            fresh: match transition.attempt() {
                AttemptChange::Create | AttemptChange::Follow { .. } => true,
                // Parked before, or parked again.
                AttemptChange::Keep => transition.run().park && !matches!(transition.task(), TaskChange::Return { .. }),
                AttemptChange::Start { .. } | AttemptChange::End(_) | AttemptChange::Replace(_) => false,
            },
            freed: match transition.attempt() {
                // One that had not begun may have been claimed by anybody.
                AttemptChange::End(_) => {
                    transition.run().worker_id.clone().filter(|_| transition.run().started_at.is_some())
                }
                AttemptChange::Create
                | AttemptChange::Follow { .. }
                | AttemptChange::Keep
                | AttemptChange::Start { .. }
                | AttemptChange::Replace(_) => None,
            },
            due: match transition.task() {
                TaskChange::Create { hold, start } | TaskChange::Return { hold, start, .. } => {
                    let first = start.map_or(hold.until(), |start| hold.until().min(start.until()));
                    (first - transition.at()).to_std().ok()
                }
                TaskChange::Keep | TaskChange::Drop => None,
            },
        }
    }
}

/// The data of an event: what a controller that opens worker capacity needs to know.
#[derive(Serialize)]
struct EventData<'a> {
    run: &'a RunSnapshot,
    worker_selector: &'a Labels,
    #[serde(skip_serializing_if = "<[Expression]>::is_empty")]
    worker_expressions: &'a [Expression],
    #[serde(skip_serializing_if = "Option::is_none")]
    target_worker_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<&'a HoldSnapshot>,
}

impl Coordinator {
    /// Saves changes of locked runs with their events, whose snapshots hold the conditions as of now.
    pub(super) async fn record(
        &self,
        tx: &mut Conn,
        namespace: NamespaceId,
        transitions: &[Transition],
    ) -> store::Result<Recorded> {
        self.record_seen(tx, namespace, transitions, HashMap::new()).await
    }

    /// The same with what is known of the situations of their selectors: what was decided by one is told by the same.
    pub(super) async fn record_seen(
        &self,
        tx: &mut Conn,
        namespace: NamespaceId,
        transitions: &[Transition],
        mut seen: HashMap<SelectorNo, (Situation, Fitting)>,
    ) -> store::Result<Recorded> {
        let mut events = Vec::with_capacity(transitions.len());
        let mut recorded = Recorded { runs: Vec::new(), told: Vec::new(), fitting: HashMap::new() };
        let clocks = transitions.iter().filter_map(|transition| clocks(transition)?.1);
        let outages = self.outages_of(tx, namespace, clocks).await?;
        for transition in transitions {
            let snapshot = self.snapshot(tx, namespace, transition, &outages, &mut seen).await?;
            events.push(event(&snapshot));
            recorded.runs.push(snapshot);
            recorded.told.push(Told::of(transition));
        }
        let changes: Vec<(&Transition, &NewEvent)> = transitions.iter().zip(&events).collect();
        store::save::save(tx, namespace, &changes).await?;
        recorded.fitting = seen.into_iter().map(|(no, (_, fitting))| (no, fitting)).collect();
        Ok(recorded)
    }

    /// Records a new run, unless its twin was first: then nothing. Answers whether it is claimed for the poll.
    pub(super) async fn record_new(
        &self,
        tx: &mut Conn,
        namespace: NamespaceId,
        transition: &Transition,
        situation: (Situation, Fitting),
        request: &Request,
        poll: Option<&HandOver>,
    ) -> store::Result<Option<(Recorded, bool)>> {
        let (seen, fitting) = situation;
        let clocks = clocks(transition);
        let start = clocks.and_then(|(_, start)| start);
        let outages = self.outages_of(tx, namespace, start.into_iter()).await?;
        let start_until = start.map(|start| start.ends_at(&outages));
        let snapshot = |claimed| {
            let task = clocks.map(|(hold, _)| WaitingTask { hold, start_until, claimed });
            RunSnapshot::of(transition.run(), Some(&Waiting { task, situation: seen }))
        };
        let waiting = snapshot(None);
        let claimed = poll.map(|poll| snapshot(Some((poll.worker_id().clone(), transition.at()))));
        let data = claimed.as_ref().map(event_data);
        let claim = poll.zip(data.as_deref()).map(|(poll, data)| poll.claim(data));
        let (identity, event) = (request.identity(), event(&waiting));
        let created =
            store::create::create(tx, namespace, transition, &identity, &request.payload, &event, claim).await?;
        let run = match created {
            Created::Not => return Ok(None),
            Created::Claimed => claimed.unwrap_or(waiting),
            Created::Waiting => waiting,
        };
        let given = created == Created::Claimed;
        let told = Told { claimable: !given, ..Told::of(transition) };
        let fitting = HashMap::from([(transition.run().selector_no, fitting)]);
        Ok(Some((Recorded { runs: vec![run], told: vec![told], fitting }, given)))
    }

    /// Tells those who wait, after the commit: readers of these runs, and polls that could take what is claimable now
    /// or have a slot that was freed.
    pub(super) async fn announce(&self, namespace: NamespaceId, recorded: Recorded) -> Vec<RunSnapshot> {
        self.0.feeds.committed();
        for Told { run, claimable, fresh, freed, due } in &recorded.told {
            self.0.watch.changed(namespace, &run.key, run.version);
            if let Some(due) = due.filter(|due| !due.is_zero() && *due < self.settings().sweep_interval) {
                self.0.alarm.set(due);
            }
            if *claimable && !fresh {
                // It came back: its hold may have run out in a gap while somebody had it.
                self.suspect(namespace, run.selector_no);
            }
            // Nobody has a slot more than before, and nothing waits that did not.
            if !*claimable && (*fresh || run.status == Status::Running) {
                continue;
            }
            if let Some(worker) = freed {
                self.0.matchmaker.freed(namespace, worker);
                continue;
            }
            match recorded.fitting.get(&run.selector_no) {
                // Nobody has a slot more than before: one who takes it is enough.
                Some(fitting) if *fresh => self.0.matchmaker.offer(namespace, &fitting.numbers),
                Some(fitting) => self.wake(namespace, &fitting.numbers),
                None => self.wake_fitting(namespace, run.selector_no).await,
            }
        }
        recorded.runs
    }

    /// Wakes the polls whose label sets fit a selector. Failing to find them out costs one fallback interval.
    async fn wake_fitting(&self, namespace: NamespaceId, no: SelectorNo) {
        if !self.0.matchmaker.has_parked(namespace) {
            return;
        }
        let found = async {
            let mut conn = self.0.db.conn().await?;
            self.0.catalog.label_sets_fitting(&mut conn, namespace, no, 0).await
        };
        match found.await {
            Ok(fitting) => self.wake(namespace, &fitting.numbers),
            Err(error) => tracing::warn!(%error, "cannot tell whom to wake; parked polls look again by themselves"),
        }
    }

    /// A transition's run as it will be read.
    async fn snapshot(
        &self,
        tx: &mut Conn,
        namespace: NamespaceId,
        transition: &Transition,
        outages: &[Stretch],
        seen: &mut HashMap<SelectorNo, (Situation, Fitting)>,
    ) -> store::Result<RunSnapshot> {
        let run = transition.run();
        if run.status != Status::Queued {
            return Ok(RunSnapshot::of(run, None));
        }
        let situation = match seen.entry(run.selector_no) {
            Entry::Occupied(known) => known.get().0,
            Entry::Vacant(unknown) => unknown.insert(self.0.catalog.situation(tx, namespace, run.selector_no).await?).0,
        };
        let task = clocks(transition).map(|(hold, start)| WaitingTask {
            hold,
            start_until: start.map(|start| start.ends_at(outages)),
            claimed: None,
        });
        Ok(RunSnapshot::of(run, Some(&Waiting { task, situation })))
    }

    /// Runs as they are read, the situations of their distinct selectors looked up at once.
    pub(super) async fn snapshots(
        &self,
        conn: &mut Conn,
        namespace: NamespaceId,
        found: &[store::read::Found],
    ) -> store::Result<Vec<RunSnapshot>> {
        let waiting = found.iter().filter(|found| found.run.status == Status::Queued);
        let waiting = waiting.map(|found| found.run.selector_no);
        let distinct: Vec<SelectorNo> = waiting.collect::<BTreeSet<_>>().into_iter().collect();
        let seen = self.0.catalog.situations(conn, namespace, &distinct).await?;
        let clocks = found.iter().filter_map(|found| found.task.as_ref()?.start);
        let outages = self.outages_of(conn, namespace, clocks).await?;
        let snapshot = |store::read::Found { run, task }: &store::read::Found| {
            let task = task.as_ref().map(|task| WaitingTask {
                hold: task.hold,
                start_until: task.start.map(|start| start.ends_at(&outages)),
                claimed: task.claimed.clone(),
            });
            let situation = seen.get(&run.selector_no).map(|(situation, _)| *situation);
            RunSnapshot::of(run, situation.map(|situation| Waiting { task, situation }).as_ref())
        };
        Ok(found.iter().map(snapshot).collect())
    }
}

/// The clocks of a change's task, if it has one after it.
const fn clocks(transition: &Transition) -> Option<(Hold, Option<StartClock>)> {
    match transition.task() {
        TaskChange::Create { hold, start } | TaskChange::Return { hold, start, .. } => Some((*hold, *start)),
        TaskChange::Keep | TaskChange::Drop => None,
    }
}

/// The event of a change, with the run as it is after it.
fn event(snapshot: &RunSnapshot) -> NewEvent {
    NewEvent { id: new_uuid(), data: event_data(snapshot) }
}

fn event_data(snapshot: &RunSnapshot) -> String {
    let data = EventData {
        run: snapshot,
        worker_selector: &snapshot.worker_selector,
        worker_expressions: &snapshot.worker_expressions,
        target_worker_id: snapshot.target_worker_id.as_deref(),
        hold: snapshot.hold.as_ref(),
    };
    serde_json::to_string(&data).expect("a snapshot's keys are strings")
}
