//! Measures a run of the program as a process.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Instant;
use std::{fs, io};

/// What a run of the program took.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub seconds: f64,
    /// The time of all its threads together.
    pub processor_seconds: f64,
    /// The peak of the memory.
    pub megabytes: f64,
    /// The size of the output.
    pub printed_megabytes: f64,
}

impl Run {
    /// Runs `clusterip` with these arguments.
    pub fn of(arguments: &mut Command) -> Result<Self, Box<dyn std::error::Error>> {
        let begin = Instant::now();
        let mut child = arguments.stdout(Stdio::piped()).spawn()?;
        let mut out = child.stdout.take().ok_or("no output")?;
        // When the first byte arrives, the computation is complete, and the output that does not fit into the pipe
        // keeps the process alive.
        let first = io::copy(&mut out.by_ref().take(1), &mut io::sink())?;
        let megabytes = peak(child.id()).unwrap_or(f64::NAN);
        let printed = first + io::copy(&mut out, &mut io::sink())?;
        // The system keeps the times of an ended process until it is waited for.
        let processor_seconds = processor_seconds(child.id()).unwrap_or(f64::NAN);
        let status = child.wait()?;
        let seconds = begin.elapsed().as_secs_f64();
        let run = Self { seconds, processor_seconds, megabytes, printed_megabytes: printed as f64 / 1e6 };
        // 1 says that a Service is denied.
        if matches!(status.code(), Some(0 | 1)) { Ok(run) } else { Err(status.to_string().into()) }
    }
}

/// The program, to be run with further arguments.
pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_clusterip"))
}

/// The peak memory of a process so far in megabytes, if the system reports it.
fn peak(process: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0 / 1e6)
}

/// The processor time of a process so far, if the system reports it.
fn processor_seconds(process: u32) -> Option<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, in parentheses, may contain spaces. The two times are the 12th and 13th field after it.
    let (_, fields) = stat.rsplit_once(')')?;
    let times = fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<f64>().ok());
    Some(times.sum::<Option<f64>>()? / TICKS_PER_SECOND)
}
