//! What a process has used, as the kernel counts it.

use std::fs;
use std::time::Duration;

/// The kernel's ticks a second, in which it tells processor time (`getconf CLK_TCK`).
const TICKS: f64 = 100.0;

/// The processor time that a process has taken, the kernel's work for it included.
pub fn processor_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name, in parentheses, may hold anything; the fields after it are numbered from 3.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |number: usize| fields[number - 3].parse::<f64>().unwrap();
    Duration::from_secs_f64((ticks(14) + ticks(15)) / TICKS)
}

/// The most memory that a process has had at once, in MB of 1,000,000 bytes.
pub fn peak_memory(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kibibytes * 1024.0 / 1e6
}
