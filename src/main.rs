//! The `roadstead` program: sub-commands, and what each needs to be built.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use roadstead::cli::{bench, demo, token, worker};
use roadstead::config::{Config, Flags};
use roadstead::embedded::{self, Embedded, Settings};
use roadstead::server::Server;
use roadstead::{console, http, telemetry};

/// A dispatch coordinator: a run waits, safely and visibly, until the right worker comes alongside.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the service; without a database configured, on an embedded server.
    Serve(Flags),
    /// Bring the database's schema up to date and exit.
    Migrate(Flags),
    /// Watch a run wait for its worker, on a database of its own that is gone afterwards.
    Demo(DemoFlags),
    /// Measure a service.
    Bench(bench::BenchArgs),
    /// Run a command once for each task that this worker is given.
    Worker(worker::WorkerArgs),
    /// Print the OpenAPI document.
    Openapi,
    /// Make tokens for the service's callers.
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Look at the configuration.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

#[derive(clap::Args)]
struct DemoFlags {
    /// Run the embedded Postgres with `postgres` and `initdb` of this folder
    #[arg(long, value_name = "FOLDER")]
    pg_bin_dir: Option<PathBuf>,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Say whether the configuration is valid.
    Check(Flags),
    /// Print the configuration in force, secrets masked.
    Print(Flags),
}

#[derive(Subcommand)]
enum TokenCommand {
    /// Print a new token, and the entry by which the configuration knows it; the token itself is kept nowhere.
    New(token::NewToken),
}

/// What ended a command: a text for people, and the exit code.
struct Failed(String, u8);

impl Failed {
    /// The error with its causes, which seldom are in its own text, and never twice.
    fn new(error: &dyn std::error::Error, code: u8) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let more = error.to_string();
            if !text.contains(&more) {
                text = format!("{text}: {more}");
            }
            cause = error.source();
        }
        Self(text, code)
    }
}

impl<E: std::error::Error> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::new(&error, 1)
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            console::say(format!("roadstead: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(async {
        match cli.command {
            Command::Serve(flags) => serve(&flags).await,
            Command::Migrate(flags) => migrate(&flags).await,
            Command::Demo(flags) => play_demo(flags).await,
            Command::Bench(args) => measure(&args).await,
            Command::Worker(args) => {
                telemetry::start(telemetry::DEFAULT);
                return worker::run(args).await;
            }
            Command::Openapi => print_document(),
            Command::Token { command: TokenCommand::New(new) } => {
                new.make().map_err(|problem| Failed(problem, 2)).and_then(|text| Ok(console::write(text)?))
            }
            Command::Config { command: ConfigCommand::Check(flags) } => {
                load(&flags).and_then(|_| Ok(console::write("valid\n")?))
            }
            Command::Config { command: ConfigCommand::Print(flags) } => {
                load(&flags).and_then(|config| Ok(console::write(config.to_toml_masked())?))
            }
        }
        .map_or_else(
            |Failed(text, code)| {
                console::say(format!("roadstead: {text}"));
                ExitCode::from(code)
            },
            |()| ExitCode::SUCCESS,
        )
    });
    // Whatever blocks, such as a look-up of names, must not hold up the exit.
    runtime.shutdown_background();
    done
}

fn print_document() -> Result<(), Failed> {
    Ok(console::write(http::openapi().to_pretty_json()? + "\n")?)
}

/// The configuration from file, environment and flags.
fn load(flags: &Flags) -> Result<Config, Failed> {
    let environment =
        std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    Config::load(flags.config.as_deref(), environment, flags).map_err(|error| Failed::new(&error, 78))
}

/// The database to use: the one configured, or an embedded one that was started for it.
async fn database(config: &Config) -> Result<(String, Option<Embedded>), Failed> {
    if let Some(url) = &config.database.url {
        return Ok((url.expose().to_owned(), None));
    }
    let mut settings = Settings::new(&config.database.data_dir);
    settings.bin_dir.clone_from(&config.database.pg_bin_dir);
    let embedded = embed(settings).await?;
    console::say(format!(
        "roadstead: embedded PostgreSQL {} in {}; set DATABASE_URL to use a server of your own in production",
        embedded.version(),
        embedded.data_dir().display(),
    ));
    Ok((embedded.url().to_owned(), Some(embedded)))
}

async fn embed(settings: Settings) -> Result<Embedded, Failed> {
    Embedded::start(settings).await.map_err(|error| Failed::new(&error, error.exit_code()))
}

/// Serves until a signal, also one that comes before the start is over; a second one ends it at once.
async fn serve(flags: &Flags) -> Result<(), Failed> {
    telemetry::start(telemetry::DEFAULT);
    let mut signals = Signals::new()?;
    let config = load(flags)?;
    Server::check_address(&config).await?;
    let (url, embedded) = tokio::select! {
        found = database(&config) => found?,
        // What was begun of an embedded Postgres is told by the kernel that we are gone.
        () = signals.next() => return Ok(()),
    };
    let (server, outcome) = tokio::select! {
        started = Server::start(&config, &url) => match started {
            Ok(server) => {
                console::say(format!("roadstead: listening on {}", server.url()));
                (Some(server), until_told(&mut signals, embedded.as_ref()).await)
            }
            Err(error) => (None, Err(error.into())),
        },
        () = signals.next() => (None, Ok(())),
    };
    let stopping = async {
        if let Some(server) = server {
            server.stop().await;
        }
        if let Some(embedded) = embedded {
            embedded.stop().await;
        }
    };
    tokio::select! {
        () = stopping => outcome,
        () = signals.next() => Err(Failed("stopped at once by a second signal".into(), 130)),
    }
}

/// Waits for a signal, or for an embedded Postgres that cannot be kept up.
async fn until_told(signals: &mut Signals, embedded: Option<&Embedded>) -> Result<(), Failed> {
    let given_up = async {
        match embedded {
            Some(embedded) => embedded.failed().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = signals.next() => Ok(()),
        error = given_up => Err(Failed::new(&*error, error.exit_code())),
    }
}

async fn migrate(flags: &Flags) -> Result<(), Failed> {
    telemetry::start(telemetry::DEFAULT);
    let config = load(flags)?;
    let (url, embedded) = database(&config).await?;
    let migrated = roadstead::server::migrate(&url).await;
    if let Some(embedded) = embedded {
        embedded.stop().await;
    }
    migrated?;
    Ok(console::write("the schema is up to date\n")?)
}

async fn play_demo(flags: DemoFlags) -> Result<(), Failed> {
    telemetry::start("warn");
    let config =
        Config::load(None, std::iter::empty(), &Flags { listen: Some("127.0.0.1:0".into()), ..Flags::default() })
            .map_err(|error| Failed::new(&error, 78))?;
    let folder = std::env::temp_dir().join(format!("roadstead-demo-{}", std::process::id()));
    let mut settings = Settings::new(&folder);
    settings.bin_dir = flags.pg_bin_dir;
    let embedded = embed(settings).await?;
    console::write(format!("embedded PostgreSQL {} in {}\n", embedded.version(), folder.display()))?;
    let played = on_a_service(&config, embedded.url()).await;
    embedded.stop().await;
    if let Err(error) = std::fs::remove_dir_all(&folder) {
        console::say(format!("roadstead: {} could not be removed: {error}", folder.display()));
    }
    played
}

async fn on_a_service(config: &Config, database_url: &str) -> Result<(), Failed> {
    let server = Server::start(config, database_url).await?;
    let url = format!("http://{}", server.address());
    console::write(format!("the service listens on {url}\n\n"))?;
    let exe = std::env::current_exe()?;
    let played = demo::play(&url, Path::new(&exe)).await;
    server.stop().await;
    Ok(played?)
}

/// Measures a service at a URL, one on a database that is there, or one on a database that is gone afterwards.
async fn measure(args: &bench::BenchArgs) -> Result<(), Failed> {
    telemetry::start("warn");
    let mut signals = Signals::new()?;
    if args.url.is_some() {
        return bench_with(args, None, &mut signals).await;
    }
    if let Some(url) = &args.database_url {
        return bench_with(args, Some(base(url, args.pg_bin_dir.as_deref())), &mut signals).await;
    }
    let folder = std::env::temp_dir().join(format!("roadstead-bench-{}", std::process::id()));
    let done = match embed_for_bench(&folder, args.pg_bin_dir.as_ref()).await {
        Ok(embedded) => {
            let done = bench_with(args, Some(base(embedded.url(), args.pg_bin_dir.as_deref())), &mut signals).await;
            embedded.stop().await;
            done
        }
        Err(failed) => Err(failed),
    };
    if let Err(error) = std::fs::remove_dir_all(&folder) {
        console::say(format!("roadstead: {} could not be removed: {error}", folder.display()));
    }
    done
}

async fn bench_with(args: &bench::BenchArgs, base: Option<bench::Base>, signals: &mut Signals) -> Result<(), Failed> {
    let exe = std::env::current_exe()?;
    tokio::select! {
        measured = bench::run(args, &exe, base) => {
            if measured? || !args.check {
                return Ok(());
            }
            Err(Failed("a figure is not what it must be".into(), 1))
        }
        () = signals.next() => Err(Failed("stopped by a signal".into(), 130)),
    }
}

/// A database with the programs by which the bench looks into it.
fn base(url: &str, bin_dir: Option<&Path>) -> bench::Base {
    let program = |name| embedded::program(name, bin_dir);
    bench::Base { url: url.to_owned(), psql: program("psql"), pgbench: program("pgbench") }
}

/// With a count of statements where the library for it is installed: without it, Postgres does not start that way.
async fn embed_for_bench(folder: &Path, bin_dir: Option<&PathBuf>) -> Result<Embedded, Failed> {
    let mut settings = Settings::new(folder);
    settings.bin_dir = bin_dir.cloned();
    let mut counting = settings.clone();
    counting.extra = vec![("shared_preload_libraries".into(), "pg_stat_statements".into())];
    match embed(counting).await {
        Ok(embedded) => Ok(embedded),
        Err(_) => embed(settings).await,
    }
}

/// SIGTERM and SIGINT, counted from the start of the command.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
