//! The service measured, as its clients see it: `roadstead bench`.
//!
//! The bench is an ordinary client of a service, which it starts as a process of its own or finds at a URL. It goes past
//! HTTP only for what it reads about that process and the database. One file is one scenario; each gives figures, some
//! with a bound that they must keep. `docs/performance.md` says what they mean.

mod child;
mod cpu;
mod database;
mod figure;
mod ground;
mod hands;
mod pace;
mod report;
mod scenarios;

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;

use self::child::Child;
use self::database::Database;
use self::ground::Ground;
use self::report::Report;
use self::scenarios::{ALL, Scenario};
use super::client::{Client, Problem};
use super::worker::token;
use crate::console;

/// Measure a service and print what was found
///
/// It starts a service of its own, on an embedded PostgreSQL in a temporary folder unless `--database-url` names
/// another, or loads the one at `--url`. It dispatches runs, registers workers and, with `--database-url`, makes a table
/// for pgbench: never point it at what others use. `ROADSTEAD_TOKEN`, if set, is the bearer token for `--url`.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// What to measure; by default all but `fleet`, which takes a quarter of an hour
    #[arg(value_name = "SCENARIO", value_parser = ALL.map(|scenario| scenario.name))]
    pub scenarios: Vec<String>,

    /// How often each is run; the median is given
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,

    /// Shorter and smaller: shows that it works, and little else
    #[arg(long)]
    pub quick: bool,

    /// Print JSON in place of the table
    #[arg(long)]
    pub json: bool,

    /// Exit with 1 when a figure is not what it must be
    #[arg(long)]
    pub check: bool,

    /// Load the service at this URL, and start none
    #[arg(long, conflicts_with_all = ["database_url", "pg_bin_dir"])]
    pub url: Option<String>,

    /// The database of the service that is started
    #[arg(long)]
    pub database_url: Option<String>,

    /// The folder with the programs of PostgreSQL
    #[arg(long, value_name = "FOLDER")]
    pub pg_bin_dir: Option<PathBuf>,
}

/// Why nothing was measured, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The service refused a request, or could not be reached.
    #[error("the service answered otherwise: {0}")]
    Problem(#[from] Problem),
    /// The service did not start.
    #[error("the service did not start; its last words:\n{0}")]
    NotStarted(String),
    /// A program of `PostgreSQL` failed.
    #[error("{program}: {why}")]
    Program {
        /// Which.
        program: String,
        /// What it said.
        why: String,
    },
    /// Something that was waited for did not come.
    #[error("{0}")]
    Missing(String),
    /// A process or file could not be used.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The database of the service to be started, and the programs with which to look into it.
#[derive(Debug)]
pub struct Base {
    /// Its URL.
    pub url: String,
    /// `psql`, if it was found.
    pub psql: Option<PathBuf>,
    /// `pgbench`, if it was found.
    pub pgbench: Option<PathBuf>,
}

/// Runs the bench, with a service of `exe` on `base`, or on the one that the arguments name when there is no base.
///
/// Prints the result. Answers whether every figure was what it must be. Dropping this kills the service it started.
///
/// # Errors
///
/// When something could not be measured at all.
pub async fn run(args: &BenchArgs, exe: &Path, base: Option<Base>) -> Result<bool, BenchError> {
    let (child, database, client) = match base {
        Some(base) => {
            let child = Child::start(exe, &base.url).await?;
            let client = Client::new(child.url(), None)?;
            let database = Database::new(base);
            database.prepare().await?;
            (Some(child), Some(database), client)
        }
        None => (None, None, Client::new(args.url.as_deref().unwrap_or_default(), token())?),
    };
    let mut report = Report::new(args, database.as_ref()).await?;
    let url = child.as_ref().map_or_else(|| args.url.clone().unwrap_or_default(), |child| child.url().to_owned());
    let ground = Ground::new(client, url, child.as_ref().and_then(Child::pid), database, args.quick);
    for scenario in chosen(&args.scenarios) {
        for round in 1..=args.rounds {
            console::say(format!("roadstead: {}, round {round} of {}", scenario.name, args.rounds));
            let figures = (scenario.run)(&ground).await?;
            report.add(scenario, figures);
        }
    }
    if let Some(database) = &ground.database {
        database.tidy().await?;
    }
    report.print(args.json)?;
    if let Some(child) = child {
        child.stop().await;
    }
    Ok(report.is_met())
}

fn chosen(names: &[String]) -> impl Iterator<Item = &'static Scenario> {
    ALL.into_iter().filter(move |scenario| match names {
        [] => !scenario.long,
        names => names.iter().any(|name| name == scenario.name),
    })
}
