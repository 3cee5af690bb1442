//! A thin typed client of the public HTTP contract.
//!
//! One method is one operation and one request: nothing is repeated in here. A caller that gets a [`Problem`] looks at its
//! [`Action`] and decides.

mod batch;
mod feed;
mod problem;
mod runs;
mod secret;
mod task;
mod workers;

use std::{collections::BTreeMap, time::Duration};

use reqwest::{Method, Url, header};
use serde::de::DeserializeOwned;

use batch::BatchAnswer;
pub use feed::EventStream;
pub use problem::{Action, FieldError, Problem};
pub use runs::{
    AttemptRef, Condition, DispatchRequest, Event, EventData, EventPage, Failure, Hold, Run, RunPage, RunRef, WaitFor,
};
pub use secret::Secret;
pub use task::Task;
pub use workers::{
    AckAnswer, HeartbeatAnswer, NamedAttempt, PollAnswer, RegisterAnswer, Registration, RenewAnswer, Report, Standing,
    Worker, WorkerPage,
};

/// Labels of a worker or of a run, or the equalities of a selector.
pub type Labels = BTreeMap<String, String>;

/// How long an answer may take beyond the time that the request itself asks the service to wait.
const PATIENCE: Duration = Duration::from_secs(15);

/// The longest time that a number on the wire can mean: beyond it, sums with the clock would overflow.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// A number of seconds from an answer. What is negative or no number is no time at all.
#[must_use]
pub fn seconds(seconds: f64) -> Duration {
    if seconds.is_nan() { Duration::ZERO } else { Duration::from_secs_f64(seconds.clamp(0.0, LONGEST.as_secs_f64())) }
}

/// A client of one service, with the credentials of one caller. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<Secret>,
}

impl Client {
    /// A client of the service at `base`, for example `http://127.0.0.1:8080`. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// A [`Problem`] with [`Action::GiveUp`] if `base` is not an HTTP URL or TLS cannot be set up.
    pub fn new(base: &str, token: Option<Secret>) -> Result<Self, Problem> {
        let unusable = |detail: String| Problem::local("unusable-url", Action::GiveUp, detail);
        let base = Url::parse(base).map_err(|error| unusable(format!("{base}: {error}")))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(unusable(format!("{base}: only http and https are spoken")));
        }
        // A second installation is refused and harmless: whoever came first chose for the whole process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder().connect_timeout(Duration::from_secs(5));
        if matches!(base.host_str(), Some("127.0.0.1" | "localhost" | "[::1]")) {
            // A proxy of the environment stands elsewhere and would look for the service on its own loopback.
            http = http.no_proxy();
        }
        let http = http.build().map_err(|error| unusable(problem::chain(&error)))?;
        Ok(Self { http, base, token })
    }

    fn call(&self, method: Method, path: &[&str]) -> reqwest::RequestBuilder {
        self.query(method, path, &[])
    }

    fn query(&self, method: Method, path: &[&str], query: &[(&str, &str)]) -> reqwest::RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            // Pushing, not joining: a DAG's name may hold a slash or a blank, and each is encoded here.
            segments.pop_if_empty().push("v1").extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let call = self.http.request(method, url).header(header::ACCEPT, "application/json");
        match &self.token {
            Some(token) => call.bearer_auth(token.reveal()),
            None => call,
        }
    }
}

/// Sends one request and reads its whole answer. Whatever breaks on the way is a problem with [`Action::Retry`].
async fn answer<A: DeserializeOwned>(call: reqwest::RequestBuilder, patience: Duration) -> Result<A, Problem> {
    let response = call.timeout(patience).send().await.map_err(|error| Problem::transport(&error))?;
    let status = response.status();
    let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let body = response.bytes().await.map_err(|error| Problem::transport(&error))?;
    if status.is_success() {
        serde_json::from_slice(&body).map_err(|error| {
            let detail = format!("an answer with status {status} could not be read: {error}");
            Problem::local("unreadable-answer", Action::GiveUp, detail)
        })
    } else {
        Err(Problem::answered(status.as_u16(), &body, retry_after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(client: &Client, path: &[&str], query: &[(&str, &str)]) -> String {
        client.query(Method::GET, path, query).build().expect("the parts are a request").url().to_string()
    }

    #[test]
    fn names_are_encoded_and_a_base_path_is_kept() {
        let client = Client::new("http://127.0.0.1:8080/fleet/", None).expect("a URL");
        assert_eq!(
            url(&client, &["dags", "a/b c", "runs", "r+1"], &[("label", "zone=b")]),
            "http://127.0.0.1:8080/fleet/v1/dags/a%2Fb%20c/runs/r+1?label=zone%3Db"
        );
        let client = Client::new("http://127.0.0.1:8080", None).expect("a URL");
        assert_eq!(url(&client, &["runs"], &[]), "http://127.0.0.1:8080/v1/runs");
    }

    #[test]
    fn seconds_are_always_a_time() {
        assert_eq!(seconds(1.5), Duration::from_millis(1500));
        assert_eq!([seconds(-1.0), seconds(f64::NAN)], [Duration::ZERO; 2]);
        assert_eq!(seconds(f64::INFINITY), LONGEST);
    }

    #[test]
    fn other_schemes_are_refused() {
        let problem = Client::new("file:///etc/passwd", None).expect_err("not HTTP");
        assert_eq!(problem.action, Action::GiveUp);
    }

    #[test]
    fn the_token_is_not_in_debug_output() {
        let client = Client::new("http://localhost:1", Some(Secret::new("swordfish"))).expect("a URL");
        assert!(!format!("{client:?}").contains("swordfish"));
    }
}
