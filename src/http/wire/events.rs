//! Events: what happened to a run, in the names of `CloudEvents` 1.0 where those exist.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use super::raw::RawJson;
use super::{DEFAULT_LIMIT, MAX_INTEGER, MAX_LIMIT, MAX_WAIT};
use crate::coordinator::events::Event as Committed;
use crate::coordinator::feed::{Entry, EventFilter, Page};
use crate::domain::event::EventType;
use crate::domain::selector::Expression;
use crate::ids::{DagName, RunId};

use crate::domain::labels::LabelsSchema;
use crate::domain::snapshot::{HoldSnapshot, RunSnapshot};
use crate::http::extract::query::read as query;
use crate::http::extract::{Fields, FromFields, Reading, Settings};
use crate::ids::RunKey;

/// Which events of a run to list.
#[derive(Debug, Clone, PartialEq, Eq, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListRunEvents {
    /// Events after this `run_seq`; 0, the beginning, when absent.
    #[param(required = false, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub after: i64,
    /// At most this many; 50 when absent.
    #[param(required = false, minimum = 1, maximum = 500)]
    pub limit: i64,
}

impl FromFields for ListRunEvents {
    const READING: Reading = Reading::Strict;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        let after = fields.or("after", 0, query::integer(0, MAX_INTEGER));
        let limit = fields.or("limit", DEFAULT_LIMIT, query::integer(1, MAX_LIMIT));
        Some(Self { after: after?, limit: limit? })
    }
}

/// Which events of the feed to read.
#[derive(Debug, Clone, PartialEq, Eq, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Which {
    /// Events after this position; 0, the beginning, when absent. Of a stream, `Last-Event-ID` goes over it.
    #[param(required = false, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub after: i64,
    /// Events of this type.
    #[param(value_type = Option<String>, nullable = false, example = "dag.run.queued")]
    pub r#type: Option<EventType>,
    /// Events of runs of this DAG.
    #[param(value_type = Option<String>, nullable = false, min_length = 1, max_length = 250)]
    pub dag_name: Option<DagName>,
    /// Events of runs with this id.
    #[param(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255)]
    pub run_id: Option<RunId>,
    /// Events of runs whose family has the run with this id at its top.
    #[param(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255)]
    pub root_run_id: Option<RunId>,
    /// Events of runs that the run with this id dispatched.
    #[param(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255)]
    pub parent_run_id: Option<RunId>,
}

impl FromFields for Which {
    const READING: Reading = Reading::Strict;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        let after = fields.or("after", 0, query::integer(0, MAX_INTEGER));
        let r#type = fields.optional("type", query::word(EventType::ALL, EventType::as_str));
        let dag_name = fields.optional("dag_name", query::name);
        let run_id = fields.optional("run_id", query::name);
        let root_run_id = fields.optional("root_run_id", query::name);
        let parent_run_id = fields.optional("parent_run_id", query::name);
        Some(Self { after: after?, r#type, dag_name, run_id, root_run_id, parent_run_id })
    }
}

impl From<Which> for EventFilter {
    fn from(which: Which) -> Self {
        Self {
            kind: which.r#type.map(|kind| kind.as_str().to_owned()),
            dag_name: which.dag_name,
            run_id: which.run_id,
            root_run_id: which.root_run_id,
            parent_run_id: which.parent_run_id,
        }
    }
}

/// How much of the feed to read, and how long to wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct HowMuch {
    /// At most this many; 50 when absent.
    #[param(required = false, minimum = 1, maximum = 500)]
    pub limit: i64,
    /// How long to wait for the first; more than 50 is lowered to 50. 0 when absent.
    #[param(value_type = f64, required = false, minimum = 0)]
    pub wait_seconds: Duration,
}

/// Which events to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListEvents {
    /// Which.
    pub which: Which,
    /// How many of them.
    pub how_much: HowMuch,
}

impl FromFields for ListEvents {
    const READING: Reading = Reading::Strict;

    fn from_fields(fields: &mut Fields<'_>, settings: &Settings) -> Option<Self> {
        let limit = fields.or("limit", DEFAULT_LIMIT, query::integer(1, MAX_LIMIT));
        let wait_seconds = fields.or("wait_seconds", Duration::ZERO, query::seconds_lowered(MAX_WAIT));
        let which = Which::from_fields(fields, settings);
        Some(Self { which: which?, how_much: HowMuch { limit: limit?, wait_seconds: wait_seconds? } })
    }
}

/// One change of a run, committed with it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Event {
    /// Unique among all events.
    pub id: Uuid,
    /// Its place in the namespace's feed; absent where a run's own events are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub position: Option<i64>,
    /// The run's version that came with it.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub run_seq: i64,
    /// What happened, such as `dag.run.queued`; more may be added.
    #[serde(rename = "type")]
    #[schema(example = "dag.run.queued")]
    pub kind: String,
    /// When.
    pub time: DateTime<Utc>,
    /// The DAG's name.
    pub dag_name: String,
    /// The run's id within the DAG.
    pub run_id: String,
    /// The run as it was then.
    #[schema(value_type = EventData)]
    pub data: RawJson,
    /// `1.0`, the version of `CloudEvents`.
    #[schema(value_type = String, example = "1.0")]
    pub specversion: &'static str,
    /// Where it comes from.
    #[schema(value_type = String, example = "/v1/dags")]
    pub source: &'static str,
    /// The run: `dag_name/run_id`.
    pub subject: String,
}

/// What an event carries.
#[derive(Debug, utoipa::ToSchema)]
#[expect(dead_code, reason = "it describes the JSON that the event was committed with")]
pub struct EventData {
    /// The run as it was with this version, conditions included.
    run: RunSnapshot,
    /// The labels it requires of a worker.
    worker_selector: LabelsSchema,
    /// What else it requires of that worker's labels; absent when there is nothing.
    #[schema(required = false)]
    worker_expressions: Vec<Expression>,
    /// The one worker that may take it.
    #[schema(nullable = false)]
    target_worker_id: Option<String>,
    /// How long it waits for a worker, while it does.
    #[schema(nullable = false)]
    hold: Option<HoldSnapshot>,
}

/// Events of a run, in order.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct EventList {
    /// The events.
    pub events: Vec<Event>,
    /// What to give as `after` for those that follow.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub next_after: i64,
}

impl EventList {
    /// The page of a run's events that follows `after`.
    pub fn of(run: &RunKey, events: Vec<Committed>, after: i64) -> Self {
        let next_after = events.last().map_or(after, |event| event.run_seq);
        Self { events: events.into_iter().map(|event| Event::of(run, event, None)).collect(), next_after }
    }

    /// A page of the feed.
    pub fn of_feed(page: Page) -> Self {
        Self { events: page.entries.into_iter().map(Event::from).collect(), next_after: page.seen }
    }
}

impl From<Entry> for Event {
    fn from(entry: Entry) -> Self {
        Self::of(&entry.key, entry.event, Some(entry.position))
    }
}

impl Event {
    fn of(run: &RunKey, event: Committed, position: Option<i64>) -> Self {
        Self {
            id: event.event_id,
            position,
            run_seq: event.run_seq,
            kind: event.kind.to_string(),
            time: event.occurred_at,
            dag_name: run.dag_name.to_string(),
            run_id: run.run_id.to_string(),
            data: RawJson(event.data),
            specversion: "1.0",
            source: "/v1/dags",
            subject: run.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_bears_the_names_of_cloud_events() {
        let run = RunKey { dag_name: DagName::parse("a / b").unwrap(), run_id: RunId::parse("r-1").unwrap() };
        let committed = Committed {
            event_id: Uuid::nil(),
            run_seq: 3,
            kind: EventType::Queued,
            occurred_at: DateTime::UNIX_EPOCH,
            data: r#"{"run": {}}"#.into(),
        };
        let page = serde_json::to_value(EventList::of(&run, vec![committed], 2)).unwrap();
        let expected = json!({
            "id": "00000000-0000-0000-0000-000000000000",
            "run_seq": 3,
            "type": "dag.run.queued",
            "time": "1970-01-01T00:00:00Z",
            "dag_name": "a / b",
            "run_id": "r-1",
            "data": {"run": {}},
            "specversion": "1.0",
            "source": "/v1/dags",
            "subject": "a / b/r-1",
        });
        assert_eq!(page, json!({"events": [expected], "next_after": 3}));
        let none = EventList::of(&run, vec![], 2);
        assert_eq!(serde_json::to_value(none).unwrap(), json!({"events": [], "next_after": 2}));
    }
}
