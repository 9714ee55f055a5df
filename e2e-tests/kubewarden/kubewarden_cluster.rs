//! A cluster with Kubewarden, and an operator who types the commands of `docs/kubewarden.md`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e_tests::support::documented_steps::{Operator, Step, steps_of, types};
use e2e_tests::support::program;
use e2e_tests::support::whole_cluster::{self, WholeCluster, write_image_with};

use crate::registry::{self, PAGE};

/// The namespace of Kubewarden.
pub const KUBEWARDEN: &str = "kubewarden";

/// The variable with the folder of Kubewarden's Go programs, its charts and the registry. `make test-kubewarden` builds
/// them.
const BUILT: &str = "CLUSTERIP_KUBEWARDEN";
const POLICY_SERVER: &str = "POLICY_SERVER";
const KWCTL: &str = "KWCTL";
const HELM: &str = "CLUSTERIP_HELM";
/// The image of `deploy`.
const IMAGE: &str = concat!("ghcr.io/clusterip-policy/clusterip:v", env!("CARGO_PKG_VERSION"));
const NODES: usize = 2;
/// The public certificate authorities: policy-server ends without them.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The policies that name a module.
const POLICIES: [&str; 3] = ["policy", "nodes", "team"];

/// What these tests need and this machine lacks: its name for `missing::skip`, and the remedy.
pub fn lacking() -> Option<(&'static str, String)> {
    if [POLICY_SERVER, KWCTL].iter().any(|name| env::var_os(name).is_none()) {
        let remedy = "policy-server and kwctl, which no package registry has: build them from \
                      https://github.com/kubewarden/adm-controller, and set POLICY_SERVER and KWCTL to their paths";
        return Some(("policy-server", remedy.to_owned()));
    }
    if [BUILT, HELM].iter().any(|name| env::var_os(name).is_none()) {
        return Some(("kubewarden", "the programs and charts of Kubewarden: make test-kubewarden".to_owned()));
    }
    if !Path::new(AUTHORITIES).exists() {
        return Some(("pods", format!("{AUTHORITIES}: apt-get install ca-certificates")));
    }
    whole_cluster::lacking().map(|lacking| ("pods", format!("a cluster: {lacking}")))
}

/// Starts a cluster, installs Kubewarden in it, and pushes the policy to a registry in it.
pub fn start() -> WholeCluster {
    let folder = tempfile::tempdir().unwrap();
    let archives = write_images(folder.path());
    let cluster = WholeCluster::start(NODES, &archives);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let operator = operator(&cluster);
        let documented = steps_of(PAGE, "Installation");
        operator.does(&offline(documented.iter().find(|step| types(step, "helm")).unwrap())).await;
        registry::start(&cluster).await;
        registry::push(&cluster, &operator).await;
    });
    cluster
}

/// An operator with helm, kwctl, and a copy of `deploy` that names the registry in the cluster.
pub fn operator(cluster: &WholeCluster) -> Operator<'_> {
    let operator = Operator::with_pods(cluster);
    operator.install("helm", &path_of(HELM));
    operator.install("kwctl", &path_of(KWCTL));
    for policy in POLICIES {
        let file = format!("deploy/kubewarden/{policy}/policy.yaml");
        let text = operator.read(&file);
        let changed = text.replace(registry::PUBLIC, &format!("registry://{}/", registry::IN_CLUSTER));
        assert_ne!(changed, text, "{file} names another registry");
        operator.write(&file, &changed);
    }
    operator
}

/// The command that installs Kubewarden, with the charts in the folder of the built programs, and without TLS for the
/// registry in the cluster.
fn offline(step: &Step) -> Step {
    const ONLINE: &str = "--repo https://charts.kubewarden.io kubewarden-$chart kubewarden-$chart";
    let Step::Type(command) = step else { panic!("{step:?}") };
    let insecure = format!("--set 'policyServer.insecureSources={{{}}}'", registry::IN_CLUSTER);
    let charts = charts();
    let local = format!("{insecure} kubewarden-$chart {}/kubewarden-$chart", charts.display());
    assert!(command.contains(ONLINE), "{command}");
    Step::Type(command.replace(ONLINE, &local))
}

fn path_of(variable: &str) -> PathBuf {
    PathBuf::from(env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set: make test-kubewarden")))
}

fn charts() -> PathBuf {
    path_of(BUILT).join("charts")
}

/// Writes the images that the charts and `deploy` name, and that of the registry.
fn write_images(folder: &Path) -> Vec<PathBuf> {
    let built = path_of(BUILT);
    let version = version();
    let kubewarden = |name: &str| format!("ghcr.io/kubewarden/adm-controller/{name}:{version}");
    let images = [
        (kubewarden("controller"), built.join("controller")),
        (kubewarden("audit-scanner"), built.join("audit-scanner")),
        (kubewarden("policy-server"), path_of(POLICY_SERVER)),
        (registry::IMAGE.to_owned(), built.join("registry")),
        (IMAGE.to_owned(), program()),
    ];
    let archives = images.iter().enumerate().map(|(nth, (name, program))| {
        let archive = folder.join(format!("{nth}.tar"));
        write_image_with(name, &archive, program, &[Path::new(AUTHORITIES)]);
        archive
    });
    archives.collect()
}

/// The version of Kubewarden in the charts, which is that of their images.
fn version() -> String {
    let chart = charts().join("kubewarden-controller");
    let output = Command::new(path_of(HELM)).args(["show", "chart"]).arg(&chart).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let chart = String::from_utf8(output.stdout).unwrap();
    let version = chart.lines().find_map(|line| line.strip_prefix("appVersion: "));
    version.unwrap_or_else(|| panic!("no appVersion: {chart}")).to_owned()
}
