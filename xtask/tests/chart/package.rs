//! The chart as a package: its version, and what `helm lint` says.

use crate::deploy_files::{document, read};

use super::support::{program, run};

#[test]
fn chart_has_the_released_version() {
    let chart = read("deploy/chart/Chart.yaml").unwrap();
    let chart = document(&chart).unwrap();
    assert_eq!([&chart["version"], &chart["appVersion"]], [env!("CARGO_PKG_VERSION"); 2]);
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
