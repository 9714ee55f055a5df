//! Commands that tests run, and how they end.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::program;

/// The exit status and the output of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// The standard output of a successful command.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.status, 0, "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// The standard error of a failed command.
    #[track_caller]
    pub fn refused(self) -> String {
        assert_ne!(self.status, 0, "{}{}", self.stdout, self.stderr);
        self.stderr
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("output in UTF-8");
        let status = output.status.code().expect("an exit status, not a signal");
        Self { status, stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// Runs `clusterip` with these arguments and this kubeconfig in a folder until it ends.
pub async fn clusterip(folder: &Path, kubeconfig: &Path, arguments: &[&str]) -> Ended {
    let mut command = Command::new(program());
    command.args(arguments).arg("--kubeconfig").arg(kubeconfig).current_dir(folder);
    ended(command).await
}

/// Runs a command without a standard input until it ends. Does not block the runtime, which may serve webhooks of the
/// test.
pub async fn ended(mut command: Command) -> Ended {
    command.stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap().into()
}
