//! The chart as a package: its version, and what `helm lint` says.

use std::collections::BTreeSet;

use xtask::deploy_files::{document, read, workspace};

use super::support::{program, run};

#[test]
fn chart_has_the_released_version() {
    let chart = read("deploy/chart/Chart.yaml").unwrap();
    let chart = document(&chart).unwrap();
    assert_eq!([&chart["version"], &chart["appVersion"]], [env!("CARGO_PKG_VERSION"); 2]);
}

/// Helm installs the definitions from this folder before the objects of the templates.
#[test]
fn chart_has_the_definitions_of_the_custom_resources() {
    let names = |folder: &str| -> BTreeSet<String> {
        let files = std::fs::read_dir(workspace().join(folder)).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "kustomization.yaml").collect()
    };
    let deployed = names("deploy/crds");
    assert!(!deployed.is_empty());
    assert_eq!(names("deploy/chart/crds"), deployed);
    for name in deployed {
        let (in_chart, deployed) = (read(&format!("deploy/chart/crds/{name}")), read(&format!("deploy/crds/{name}")));
        assert!(in_chart.unwrap() == deployed.unwrap(), "deploy/chart/crds/{name} differs from deploy/crds/{name}");
    }
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
