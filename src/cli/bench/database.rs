//! What the bench does with the database behind the service's back: look, by `psql`, and measure what a commit takes
//! there, by `pgbench`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use reqwest::Url;
use tokio::process::Command;

use super::figure::Times;
use super::{Base, BenchError};
use crate::ids::new_uuid;

/// What `pgbench` runs: one row, one commit.
const INSERT: &str = "INSERT INTO roadstead_bench.row (text) VALUES (repeat('x', 100));";

/// Every statement of the bench itself opens with this, so that it is not counted.
const OURS: &str = "/* roadstead bench */";

/// The database of the service that is measured.
#[derive(Debug)]
pub(super) struct Database {
    /// Without the password, which goes into the environment: command lines are visible to the whole machine.
    url: String,
    password: Option<String>,
    psql: Option<PathBuf>,
    pgbench: Option<PathBuf>,
}

/// Statements that the database has run for the service so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count {
    /// How many.
    pub(super) number: f64,
    /// Whether they are transactions, for want of `pg_stat_statements`.
    pub(super) are_transactions: bool,
}

impl Database {
    pub(super) fn new(base: Base) -> Self {
        let Base { url, psql, pgbench } = base;
        let (url, password) = without_password(url);
        Self { url, password, psql, pgbench }
    }

    /// Whether a commit can be measured beside the service's figures.
    pub(super) fn has_pgbench(&self) -> bool {
        self.pgbench.is_some() && self.psql.is_some()
    }

    /// Makes the table that `pgbench` writes to, and turns the count of statements on where that is allowed.
    ///
    /// # Errors
    ///
    /// When the table cannot be made.
    pub(super) async fn prepare(&self) -> Result<(), BenchError> {
        // Only where its library was loaded at the server's start, and only by whom it lets.
        let _ = self.ask("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await;
        let table = "CREATE TABLE roadstead_bench.row (id bigserial PRIMARY KEY, text text NOT NULL)";
        self.ask(&format!("DROP SCHEMA IF EXISTS roadstead_bench CASCADE; CREATE SCHEMA roadstead_bench; {table}"))
            .await
            .map(drop)
    }

    /// Takes the table away again.
    ///
    /// # Errors
    ///
    /// When it cannot be.
    pub(super) async fn tidy(&self) -> Result<(), BenchError> {
        self.ask("DROP SCHEMA IF EXISTS roadstead_bench CASCADE").await.map(drop)
    }

    /// The version of the server.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub(super) async fn version(&self) -> Result<Option<String>, BenchError> {
        let lines = self.ask("SHOW server_version").await?;
        Ok(lines.and_then(|lines| lines.into_iter().next()))
    }

    /// What so many commits of one row took, one after the other on one connection. `None` without `pgbench`.
    ///
    /// # Errors
    ///
    /// When `pgbench` fails.
    pub(super) async fn commits(&self, number: usize) -> Result<Option<Times>, BenchError> {
        let (Some(pgbench), true) = (&self.pgbench, self.has_pgbench()) else { return Ok(None) };
        let folder = std::env::temp_dir().join(format!("roadstead-pgbench-{}", new_uuid()));
        std::fs::create_dir(&folder)?;
        let measured = self.commits_in(pgbench, number, &folder).await;
        std::fs::remove_dir_all(&folder)?;
        measured.map(Some)
    }

    async fn commits_in(&self, pgbench: &Path, number: usize, folder: &Path) -> Result<Times, BenchError> {
        let script = folder.join("insert.sql");
        std::fs::write(&script, INSERT)?;
        let number = number.to_string();
        let mut arguments =
            ["--no-vacuum", "--client=1", "--log", "--log-prefix=log", "--protocol=prepared"].map(OsStr::new).to_vec();
        arguments.extend([OsStr::new("--transactions"), number.as_ref(), OsStr::new("--file"), script.as_ref()]);
        arguments.push(self.url.as_ref());
        self.program(pgbench, &arguments, Some(folder)).await?;
        let mut times = Times::default();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path != script {
                std::fs::read_to_string(path)?.lines().filter_map(latency).for_each(|time| times.push(time));
            }
        }
        Ok(times)
    }

    /// How many statements, or else transactions, the service has run so far. `None` without `psql`.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub(super) async fn count(&self) -> Result<Option<Count>, BenchError> {
        let statements = "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements s
            JOIN pg_database d ON d.oid = s.dbid
            WHERE d.datname = current_database() AND s.query NOT LIKE '%roadstead bench%'";
        let transactions = "SELECT xact_commit + xact_rollback FROM pg_stat_database
            WHERE datname = current_database()";
        let number = |lines: Option<Vec<String>>| lines?.first()?.parse().ok();
        if let Ok(lines) = self.ask(statements).await {
            return Ok(number(lines).map(|number| Count { number, are_transactions: false }));
        }
        Ok(number(self.ask(transactions).await?).map(|number| Count { number, are_transactions: true }))
    }

    /// The transactions of clients that are open at this moment, each with when it began. `None` without `psql`.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub(super) async fn open_transactions(&self) -> Result<Option<Vec<String>>, BenchError> {
        self.ask(
            "SELECT pid || ' since ' || xact_start FROM pg_stat_activity WHERE datname = current_database()
             AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND xact_start IS NOT NULL",
        )
        .await
    }

    /// A process of the server that lives as long as it does, if it is one of this machine.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub(super) async fn pid(&self) -> Result<Option<u32>, BenchError> {
        let lines = self.ask("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'").await?;
        let pid = lines.and_then(|lines| lines.first()?.parse::<u32>().ok());
        let is_ours = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("postgres"))
        };
        Ok(pid.filter(is_ours))
    }

    /// The lines that a statement answers. `None` without `psql`.
    async fn ask(&self, statement: &str) -> Result<Option<Vec<String>>, BenchError> {
        let Some(psql) = &self.psql else { return Ok(None) };
        let statement = format!("{OURS} {statement}");
        let arguments = ["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", &statement, &self.url].map(OsStr::new);
        let said = self.program(psql, &arguments, None).await?;
        Ok(Some(said.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()))
    }

    async fn program(&self, program: &Path, arguments: &[&OsStr], at: Option<&Path>) -> Result<String, BenchError> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        command.envs(self.password.iter().map(|password| ("PGPASSWORD", password)));
        command.envs(at.map(|folder| ("PWD", folder)));
        if let Some(folder) = at {
            command.current_dir(folder);
        }
        let failed = |why: String| BenchError::Program { program: program.display().to_string(), why };
        let output = command.output().await.map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The third column of a line of `pgbench`'s log, which are microseconds.
fn latency(line: &str) -> Option<Duration> {
    line.split(' ').nth(2)?.parse().ok().map(Duration::from_micros)
}

fn without_password(url: String) -> (String, Option<String>) {
    let Ok(mut parsed) = Url::parse(&url) else { return (url, None) };
    let Some(password) = parsed.password() else { return (url, None) };
    let password = percent_encoding::percent_decode_str(password).decode_utf8_lossy().into_owned();
    match parsed.set_password(None) {
        Ok(()) => (parsed.into(), Some(password)),
        Err(()) => (url, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_read_from_the_log() {
        assert_eq!(latency("0 1 153 0 1780000000 123456"), Some(Duration::from_micros(153)));
        assert_eq!(latency("0 1 skipped 0 1780000000 123456"), None);
    }

    #[test]
    fn a_password_is_in_no_command_line() {
        let (url, password) = without_password("postgres://me:s%40cret@db.example/x?sslmode=require".to_owned());
        assert_eq!((url.as_str(), password.as_deref()), ("postgres://me@db.example/x?sslmode=require", Some("s@cret")));
        let (url, password) = without_password("postgres://me@localhost:5432/x?host=%2Fsrv%2Frun".to_owned());
        assert_eq!((url.as_str(), password), ("postgres://me@localhost:5432/x?host=%2Fsrv%2Frun", None));
    }
}
