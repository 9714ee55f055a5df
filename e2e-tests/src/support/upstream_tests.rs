//! Runs the tests of the network with which Kubernetes tests itself. `make conformance` builds them.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::serve_process::spawn_from_lasting_thread;
use super::whole_cluster::WholeCluster;

/// The environment variable with the folder of the programs: the tests, and ginkgo, which runs several at once.
pub const PROGRAMS: &str = "CLUSTERIP_UPSTREAM_TESTS";

/// A test that fails is repeated once: the machine may be busy, and upstream's own runs do the same.
const ATTEMPTS: u32 = 2;

/// The tests whose names match `focus`, and none of `skip`. These are regular expressions.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'s> {
    pub focus: &'s str,
    pub skip: &'s [&'s str],
    /// How many tests run at once.
    pub processes: u32,
}

/// The result of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed {
        attempts: u32,
    },
    /// The test itself found that it does not apply to the cluster, for this reason.
    Skipped(String),
    Failed(String),
}

impl Outcome {
    /// Whether the test passed, in the first attempt or in a later one.
    pub fn passed(&self) -> bool {
        matches!(self, Self::Passed { .. })
    }
}

/// The results by the names of the tests.
pub type Outcomes = BTreeMap<String, Outcome>;

/// Runs these tests, and writes their output and ginkgo's report into the folder, which is emptied first.
pub async fn run_tests(cluster: &WholeCluster, selection: &Selection<'_>, folder: &Path) -> Outcomes {
    let programs = env::var_os(PROGRAMS).unwrap_or_else(|| panic!("{PROGRAMS} is not set: run `make conformance`"));
    let programs = PathBuf::from(programs);
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).unwrap();
    let report = folder.join("report.json");
    let log = File::create(folder.join("output.log")).unwrap();

    // If the process that runs ginkgo is killed, the kernel kills ginkgo.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .arg(programs.join("ginkgo"))
        .args(["--no-color", "--silence-skips", "--timeout=2h", "--json-report=report.json"])
        .arg(format!("--output-dir={}", folder.display()))
        .arg(format!("--procs={}", selection.processes))
        .arg(format!("--flake-attempts={ATTEMPTS}"))
        .arg(format!("--focus={}", selection.focus))
        .args(selection.skip.iter().map(|skip| format!("--skip={skip}")))
        .arg(programs.join("conformance.test"))
        .arg("--")
        .arg(format!("--kubeconfig={}", cluster.kubeconfig().display()))
        .arg(format!("--kubectl-path={}", cluster.kubectl_program().display()))
        .args(["--provider=skeleton", "--allowed-not-ready-nodes=-1"])
        .arg(format!("--num-nodes={}", cluster.nodes().len()))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    let mut ginkgo = spawn_from_lasting_thread(command).unwrap();
    // The exit status says whether a test failed. So does the report, which is missing if ginkgo itself failed.
    tokio::task::spawn_blocking(move || ginkgo.wait()).await.unwrap().unwrap();
    let report = fs::read(&report)
        .unwrap_or_else(|_| panic!("{}", fs::read_to_string(folder.join("output.log")).unwrap_or_default()));
    let outcomes = outcomes(&report);
    assert!(outcomes.values().any(Outcome::passed), "no test passed: {outcomes:#?}");
    outcomes
}

/// A report of ginkgo, which lists all tests of the program.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Vec<Test>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Test {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    #[serde(default)]
    failure: Failure,
    num_attempts: u32,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    message: String,
}

/// The tests that ran.
fn outcomes(report: &[u8]) -> Outcomes {
    let suites: Vec<Suite> = serde_json::from_slice(report).unwrap();
    let tests = suites.into_iter().flat_map(|suite| suite.spec_reports);
    // Tests that were not selected had no attempt. What prepares all tests is reported only if it failed.
    let ran = tests.filter(|test| match test.leaf_node_type.as_str() {
        "It" => test.num_attempts > 0,
        _ => test.state != "passed",
    });
    ran.map(|test| {
        let message = test.failure.message;
        let outcome = match test.state.as_str() {
            "passed" => Outcome::Passed { attempts: test.num_attempts },
            "skipped" => Outcome::Skipped(message),
            state => Outcome::Failed(format!("{state}: {message}")),
        };
        let mut name = test.container_hierarchy_texts.unwrap_or_default();
        name.push(if test.leaf_node_type == "It" { test.leaf_node_text } else { test.leaf_node_type });
        (name.join(" "), outcome)
    })
    .collect()
}
