//! What the system tells of processes: processor time and memory, from `/proc`.
//! Elsewhere nobody is asked, and the figures are absent.

use std::fs;
use std::time::Duration;

use serde::Serialize;

/// What a process has taken so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Usage {
    /// Processor time, of the system for it included.
    pub(super) cpu: Duration,
    /// Memory that it has now, in KiB.
    pub(super) resident_kib: u64,
    /// The most memory that it ever had, in KiB.
    pub(super) peak_kib: u64,
}

/// What a process has taken so far, if the system tells.
pub(super) fn usage(pid: u32) -> Option<Usage> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(Usage {
        cpu: cpu_of(&stat, rustix::param::clock_ticks_per_second())?,
        resident_kib: kib(&status, "VmRSS:")?,
        peak_kib: kib(&status, "VmHWM:")?,
    })
}

/// What the calling thread has taken of a core so far, to the nanosecond.
pub(super) fn thread_cpu() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// User and system time of a line of `/proc/<pid>/stat`. The second field is a name
/// in parentheses that may hold anything.
fn cpu_of(stat: &str, ticks_per_second: u64) -> Option<Duration> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let nanos = user.checked_add(system)?.checked_mul(1_000_000_000)?.checked_div(ticks_per_second)?;
    Some(Duration::from_nanos(nanos))
}

fn kib(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_system_writes() {
        let stat = "17 (a) b (c) S 1 17 17 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 3 0 100 1 1 1";
        assert_eq!(cpu_of(stat, 100), Some(Duration::from_secs(3)));
        assert_eq!(cpu_of("17 (x) S 1", 100), None);
        assert_eq!(kib("Name:\tx\nVmHWM:\t  1234 kB\nVmRSS:\t 99 kB\n", "VmRSS:"), Some(99));
        assert_eq!(kib("Name:\tx\n", "VmRSS:"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn knows_this_process() {
        let usage = usage(std::process::id()).unwrap();
        assert!(usage.peak_kib >= usage.resident_kib && usage.resident_kib > 0, "{usage:?}");
        assert!(thread_cpu().unwrap() > Duration::ZERO);
    }
}
