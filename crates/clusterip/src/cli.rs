//! The command line.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};
use clap_complete::Shell;
use clusterip_cluster::api_error::{RequestFailure, error_chain};
use clusterip_cluster::panics;

use crate::commands;

/// Gives Kubernetes Services a ClusterIP from the right pool.
#[derive(Debug, Parser)]
#[command(name = "clusterip", version, arg_required_else_help = true, max_term_width = 100)]
enum Command {
    /// Shows which addresses the Services in manifests get, and why. Needs no cluster
    Plan(commands::plan::PlanArguments),
    /// Evaluates the policy for one admission request, and prints the response as `kwctl run` does
    Evaluate(commands::evaluate::EvaluateArguments),
    /// Prints settings to start with, from the Service ranges of a cluster and the operating systems of its Nodes
    Init(commands::init::InitArguments),
    /// Checks settings, alone or against a cluster
    Validate(commands::validate::ValidateArguments),
    /// Converts settings: between a document, objects of a cluster, and a policy of Kubewarden
    Settings(commands::settings::SettingsArguments),
    /// Serves a cluster: the admission webhook, and the controllers of Services, pod CIDRs and external addresses
    Serve(commands::serve::ServeArguments),
    /// Moves misplaced Services to addresses of their pools, without deleting the Services
    Move(commands::move_::MoveArguments),
    /// Changes the Service ranges of a cluster that is in use
    #[command(subcommand)]
    Renumber(commands::renumber::Command),
    /// Shows how full the pools of a cluster are, and lists problems. Changes nothing
    Audit(commands::audit::AuditArguments),
    /// Writes the objects of a cluster that `audit` and `plan` read, for use without the cluster. Changes nothing
    Snapshot(commands::snapshot::SnapshotArguments),
    /// Holds external addresses of Services on a node
    #[cfg(target_os = "linux")]
    #[command(after_long_help = clusterip_agent::command::HELP)]
    Agent(clusterip_agent::command::Agent),
    /// Prints the completion script of a shell
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Prints the manual page
    Man,
    /// Prints the version, which scripts read as JSON
    Version(commands::version::VersionArguments),
}

/// Exit status for input or settings that can't be used; clap uses the same for a wrong command line.
const BAD_INPUT: u8 = 2;

const PLUGIN: &str = "kubectl-clusterip";

pub fn run() -> ExitCode {
    panics::end_the_process();
    let matches = named_as_called(std::env::args_os().next().as_deref()).get_matches();
    let command = Command::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let done = match command {
        Command::Plan(plan) => plan.run(),
        Command::Evaluate(evaluate) => evaluate.run(),
        Command::Init(init) => init.run(),
        Command::Validate(validate) => validate.run(),
        Command::Settings(settings) => settings.run(),
        Command::Serve(serve) => serve.run(),
        Command::Move(r#move) => r#move.run(),
        Command::Renumber(renumber) => renumber.run(),
        Command::Audit(audit) => audit.run(),
        Command::Snapshot(snapshot) => snapshot.run(),
        #[cfg(target_os = "linux")]
        Command::Agent(agent) => agent.run(),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Command::command(), "clusterip", &mut script);
            commands::output(&script).map(|_| ExitCode::SUCCESS)
        }
        Command::Man => manual(),
        Command::Version(version) => version.run(),
    };
    done.unwrap_or_else(|error| {
        // An error may quote text from files and clusters.
        commands::terminal::print_error(&text_of(&error));
        ExitCode::from(BAD_INPUT)
    })
}

/// The command line. kubectl runs the file `kubectl-clusterip` for `kubectl clusterip`, and then usages and errors show
/// that name.
fn named_as_called(program: Option<&OsStr>) -> clap::Command {
    let command = Command::command();
    let is_plugin = program.and_then(|path| Path::new(path).file_stem()).is_some_and(|name| name == PLUGIN);
    if is_plugin { command.bin_name("kubectl clusterip") } else { command }
}

/// The text of the error that ends a command. Every command says in the same words that the API server can't be
/// reached.
fn text_of(error: &anyhow::Error) -> String {
    let failure = error.chain().find_map(|cause| cause.downcast_ref::<RequestFailure>());
    match failure.and_then(|failure| failure.unreachable.as_deref()) {
        Some(unreachable) => unreachable.to_string(),
        None => error_chain(&**error),
    }
}

/// The manual: a page for the program, followed by one for each command.
fn manual() -> anyhow::Result<ExitCode> {
    let mut page = Vec::new();
    let mut command = Command::command();
    command.build();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        clap_mangen::Man::new(sub.clone()).render(&mut page)?;
    }
    commands::output(&page)?;
    Ok(ExitCode::SUCCESS)
}
