//! What a run of `kubectl` returns, and how tests expect it to end.

/// The output and the exit status of `kubectl`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubectl {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Kubectl {
    /// The standard output of a successful command.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.status, 0, "kubectl: {}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// The standard error of a failed command.
    #[track_caller]
    pub fn refused(self) -> String {
        assert_ne!(self.status, 0, "kubectl: {}{}", self.stdout, self.stderr);
        self.stderr
    }
}
