//! The data folder: what lies where.
//!
//! | Path | What |
//! |---|---|
//! | `server.lock` | held while a server runs |
//! | `pg/` | the cluster, owned by the user that Postgres runs as |
//! | `run-…/` | the folder of the socket, new with each start |
//! | `postgres.log` | all that Postgres writes |
//! | `embedded.json` | what the next start should know |

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::account::Account;
use super::error::{EmbeddedError, io};
use super::find::major;

/// A socket's path has room for 103 bytes on macOS and 107 on Linux.
const SOCKET_PATH_MAX: usize = 103;
/// The name that Postgres gives its socket; the number is its port, which nothing listens on.
const SOCKET: &str = ".s.PGSQL.5432";
/// The log is set aside at a start when it is larger.
const LOG_MAX: u64 = 16 * 1024 * 1024;

/// The paths of one data folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Folder {
    root: PathBuf,
}

/// What the next start should know.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notes {
    pub(super) bin_dir: PathBuf,
    /// It may lie outside the data folder, and is removed by the next start after a crash.
    pub(super) socket_dir: PathBuf,
}

impl Folder {
    /// Opens the folder, making it when missing.
    ///
    /// # Errors
    ///
    /// When it cannot be made or is no folder.
    pub(super) fn open(path: &Path) -> Result<Self, EmbeddedError> {
        if !path.exists() {
            fs::create_dir_all(path).map_err(io("create the folder", path))?;
            // As root, the user that Postgres runs as must be able to pass through, but not to look round.
            let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
            fs::set_permissions(path, Permissions::from_mode(mode)).map_err(io("set the mode of", path))?;
        }
        let root = path.canonicalize().map_err(io("open the folder", path))?;
        Ok(Self { root })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn cluster(&self) -> PathBuf {
        self.root.join("pg")
    }

    pub(super) fn log_path(&self) -> PathBuf {
        self.root.join("postgres.log")
    }

    /// The major version that wrote the cluster; `None` when there is none yet.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::NotACluster`] when something else is in its place.
    pub(super) fn major(&self) -> Result<Option<u32>, EmbeddedError> {
        let cluster = self.cluster();
        // An empty folder, such as a fresh volume, is none; removing fails on any other.
        if !cluster.exists() || fs::remove_dir(&cluster).is_ok() {
            return Ok(None);
        }
        let version = fs::read_to_string(cluster.join("PG_VERSION")).ok();
        match version.as_deref().and_then(major) {
            Some(major) => Ok(Some(major)),
            None => Err(EmbeddedError::NotACluster { folder: cluster }),
        }
    }

    /// What the last start noted; nothing when that is missing or not readable, for all of it can be found anew.
    pub(super) fn notes(&self) -> Notes {
        let text = fs::read(self.notes_path()).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// # Errors
    ///
    /// When the file cannot be written.
    pub(super) fn note(&self, notes: &Notes) -> Result<(), EmbeddedError> {
        let path = self.notes_path();
        let text = serde_json::to_vec_pretty(notes).map_err(std::io::Error::other);
        text.and_then(|text| fs::write(&path, text)).map_err(io("write", &path))
    }

    fn notes_path(&self) -> PathBuf {
        self.root.join("embedded.json")
    }

    /// A fresh folder for the cluster in the making, to be renamed when finished; removes those of broken attempts.
    ///
    /// # Errors
    ///
    /// When the file system refuses.
    pub(super) fn fresh_cluster(&self, account: &Account) -> Result<PathBuf, EmbeddedError> {
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("pg.tmp-") {
                // What cannot be removed does no harm.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        fresh(&self.root.join("pg.tmp-"), account)
    }

    /// A fresh folder for the socket, closed to all other users; removes `last`, that of the start before.
    ///
    /// # Errors
    ///
    /// When the file system refuses.
    pub(super) fn fresh_socket_dir(&self, last: &Path, account: &Account) -> Result<PathBuf, EmbeddedError> {
        remove_socket_dir(last);
        let inside = self.root.join("run-");
        // Not the folder that TMPDIR names: that may be as long.
        let length = inside.as_os_str().len() + NAME_LENGTH + "/".len() + SOCKET.len();
        let within = if length <= SOCKET_PATH_MAX { inside } else { PathBuf::from("/tmp/roadstead-run-") };
        fresh(&within, account)
    }

    /// The log, opened to be written on, and the place in it where this writing begins.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened.
    pub(super) fn log(&self) -> Result<(File, u64), EmbeddedError> {
        let path = self.log_path();
        if fs::metadata(&path).is_ok_and(|found| found.len() > LOG_MAX) {
            // Should this fail, the log grows on: no reason not to start.
            let _ = fs::rename(&path, self.root.join("postgres.log.1"));
        }
        let mut options = OpenOptions::new();
        let mut log = options.create(true).append(true).mode(0o600).open(&path).map_err(io("open", &path))?;
        let end = log.seek(SeekFrom::End(0)).map_err(io("read", &path))?;
        Ok((log, end))
    }

    /// The last lines written to the log after `begin`, at most 2 KiB.
    pub(super) fn log_since(&self, begin: u64) -> String {
        let read = || {
            let mut log = File::open(self.log_path())?;
            let end = log.metadata()?.len();
            log.seek(SeekFrom::Start(begin.max(end.saturating_sub(2_048))))?;
            let mut bytes = Vec::new();
            log.read_to_end(&mut bytes)?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).trim_end().to_owned())
        };
        read().unwrap_or_default()
    }
}

/// Clears the folder of what a dead Postgres left in it, so that the next one can have the same socket.
pub(super) fn clear_socket_dir(folder: &Path) {
    for name in [SOCKET.to_owned(), format!("{SOCKET}.lock")] {
        let _ = fs::remove_file(folder.join(name));
    }
}

/// Removes a folder made by [`Folder::fresh_socket_dir`], if it still holds nothing but a socket.
pub(super) fn remove_socket_dir(folder: &Path) {
    if folder.is_absolute() {
        clear_socket_dir(folder);
        let _ = fs::remove_dir(folder);
    }
}

const NAME_LENGTH: usize = 16;

/// Makes a folder of mode 0700, called `prefix` and 16 random digits, that belongs to the account.
fn fresh(prefix: &Path, account: &Account) -> Result<PathBuf, EmbeddedError> {
    let mut digits = [0; NAME_LENGTH / 2];
    getrandom::fill(&mut digits)
        .map_err(|error| io("name a folder", prefix)(std::io::Error::other(error.to_string())))?;
    let mut path = prefix.as_os_str().to_owned();
    path.push(format!("{:016x}", u64::from_ne_bytes(digits)));
    let path = PathBuf::from(path);
    DirBuilder::new().mode(0o700).create(&path).map_err(io("create the folder", &path))?;
    account.own(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_crash_left_half_made_is_removed() {
        let root = PathBuf::from("/tmp/roadstead-folder-");
        let account = Account::choose(Path::new("/nowhere")).unwrap();
        let root = fresh(&root, &account).unwrap();
        let folder = Folder::open(&root).unwrap();
        let half = folder.fresh_cluster(&account).unwrap();
        fs::write(half.join("PG_VERSION"), "15").unwrap();
        let socket_dir = folder.fresh_socket_dir(Path::new(""), &account).unwrap();
        fs::write(socket_dir.join(SOCKET), "").unwrap();
        let next = folder.fresh_cluster(&account).unwrap();
        let next_socket_dir = folder.fresh_socket_dir(&socket_dir, &account).unwrap();
        assert!(next.exists() && next_socket_dir.exists());
        assert!(!half.exists() && !socket_dir.exists());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn the_end_of_the_log_is_told_from_where_it_began() {
        let account = Account::choose(Path::new("/nowhere")).unwrap();
        let root = fresh(Path::new("/tmp/roadstead-folder-"), &account).unwrap();
        let folder = Folder::open(&root).unwrap();
        fs::write(folder.log_path(), "of an earlier start\n").unwrap();
        let (log, begin) = folder.log().unwrap();
        std::io::Write::write_all(&mut &log, b"FATAL: no\n").unwrap();
        assert_eq!(folder.log_since(begin), "FATAL: no");
        std::io::Write::write_all(&mut &log, "x".repeat(5_000).as_bytes()).unwrap();
        assert_eq!(folder.log_since(begin).len(), 2_048);
        fs::remove_dir_all(root).unwrap();
    }
}
