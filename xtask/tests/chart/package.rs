//! The chart as a package: its version, and what `helm lint` says.

use crate::files::{assert_fields, read_yaml};

use serde_json::json;

use super::support::{program, run};

#[test]
fn chart_has_the_released_version() {
    let version = env!("CARGO_PKG_VERSION");
    assert_fields(
        "Chart.yaml",
        &read_yaml("deploy/chart/Chart.yaml"),
        &json!({"version": version, "appVersion": version}),
    );
}

#[test]
fn helm_lint_finds_no_mistakes() {
    let mut helm = program("CLUSTERIP_HELM", "helm");
    helm.args(["lint", "--strict", "deploy/chart"]);
    let said = run(helm).unwrap();
    assert_eq!(
        said.lines().filter(|line| line.contains("WARNING") || line.contains("ERROR")).collect::<Vec<_>>(),
        [""; 0]
    );
}
