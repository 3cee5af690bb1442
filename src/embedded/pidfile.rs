//! `postmaster.pid`: who runs on the cluster, and whether it is ready.

use std::fs;
use std::path::{Path, PathBuf};

use super::child::end_stranger;
use super::error::{EmbeddedError, io};

/// A number that no process has on any system, and that Postgres reads as one.
const NOBODY: i32 = i32::MAX;

fn path(cluster: &Path) -> PathBuf {
    cluster.join("postmaster.pid")
}

/// Whether the file was written by the process `pid` and says that connections are accepted.
///
/// The number matters: the file of a server that was killed says `ready` as well.
pub(super) fn is_ready(cluster: &Path, pid: u32) -> bool {
    let Ok(text) = fs::read_to_string(path(cluster)) else {
        return false;
    };
    written_by(&text) == Some(pid) && text.lines().nth(7).is_some_and(|status| status.trim() == "ready")
}

fn written_by(text: &str) -> Option<u32> {
    text.lines().next()?.trim().parse().ok()
}

/// Makes way for a new server, to be called under the lock of the data folder. True when the last one left its file, so
/// that the next one begins with recovery.
///
/// A live server on this cluster is one whose parent was killed, and is stopped. A number that names a zombie, or by now
/// another process, is struck from the file, for Postgres would take it for a live server. The file itself stays: with
/// the number of its shared memory Postgres finds out by itself whether a child of the last server is still at work.
///
/// # Errors
///
/// When the file cannot be written.
pub(super) fn make_way(cluster: &Path) -> Result<bool, EmbeddedError> {
    let path = path(cluster);
    let Ok(text) = fs::read_to_string(&path) else {
        return Ok(false);
    };
    let Some(pid) = written_by(&text) else {
        return Ok(true);
    };
    if server_lives(pid, cluster) {
        tracing::info!(pid, "stopping the Postgres of a server that was killed");
        end_stranger(pid, || server_lives(pid, cluster));
    }
    match fs::read_to_string(&path) {
        Ok(text) if written_by(&text) == Some(pid) => {
            let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
            fs::write(&path, format!("{NOBODY}\n{rest}")).map_err(io("write", &path))?;
            Ok(true)
        }
        // It ended in good order.
        _ => Ok(false),
    }
}

/// Whether that process is a Postgres on this cluster, and not a zombie.
fn server_lives(pid: u32, cluster: &Path) -> bool {
    let arguments = arguments(pid);
    let program = arguments.first().and_then(|program| Path::new(program).file_name());
    program.is_some_and(|name| name == "postgres")
        && arguments.windows(2).any(|pair| pair[0] == "-D" && Path::new(&pair[1]) == cluster)
}

/// How the process was started; nothing for a zombie, which has forgotten it.
///
/// Not asked for its folder or file: without the right to trace, root in a container may not see those of other users.
#[cfg(target_os = "linux")]
fn arguments(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

#[cfg(not(target_os = "linux"))]
fn arguments(pid: u32) -> Vec<String> {
    let told = std::process::Command::new("ps").args(["-o", "command=", "-p", &pid.to_string()]).output();
    let line = told.map(|told| String::from_utf8_lossy(&told.stdout).into_owned()).unwrap_or_default();
    line.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Cluster(PathBuf);

    impl Cluster {
        fn with(pid_file: &str) -> Self {
            let mut name = [0; 8];
            getrandom::fill(&mut name).unwrap();
            let folder = std::env::temp_dir().join(format!("roadstead-{:016x}", u64::from_ne_bytes(name)));
            fs::create_dir(&folder).unwrap();
            fs::write(path(&folder), pid_file).unwrap();
            Self(folder)
        }
    }

    impl Drop for Cluster {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn only_our_own_server_is_ready() {
        let cluster = Cluster::with("17\n/data/pg\n1700000000\n5432\n/run\n\n  1 2\nready   \n");
        assert!(is_ready(&cluster.0, 17));
        assert!(!is_ready(&cluster.0, 18), "the file of another server");
        fs::write(path(&cluster.0), "17\n/data/pg\n1700000000\n5432\n/run\n\n  1 2\nstarting\n").unwrap();
        assert!(!is_ready(&cluster.0, 17));
        fs::write(path(&cluster.0), "17\n/data/pg\n").unwrap();
        assert!(!is_ready(&cluster.0, 17), "half written");
    }

    #[test]
    fn the_number_of_another_process_is_struck_and_the_rest_stays() {
        let us = std::process::id();
        let cluster = Cluster::with(&format!("{us}\n/data/pg\n1700000000\n5432\n/run\n\n  1 2\nready   \n"));
        assert!(make_way(&cluster.0).unwrap());
        let text = fs::read_to_string(path(&cluster.0)).unwrap();
        assert_eq!(text, "2147483647\n/data/pg\n1700000000\n5432\n/run\n\n  1 2\nready   \n");
    }

    #[test]
    fn no_file_means_a_clean_end() {
        let cluster = Cluster::with("");
        fs::remove_file(path(&cluster.0)).unwrap();
        assert!(!make_way(&cluster.0).unwrap());
    }
}
