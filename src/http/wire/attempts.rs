//! Attempts: what the worker that has one says of it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::coordinator::report;
use crate::domain::rules::report::Report;
use crate::domain::run::Status;
use crate::domain::transition::Left;
use crate::http::extract::{Faults, Fields, FromFields, Reading, Settings, read};
use crate::http::json;
use crate::ids::Token;

/// The most that is kept of a report's error, and of the reason of a release.
const MAX_TEXT_BYTES: usize = 16 * 1024;
/// The largest output, and progress, that is kept.
const MAX_OUTPUT_BYTES: usize = 256 * 1024;

/// An ack or a renewal.
#[derive(Debug, Clone, PartialEq, utoipa::ToSchema)]
pub struct TokenRequest {
    /// The token the task came with.
    #[schema(value_type = String)]
    pub token: Token,
}

impl FromFields for TokenRequest {
    const READING: Reading = Reading::Tolerant;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        Some(Self { token: fields.required("token", read::token)? })
    }
}

/// A lease that an ack has begun.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AckAnswer {
    /// Until when the attempt is safe without another sign of life, by the service's clock.
    pub lease_until: DateTime<Utc>,
    /// The same, counted from now.
    pub lease_seconds: f64,
    /// How often to renew it, or to name it in a heartbeat.
    pub renew_every_seconds: f64,
}

/// A lease that goes on.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RenewAnswer {
    /// Until when the attempt is safe without another sign of life, by the service's clock.
    pub lease_until: DateTime<Utc>,
    /// The same, counted from now.
    pub lease_seconds: f64,
    /// Whether to stop, and to report it as `aborted`.
    pub cancel_requested: bool,
}

/// A task or an attempt that its worker gives back.
#[derive(Debug, Clone, PartialEq, utoipa::ToSchema)]
pub struct ReleaseRequest {
    /// The token the task came with.
    #[schema(value_type = String)]
    pub token: Token,
    /// Why, for people; cut at 16 KiB.
    #[schema(nullable = false)]
    pub reason: Option<String>,
    /// How long it is offered to nobody; 0 when absent.
    #[schema(value_type = f64, required = false, minimum = 0)]
    pub delay_seconds: Duration,
}

impl FromFields for ReleaseRequest {
    const READING: Reading = Reading::Mending;

    fn from_fields(fields: &mut Fields<'_>, settings: &Settings) -> Option<Self> {
        let token = fields.required("token", read::token);
        let reason = fields.optional("reason", read::text).map(cut);
        let longest = settings.worker_wait_timeout_max;
        let delay_seconds = fields.or("delay_seconds", Duration::ZERO, read::seconds(Duration::ZERO, longest));
        Some(Self { token: token?, reason, delay_seconds: delay_seconds? })
    }
}

/// What a worker may say of its attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "it describes the statuses of a report, which are read as the run's own")]
pub enum ReportStatus {
    /// It goes on; keeps the lease.
    Running,
    /// It paused for a person.
    Waiting,
    /// It ended well.
    Succeeded,
    /// It ended with some of its steps failed.
    PartiallySucceeded,
    /// It failed.
    Failed,
    /// A person refused it.
    Rejected,
    /// It was stopped.
    Aborted,
}

/// Progress, a pause or an end. No text in it is ever a reason to refuse it: what cannot be kept becomes U+FFFD.
#[derive(Debug, Clone, PartialEq, utoipa::ToSchema)]
pub struct ReportRequest {
    /// The token the task came with.
    #[schema(value_type = String)]
    pub token: Token,
    /// How it stands.
    #[schema(value_type = ReportStatus)]
    pub status: Status,
    /// What went wrong, for people; cut at 16 KiB. What is no string is kept as its JSON.
    #[schema(nullable = false)]
    pub error: Option<String>,
    /// What it leaves: any JSON, kept as sent. Over 256 KiB, or nested 120 levels deep or more, it is dropped and the
    /// run says `output_dropped`.
    #[schema(value_type = serde_json::Value, required = false)]
    pub output: Option<String>,
    /// How far it is: any JSON, kept as sent; within the same bounds, beyond which the progress before stays.
    #[schema(value_type = serde_json::Value, required = false)]
    pub progress: Option<String>,
    /// Where its log is.
    #[schema(nullable = false)]
    pub log_url: Option<String>,
    /// Whether another attempt might do better. `false` ends a run that would be tried again.
    #[schema(nullable = false)]
    pub retryable: Option<bool>,
}

impl FromFields for ReportRequest {
    const READING: Reading = Reading::Mending;
    // What is dropped of it must have been read first: a result is not refused because its output is large.
    const MAX_BYTES: usize = 16 * 1024 * 1024;

    fn from_fields(fields: &mut Fields<'_>, _: &Settings) -> Option<Self> {
        let token = fields.required("token", read::token);
        let status = fields.required("status", status);
        let error = fields.optional("error", |json| Ok(said(json)));
        let output = fields.optional("output", read::any);
        let progress = fields.optional("progress", read::any);
        let log_url = fields.optional("log_url", read::text);
        let retryable = fields.optional("retryable", read::boolean);
        Some(Self { token: token?, status: status?, error, output, progress, log_url, retryable })
    }
}

impl ReportRequest {
    /// Who says it, and what of it is kept.
    pub fn into_report(self) -> (Token, Report) {
        let fits = |text: &String| {
            text.len() <= MAX_OUTPUT_BYTES && json::depth(text).is_ok_and(|depth| depth < json::MAX_DEPTH)
        };
        let output_dropped = self.output.as_ref().is_some_and(|output| !fits(output));
        let left = Left { output: self.output.filter(fits), progress: self.progress.filter(fits) };
        // Half an address leads nowhere: one that is too long to keep is not kept at all.
        let log_url = self.log_url.filter(|url| url.len() <= MAX_TEXT_BYTES);
        let report = Report {
            status: self.status,
            error: self.error.map(cut),
            left,
            log_url,
            output_dropped,
            retryable: self.retryable,
        };
        (self.token, report)
    }
}

fn status(json: &str) -> Result<Status, Faults> {
    match Status::from_word(&read::text(json)?) {
        Some(status) if status != Status::Queued => Ok(status),
        _ => {
            let words: Vec<&str> = Status::ALL.iter().filter(|s| **s != Status::Queued).map(|s| s.as_str()).collect();
            Err(format!("must be one of {}", words.join(", ")).into())
        }
    }
}

/// What a worker says went wrong: a text, or whatever else it sends in its place, as JSON.
fn said(json: &str) -> String {
    read::text(json).unwrap_or_else(|_| json.to_owned())
}

/// The text up to the last character that ends within what is kept.
fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
    text
}

/// Where a run stands after a release.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Standing {
    /// The DAG's name.
    pub dag_name: String,
    /// The run's id within the DAG.
    pub run_id: String,
    /// Where the run stands.
    pub status: Status,
    /// The run's version.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub version: i64,
}

impl From<report::Standing> for Standing {
    fn from(standing: report::Standing) -> Self {
        let report::Standing { key, status, version, cancel_requested: _ } = standing;
        Self { dag_name: key.dag_name.into(), run_id: key.run_id.into(), status, version }
    }
}

/// Where a run stands after a report, and whether its worker is to stop.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ReportAnswer {
    /// The DAG's name.
    pub dag_name: String,
    /// The run's id within the DAG.
    pub run_id: String,
    /// Where the run stands.
    pub status: Status,
    /// The run's version.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub version: i64,
    /// Whether to stop, and to report it as `aborted`; false once the attempt has ended.
    pub cancel_requested: bool,
}

impl From<report::Standing> for ReportAnswer {
    fn from(standing: report::Standing) -> Self {
        let report::Standing { key, status, version, cancel_requested } = standing;
        Self { dag_name: key.dag_name.into(), run_id: key.run_id.into(), status, version, cancel_requested }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Flags};

    fn read_from(body: &[u8]) -> Result<(Token, Report), Faults> {
        let settings = Config::load(None, std::iter::empty(), &Flags::default()).unwrap().coordinator;
        let text = json::mend(body);
        let mut fields = Fields::of_object(&text)?;
        let request = ReportRequest::from_fields(&mut fields, &settings);
        fields.end(request, ReportRequest::READING).map(ReportRequest::into_report)
    }

    fn report(rest: &str) -> Report {
        read_from(format!(r#"{{"token": "t", "status": "failed", {rest}}}"#).as_bytes()).expect(rest).1
    }

    #[test]
    fn every_status_but_queued_may_be_reported() {
        for status in Status::ALL {
            let read = read_from(format!(r#"{{"token": "t", "status": "{status}"}}"#).as_bytes());
            assert_eq!(read.is_ok(), *status != Status::Queued, "{status}");
        }
    }

    #[test]
    fn no_text_is_a_reason_to_refuse() {
        let report =
            report(r#""error": "a\u0000\ud800", "output": {"x": "\udfff"}, "log_url": "\u0000", "new": "\ud800""#);
        assert_eq!(report.error.as_deref(), Some("a\u{fffd}\u{fffd}"));
        assert_eq!(report.left.output.as_deref(), Some("{\"x\": \"\u{fffd}\"}"));
        assert_eq!(report.log_url.as_deref(), Some("\u{fffd}"));
        assert!(!report.output_dropped);
        let raw = read_from(b"{\"token\": \"t\", \"status\": \"failed\", \"error\": \"\xff\n\0\"}").unwrap().1;
        assert_eq!(raw.error.as_deref(), Some("\u{fffd}\n\u{fffd}"));
    }

    #[test]
    fn an_error_that_is_no_text_is_kept_as_it_came() {
        assert_eq!(report(r#""error": {"code": 3}"#).error.as_deref(), Some(r#"{"code": 3}"#));
        assert_eq!(report(r#""error": 3"#).error.as_deref(), Some("3"));
    }

    #[test]
    fn of_two_equal_keys_the_last_counts() {
        assert_eq!(report(r#""error": "a", "error": "b""#).error.as_deref(), Some("b"));
        assert_eq!(report(r#""error": "a", "error": null"#).error, None);
    }

    #[test]
    fn an_error_is_cut_between_two_characters() {
        assert_eq!(report(&format!(r#""error": "{}""#, "x".repeat(20_000))).error.unwrap().len(), 16_384);
        let cut = report(&format!(r#""error": "x{}""#, "ä".repeat(10_000))).error.unwrap();
        assert_eq!((cut.len(), cut.ends_with('ä')), (16_383, true));
    }

    #[test]
    fn an_output_that_is_too_much_is_dropped() {
        let text = |length: usize| format!("\"{}\"", "x".repeat(length - 2));
        let kept = report(&format!(r#""output": {}"#, text(MAX_OUTPUT_BYTES)));
        assert_eq!((kept.left.output.is_some(), kept.output_dropped), (true, false));
        let dropped = report(&format!(r#""output": {0}, "progress": {0}"#, text(MAX_OUTPUT_BYTES + 1)));
        assert_eq!((dropped.left, dropped.output_dropped), (Left::default(), true));
        let deep = |levels: usize| format!(r#""output": {}{}"#, "[".repeat(levels), "]".repeat(levels));
        assert!(!report(&deep(119)).output_dropped);
        assert!(report(&deep(120)).output_dropped);
        assert!(report(&deep(100_000)).output_dropped);
    }

    #[test]
    fn without_a_token_or_a_status_it_is_no_report() {
        let pointers: Vec<String> = read_from(br#"{"status": "done", "retryable": 1}"#)
            .expect_err("is refused")
            .0
            .into_iter()
            .map(|e| e.pointer)
            .collect();
        assert_eq!(pointers, ["/token", "/status", "/retryable"]);
    }
}
