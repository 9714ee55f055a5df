//! Signals while `clusterip move` works: it finishes the moves that have begun, and gives its Lease back.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Command, ExitStatus, Stdio};

use crate::support::control_plane::ControlPlane;
use crate::support::fault_proxy::{Fault, Proxy, Seen};
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::program;

/// Creates this number of Services, with addresses that the API server picks.
async fn create_services(plane: &ControlPlane, namespace: &str, count: usize) {
    let manifest = |nth| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{namespace: {namespace}, name: service-{nth}}}, \
              spec: {{ports: [{{port: 80}}]}}}}\n"
        )
    };
    let manifests: Vec<String> = (0..count).map(manifest).collect();
    plane.kubectl_with(&["create", "-f", "-"], &manifests.join("---\n")).await.ok();
}

/// Runs a command, and interrupts it when the first Service has moved. Returns its status and the lines of its standard
/// error.
fn interrupted_in_a_move(mut command: Command) -> (ExitStatus, Vec<String>) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines: Vec<String> = Vec::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.starts_with("moved ") && !lines.iter().any(|line| line.starts_with("moved ")) {
            let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
            assert!(sent.success());
        }
        lines.push(line);
    }
    (child.wait().unwrap(), lines)
}

/// Checks that this many Services exist in a namespace, that each has an address, and that no move is recorded.
async fn no_move_is_unfinished(plane: &ControlPlane, namespace: &str, count: usize) {
    let path = "-o=jsonpath={range .items[*]}{.spec.type} {.spec.clusterIP}{\"\\n\"}{end}";
    let services = plane.kubectl(&["get", "services", "-n", namespace, path]).await.ok();
    assert_eq!(services.lines().count(), count, "{services}");
    for service in services.lines() {
        let address = service.strip_prefix("ClusterIP ").and_then(|address| address.parse::<IpAddr>().ok());
        assert!(address.is_some(), "a Service without an address: {service}");
    }
    let records = ["get", "controllerrevisions", "-A", "-l", "clusterip-policy/move=record", "-o", "name"];
    assert_eq!(plane.kubectl(&records).await.ok(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_command_finishes_the_moves_that_have_begun() {
    // All Services lie outside of the pool, apart from a few that the API server placed there by chance.
    const SERVICES: usize = 100;
    let plane = LentControlPlane::get().await;
    let namespace = plane.namespace("interrupted").await;
    create_services(&plane, &namespace, SERVICES).await;
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("settings.yaml");
    std::fs::write(&settings, "services: {pools: [{name: all, cidrs: [172.21.200.0/24]}]}\n").unwrap();
    let command = || {
        let mut command = Command::new(program());
        command.args(["move", "--yes", "-n", &namespace, "--kubeconfig"]).arg(plane.kubeconfig());
        command.arg("--settings").arg(&settings).stdin(Stdio::null());
        command
    };

    let interrupted = command();
    let (status, lines) = tokio::task::spawn_blocking(move || interrupted_in_a_move(interrupted)).await.unwrap();
    let stderr = lines.join("\n");
    assert_eq!(status.code(), Some(1), "{stderr}");
    let moved = lines.iter().filter(|line| line.starts_with("moved ")).count();
    let errors: Vec<&String> = lines.iter().filter(|line| line.starts_with("error: ")).collect();
    let [last] = errors.as_slice() else { panic!("one error that counts the Services: {stderr}") };
    let count = last.strip_prefix(&format!("error: interrupted: {moved} of "));
    let count = count.and_then(|rest| rest.strip_suffix(" Services were moved")?.parse::<usize>().ok());
    let left = count.unwrap_or_else(|| panic!("{moved} moved: {stderr}")) - moved;
    assert!(moved > 0 && left > 0, "{stderr}");

    no_move_is_unfinished(&plane, &namespace, SERVICES).await;

    let mut rest = command();
    rest.arg("--quiet");
    let output = tokio::task::spawn_blocking(move || rest.output()).await.unwrap().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(stdout.lines().last(), Some(format!("moved {left} of {left}, 0 stay").as_str()));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "--quiet");
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_before_the_first_move_gives_the_lease_back() {
    struct Case {
        name: &'static str,
        signal: &'static str,
        /// The requests one of which waits while the signal arrives.
        waiting: fn(&Seen) -> bool,
        /// How many of these requests come before it.
        earlier: usize,
        fault: Fault,
        expected: &'static str,
    }
    let plane = LentControlPlane::get().await;
    let namespace = plane.namespace("signalled").await;
    // At most a few of the Services get addresses of the pool by chance.
    create_services(&plane, &namespace, 5).await;
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("settings.yaml");
    std::fs::write(&settings, "services: {pools: [{name: all, cidrs: [172.21.200.0/24]}]}\n").unwrap();
    let servers: fn(&Seen) -> bool = |seen| seen.path == "/apis/apps/v1/controllerrevisions";
    let cases = [
        Case {
            name: "the list of the servers",
            signal: "-INT",
            waiting: servers,
            earlier: 0,
            fault: Fault::PauseBefore,
            expected: "error: interrupted: no Service was moved",
        },
        // The first list finds the server. The second one is read before the moves are listed.
        Case {
            name: "the list of the servers, after the Lease was taken",
            signal: "-TERM",
            waiting: servers,
            earlier: 2,
            fault: Fault::PauseBefore,
            expected: "error: interrupted: 0 of ",
        },
        Case {
            name: "the answer to the request that takes the Lease",
            signal: "-INT",
            waiting: |seen| seen.is_write() && seen.path.contains("/leases"),
            earlier: 0,
            fault: Fault::PauseAfter,
            expected: "error: interrupted: 0 of ",
        },
    ];
    for (nth, Case { name, signal, waiting, earlier, fault, expected }) in cases.into_iter().enumerate() {
        let proxy = Proxy::start(&plane).await;
        let gate = proxy.on_nth(earlier, 1, waiting, fault);
        let kubeconfig =
            plane.write_kubeconfig(&format!("signalled-{nth}.kubeconfig"), proxy.url(), plane.admin_token());
        let mut command = Command::new(program());
        command.args(["move", "--yes", "-n", &namespace, "--kubeconfig"]).arg(kubeconfig);
        command.arg("--settings").arg(&settings);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        gate.arrived().await;
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success(), "{name}");
        let ended = tokio::task::spawn_blocking(move || child.wait_with_output()).await.unwrap().unwrap();
        gate.discard();
        let stderr = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{name}: {stderr}");
        assert!(stderr.lines().last().is_some_and(|line| line.starts_with(expected)), "{name}: {stderr}");
        let holder = [
            "get",
            "leases",
            "-A",
            "-o=jsonpath={.items[?(@.metadata.name==\"clusterip-leader\")].spec.holderIdentity}",
        ];
        assert_eq!(plane.kubectl(&holder).await.ok(), "", "{name}: the Lease is held");
    }
}
