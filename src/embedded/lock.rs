//! One server per data folder.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::error::{EmbeddedError, io};

/// Proof that no other process runs on the data folder; the system takes it back when this one ends, however it ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, without waiting.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::Locked`] when another holder has it, in this process too.
    pub(super) fn take(folder: &Path) -> Result<Self, EmbeddedError> {
        let path = folder.join("server.lock");
        let mut options = OpenOptions::new();
        // Never truncated or removed: a removed lock file could be locked by two, each holding another file.
        let file = options.create(true).truncate(false).write(true).mode(0o600);
        let file = file.open(&path).map_err(io("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(EmbeddedError::Locked { folder: folder.to_owned() }),
            Err(TryLockError::Error(source)) => Err(io("lock", &path)(source)),
        }
    }
}
