//! How much of the processors a process takes, as Linux tells it.

use std::time::Duration;

use tokio::time::Instant;

use crate::cli::ambient::now;

/// Ticks of a second in `/proc`, on every machine that Linux runs on today.
const TICKS: f64 = 100.0;

/// What a process has taken up to a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    seconds: f64,
    at: Instant,
}

impl Taken {
    /// Of the service: one process.
    pub(super) fn by(pid: u32) -> Option<Self> {
        let seconds = Stat::of(pid)?.own / TICKS;
        Some(Self { seconds, at: now() })
    }

    /// Of a server of `PostgreSQL`: the parent of this process of it, and all its children, also those that have ended.
    pub(super) fn by_family_of(pid: u32) -> Option<Self> {
        let parent = Stat::of(pid)?.parent;
        let mut ticks = Stat::of(parent).map(|stat| stat.own + stat.of_ended_children)?;
        for entry in std::fs::read_dir("/proc").ok()?.flatten() {
            let process = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Stat::of);
            ticks += process.filter(|process| process.parent == parent).map_or(0.0, |process| process.own);
        }
        Some(Self { seconds: ticks / TICKS, at: now() })
    }

    /// How many processors it took on average since then.
    pub(super) fn cores_since(self, before: Self) -> f64 {
        (self.seconds - before.seconds) / (self.at - before.at).max(Duration::from_millis(1)).as_secs_f64()
    }
}

/// What is read of a process: its parent, and times in ticks.
struct Stat {
    parent: u32,
    own: f64,
    of_ended_children: f64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        Self::read(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The second field is the program's name in parentheses, which may hold anything; the third follows the last of them.
    fn read(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            own: ticks(11)? + ticks(12)?,
            of_ended_children: ticks(13)? + ticks(14)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_from_what_linux_tells() {
        let line = "4711 (post) gres) S 42 4711 4711 0 -1 4194560 9 8 7 6 500 250 30 12 20 0 1 0 12345 0 0\n";
        let stat = Stat::read(line).expect("a process");
        assert_eq!((stat.parent, stat.own, stat.of_ended_children), (42, 750.0, 42.0));
        assert!(Stat::read("nothing").is_none());
    }

    #[test]
    fn cores_are_time_by_time() {
        let at = now();
        let before = Taken { seconds: 10.0, at };
        let after = Taken { seconds: 15.0, at: at + Duration::from_secs(20) };
        assert!((after.cores_since(before) - 0.25).abs() < 1e-9);
    }
}
