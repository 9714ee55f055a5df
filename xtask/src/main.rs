//! `xtask` prepares the policy module for a release. See the Makefile and `docs/releasing.md`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Parser;
use jiff::Timestamp;
use xtask::metadata::{self, Metadata};
use xtask::{image, package};

/// Prepares the policy module for registries and catalogues.
#[derive(Debug, Parser)]
#[command(name = "xtask", version, arg_required_else_help = true, max_term_width = 100)]
enum Command {
    /// Writes metadata into a module, as `kwctl annotate` does
    Annotate {
        /// The metadata of the policy
        #[arg(long, value_name = "FILE", default_value = "policy-metadata.yml")]
        metadata: PathBuf,
        /// The usage text
        #[arg(long, value_name = "FILE", default_value = "README.md")]
        usage: PathBuf,
        /// Where to write the annotated module
        #[arg(long, short, value_name = "FILE", default_value = "annotated-policy.wasm")]
        output: PathBuf,
        /// The module as it was built
        #[arg(default_value = "policy.wasm")]
        module: PathBuf,
    },
    /// Writes an annotated module as an OCI image layout, and prints the digest of its manifest
    Oci {
        /// The folder of the layout
        #[arg(long, short, value_name = "FOLDER", default_value = "target/oci")]
        output: PathBuf,
        /// The annotated module
        #[arg(default_value = "annotated-policy.wasm")]
        module: PathBuf,
    },
    /// Prints the Artifact Hub package, with the digest of an annotated module and the time filled in
    Artifacthub {
        /// The time of the release, such as 2026-11-21T08:00:00+01:00
        #[arg(long, value_name = "TIME")]
        created_at: Timestamp,
        /// The package without digest and time
        #[arg(long, value_name = "FILE", default_value = "artifacthub-pkg.yml")]
        package: PathBuf,
        /// The annotated module
        #[arg(default_value = "annotated-policy.wasm")]
        module: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Annotate { metadata, usage, output, module } => {
            let policy = Metadata::from_yaml(&text(&metadata)?).with_context(|| metadata.display().to_string())?;
            let annotated = metadata::annotate(&bytes(&module)?, policy, &text(&usage)?)
                .with_context(|| module.display().to_string())?;
            fs::write(&output, annotated).with_context(|| output.display().to_string())
        }
        Command::Oci { output, module } => {
            println!(
                "{}",
                image::write(&bytes(&module)?, &output)
                    .with_context(|| format!("the image of {}", module.display()))?
            );
            Ok(())
        }
        Command::Artifacthub { created_at, package, module } => {
            let completed = package::complete(&text(&package)?, &bytes(&module)?, created_at)
                .with_context(|| package.display().to_string())?;
            print!("{completed}");
            Ok(())
        }
    }
}

fn bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}

fn text(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}
