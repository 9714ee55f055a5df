//! A registry in the cluster, from which policy-server pulls the policy.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use e2e_tests::support::documented_steps::{Operator, Step, steps_of, types};
use e2e_tests::support::whole_cluster::WholeCluster;

/// The page that the tests follow.
pub const PAGE: &str = "kubewarden.md";
/// The image of the registry, which no other registry has.
pub const IMAGE: &str = "registry.invalid/distribution:test";
/// The registry, as Pods reach it.
pub const IN_CLUSTER: &str = "registry.registry.svc.cluster.local:5000";
/// The beginning of the `module` that the policies in `deploy` name.
pub const PUBLIC: &str = "registry://ghcr.io/clusterip-policy/";
/// The registry in the commands of the page.
const DOCUMENTED: &str = "registry.example.com";

const MANIFEST: &str = include_str!("registry.yaml");
const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../annotated-policy.wasm");

/// Runs the registry as a Pod, and waits until it is ready.
pub async fn start(cluster: &WholeCluster) {
    cluster.apply(&MANIFEST.replace("REGISTRY_IMAGE", IMAGE)).await;
    let status = ["rollout", "status", "--namespace=registry", "deployment/registry", "--timeout=90s"];
    cluster.kubectl(&status).await.ok();
}

/// Pushes the policy with the command of the page, through a port of this machine.
pub async fn push(cluster: &WholeCluster, operator: &Operator<'_>) {
    std::fs::copy(MODULE, operator.folder().join("annotated-policy.wasm")).unwrap();
    let forward = Forward::start(cluster);
    let local = format!("localhost:{}", forward.port);
    operator.write("sources.yaml", &format!("insecure_sources: [{local}]\n"));
    let documented = steps_of(PAGE, "Pushing the policy to your registry");
    let push = documented.iter().find(|step| types(step, "kwctl push")).unwrap();
    let Step::Type(command) = push else { panic!("{push:?}") };
    assert!(command.contains(DOCUMENTED), "{command}");
    let command = format!("{} --sources-path sources.yaml", command.replace(DOCUMENTED, &local));
    operator.does(&Step::Type(command)).await;
}

/// `kubectl port-forward` to the registry, until it is dropped.
struct Forward {
    process: Child,
    port: u16,
    // kubectl ends if it can't write a line for each connection.
    _output: BufReader<ChildStdout>,
}

impl Forward {
    fn start(cluster: &WholeCluster) -> Self {
        let mut process = Command::new(cluster.kubectl_program())
            .args(["port-forward", "--namespace=registry", "service/registry", ":5000"])
            .env("KUBECONFIG", cluster.kubeconfig())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        // Forwarding from 127.0.0.1:40001 -> 5000
        let port =
            line.split(" -> ").next().and_then(|from| from.rsplit(':').next()).and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("kubectl port-forward: {line:?}"));
        Self { process, port, _output: output }
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
