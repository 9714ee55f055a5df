//! `clusterip version`

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use clusterip_api::{GROUP, VERSION};
use serde::Serialize;

#[derive(Debug, Args)]
pub struct VersionArguments {
    /// How the version is printed
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// The line of `--version`
    Text,
    Json,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    version: &'static str,
    /// The operating system and processor, as in the names of the released programs.
    platform: String,
    /// The API version of the pool objects that this program reads and writes.
    api_version: String,
}

impl VersionArguments {
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let version = env!("CARGO_PKG_VERSION");
        match self.output {
            Format::Text => super::output(format!("clusterip {version}\n").as_bytes())?,
            Format::Json => super::output_json(&Version {
                version,
                platform: format!("{}-{}", os(), arch()),
                api_version: format!("{GROUP}/{VERSION}"),
            })?,
        };
        Ok(ExitCode::SUCCESS)
    }
}

fn os() -> &'static str {
    if cfg!(target_os = "macos") { "darwin" } else { std::env::consts::OS }
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
