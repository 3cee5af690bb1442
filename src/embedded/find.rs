//! Finds the programs of an installed Postgres.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;

use super::account::Account;
use super::error::EmbeddedError;
use super::fetch;

/// Majors that the project is tested with.
const SUPPORTED: std::ops::RangeInclusive<u32> = 14..=18;

/// A folder with `postgres` and `initdb` of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binaries {
    pub(super) folder: PathBuf,
    pub(super) version: String,
    pub(super) major: u32,
}

/// Takes the first usable folder: the one the caller names and no other; else the one used last time, the one that
/// `pg_config` or `PATH` leads to, the usual places, highest version first, and what was fetched into the cache folder.
/// When there is nothing at all, and the cache folder is given, the programs are fetched into it.
///
/// `needed` is the major version of the existing data: another one cannot read it.
///
/// # Errors
///
/// [`EmbeddedError::NoBinaries`], or [`EmbeddedError::OtherMajor`] when only other versions than the needed one exist.
pub(super) fn find(
    named: Option<&Path>,
    last: Option<&Path>,
    (cluster, needed): (&Path, Option<u32>),
    cache: Option<&Path>,
    account: &Account,
) -> Result<Binaries, EmbeddedError> {
    let candidates = named.map_or_else(|| candidates(last, cache), |folder| vec![folder.to_owned()]);
    let mut others: Vec<String> = Vec::new();
    let mut tried = Vec::new();
    for folder in candidates {
        if named.is_none() && !folder.join("initdb").exists() {
            continue;
        }
        match probe(&folder, account) {
            Ok(found) if needed.is_none_or(|needed| needed == found.major) => return Ok(found),
            Ok(found) if others.contains(&found.version) => {}
            Ok(found) => others.push(found.version),
            Err(reason) => tried.push(format!("{}: {reason}", folder.display())),
        }
    }
    match needed {
        Some(needed) if !others.is_empty() => {
            Err(EmbeddedError::OtherMajor { folder: cluster.to_owned(), needed, found: others.join(", ") })
        }
        _ => fetched(named.map_or(cache, |_| None), needed, account).map_err(|reason| {
            tried.extend(reason);
            EmbeddedError::NoBinaries { tried }
        }),
    }
}

/// Programs from elsewhere, if they may be fetched and would do.
fn fetched(cache: Option<&Path>, needed: Option<u32>, account: &Account) -> Result<Binaries, Option<String>> {
    let cache = cache.filter(|_| needed.is_none_or(|needed| needed == fetch::MAJOR)).ok_or(None)?;
    let folder = fetch::fetch(cache)?;
    probe(&folder, account).map_err(|reason| Some(format!("{}: {reason}", folder.display())))
}

/// Where a program of Postgres lies that need not be there, such as `psql`: in the folder that the caller names and no
/// other; else in the first of those that [`find`] looks through which has it, or on `PATH`.
#[must_use]
pub fn program(name: &str, named: Option<&Path>) -> Option<PathBuf> {
    let folders = named.map_or_else(
        || {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let mut folders = candidates(None, fetch::default_folder().as_deref());
            folders.extend(std::env::split_paths(&path));
            folders
        },
        |folder| vec![folder.to_owned()],
    );
    folders.into_iter().map(|folder| folder.join(name)).find(|program| program.is_file())
}

fn candidates(last: Option<&Path>, cache: Option<&Path>) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = last.map(Path::to_owned).into_iter().collect();
    if let Ok(told) = Command::new("pg_config").arg("--bindir").output() {
        folders.push(PathBuf::from(String::from_utf8_lossy(&told.stdout).trim_end()));
    }
    for folder in std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()) {
        // Distributions link single programs into PATH; the rest lies where the link leads.
        if let Ok(initdb) = folder.join("initdb").canonicalize() {
            folders.extend(initdb.parent().map(Path::to_owned));
        }
    }
    for major in SUPPORTED.rev() {
        for place in [
            format!("/usr/lib/postgresql/{major}/bin"),
            format!("/usr/pgsql-{major}/bin"),
            format!("/usr/libexec/postgresql{major}"),
            format!("/opt/homebrew/opt/postgresql@{major}/bin"),
            format!("/usr/local/opt/postgresql@{major}/bin"),
            format!("/Applications/Postgres.app/Contents/Versions/{major}/bin"),
        ] {
            folders.push(PathBuf::from(place));
        }
    }
    folders.extend(cache.map(fetch::programs));
    folders
}

/// Asks the server for its version, as the user that is to run it: what it may not run is of no use.
fn probe(folder: &Path, account: &Account) -> Result<Binaries, String> {
    // Started from the root folder later, so a relative path would lead elsewhere.
    let folder = folder.canonicalize().map_err(|error| error.to_string())?;
    if !folder.join("initdb").exists() {
        return Err("has no initdb".to_owned());
    }
    let asked = account.command(&folder.join("postgres"), Signal::SIGKILL).arg("--version").output();
    let told = asked.map_err(|error| format!("postgres cannot be run by the user `{}`: {error}", account.name))?;
    let told = String::from_utf8_lossy(&told.stdout);
    let version = version(&told).ok_or_else(|| format!("postgres does not tell its version, but `{}`", told.trim()))?;
    let major = major(version).ok_or_else(|| format!("postgres has the odd version {version}"))?;
    if !SUPPORTED.contains(&major) {
        return Err(format!("is PostgreSQL {version}, which is not supported"));
    }
    Ok(Binaries { folder, version: version.to_owned(), major })
}

/// `15.16` of `postgres (PostgreSQL) 15.16 (Debian 15.16-0+deb12u1)`.
fn version(told: &str) -> Option<&str> {
    told.split_once("(PostgreSQL) ")?.1.split_whitespace().next()
}

/// `15` of `15.16`, `18` of `18beta1`.
pub(super) fn major(version: &str) -> Option<u32> {
    let version = version.trim();
    let end = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    version[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_packages_say() {
        for (told, expected, number) in [
            ("postgres (PostgreSQL) 15.16 (Debian 15.16-0+deb12u1)\n", "15.16", 15),
            ("postgres (PostgreSQL) 18.1", "18.1", 18),
            ("postgres (PostgreSQL) 19devel\n", "19devel", 19),
        ] {
            assert_eq!(version(told), Some(expected));
            assert_eq!(major(expected), Some(number));
        }
        assert_eq!(version("usage: postgres"), None);
        assert_eq!(major("15\n"), Some(15));
        assert_eq!(major("beta"), None);
    }
}
