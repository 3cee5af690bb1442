//! Where settings come from: merges file, environment and flags, remembering the origin of each value.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::{ConfigError, Flags, mask};
use crate::duration;

const PREFIX: &str = "ROADSTEAD_";

/// Variables with our prefix that are no settings: the command line's own, and what a task is told by the worker that
/// runs it, in whose environment another of our programs may be started.
const NOT_SETTINGS: [&str; 10] = [
    "ROADSTEAD_TOKEN",
    "ROADSTEAD_URL",
    "ROADSTEAD_LOG",
    "ROADSTEAD_DAG_NAME",
    "ROADSTEAD_RUN_ID",
    "ROADSTEAD_ATTEMPT_ID",
    "ROADSTEAD_ATTEMPT_NUMBER",
    "ROADSTEAD_OPERATION",
    "ROADSTEAD_FENCE",
    "ROADSTEAD_WORKER_ID",
];

/// Variables without our prefix that are settings, weakest first. All yield to the name with the prefix.
const OTHER_NAMES: [(&str, &str); 3] = [
    ("DAGU_COORDINATOR_WORKER_WAIT_TIMEOUT", "coordinator.worker_wait_timeout"),
    ("COORDINATOR_WORKER_WAIT_TIMEOUT", "coordinator.worker_wait_timeout"),
    ("DATABASE_URL", "database.url"),
];

/// What was read for each key, until a setting takes it; and the problems met so far.
#[derive(Debug, Default)]
pub(super) struct Given {
    values: BTreeMap<String, Read>,
    refused: BTreeSet<String>,
    problems: Vec<String>,
}

#[derive(Debug)]
struct Read {
    value: Value,
    origin: String,
}

/// Merges all sources, strongest last.
///
/// # Errors
///
/// When the file cannot be read or is not TOML.
pub(super) fn merge(file: Option<&Path>, env: &[(String, String)], flags: &Flags) -> Result<Given, ConfigError> {
    let mut merged = Figment::new();
    if let Some(path) = file {
        merged = merged.merge(Source::of_file(path)?);
    }
    for (name, key) in OTHER_NAMES {
        // The last of a name counts, as in a shell.
        if let Some((_, text)) = env.iter().rev().find(|(found, _)| found == name) {
            merged = merged.merge(Source::of_value(name, key, text));
        }
    }
    for (name, text) in env {
        if let Some(key) = name.strip_prefix(PREFIX).filter(|_| is_setting(name)) {
            merged = merged.merge(Source::of_value(name, &key.to_lowercase().replace("__", "."), text));
        }
    }
    for (name, key, text) in [
        ("--listen", "http.listen", &flags.listen),
        ("--database-url", "database.url", &flags.database_url),
        ("--data-dir", "database.data_dir", &flags.data_dir),
        ("--pg-bin-dir", "database.pg_bin_dir", &flags.pg_bin_dir),
        ("--worker-wait-timeout", "coordinator.worker_wait_timeout", &flags.worker_wait_timeout),
    ] {
        if let Some(text) = text {
            merged = merged.merge(Source::of_value(name, key, text));
        }
    }
    if flags.insecure {
        merged = merged.merge(Source::of_value("--insecure", "http.insecure", "true"));
    }
    let mut given = Given::default();
    let mut profiles = merged.data().expect("sources that are already parsed merge");
    given.flatten("", profiles.remove(&Profile::Default).unwrap_or_default(), &merged);
    Ok(given)
}

/// Kubernetes tells every pod of a service called `roadstead…` its address in variables of that prefix.
fn is_setting(name: &str) -> bool {
    let of_kubernetes = !name.contains("__")
        && (name.ends_with("_SERVICE_HOST")
            || name.contains("_SERVICE_PORT")
            || name.ends_with("_PORT")
            || name.contains("_PORT_"));
    !of_kubernetes && !NOT_SETTINGS.contains(&name)
}

impl Given {
    fn flatten(&mut self, parent: &str, dict: Dict, merged: &Figment) {
        for (name, value) in dict {
            let key = if parent.is_empty() { name } else { format!("{parent}.{name}") };
            match value {
                Value::Dict(_, inner) => self.flatten(&key, inner, merged),
                value => {
                    let origin = merged.get_metadata(value.tag());
                    let origin = origin.map_or_else(String::new, |found| found.name.to_string());
                    self.values.insert(key, Read { value, origin });
                }
            }
        }
    }

    /// The setting of that key, or its default when no source has it. A value that `parse` refuses becomes a problem.
    pub(super) fn take<T>(&mut self, key: &str, default: T, parse: impl FnOnce(&str) -> Result<T, String>) -> T {
        let Some((value, origin)) = self.take_value(key) else {
            return default;
        };
        let Some(text) = scalar(&value) else {
            self.refuse(key, format!("{key} (from {origin}) is a list; write one value"));
            return default;
        };
        parse(&text).unwrap_or_else(|reason| {
            let shown = if key == "database.url" { mask(&text) } else { text.clone() };
            let mut shown: String = shown.escape_debug().take(101).collect();
            if shown.chars().count() > 100 {
                shown.pop();
                shown.push('…');
            }
            self.refuse(key, format!("{key} (from {origin}) was read as `{shown}`, which {reason}"));
            default
        })
    }

    /// What was read for a key, whatever it is, and where.
    pub(super) fn take_value(&mut self, key: &str) -> Option<(Value, String)> {
        self.values.remove(key).map(|read| (read.value, read.origin))
    }

    /// Whether a problem was noted with this key.
    pub(super) fn was_refused(&self, key: &str) -> bool {
        self.refused.contains(key)
    }

    /// Notes a problem unless `holds`. Says nothing when one of the two was refused by itself: then its default stands
    /// there, which nobody wrote.
    pub(super) fn require(&mut self, holds: bool, one: (&str, Duration), rule: &str, other: (&str, Duration)) {
        if !holds && !self.refused.contains(one.0) && !self.refused.contains(other.0) {
            let (read, bound) = (duration::text(one.1), duration::text(other.1));
            self.problems.push(format!("{} is {read} and {rule} {}, which is {bound}", one.0, other.0));
        }
    }

    /// Notes that one setting is of no use without the other. Says nothing when the other was refused by itself.
    pub(super) fn lacks(&mut self, one: &str, other: &str) {
        if !self.refused.contains(other) {
            self.problems.push(format!("{one} is set and {other} is not; they belong together"));
        }
    }

    /// Ends the reading: what no setting took has a name that is none of ours.
    ///
    /// # Errors
    ///
    /// When there was any problem, with all of them.
    pub(super) fn finish(mut self) -> Result<(), ConfigError> {
        for (key, Read { origin, .. }) in self.values {
            self.problems.push(format!("{key} (from {origin}) is not the name of a setting"));
        }
        if self.problems.is_empty() { Ok(()) } else { Err(ConfigError::Invalid { problems: self.problems }) }
    }

    /// Notes a problem with a key.
    pub(super) fn refuse(&mut self, key: &str, problem: String) {
        self.refused.insert(key.to_owned());
        self.problems.push(problem);
    }
}

/// The text of a value as it was written, so that `0`, `"0"` and a number without a unit are all judged by one parser.
pub(super) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(_, text) => Some(text.clone()),
        Value::Bool(_, truth) => Some(truth.to_string()),
        Value::Num(_, number) => Some(match (value.to_i128(), number.to_f64()) {
            (Some(whole), _) => whole.to_string(),
            (None, Some(real)) => format!("{real:?}"),
            (None, None) => format!("{number:?}"),
        }),
        _ => None,
    }
}

/// The tables of a file.
///
/// # Errors
///
/// When it cannot be read or is not TOML. The line is named and not shown: it may hold a secret.
pub(super) fn read_toml(path: &Path) -> Result<Dict, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    Toml::from_str(&text).map_err(|error| {
        let line = error.span().and_then(|span| text.get(..span.start)).map(|before| before.matches('\n').count() + 1);
        let line = line.map_or_else(String::new, |line| format!("line {line}: "));
        ConfigError::NotToml { path: path.to_owned(), message: format!("{line}{}", error.message()) }
    })
}

/// One file, variable or flag under its own name, so that each value can say where it comes from.
struct Source {
    name: String,
    data: Dict,
}

impl Source {
    fn of_file(path: &Path) -> Result<Self, ConfigError> {
        Ok(Self { name: path.display().to_string(), data: read_toml(path)? })
    }

    fn of_value(name: &str, key: &str, text: &str) -> Self {
        let (first, rest) = key.split_once('.').unwrap_or((key, ""));
        let value = figment::util::nest(rest, Value::from(text));
        Self { name: name.to_owned(), data: Dict::from([(first.to_owned(), value)]) }
    }
}

impl Provider for Source {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.data.clone()))
    }
}
