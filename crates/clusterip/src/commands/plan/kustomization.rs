//! Builds kustomizations with kubectl or kustomize.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{anyhow, bail};
use clusterip_cluster::manifests::{MAX_FILE, ManifestText};

/// The programs that build kustomizations, each with its subcommand. The first one that is installed is used.
const BUILDERS: [(&str, &str); 2] = [("kubectl", "kustomize"), ("kustomize", "build")];

/// How many bytes of the standard error are kept.
const MAX_MESSAGES: u64 = 64 << 10;

pub struct Built {
    pub source: ManifestText,
    /// The lines that the program printed to standard error, such as warnings about old fields.
    pub messages: Vec<String>,
}

/// Builds the kustomization in `folder` with `kubectl kustomize`, or with `kustomize build` without kubectl.
pub fn build(folder: &Path) -> anyhow::Result<Built> {
    let built = BUILDERS.into_iter().find_map(|(program, subcommand)| run(program, subcommand, folder).transpose());
    let built = built.unwrap_or_else(|| {
        bail!(
            "neither kubectl nor kustomize is installed: install one of them, or build the kustomization elsewhere and \
             read the result with --filename"
        )
    });
    built.map_err(|problem| anyhow!("kustomization {}: {problem}", folder.display()))
}

/// Runs a program; `None` if it is not installed.
fn run(program: &str, subcommand: &str, folder: &Path) -> anyhow::Result<Option<Built>> {
    let failed = |error| anyhow!("{program} can't be run: {error}");
    let mut command = Command::new(program);
    command.args([subcommand, "--"]).arg(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let stderr = child.stderr.take();
    let messages = thread::spawn(move || stderr.map(read_messages).unwrap_or_default());
    let mut text = Vec::new();
    let read = match child.stdout.take() {
        Some(stdout) => stdout.take(MAX_FILE + 1).read_to_end(&mut text),
        None => Ok(0),
    };
    let is_too_large = text.len() as u64 > MAX_FILE;
    if is_too_large || read.is_err() {
        // It may have ended already.
        let _ = child.kill();
    }
    let status = child.wait().map_err(failed)?;
    if is_too_large {
        bail!("{program} {subcommand} printed more than {} MiB", MAX_FILE >> 20);
    }
    read.map_err(failed)?;
    let messages = messages.join().unwrap_or_default();
    if !status.success() {
        let messages = if messages.is_empty() { String::new() } else { format!(":\n{messages}") };
        bail!("{program} {subcommand} failed ({status}){messages}");
    }
    let Ok(text) = String::from_utf8(text) else { bail!("the output of {program} {subcommand} is not UTF-8") };
    let messages = messages.lines().map(|line| format!("{program} {subcommand}: {line}")).collect();
    let name = format!("kustomization {}", folder.display());
    Ok(Some(Built { source: ManifestText { name, text }, messages }))
}

/// The beginning of the messages. The rest is read as well, because a program whose pipe is full waits.
fn read_messages(mut stderr: impl Read) -> String {
    let mut kept = Vec::new();
    // Unreadable output is left out: the exit status tells whether the program failed.
    let _ = stderr.by_ref().take(MAX_MESSAGES).read_to_end(&mut kept);
    let _ = io::copy(&mut stderr, &mut io::sink());
    String::from_utf8_lossy(&kept).trim().to_owned()
}
