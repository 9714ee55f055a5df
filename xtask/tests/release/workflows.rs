//! The workflows run only pinned actions, with no more permissions than they need.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

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
    assert_eq!(names, ["ci.yml", "release.yml", "scorecard.yml"]);
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
        "images": {"packages": "write", "id-token": "write", "attestations": "write"},
        "push": {"packages": "write", "id-token": "write", "attestations": "write"},
        "release": {"contents": "write", "id-token": "write", "attestations": "write"},
        "artifacthub": {"contents": "write"},
    });
    assert_eq!(permissions("release.yml"), release);
    let scorecard = json!({"score": {"contents": "read", "actions": "read", "id-token": "write"}});
    assert_eq!(permissions("scorecard.yml"), scorecard);
}

/// The same list as the one of CycloneDX, with the identifiers and fields that SPDX 2.3 requires.
#[test]
fn list_of_contents_is_also_printed_as_spdx() {
    let list = json!({
        "metadata": {"component": {"name": "clusterip", "version": "1.2.3"}},
        "components": [
            {"name": "serde", "version": "1.0.1", "licenses": [{"expression": "MIT OR Apache-2.0"}], "purl": "pkg:cargo/serde@1.0.1"},
            {"name": "libc6", "version": "2.41-1+b1", "purl": "pkg:deb/debian/libc6@2.41-1%2Bb1"},
        ],
    });
    let mut script = Command::new(workspace().join("scripts/sbom-to-spdx"))
        .env("SOURCE_DATE_EPOCH", "1795000000")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    script.stdin.take().unwrap().write_all(list.to_string().as_bytes()).unwrap();
    let output = script.wait_with_output().unwrap();
    assert!(output.status.success());
    let package = |id: &str, name: &str, version: &str, licence: &str| {
        json!({
            "SPDXID": id, "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
            "licenseConcluded": "NOASSERTION", "licenseDeclared": licence, "copyrightText": "NOASSERTION",
        })
    };
    let found_as = |mut package: Value, purl: &str| {
        package["externalRefs"] =
            json!([{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]);
        package
    };
    let mut program = package("SPDXRef-clusterip-1.2.3", "clusterip", "1.2.3", "NOASSERTION");
    program["primaryPackagePurpose"] = json!("APPLICATION");
    let relation = |from: &str, kind: &str, to: &str| json!({"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to});
    let serde = package("SPDXRef-serde-1.0.1", "serde", "1.0.1", "MIT OR Apache-2.0");
    let libc = package("SPDXRef-libc6-2.41-1-b1", "libc6", "2.41-1+b1", "NOASSERTION");
    let expected = json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": "clusterip-1.2.3",
        "documentNamespace": "https://github.com/clusterip-policy/clusterip-policy/sbom/clusterip-1.2.3-2026-11-18T11:06:40Z",
        "creationInfo": {"created": "2026-11-18T11:06:40Z", "creators": ["Organization: clusterip-policy"]},
        "packages": [
            program,
            found_as(serde, "pkg:cargo/serde@1.0.1"),
            found_as(libc, "pkg:deb/debian/libc6@2.41-1%2Bb1"),
        ],
        "relationships": [
            relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-clusterip-1.2.3"),
            relation("SPDXRef-clusterip-1.2.3", "CONTAINS", "SPDXRef-serde-1.0.1"),
            relation("SPDXRef-clusterip-1.2.3", "CONTAINS", "SPDXRef-libc6-2.41-1-b1"),
        ],
    });
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), expected);
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
