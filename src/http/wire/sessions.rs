//! Sessions: how a worker registers and gives signs of life.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::coordinator::heartbeat::{Beat, BeatAnswer};
use crate::coordinator::register::{Registered, Registration};

use crate::domain::labels::{Labels, LabelsSchema, MAX_LABELS};
use crate::http::extract::{Fields, FromFields, Reading, Settings, read};
use crate::ids::{AttemptId, SessionId, SessionKey, Token, WorkerId};

/// Most tasks a session may have at a time.
const MAX_SLOTS: i64 = 10_000;
/// Bounds of the lease a session may ask for.
const LEASE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_hours(1));
/// Longest version text.
const MAX_VERSION_BYTES: usize = 255;

/// What a worker's process says of itself when it starts, and whenever it changes.
#[derive(Debug, Clone, PartialEq, utoipa::ToSchema)]
pub struct RegisterRequest {
    /// What it offers; at most 64.
    #[schema(value_type = LabelsSchema, required = false, example = json!({"zone": "b"}))]
    pub labels: Labels,
    /// Keys that a run's selector must mention, else this worker is no match for it; `not_in` and `does_not_exist` do not
    /// mention theirs.
    #[schema(required = false, example = json!(["gpu"]))]
    pub exclusive: BTreeSet<String>,
    /// How many tasks it may have at a time; 1 when absent.
    #[schema(required = false, minimum = 1, maximum = 10_000)]
    pub slots: i32,
    /// The version of its program, for people.
    #[schema(nullable = false, max_length = 255)]
    pub version: Option<String>,
    /// Its own name for this life of its process; made for it when absent. The same again changes labels and slots and
    /// loses nothing; another one ends the session before.
    #[schema(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255)]
    pub session_id: Option<SessionId>,
    /// How long it may be silent until its attempts are lost; the service's configuration when absent.
    #[schema(value_type = Option<f64>, nullable = false, minimum = 5, maximum = 3600)]
    pub lease_seconds: Option<Duration>,
}

impl FromFields for RegisterRequest {
    const READING: Reading = Reading::Tolerant;
    const MAY_BE_EMPTY: bool = true;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        let labels = fields.or("labels", Labels::new(), read::labels(MAX_LABELS));
        let exclusive = fields.or("exclusive", BTreeSet::new(), read::label_keys(MAX_LABELS));
        let slots = fields.or("slots", 1, read::integer(1, MAX_SLOTS));
        let version = fields.optional("version", read::text_up_to(MAX_VERSION_BYTES));
        let session_id = fields.optional("session_id", read::name);
        let lease_seconds = fields.optional("lease_seconds", read::seconds(LEASE.0, LEASE.1));
        Some(Self { labels: labels?, exclusive: exclusive?, slots: slots?, version, session_id, lease_seconds })
    }
}

impl RegisterRequest {
    /// What the coordinator takes.
    pub fn into_registration(self, worker_id: WorkerId) -> Registration {
        Registration {
            worker_id,
            session_id: self.session_id,
            labels: self.labels,
            exclusive: self.exclusive,
            slots: self.slots,
            version: self.version,
            lease: self.lease_seconds,
        }
    }
}

/// A session, and how often it must give signs of life.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RegisterAnswer {
    /// The worker's name.
    pub worker_id: String,
    /// The session, to be named in polls and heartbeats.
    pub session_id: String,
    /// How often to give a sign of life.
    pub heartbeat_every_seconds: f64,
    /// After how long a silence it is no match any more.
    pub stale_after_seconds: f64,
    /// After how long a silence its attempts are lost.
    pub lease_seconds: f64,
}

impl From<Registered> for RegisterAnswer {
    fn from(registered: Registered) -> Self {
        Self {
            worker_id: registered.worker_id.into(),
            session_id: registered.session_id.into(),
            heartbeat_every_seconds: registered.heartbeat_every.as_secs_f64(),
            stale_after_seconds: registered.stale_after.as_secs_f64(),
            lease_seconds: registered.lease.as_secs_f64(),
        }
    }
}

/// An attempt that a worker is at.
#[derive(Debug, Clone, PartialEq, utoipa::ToSchema)]
pub struct RunningAttempt {
    /// Which.
    #[schema(value_type = uuid::Uuid)]
    pub attempt_id: AttemptId,
    /// The token it was given with.
    #[schema(value_type = String)]
    pub token: Token,
}

/// A sign of life.
#[derive(Debug, Clone, PartialEq, utoipa::ToSchema)]
pub struct HeartbeatRequest {
    /// Which session.
    #[schema(value_type = String, min_length = 1, max_length = 255)]
    pub session_id: SessionId,
    /// The attempts it is at, all of them: one that is left out for two heartbeat intervals is lost. Absent says nothing of
    /// them; empty says there are none.
    #[schema(nullable = false)]
    pub attempts: Option<Vec<RunningAttempt>>,
    /// What it offers from now on; absent leaves it as it is.
    #[schema(value_type = Option<LabelsSchema>, nullable = false)]
    pub labels: Option<Labels>,
    /// How many tasks it may have at a time from now on; absent leaves it as it is.
    #[schema(nullable = false, minimum = 1, maximum = 10_000)]
    pub slots: Option<i32>,
    /// Whether it is to be given no more tasks; absent leaves it as it is.
    #[schema(nullable = false)]
    pub draining: Option<bool>,
}

impl FromFields for HeartbeatRequest {
    const READING: Reading = Reading::Tolerant;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        let session_id = fields.required("session_id", read::name);
        let most = usize::try_from(MAX_SLOTS).unwrap_or(usize::MAX);
        let attempt = read::object(Reading::Tolerant, |fields| {
            let attempt_id = fields.required("attempt_id", read::attempt_id);
            let token = fields.required("token", read::token);
            Some(RunningAttempt { attempt_id: attempt_id?, token: token? })
        });
        let attempts = fields.optional("attempts", read::list(most, attempt));
        let labels = fields.optional("labels", read::labels(MAX_LABELS));
        let slots = fields.optional("slots", read::integer(1, MAX_SLOTS));
        let draining = fields.optional("draining", read::boolean);
        Some(Self { session_id: session_id?, attempts, labels, slots, draining })
    }
}

impl HeartbeatRequest {
    /// What the coordinator takes.
    pub fn into_beat(self, worker_id: WorkerId) -> Beat {
        let named = |attempts: Vec<RunningAttempt>| attempts.into_iter().map(|a| (a.attempt_id, a.token)).collect();
        Beat {
            session: SessionKey { worker_id, session_id: self.session_id },
            attempts: self.attempts.map(named),
            labels: self.labels,
            slots: self.slots,
            draining: self.draining,
        }
    }
}

/// What a worker must know after a sign of life.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct HeartbeatAnswer {
    /// Until when its attempts are safe without another one, by the service's clock.
    pub lease_until: DateTime<Utc>,
    /// The same, counted from now.
    pub lease_seconds: f64,
    /// Attempts to stop, and to report as `aborted`.
    #[schema(value_type = Vec<uuid::Uuid>)]
    pub cancel: Vec<AttemptId>,
    /// Attempts that are not its own any more: stop them and report nothing.
    #[schema(value_type = Vec<uuid::Uuid>)]
    pub lost: Vec<AttemptId>,
    /// Whether it will be given no more tasks.
    pub drain: bool,
}

impl From<BeatAnswer> for HeartbeatAnswer {
    fn from(answer: BeatAnswer) -> Self {
        Self {
            lease_until: answer.lease_until,
            lease_seconds: answer.lease.as_secs_f64(),
            cancel: answer.cancel,
            lost: answer.lost,
            drain: answer.drain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Flags};
    use crate::http::extract::Faults;

    fn read_from<T: FromFields>(body: &str) -> Result<T, Faults> {
        let settings = Config::load(None, std::iter::empty(), &Flags::default()).unwrap().coordinator;
        let mut fields = Fields::of_object(body)?;
        let request = T::from_fields(&mut fields, &settings);
        fields.end(request, T::READING)
    }

    fn pointers<T: FromFields + std::fmt::Debug>(body: &str) -> Vec<String> {
        read_from::<T>(body).expect_err(body).0.into_iter().map(|error| error.pointer).collect()
    }

    /// B67: a worker that offers nothing in particular may say so in three ways.
    #[test]
    fn a_worker_needs_to_say_nothing() {
        let plain = read_from::<RegisterRequest>("{}").unwrap();
        assert_eq!((plain.slots, plain.labels.len(), plain.lease_seconds), (1, 0, None));
        for same in
            [r#"{"labels": {}}"#, r#"{"labels": null, "exclusive": [], "slots": null}"#, r#"{"from": "the future"}"#]
        {
            assert_eq!(read_from::<RegisterRequest>(same), Ok(plain.clone()), "{same}");
        }
    }

    #[test]
    fn registration_keeps_the_bounds_of_the_contract() {
        let bad =
            r#"{"labels": {"zone": 1}, "exclusive": ["a b"], "slots": 0, "session_id": "..", "lease_seconds": 4.9}"#;
        let expected = ["/labels/zone", "/exclusive/0", "/slots", "/session_id", "/lease_seconds"];
        assert_eq!(pointers::<RegisterRequest>(bad), expected);
        assert_eq!(
            pointers::<RegisterRequest>(r#"{"slots": 10001, "lease_seconds": 1e308}"#),
            ["/slots", "/lease_seconds"]
        );
        assert!(read_from::<RegisterRequest>(r#"{"slots": 10000, "lease_seconds": 3600}"#).is_ok());
    }

    #[test]
    fn a_beat_may_be_silent_about_its_attempts_or_say_there_are_none() {
        let attempts =
            |body: &str| read_from::<HeartbeatRequest>(body).unwrap().attempts.map(|attempts| attempts.len());
        assert_eq!(attempts(r#"{"session_id": "s"}"#), None);
        assert_eq!(attempts(r#"{"session_id": "s", "attempts": null}"#), None);
        assert_eq!(attempts(r#"{"session_id": "s", "attempts": []}"#), Some(0));
        let named = r#"{"attempt_id": "019a0000-0000-7000-8000-000000000000", "token": "t", "x": 1}"#;
        assert_eq!(attempts(&format!(r#"{{"session_id": "s", "attempts": [{named}]}}"#)), Some(1));
        let bad = r#"{"attempts": [{"attempt_id": "x"}, 1]}"#;
        assert_eq!(
            pointers::<HeartbeatRequest>(bad),
            ["/session_id", "/attempts/0/attempt_id", "/attempts/0/token", "/attempts/1"]
        );
    }
}
