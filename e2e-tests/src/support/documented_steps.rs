//! Executes the procedures of `docs/operations.md` and other pages as they are written. A step is a command in a
//! `console` block, or a file: a `yaml` block whose first line is a comment with its path. So the tests execute what a
//! reader would type.

use std::path::Path;
use std::process::Command;

use super::command::{Ended, ended};
use super::control_plane::ControlPlane;

const DOCUMENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy");

/// The folder of further programs that the operator types, in the working directory: see [`Operator::install`].
const PROGRAMS: &str = "bin";

/// A step of a procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Type a command.
    Type(String),
    /// Write or overwrite a file.
    Write {
        /// The path of the file, relative to the working directory of the commands.
        path: String,
        /// The contents of the file.
        text: String,
    },
}

/// The steps below a heading of `docs/operations.md`, up to the next heading of the same level or above.
pub fn steps(heading: &str) -> Vec<Step> {
    steps_of("operations.md", heading)
}

/// As [`steps`], for another page of `docs`.
pub fn steps_of(page: &str, heading: &str) -> Vec<Step> {
    let document = std::fs::read_to_string(format!("{DOCUMENTS}/{page}")).unwrap();
    let mut lines = document.lines();
    let level = |line: &str| line.chars().take_while(|c| *c == '#').count();
    let begin = lines.find(|line| level(line) > 0 && line.trim_start_matches('#').trim() == heading);
    let depth = level(begin.unwrap_or_else(|| panic!("docs/{page} has no heading {heading:?}")));
    let (mut steps, mut block) = (Vec::new(), None::<(&str, Vec<&str>)>);
    for line in lines {
        match (&mut block, line.strip_prefix("```")) {
            (None, Some(kind)) => block = Some((kind, Vec::new())),
            (None, None) if (1..=depth).contains(&level(line)) => break,
            (None, None) => {}
            (Some((kind, text)), Some("")) => {
                steps.extend(read(kind, text));
                block = None;
            }
            (Some((_, text)), _) => text.push(line),
        }
    }
    assert!(!steps.is_empty(), "nothing is to be done below {heading:?}");
    steps
}

fn read(kind: &str, lines: &[&str]) -> Vec<Step> {
    match kind {
        "console" => {
            let mut commands: Vec<String> = Vec::new();
            for line in lines {
                match (line.strip_prefix("$ "), commands.last_mut()) {
                    (Some(command), _) => commands.push(command.to_owned()),
                    // Lines that do not continue a command are its output.
                    (None, Some(command)) if command.ends_with('\\') => {
                        command.push('\n');
                        command.push_str(line);
                    }
                    (None, _) => {}
                }
            }
            commands.into_iter().map(Step::Type).collect()
        }
        "yaml" => {
            let path = lines.first().and_then(|line| line.strip_prefix("# ")).filter(|path| path.ends_with(".yaml"));
            path.map(|path| Step::Write { path: path.to_owned(), text: lines.join("\n") + "\n" }).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// An operator with a kubeconfig and a copy of `deploy`.
pub struct Operator<'p> {
    plane: &'p ControlPlane,
    folder: tempfile::TempDir,
}

impl<'p> Operator<'p> {
    /// Copies `deploy` unchanged, for a cluster whose nodes run Pods.
    pub fn with_pods(plane: &'p ControlPlane) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let copied = Command::new("cp").args(["-r", DEPLOY]).arg(folder.path()).status().unwrap();
        assert!(copied.success());
        Self { plane, folder }
    }

    /// Copies `deploy`, and replaces the Service of the webhook by this URL, because no Service leads to a Pod here.
    pub fn new(plane: &'p ControlPlane, url: &str) -> Self {
        let operator = Self::with_pods(plane);
        for (file, indent) in [
            ("deploy/webhook/webhook-configuration.yaml", "    "),
            ("deploy/nodes/component/webhook.yaml", "      "),
            ("deploy/external/component/webhook.yaml", "      "),
        ] {
            let text = operator.read(file);
            let fields = ["namespace: clusterip-policy", "name: clusterip", "path: /mutate", "port: 443"];
            let fields: String = fields.iter().map(|field| format!("{indent}  {field}\n")).collect();
            let service = format!("{indent}service:\n{fields}");
            assert!(text.contains(&service), "{file} names another service");
            operator.write(file, &text.replace(&service, &format!("{indent}url: {url}/mutate\n")));
        }
        operator
    }

    /// The working directory of the commands.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Reads a file in the working directory.
    pub fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.folder().join(path)).unwrap()
    }

    /// Writes a file in the working directory.
    pub fn write(&self, path: &str, text: &str) {
        std::fs::write(self.folder().join(path), text).unwrap();
    }

    /// Makes a program of this machine available to the commands under this name.
    pub fn install(&self, name: &str, program: &Path) {
        let programs = self.folder().join(PROGRAMS);
        std::fs::create_dir_all(&programs).unwrap();
        let linked = Command::new("ln").arg("-s").arg(program).arg(programs.join(name)).status().unwrap();
        assert!(linked.success());
    }

    /// Executes a step, which may fail.
    pub async fn tries(&self, step: &Step) -> Ended {
        let command = match step {
            Step::Write { path, text } => {
                self.write(path, text);
                return Ended { status: 0, stdout: String::new(), stderr: String::new() };
            }
            Step::Type(command) => command,
        };
        let clusterip = super::program();
        let programs = [self.plane.kubectl_program().parent().unwrap(), clusterip.parent().unwrap()];
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = programs.iter().map(|program| program.to_path_buf()).chain(std::env::split_paths(&path));
        let path = std::iter::once(self.folder().join(PROGRAMS)).chain(path);
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", command])
            .current_dir(self.folder())
            .env("PATH", std::env::join_paths(path).unwrap())
            .env("KUBECONFIG", self.plane.kubeconfig())
            .env("KUBECACHEDIR", self.plane.folder().join("kubectl"))
            // As for `ControlPlane::kubectl`.
            .env("GOGC", "off");
        ended(bash).await
    }

    /// Executes a step, which must succeed, and returns its standard output.
    pub async fn does(&self, step: &Step) -> String {
        let mut done = self.tries(step).await;
        // On a busy machine, a request may take longer than the API server allows. To apply manifests again is harmless.
        let applies = matches!(step, Step::Type(command) if command.starts_with("kubectl apply"));
        if applies && done.stderr.contains("request did not complete within requested timeout") {
            done = self.tries(step).await;
        }
        assert_eq!(done.status, 0, "{step:?}: {}{}", done.stdout, done.stderr);
        done.stdout
    }

    /// Executes steps one after the other, and returns the output of the last one.
    pub async fn does_all(&self, steps: &[Step]) -> String {
        let mut printed = String::new();
        for step in steps {
            printed = self.does(step).await;
        }
        printed
    }
}

/// Whether a step is a command that contains this text.
pub fn types(step: &Step, text: &str) -> bool {
    matches!(step, Step::Type(command) if command.contains(text))
}
