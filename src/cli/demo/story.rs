//! The scenes, in their order.

use std::{collections::BTreeMap, io::Write, path::Path, time::Duration};

use serde_json::json;

use super::{
    DemoError,
    crew::Hand,
    dags::{CUSTOMER_EXPORT, Dag, MODEL_TRAINING, NIGHTLY_ORDERS_ETL},
    timeline::{Timeline, observed, recorded, selector, situation},
};
use crate::{
    cli::client::{Client, DispatchRequest, Run, WaitFor},
    ids::new_uuid,
};

/// How long something that should happen at once may take.
const SOON: Duration = Duration::from_secs(10);

/// Who speaks, when it is not a worker.
const YOU: &str = "you";
const SERVICE: &str = "service";

/// The demo under way.
pub(super) struct Story<'a, W> {
    client: Client,
    url: &'a str,
    exe: &'a Path,
    timeline: Timeline<W>,
    /// Tells the run ids of one showing from those of another.
    showing: String,
    crew: Vec<Hand>,
    /// The runs told about, each with the events that it must have.
    told: Vec<(Run, &'static [&'static str])>,
}

impl<'a, W: Write> Story<'a, W> {
    /// Sets the stage; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// If `url` cannot be used.
    pub(super) fn begin(url: &'a str, exe: &'a Path, to: W) -> Result<Self, DemoError> {
        Ok(Self {
            client: Client::new(url, None)?,
            url,
            exe,
            timeline: Timeline::begin(to),
            // The end of an id is chance; its beginning is the time and seldom changes.
            showing: new_uuid().simple().to_string()[26..].to_owned(),
            crew: Vec::new(),
            told: Vec::new(),
        })
    }

    /// Tells it all.
    ///
    /// # Errors
    ///
    /// At the first thing that differs.
    pub(super) async fn tell(mut self) -> Result<(), DemoError> {
        self.no_worker_at_all().await?;
        self.the_right_worker_comes().await?;
        self.nobody_comes().await?;
        self.cancelled_while_it_waits().await?;
        self.no_wait_is_a_refusal().await?;
        self.workers_go_home().await?;
        self.what_is_recorded().await
    }

    /// A run is held although there is no worker in the world, and goes to the first one that comes.
    async fn no_worker_at_all(&mut self) -> Result<(), DemoError> {
        let run = self.dispatch("first", CUSTOMER_EXPORT, ("zone", "a"), 60.0).await?;
        self.waits(&run, "NoAvailableWorker")?;
        self.hire("demo-a", "zone=a")?;
        self.succeeds(&run, CUSTOMER_EXPORT, "demo-a").await
    }

    /// A run that the only worker cannot take is held until one comes that can.
    async fn the_right_worker_comes(&mut self) -> Result<(), DemoError> {
        let run = self.dispatch("A", NIGHTLY_ORDERS_ETL, ("zone", "b"), 60.0).await?;
        self.waits(&run, "NoMatchingWorker")?;
        self.hire("demo-b", "zone=b")?;
        self.succeeds(&run, NIGHTLY_ORDERS_ETL, "demo-b").await
    }

    /// A run whose hold runs out fails, and says what it waited for.
    async fn nobody_comes(&mut self) -> Result<(), DemoError> {
        let run = self.dispatch("B", CUSTOMER_EXPORT, ("zone", "c"), 3.0).await?;
        self.waits(&run, "NoMatchingWorker")?;
        let run = self.finished(&run).await?;
        self.timeline.say(SERVICE, &format!("run {} {}", run.run_id, situation(&run)))?;
        same("the status of run B", "failed", &run.status)?;
        let error = run.error.as_deref().unwrap_or("none");
        same("the error of run B", "no worker matched the selector {zone: c} within 3s", error)?;
        let reason = run.failure.as_ref().map_or("none", |failure| failure.reason.as_str());
        same("the failure of run B", "hold_expired", reason)?;
        self.told.push((run, &["dag.run.queued", "dag.run.failed"]));
        Ok(())
    }

    /// A run that was cancelled while it waited is not given to the worker that comes too late; the next one is.
    async fn cancelled_while_it_waits(&mut self) -> Result<(), DemoError> {
        let run = self.dispatch("C", MODEL_TRAINING, ("gpu", "a100"), 60.0).await?;
        self.waits(&run, "NoMatchingWorker")?;
        self.timeline.say(YOU, &format!("cancel run {}", run.run_id))?;
        let cancelled = self.client.cancel(&run.dag_name, &run.run_id, "changed my mind", false).await?;
        self.timeline.say(SERVICE, &format!("run {} {}", cancelled.run_id, situation(&cancelled)))?;
        same("the status of run C", "aborted", &cancelled.status)?;
        self.told.push((cancelled.clone(), &["dag.run.queued", "dag.run.aborted"]));

        self.hire("demo-gpu", "gpu=a100")?;
        let next = self.dispatch("D", MODEL_TRAINING, ("gpu", "a100"), 60.0).await?;
        self.succeeds(&next, MODEL_TRAINING, "demo-gpu").await?;

        let after = self.client.run(&cancelled.dag_name, &cancelled.run_id).await?;
        self.timeline
            .say(SERVICE, &format!("run {} is still {}: no worker ever saw it", after.run_id, after.status))?;
        same("the status of run C", "aborted", &after.status)?;
        same("the version of run C", &cancelled.version.to_string(), &after.version.to_string())?;
        Ok(())
    }

    /// With a wait of 0 a dispatch without a match is refused, and nothing is recorded.
    async fn no_wait_is_a_refusal(&mut self) -> Result<(), DemoError> {
        let refused = self.dispatch("E", CUSTOMER_EXPORT, ("zone", "c"), 0.0).await;
        let problem = match refused {
            Err(DemoError::Problem(problem)) => problem,
            Err(other) => return Err(other),
            Ok(run) => {
                return Err(differs("a dispatch without a wait", "a refusal", &situation(&run)));
            }
        };
        self.timeline.say(SERVICE, &problem.to_string())?;
        same("the refusal", "409 no-matching-worker", &format!("{} {}", problem.status, problem.code))?;
        match self.client.run(CUSTOMER_EXPORT.name, &self.run_id("E")).await {
            Err(problem) => same("the refused run", "not-found", &problem.code),
            Ok(run) => Err(differs("the refused run", "no record", &situation(&run))),
        }
    }

    /// The workers are stopped as a process manager stops them.
    async fn workers_go_home(&mut self) -> Result<(), DemoError> {
        for hand in std::mem::take(&mut self.crew) {
            let worker_id = hand.worker_id;
            hand.stop().await?;
            self.timeline.say(worker_id, "told to stop; said farewell and exited with 0")?;
        }
        Ok(())
    }

    /// Every change of every run stands in its events.
    async fn what_is_recorded(&mut self) -> Result<(), DemoError> {
        self.timeline.note("\nWhat is recorded of it:")?;
        for (run, expected) in &self.told {
            self.timeline.note(&format!("\n  {}/{}  {}", run.dag_name, run.run_id, selector(&run.worker_selector)))?;
            let events = self.client.run_events(&run.dag_name, &run.run_id).await?.events;
            for event in &events {
                self.timeline.note(&recorded(event))?;
            }
            let found: Vec<_> = events.iter().map(|event| event.kind.as_str()).collect();
            same(&format!("the events of run {}", run.run_id), &expected.join(", "), &found.join(", "))?;
        }
        let count = |status| self.told.iter().filter(|(run, _)| run.status == status).count();
        let summary = format!(
            "\n{} runs in {:.1} s: {} succeeded, {} failed at the end of its hold, {} cancelled while it waited; \
             1 dispatch refused. All as promised.",
            self.told.len(),
            self.timeline.seconds(),
            count("succeeded"),
            count("failed"),
            count("aborted"),
        );
        self.timeline.note(&summary)?;
        Ok(())
    }

    /// Dispatches a run that requires one label and waits so many seconds for it.
    async fn dispatch(
        &mut self,
        name: &str,
        dag: Dag,
        (key, value): (&str, &str),
        wait_seconds: f64,
    ) -> Result<Run, DemoError> {
        let run_id = self.run_id(name);
        let labels = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let what = format!("dispatch {}/{run_id} to {}, wait {wait_seconds} s", dag.name, selector(&labels));
        self.timeline.say(YOU, &what)?;
        let request = DispatchRequest {
            dag_name: dag.name.to_owned(),
            run_id: Some(run_id.clone()),
            worker_selector: labels,
            worker_wait_timeout_seconds: Some(wait_seconds),
            definition: Some(dag.definition.to_owned()),
            params: Some(json!({ "showing": self.showing })),
            ..DispatchRequest::default()
        };
        Ok(self.client.dispatch(&request, Some(&run_id)).await?)
    }

    fn run_id(&self, name: &str) -> String {
        format!("{name}-{}", self.showing)
    }

    /// Starts a worker.
    fn hire(&mut self, worker_id: &'static str, label: &str) -> Result<(), DemoError> {
        self.timeline.say(worker_id, &format!("starts with {label}"))?;
        self.crew.push(Hand::start(self.exe, self.url, worker_id, label).map_err(DemoError::Process)?);
        Ok(())
    }

    /// The run is queued and both conditions give this reason.
    fn waits(&mut self, run: &Run, reason: &str) -> Result<(), DemoError> {
        self.timeline.say(SERVICE, &format!("run {} {}", run.run_id, situation(run)))?;
        same(&format!("the status of run {}", run.run_id), "queued", &run.status)?;
        let mut found: Vec<_> = run.conditions.iter().map(observed).collect();
        found.sort_unstable();
        let expected = format!("Runnable=False ({reason}), WorkerReady=False ({reason})");
        same(&format!("the conditions of run {}", run.run_id), &expected, &found.join(", "))
    }

    /// The run is taken, worked on and ends well, at this worker.
    async fn succeeds(&mut self, run: &Run, dag: Dag, worker_id: &str) -> Result<(), DemoError> {
        let change = WaitFor::Change { since_version: run.version };
        let taken = self.client.wait_for_run(&run.dag_name, &run.run_id, change, SOON).await?;
        self.timeline.say(SERVICE, &format!("run {} {}", taken.run_id, situation(&taken)))?;
        let done = self.finished(run).await?;
        self.timeline.say(SERVICE, &format!("run {} {}", done.run_id, situation(&done)))?;
        same(&format!("the status of run {}", run.run_id), "succeeded", &done.status)?;
        same(&format!("the worker of run {}", run.run_id), worker_id, done.worker_id.as_deref().unwrap_or("none"))?;
        let output = done.output.as_ref().and_then(|output| output.as_str()).unwrap_or("none");
        self.timeline.say(worker_id, output)?;
        let expected = format!("{} steps of {} done", dag.steps(), dag.name);
        same(&format!("the output of run {}", run.run_id), &expected, output)?;
        self.told.push((done, &["dag.run.queued", "dag.run.running", "dag.run.succeeded"]));
        Ok(())
    }

    /// The run once it is finished, or as it is after a while.
    async fn finished(&self, run: &Run) -> Result<Run, DemoError> {
        Ok(self.client.wait_for_run(&run.dag_name, &run.run_id, WaitFor::Finished, SOON).await?)
    }
}

/// Compares what was told with what was seen.
fn same(what: &str, expected: &str, found: &str) -> Result<(), DemoError> {
    if expected == found { Ok(()) } else { Err(differs(what, expected, found)) }
}

fn differs(what: &str, expected: &str, found: &str) -> DemoError {
    DemoError::Differs { what: what.to_owned(), expected: expected.to_owned(), found: found.to_owned() }
}
