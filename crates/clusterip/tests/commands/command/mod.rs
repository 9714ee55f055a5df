//! Runs the program in a folder of its own or in that of the workspace, and writes its input.

pub mod external_snapshot;
pub mod service_snapshot;
pub mod session_files;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::ValueEnum;
use clusterip::audit::model::Kind;
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

    /// Each finding of an audit as its kind, its Node, its addresses or blocks, its pool and its message.
    pub fn findings(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let line = |finding: &Value| {
            let all =
                [&finding["addresses"], &finding["blocks"]].map(|all| all.as_array().cloned().unwrap_or_default());
            let [kind, node, pool, message] = ["kind", "node", "pool", "message"].map(|key| text(&finding[key]));
            format!(
                "{kind} | {node} | {} | {pool} | {message}",
                all.concat().iter().map(text).collect::<Vec<_>>().join(",")
            )
        };
        self.json()["findings"].as_array().unwrap().iter().map(line).collect()
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

    /// Runs `clusterip` with the arguments of a command line without quotes.
    pub fn clusterip(&self, line: &str) -> Done {
        self.piped(line, "")
    }

    /// The same with a standard input.
    pub fn piped(&self, line: &str, stdin: &str) -> Done {
        self.run_with(&line.split(' ').collect::<Vec<_>>(), stdin, &[])
    }

    /// Runs `clusterip` with these arguments, some of which may be empty or have spaces.
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

/// `object`, merged with `more`.
pub fn merged(mut object: Value, more: Value) -> Value {
    json_patch::merge(&mut object, &more);
    object
}

/// A ServiceCIDR with this range, merged with `more`.
pub fn service_cidr(name: &str, cidr: &str, more: Value) -> Value {
    let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name},
                        "spec": {"cidrs": [cidr]}});
    merged(object, more)
}

/// A kubeconfig whose context `a` names this API server.
pub fn kubeconfig(url: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
         clusters: [{{name: a, cluster: {{server: '{url}'}}}}]\nusers: [{{name: a, user: {{}}}}]\n"
    )
}

/// The objects as YAML documents.
pub fn documents(objects: &[Value]) -> String {
    objects.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n---\n")
}

/// Checks that an audit with these arguments fails for the kinds of its findings, and for no other kind.
#[track_caller]
pub fn check_fail_on(audit: impl Fn(&[&str]) -> Done) {
    let found = audit(&["-o", "json"]).json()["findings"].clone();
    let kinds: Vec<&Value> = found.as_array().unwrap().iter().map(|finding| &finding["kind"]).collect();
    for kind in Kind::value_variants() {
        let name = kind.to_possible_value().unwrap().get_name().to_owned();
        let status = audit(&["--fail-on", &name]).status;
        assert_eq!(status, i32::from(kinds.contains(&&json!(name))), "{name}, of {kinds:?}");
    }
}

/// The manifest of a Service with this name and this spec in YAML.
pub fn service_manifest(name: &str, spec: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec: {spec}\n")
}
