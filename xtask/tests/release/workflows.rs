//! The workflows run only pinned actions, with no more permissions than they need.

use std::fs;

use serde_json::{Value, json};

use crate::files::{document, read, read_yaml, workspace};

/// The mistakes of a workflow, one on each line.
fn faults(text: &str) -> Vec<String> {
    let workflow = document(text);
    let mut faults = Vec::new();
    if workflow["permissions"] != json!({}) {
        faults.push("permissions: not {}".to_owned());
    }
    if !workflow["concurrency"]["group"].is_string() {
        faults.push("concurrency: no group".to_owned());
    }
    for (name, job) in workflow["jobs"].as_object().expect("no jobs") {
        if !job["permissions"].is_object() {
            faults.push(format!("{name}: no permissions"));
        }
        if job["uses"].is_null() && !job["timeout-minutes"].is_u64() {
            faults.push(format!("{name}: no time limit"));
        }
        let steps = job["steps"].as_array().into_iter().flatten();
        for uses in steps.chain([job]).filter_map(|step| step["uses"].as_str()) {
            // Files of this repository are of the same commit.
            if !uses.starts_with("./") && !is_pinned(uses) {
                faults.push(format!("{name}: {uses} is not pinned by its commit"));
            }
        }
        let steps = job["steps"].as_array().into_iter().flatten();
        for run in steps.filter_map(|step| step["run"].as_str()).filter(|run| run.contains("${{")) {
            faults.push(format!("{name}: an expression in a script, not in its environment: {run}"));
        }
    }
    for line in text.lines().filter(|line| line.contains("uses: ") && !line.contains("uses: ./")) {
        let version = line.split_once(" # v").map(|(_, version)| version);
        if !version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit())) {
            faults.push(format!("no version beside the commit:{line}"));
        }
    }
    if text.contains("secrets") {
        faults.push("a secret".to_owned());
    }
    faults
}

fn is_pinned(uses: &str) -> bool {
    let Some((action, commit)) = uses.split_once('@') else { return false };
    action.contains('/') && commit.len() == 40 && commit.bytes().all(|byte| b"0123456789abcdef".contains(&byte))
}

#[test]
fn workflows_are_pinned_and_have_least_permissions() {
    let mut names = Vec::new();
    for entry in fs::read_dir(workspace().join(".github/workflows")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert_eq!(faults(&read(format!(".github/workflows/{name}"))), Vec::<String>::new(), "{name}");
        names.push(name);
    }
    names.sort();
    assert_eq!(names, ["ci.yml", "release.yml"]);
}

#[test]
fn jobs_have_the_permissions_that_they_need() {
    let permissions = |name: &str| -> Value {
        let workflow = read_yaml(format!(".github/workflows/{name}"));
        let jobs = workflow["jobs"].as_object().unwrap().iter();
        jobs.map(|(name, job)| (name.clone(), job["permissions"].clone())).collect::<serde_json::Map<_, _>>().into()
    };
    assert_eq!(permissions("ci.yml"), json!({"check": {"contents": "read"}, "windows": {"contents": "read"}}));
    let release = json!({
        "check": {"contents": "read"},
        "build": {"contents": "read"},
        "programs": {"contents": "read"},
        "images": {"packages": "write", "id-token": "write"},
        "push": {"packages": "write", "id-token": "write"},
        "release": {"contents": "write", "id-token": "write"},
        "artifacthub": {"contents": "write"},
    });
    assert_eq!(permissions("release.yml"), release);
}

/// The programs that a release builds.
fn builds() -> Vec<Value> {
    let workflow = read_yaml(".github/workflows/release.yml");
    workflow["jobs"]["programs"]["strategy"]["matrix"]["include"].as_array().unwrap().clone()
}

/// krew downloads the archive that the workflow packs, and finds the program in it by the name that kubectl looks for.
#[test]
fn krew_manifest_names_the_archives_of_the_release() {
    let manifest = read_yaml("deploy/krew/clusterip.yaml");
    let project = manifest["spec"]["homepage"].as_str().unwrap();
    let expected: Vec<Value> = builds()
        .iter()
        .map(|build| {
            let platform = build["platform"].as_str().unwrap();
            let (os, arch) = platform.split_once('-').unwrap();
            let program = format!("kubectl-clusterip{}", build["suffix"].as_str().unwrap_or_default());
            json!({
                "selector": {"matchLabels": {"os": os, "arch": arch}},
                "uri": format!("{project}/releases/download/VERSION/kubectl-clusterip-{platform}.tar.gz"),
                "sha256": format!("SHA256-{platform}"),
                "bin": program,
                "files": [{"from": program, "to": "."}, {"from": "LICENSE", "to": "."}],
            })
        })
        .collect();
    assert_eq!(manifest["spec"]["platforms"], json!(expected));
    assert_eq!(manifest["spec"]["version"], "VERSION");
}

/// What users download, with the target that each program is compiled for.
#[test]
fn release_has_programs_for_linux_macos_and_windows() {
    let builds = builds();
    let targets: Vec<[&str; 2]> =
        builds.iter().map(|build| ["platform", "target"].map(|key| build[key].as_str().unwrap())).collect();
    let expected = [
        ["linux-amd64", "x86_64-unknown-linux-gnu"],
        ["linux-arm64", "aarch64-unknown-linux-gnu"],
        ["darwin-amd64", "x86_64-apple-darwin"],
        ["darwin-arm64", "aarch64-apple-darwin"],
        ["windows-amd64", "x86_64-pc-windows-gnu"],
    ];
    assert_eq!(targets, expected);
}
