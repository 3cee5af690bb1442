//! What happened and when, for people to read along.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, Write},
};

use tokio::time::Instant;

use crate::cli::{
    ambient::now,
    client::{Condition, Event, Run},
};

/// Writes one line per happening, with the time since the start.
pub(super) struct Timeline<W> {
    to: W,
    began_at: Instant,
}

impl<W: Write> Timeline<W> {
    /// A timeline that begins now.
    pub(super) fn begin(to: W) -> Self {
        Self { to, began_at: now() }
    }

    /// Says who did what, just now.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(super) fn say(&mut self, who: &str, what: &str) -> io::Result<()> {
        let seconds = (now() - self.began_at).as_secs_f64();
        writeln!(self.to, "{}", line(seconds, who, what))
    }

    /// Writes a line without a time.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(super) fn note(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.to, "{text}")
    }

    /// The time since the start, in seconds.
    pub(super) fn seconds(&self) -> f64 {
        (now() - self.began_at).as_secs_f64()
    }
}

fn line(seconds: f64, who: &str, what: &str) -> String {
    format!("{seconds:>7.2} s  {who:<12} {what}")
}

/// A run's situation: its status and, while it waits, why.
pub(super) fn situation(run: &Run) -> String {
    let mut text = run.status.clone();
    if run.status != "queued" {
        if let Some(worker_id) = &run.worker_id {
            // Writing to a `String` cannot fail.
            let _ = write!(text, " on {worker_id}");
        }
        if let Some(error) = &run.error {
            let _ = write!(text, ": {error}");
        }
    }
    for condition in &run.conditions {
        text.push_str("  ");
        text.push_str(&observed(condition));
    }
    text
}

/// One condition, as in `Runnable=False (NoMatchingWorker)`.
pub(super) fn observed(condition: &Condition) -> String {
    let Condition { kind, status, reason } = condition;
    if reason.is_empty() { format!("{kind}={status}") } else { format!("{kind}={status} ({reason})") }
}

/// One event of a run, indented under it.
pub(super) fn recorded(event: &Event) -> String {
    let time = event.time.format("%H:%M:%S%.3f");
    let situation = event.data.run.as_ref().map(situation).unwrap_or_default();
    format!("    {time}  {:<18} {situation}", event.kind).trim_end().to_owned()
}

/// A selector, as in `{zone: b}`.
pub(super) fn selector(labels: &BTreeMap<String, String>) -> String {
    let terms: Vec<_> = labels.iter().map(|(key, value)| format!("{key}: {value}")).collect();
    format!("{{{}}}", terms.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(fields: serde_json::Value) -> Run {
        serde_json::from_value(fields).expect("a run")
    }

    #[test]
    fn times_stand_under_each_other() {
        assert_eq!(line(0.0, "you", "dispatch"), "   0.00 s  you          dispatch");
        assert_eq!(line(12.345, "service", "queued"), "  12.35 s  service      queued");
    }

    #[test]
    fn a_waiting_run_says_why() {
        let run = run(json!({
            "dag_name": "etl", "run_id": "r1", "status": "queued",
            "conditions": [
                {"type": "Runnable", "status": "False", "reason": "NoMatchingWorker"},
                {"type": "WorkerReady", "status": "False", "reason": "NoMatchingWorker"},
            ],
        }));
        assert_eq!(situation(&run), "queued  Runnable=False (NoMatchingWorker)  WorkerReady=False (NoMatchingWorker)");
    }

    #[test]
    fn a_finished_run_says_where_and_how() {
        let done = run(json!({"dag_name": "etl", "run_id": "r1", "status": "succeeded", "worker_id": "w1"}));
        assert_eq!(situation(&done), "succeeded on w1");
        let failed = run(json!({"dag_name": "etl", "run_id": "r1", "status": "failed", "error": "too late"}));
        assert_eq!(situation(&failed), "failed: too late");
    }

    #[test]
    fn an_event_is_one_line() {
        let event: Event = serde_json::from_value(json!({
            "type": "dag.run.running", "time": "2026-02-03T04:05:06.7Z",
            "data": {"run": {"dag_name": "etl", "run_id": "r1", "status": "running", "worker_id": "w1"}},
        }))
        .expect("an event");
        assert_eq!(recorded(&event), "    04:05:06.700  dag.run.running    running on w1");
    }

    #[test]
    fn selectors_are_sorted() {
        let labels = [("zone", "b"), ("gpu", "a100")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(selector(&labels.into()), "{gpu: a100, zone: b}");
        assert_eq!(selector(&BTreeMap::new()), "{}");
    }

    #[test]
    fn lines_are_written_in_order() {
        let mut timeline = Timeline::begin(Vec::new());
        timeline.note("title").expect("memory");
        timeline.say("you", "hello").expect("memory");
        let text = String::from_utf8(timeline.to).expect("text");
        assert!(text.starts_with("title\n") && text.ends_with("you          hello\n"), "{text}");
    }
}
