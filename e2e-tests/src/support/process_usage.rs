//! The resources that a process has used, according to the kernel.

use std::fs;
use std::time::Duration;

/// The kernel's ticks per second, the unit of processor time (`getconf CLK_TCK`).
const TICKS: f64 = 100.0;

/// The processor time of a process, including that of the kernel for it.
pub fn processor_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name in parentheses may contain any character. The fields after it are numbered from 3.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |number: usize| fields[number - 3].parse::<f64>().unwrap();
    Duration::from_secs_f64((ticks(14) + ticks(15)) / TICKS)
}

/// The resident memory of a process now, in MB of 1,000,000 bytes.
pub fn memory(pid: u32) -> f64 {
    status(pid, "VmRSS:")
}

/// The maximum resident memory of a process so far, in MB of 1,000,000 bytes.
pub fn peak_memory(pid: u32) -> f64 {
    status(pid, "VmHWM:")
}

fn status(pid: u32, field: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kibibytes * 1024.0 / 1e6
}
