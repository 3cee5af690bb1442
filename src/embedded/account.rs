//! Whom Postgres runs as, and how its programs are started.

use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use nix::unistd::{Uid, User, geteuid};

use super::error::{EmbeddedError, io};

/// The user that Postgres runs as: ours, or one without rights when we are root, as whom Postgres refuses to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) name: String,
    /// User and group to change to; `None` when we are that user already.
    change_to: Option<(u32, u32)>,
}

impl Account {
    /// Chooses. As root: the owner of an existing cluster, else the first of `roadstead`, `postgres` and `nobody`.
    ///
    /// # Errors
    ///
    /// When the user is not in the system's list of users: `initdb` looks its name up there.
    pub(super) fn choose(cluster: &Path) -> Result<Self, EmbeddedError> {
        let me = geteuid();
        if !me.is_root() {
            return match User::from_uid(me) {
                Ok(Some(user)) => Ok(Self { name: user.name, change_to: None }),
                _ => Err(EmbeddedError::NoAccount { missing: format!("the user id {me} has no name") }),
            };
        }
        let owner = cluster.metadata().ok().map(|found| Uid::from_raw(found.uid()));
        let owner = owner.filter(|uid| !uid.is_root()).and_then(|uid| User::from_uid(uid).ok().flatten());
        let mut known = ["roadstead", "postgres", "nobody"].into_iter();
        let user = owner.or_else(|| known.find_map(|name| User::from_name(name).ok().flatten()));
        let user = user.ok_or_else(|| EmbeddedError::NoAccount {
            missing: "none of `roadstead`, `postgres` and `nobody` exists".to_owned(),
        })?;
        Ok(Self { name: user.name, change_to: Some((user.uid.as_raw(), user.gid.as_raw())) })
    }

    /// Makes the user the owner of a file or folder of ours.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(super) fn own(&self, path: &Path) -> Result<(), EmbeddedError> {
        let Some((user, group)) = self.change_to else {
            return Ok(());
        };
        chown(path, Some(user), Some(group)).map_err(io("give away", path))
    }

    /// A program to be started as this user: nothing of our environment, input or signals reaches it.
    ///
    /// `farewell` is what the system sends it when the *thread* that starts it ends (Linux only): start it from one that
    /// lives at least as long.
    pub(super) fn command(&self, program: &Path, farewell: Signal) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            // One language in the log; and on macOS Postgres does not start without a locale.
            .env("LC_ALL", "C")
            .env("TZ", "UTC")
            .current_dir("/")
            .stdin(Stdio::null())
            // Ctrl-C in a terminal goes to the whole foreground group; the database must outlive the drain.
            .process_group(0);
        if let Some((user, group)) = self.change_to {
            // The standard library drops our further groups with the user.
            command.uid(user).gid(group);
        }
        #[cfg(target_os = "linux")]
        send_at_our_end(&mut command, farewell);
        #[cfg(not(target_os = "linux"))]
        let _ = farewell;
        command
    }
}

/// Has the kernel signal the child when we end, even by `kill -9`.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "std has no safe way to set the parent-death signal of a child")]
pub(super) fn send_at_our_end(command: &mut Command, signal: Signal) {
    let us = nix::unistd::getpid();
    let ask = move || {
        nix::sys::prctl::set_pdeathsig(signal)?;
        // We may have ended before the line above took effect: then nobody would ever tell it.
        if nix::unistd::getppid() == us { Ok(()) } else { Err(nix::errno::Errno::ESRCH.into()) }
    };
    // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are sound. It makes two system
    // calls, prctl and getppid, and neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(ask);
    }
}
