//! A folder of a test's own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// A folder that a test has to itself, removed at its end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        let mut name = [0; 8];
        getrandom::fill(&mut name).unwrap();
        let path = std::env::temp_dir().join(format!("roadstead-{:016x}", u64::from_ne_bytes(name)));
        fs::create_dir(&path).unwrap();
        // As root, the user that Postgres runs as must be able to pass through.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o711)).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Something in it, as an argument of a command line.
    pub fn join(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A server that a failed test left behind may still be writing.
        let _ = fs::remove_dir_all(&self.0);
    }
}
