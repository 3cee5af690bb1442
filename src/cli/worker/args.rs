//! What the worker is told on its command line.

use std::{env, ffi::OsString, fs, process, sync::OnceLock, time::Duration};

use clap::Args;

use super::session::Settings;
use crate::{cli::client::Secret, duration};

/// Where the service is, unless said otherwise.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// The environment's name for the service's URL.
const URL_VARIABLE: &str = "ROADSTEAD_URL";

/// The environment's name for the bearer token. There is no flag for it: command lines are visible to the whole machine.
pub(super) const TOKEN_VARIABLE: &str = "ROADSTEAD_TOKEN";

/// Take runs from the service and run a command for each
///
/// The command gets the task as JSON on its standard input, and in its environment `ROADSTEAD_DAG_NAME`,
/// `ROADSTEAD_RUN_ID`, `ROADSTEAD_ATTEMPT_ID`, `ROADSTEAD_ATTEMPT_NUMBER`, `ROADSTEAD_OPERATION`, `ROADSTEAD_FENCE` and
/// `ROADSTEAD_WORKER_ID`. Exit status 0 is success. `ROADSTEAD_TOKEN`, if set, is the bearer token of the worker itself.
#[derive(Args, Clone, Debug)]
pub struct WorkerArgs {
    /// The service's base URL
    #[arg(long, help = "The service's base URL [env: ROADSTEAD_URL] [default: http://127.0.0.1:8080]")]
    pub url: Option<String>,

    /// A label that this worker offers; may be given many times
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,

    /// How many tasks to run at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub slots: u16,

    /// Exit after one task: with 0 if it succeeded, with 1 if not
    #[arg(long)]
    pub once: bool,

    /// The worker's name [default: the host's name and the process id]
    #[arg(long, value_name = "ID")]
    pub worker_id: Option<String>,

    /// How long one poll may wait at the service
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = duration::parse)]
    pub max_wait: Duration,

    /// How long a command that was told to stop has before it is killed
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub kill_after: Duration,

    /// The command to run for each task, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl WorkerArgs {
    /// The service's URL: the flag, else the environment, else this machine.
    pub(super) fn url(&self) -> String {
        self.url.clone().or_else(|| variable(URL_VARIABLE)).unwrap_or_else(|| DEFAULT_URL.to_owned())
    }
}

impl From<WorkerArgs> for Settings {
    fn from(args: WorkerArgs) -> Self {
        Self {
            worker_id: args.worker_id.unwrap_or_else(default_worker_id),
            labels: args.labels.into_iter().collect(),
            // With one task to do, a second slot would only take work away from others.
            slots: if args.once { 1 } else { usize::from(args.slots) },
            once: args.once,
            max_wait: args.max_wait,
            kill_after: args.kill_after,
            command: args.command,
            verdict: OnceLock::new(),
        }
    }
}

/// The bearer token of the environment.
pub(in crate::cli) fn token() -> Option<Secret> {
    variable(TOKEN_VARIABLE).map(Secret::new)
}

/// A variable of the environment; an empty one counts as unset.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// One `KEY=VALUE`. Which keys and values are allowed is the service's to say.
fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a label is written KEY=VALUE".to_owned()),
    }
}

/// The host's name and the process id: unique on a host, and the same again for a container that is restarted in place,
/// so that the new life ends the sessions of the old one.
fn default_worker_id() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| variable("HOSTNAME"));
    worker_id(host.as_deref().unwrap_or("worker"), process::id())
}

/// A valid worker's name from a host's.
fn worker_id(host: &str, process_id: u32) -> String {
    let host: String =
        host.trim().chars().take(200).filter(|c| c.is_ascii_alphanumeric() || ".-_".contains(*c)).collect();
    format!("{}-{process_id}", if host.is_empty() { "worker" } else { &host })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        worker: WorkerArgs,
    }

    fn parse(line: &[&str]) -> Result<WorkerArgs, clap::Error> {
        Line::try_parse_from([&["worker"], line].concat()).map(|line| line.worker)
    }

    #[test]
    fn a_whole_command_line() {
        let args = parse(&[
            "--url",
            "http://h:1",
            "--label",
            "zone=b",
            "--label",
            "note=a=b",
            "--max-wait",
            "5s",
            "--",
            "sh",
            "-c",
            "x",
        ])
        .expect("a valid line");
        assert_eq!(args.url(), "http://h:1");
        assert_eq!(args.max_wait, Duration::from_secs(5));
        assert_eq!(args.kill_after, Duration::from_secs(10));
        assert_eq!(args.command, ["sh", "-c", "x"]);
        let settings = Settings::from(args);
        assert_eq!(settings.labels["zone"], "b");
        assert_eq!(settings.labels["note"], "a=b");
        assert_eq!(settings.slots, 4);
    }

    #[test]
    fn once_takes_one_slot() {
        let args = parse(&["--once", "--slots", "8", "--", "true"]).expect("a valid line");
        assert_eq!(Settings::from(args).slots, 1);
    }

    #[test]
    fn refused_lines() {
        for line in [
            &["--"][..],
            &["--label", "zone", "--", "true"],
            &["--label", "=b", "--", "true"],
            &["--slots", "0", "--", "true"],
        ] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn an_empty_value_is_a_value() {
        assert_eq!(label("zone="), Ok(("zone".to_owned(), String::new())));
    }

    #[test]
    fn names_made_of_host_names() {
        assert_eq!(worker_id("node-7.example\n", 42), "node-7.example-42");
        assert_eq!(worker_id("é\n", 42), "worker-42");
    }
}
