//! Makes a new database cluster.

use std::fs::{self, File};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::account::Account;
use super::child::{Deadline, Wish, end};
use super::error::{EmbeddedError, io};
use super::find::Binaries;
use super::folder::Folder;

/// `initdb` takes seconds; on a small cloud disk some tens.
const PATIENCE: Duration = Duration::from_mins(2);

/// Runs `initdb` into a folder beside, and renames it when all is on disk: a crash in the middle leaves no half cluster.
///
/// # Errors
///
/// When `initdb` fails or takes longer than two minutes, or the owner no longer wants it.
pub(super) fn create(
    folder: &Folder,
    binaries: &Binaries,
    account: &Account,
    wish: &Wish,
) -> Result<(), EmbeddedError> {
    let path = folder.fresh_cluster(account)?;
    let (log, begin) = folder.log()?;
    let program = binaries.folder.join("initdb");
    let errors = log.try_clone().map_err(io("open", &folder.log_path()))?;
    let mut initdb = account
        .command(&program, Signal::SIGTERM)
        .arg("-D")
        .arg(&path)
        .args(["-U", super::NAME, "-E", "UTF8", "--locale=C", "--data-checksums", "--no-instructions"])
        // Whoever can enter the socket's folder is us: there is no password that could be lost.
        .args(["--auth-local=trust", "--auth-host=reject"])
        .stdout(log)
        .stderr(errors)
        .spawn()
        .map_err(io("run", &program))?;
    let deadline = Deadline::after(PATIENCE);
    let reason = loop {
        match initdb.try_wait().map_err(io("wait for", &program))? {
            Some(status) if status.success() => break None,
            Some(status) => break Some(status.to_string()),
            None if deadline.passed() => break Some(format!("no end after {PATIENCE:?}")),
            None if wish.ends_within(Duration::from_millis(20)) => {
                end(&mut initdb, Signal::SIGTERM);
                let _ = fs::remove_dir_all(&path);
                return Err(EmbeddedError::Abandoned);
            }
            None => {}
        }
    };
    if let Some(reason) = reason {
        end(&mut initdb, Signal::SIGTERM);
        let _ = fs::remove_dir_all(&path);
        return Err(EmbeddedError::Initdb { reason, log: folder.log_since(begin) });
    }
    // initdb has synced what lies in the folder; the rename must not be lost either.
    let cluster = folder.cluster();
    fs::rename(&path, &cluster).map_err(io("rename", &path))?;
    File::open(folder.root()).and_then(|root| root.sync_all()).map_err(io("sync", folder.root()))
}
