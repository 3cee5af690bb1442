//! What can go wrong with the embedded Postgres, in words that say what to do.

use std::io;
use std::path::{Path, PathBuf};

/// Why the embedded Postgres does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// No usable `postgres` and `initdb` on this machine.
    #[error(
        "no PostgreSQL 14 to 18 was found to run as the embedded database{}\n\
         Ways out, any one of them:\n  \
         Debian, Ubuntu:  apt install postgresql\n  \
         Fedora, RHEL:    dnf install postgresql-server\n  \
         macOS:           brew install postgresql@18\n  \
         its folder:      --pg-bin-dir (the folder that holds `postgres` and `initdb`)\n  \
         another server:  DATABASE_URL=postgres://user:password@host/database",
        list(tried)
    )]
    NoBinaries {
        /// Each place that was tried, and why it will not do.
        tried: Vec<String>,
    },
    /// The data was written by a major version of which no binaries were found.
    #[error(
        "the data in {} belongs to PostgreSQL {needed}, but only {found} was found; install PostgreSQL {needed}, or \
         name the folder of its programs with --pg-bin-dir",
        folder.display()
    )]
    OtherMajor {
        /// The cluster's folder.
        folder: PathBuf,
        /// The only major version that can read it.
        needed: u32,
        /// The versions that were found.
        found: String,
    },
    /// Another process runs on the same data folder.
    #[error("another server is running on the data folder {}; stop it, or choose another --data-dir", folder.display())]
    Locked {
        /// The data folder.
        folder: PathBuf,
    },
    /// The account this process runs as, or every one it could change to, is missing from the list of users.
    #[error(
        "PostgreSQL needs a named user to run as, and {missing}; create a user `roadstead`, or set DATABASE_URL to use \
         another server"
    )]
    NoAccount {
        /// Who was looked for.
        missing: String,
    },
    /// The user that Postgres runs as cannot enter the data folder.
    #[error(
        "the user `{account}`, as which PostgreSQL runs, cannot enter {}; let others enter it and the folders above it \
         (chmod o+x), or choose another --data-dir",
        folder.display()
    )]
    Closed {
        /// The data folder.
        folder: PathBuf,
        /// The user's name.
        account: String,
    },
    /// A folder called `pg` that holds something else than a database cluster.
    #[error("{} holds no database cluster (it has no PG_VERSION); move it away, or choose another --data-dir", folder.display())]
    NotACluster {
        /// The folder.
        folder: PathBuf,
    },
    /// `initdb` did not finish.
    #[error("initdb failed ({reason}); it said:\n{log}")]
    Initdb {
        /// Exit status or time-out.
        reason: String,
        /// The end of what it wrote.
        log: String,
    },
    /// Postgres ended, or did not answer, before it was ready.
    #[error("PostgreSQL did not start ({reason}); the end of {}:\n{log}", path.display())]
    Start {
        /// Exit status or time-out.
        reason: String,
        /// Where all that it wrote can be read.
        path: PathBuf,
        /// The end of what it wrote.
        log: String,
    },
    /// Postgres ended again and again, and is not started any more.
    #[error("PostgreSQL ended {times} times in a row and is not started again; the last time: {last}")]
    GaveUp {
        /// How many times it was tried.
        times: u32,
        /// Why the last one failed.
        last: String,
    },
    /// Postgres is up, but the first connection failed.
    #[error("PostgreSQL started but cannot be used")]
    Connect(#[source] sqlx::Error),
    /// The file system refused something.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The start was given up by its owner, or the thread that watches over Postgres ended by a fault of ours.
    #[error("the watch over PostgreSQL ended before it was up")]
    Abandoned,
}

impl EmbeddedError {
    /// The status for the process to exit with, after `sysexits.h`: 69 (unavailable) when there are no binaries, 75 (try
    /// again later) when the folder is in use, else 1.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::NoBinaries { .. } => 69,
            Self::Locked { .. } => 75,
            Self::OtherMajor { .. }
            | Self::NoAccount { .. }
            | Self::Closed { .. }
            | Self::NotACluster { .. }
            | Self::Initdb { .. }
            | Self::Start { .. }
            | Self::GaveUp { .. }
            | Self::Connect(_)
            | Self::Io { .. }
            | Self::Abandoned => 1,
        }
    }
}

/// For `map_err`: what was tried on which path.
pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EmbeddedError {
    move |source| EmbeddedError::Io { action, path: path.to_owned(), source }
}

fn list(tried: &[String]) -> String {
    tried.iter().fold(String::new(), |text, line| text + "\n  " + line)
}
