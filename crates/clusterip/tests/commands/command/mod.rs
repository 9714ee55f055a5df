//! Runs the program in a folder of its own or in that of the workspace, and writes its input.

pub mod external_snapshot;
pub mod service_snapshot;
pub mod session_files;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

/// The line about the default pools.
pub const DEFAULT_POOLS: &str =
    "settings: the pools of K2s (no --settings): windows 172.21.1.0/24, linux 172.21.0.0/24\n";

/// The output of a run and its exit status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    /// A successful run that printed nothing to standard error.
    pub fn ok(stdout: impl Into<String>) -> Self {
        Self { status: 0, stdout: stdout.into(), stderr: String::new() }
    }

    /// A run that failed only for this reason.
    pub fn refused(stderr: impl Into<String>) -> Self {
        Self { status: 2, stdout: String::new(), stderr: format!("error: {}\n", stderr.into()) }
    }

    /// The JSON that was printed.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A folder to run the program in. The output names files as the arguments do.
pub struct Folder(PathBuf);

impl Folder {
    /// The workspace.
    pub fn workspace() -> Self {
        Self(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
    }

    /// An empty folder for the test with this name. Tests run at the same time, and some have the same name.
    pub fn new(test: &str) -> Self {
        static FOLDERS: AtomicUsize = AtomicUsize::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{number}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file, and creates its parent folders.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> &Self {
        let file = self.path(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
        self
    }

    /// Runs `clusterip audit` of a snapshot with these objects and further arguments.
    pub fn audit(&self, settings: &str, objects: &[Value], args: &[&str]) -> Done {
        self.write("snapshot.json", snapshot_of(objects)).write("settings.yaml", settings);
        let base = ["audit", "--snapshot", "snapshot.json", "--settings", "settings.yaml"];
        self.run(&[&base[..], args].concat())
    }

    /// Runs `clusterip` with these arguments.
    pub fn run(&self, args: &[&str]) -> Done {
        self.run_with(args, "", &[])
    }

    /// Runs `clusterip` with a standard input and additional environment variables. The output is without the line
    /// about the pools of K2s, which has a test of its own, because most tests without settings are about something
    /// else.
    pub fn run_with(&self, args: &[&str], stdin: &str, environment: &[(&str, &str)]) -> Done {
        let Done { status, stdout, stderr } = self.run_as_printed(args, stdin, environment);
        let without = |text: String| text.strip_prefix(DEFAULT_POOLS).map(str::to_owned).unwrap_or(text);
        Done { status, stdout: without(stdout), stderr: stderr.replacen(DEFAULT_POOLS, "", 1) }
    }

    /// As [`Self::run_with`], with the whole output.
    pub fn run_as_printed(&self, args: &[&str], stdin: &str, environment: &[(&str, &str)]) -> Done {
        let mut child = Command::new(env!("CARGO_BIN_EXE_clusterip"))
            .args(args)
            .current_dir(&self.0)
            .env_remove("NO_COLOR")
            .env_remove("CLICOLOR")
            .env_remove("CLICOLOR_FORCE")
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let text = stdin.to_owned();
        // Writing fails if the program closes the pipe without reading.
        let writer = std::thread::spawn(move || drop(input.write_all(text.as_bytes())));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        let text = |bytes| String::from_utf8(bytes).expect("output in UTF-8");
        let status = output.status.code().expect("an exit status, not a signal");
        Done { status, stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// A snapshot with these objects. Every cluster has Services, so a headless one is added if there is none: it has no
/// address, so it changes nothing.
pub fn snapshot_of(objects: &[Value]) -> String {
    let mut items = objects.to_vec();
    if !items.iter().any(|item| item["kind"] == "Service") {
        items.push(headless());
    }
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// A Service without an address.
pub fn headless() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "headless", "namespace": "default"},
           "spec": {"clusterIP": "None"}})
}

/// The manifest of a Service with this name and this spec in YAML.
pub fn service_manifest(name: &str, spec: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec: {spec}\n")
}
