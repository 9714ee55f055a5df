//! `clusterip move` without a server, and with one.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::json;
use tokio::sync::OnceCell;

use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::program;
use crate::support::serve_process::ServerBuilder;

/// A control plane for the tests of this file that move no Service.
fn plane() -> &'static ControlPlane {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    PLANE.get_or_init(|| ControlPlane::start(Options::default()))
}

/// The same control plane, with [`misplaced_services`].
async fn plane_with_misplaced_services() -> &'static ControlPlane {
    static SERVICES: OnceCell<()> = OnceCell::const_new();
    SERVICES.get_or_init(|| misplaced_services(plane())).await;
    plane()
}

/// Two pools: one for Windows, with room for four, and one for the rest.
const SETTINGS: &str = "
services:
  pools:
  - {name: windows, cidrs: [172.21.1.0/29], reserved: 2, match: {os: windows}}
  - {name: linux, cidrs: [172.21.0.0/24], reserved: 50, match: {os: linux}}
";

struct Ended {
    status: i32,
    stdout: String,
    stderr: String,
}

async fn clusterip(plane: &ControlPlane, arguments: &[&str]) -> Ended {
    clusterip_with(plane, SETTINGS, arguments).await
}

/// Runs `clusterip move` with these settings.
async fn clusterip_with(plane: &ControlPlane, text: &str, arguments: &[&str]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("settings.yaml");
    std::fs::write(&settings, text).unwrap();
    let mut command = Command::new(program());
    command.arg("move").args(arguments).arg("--kubeconfig").arg(plane.kubeconfig());
    command.arg("--settings").arg(&settings).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let path = settings.display().to_string();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace(&path, "FILE");
    Ended { status: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Creates a Service at this address, without an owner of the address, as if the API server had picked it.
async fn service(plane: &ControlPlane, namespace: &str, name: &str, address: &str, os: &str) {
    let manifest = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{namespace: {namespace}, name: {name}, \
          annotations: {{clusterip-policy/os: {os}}}}}, \
          spec: {{clusterIP: {address}, ports: [{{port: 80}}]}}}}"
    );
    plane.kubectl_with(&["create", "-f", "-"], &manifest).await.ok();
    disown(plane, namespace, name).await;
}

/// Removes the ownership of the address, as if the API server had picked it.
async fn disown(plane: &ControlPlane, namespace: &str, name: &str) {
    let fields = r#"[{"op": "replace", "path": "/metadata/managedFields", "value": [{"manager": "author",
        "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:ports": {}}}}]}]"#;
    plane.kubectl(&["patch", "service", "-n", namespace, name, "--type=json", "-p", fields]).await.ok();
}

async fn address(plane: &ControlPlane, namespace: &str, name: &str) -> String {
    let path = "-o=jsonpath={.spec.clusterIP} {.metadata.annotations}";
    plane.kubectl(&["get", "service", "-n", namespace, name, path]).await.ok()
}

/// The namespace `late`: `cart` and `web` are misplaced, `placed` is in its pool, and the address of `fixed` was set by
/// hand.
async fn misplaced_services(plane: &ControlPlane) {
    plane.kubectl(&["create", "namespace", "late"]).await.ok();
    service(plane, "late", "cart", "172.21.0.70", "windows").await;
    service(plane, "late", "web", "172.21.99.9", "linux").await;
    service(plane, "late", "placed", "172.21.0.80", "linux").await;
    let by_hand = "{apiVersion: v1, kind: Service, metadata: {namespace: late, name: fixed}, \
                    spec: {clusterIP: 172.21.99.10, ports: [{port: 80}]}}";
    plane.kubectl_with(&["create", "-f", "-"], by_hand).await.ok();
}

/// What `clusterip move -n late --dry-run` prints about [`misplaced_services`].
const LISTED: &str = "\
NAMESPACE  SERVICE  FROM          TO            METHOD  WHY
late       cart     172.21.0.70   172.21.1.4    plain   it lies in pool linux, and belongs to pool windows: kubernetes.io/os=windows (annotation clusterip-policy/os)
  clients notice nothing: no endpoint is ready
late       fixed    172.21.99.10  stays         -       it lies in no pool, and belongs to pool linux: kubernetes.io/os=linux (setting assumeOS)
  stays: its address was set by hand, as `metadata.managedFields` shows
late       web      172.21.99.9   172.21.0.103  plain   it lies in no pool, and belongs to pool linux: kubernetes.io/os=linux (annotation clusterip-policy/os)
  clients notice nothing: no endpoint is ready

2 to move, 1 stay
";

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_lists_the_moves_and_their_reasons() {
    let plane = plane_with_misplaced_services().await;
    let shown = clusterip(plane, &["-n", "late", "--dry-run"]).await;
    assert_eq!((shown.status, shown.stderr.as_str()), (0, "settings: FILE\n"));
    assert_eq!(shown.stdout, LISTED);

    // Without their titles, columns may be narrower.
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (_, untitled) = shown.stdout.split_once('\n').unwrap();
    let without_titles = clusterip(plane, &["-n", "late", "--dry-run", "--no-headers"]).await;
    assert_eq!((without_titles.status, words(&without_titles.stdout)), (0, words(untitled)));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_services_that_are_selected_are_listed() {
    let plane = plane_with_misplaced_services().await;
    for (selector, expected) in [("!app", LISTED), ("app=web", "nothing is misplaced\n")] {
        let selected = clusterip(plane, &["-n", "late", "--dry-run", "-l", selector]).await;
        assert_eq!((selected.status, selected.stdout.as_str()), (0, expected), "{selector}");
    }
    let placed = clusterip(plane, &["-n", "late", "--service", "placed"]).await;
    assert_eq!((placed.status, placed.stdout.as_str()), (0, "nothing is misplaced\n"));
    let unknown = clusterip(plane, &["-n", "late", "--service", "missing", "--yes"]).await;
    assert_eq!(unknown.status, 2);
    assert_eq!(unknown.stderr, "settings: FILE\nerror: there is no Service late/missing\n");
    let called = clusterip(plane, &["-n", "late", "--dry-run", "--called-by-control-plane", "late/missing"]).await;
    assert_eq!(called.status, 2);
    let error = "error: there is no Service late/missing: check --called-by-control-plane\n";
    assert_eq!(called.stderr, format!("settings: FILE\n{error}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_moved_without_confirmation() {
    let plane = plane_with_misplaced_services().await;
    let unasked = clusterip(plane, &["-n", "late"]).await;
    assert_eq!(unasked.status, 2);
    assert_eq!(
        unasked.stderr,
        "settings: FILE\nerror: standard input is not a terminal: use --yes to move without asking, or --dry-run to \
         only list the moves\n"
    );
    let cart = address(plane, "late", "cart").await;
    assert_eq!(cart, r#"172.21.0.70 {"clusterip-policy/os":"windows"}"#, "nothing was moved");
}

#[tokio::test(flavor = "multi_thread")]
async fn misplaced_services_are_moved() {
    let plane = &LentControlPlane::get().await;
    misplaced_services(plane).await;

    let one = clusterip(plane, &["-n", "late", "--service", "cart", "--yes"]).await;
    assert_eq!(one.status, 0, "{}", one.stderr);
    assert_eq!(one.stdout.lines().last(), Some("moved 1 of 1, 0 stay"));
    assert_eq!(address(plane, "late", "cart").await, r#"172.21.1.4 {"clusterip-policy/os":"windows"}"#);
    assert_eq!(address(plane, "late", "web").await, r#"172.21.99.9 {"clusterip-policy/os":"linux"}"#, "not meant");

    let rest = clusterip(plane, &["-n", "late", "--yes"]).await;
    assert_eq!(rest.status, 0, "{}", rest.stderr);
    assert_eq!(address(plane, "late", "web").await, r#"172.21.0.103 {"clusterip-policy/os":"linux"}"#);
    assert_eq!(address(plane, "late", "fixed").await, "172.21.99.10 ", "set by hand");
}

#[tokio::test(flavor = "multi_thread")]
async fn services_without_a_free_address_are_listed() {
    // These settings have a full pool. They are separate, so that `late` and `busy` do not disturb each other.
    plane().kubectl(&["create", "namespace", "busy"]).await.ok();
    let settings = "{services: {pools: [{name: windows, cidrs: [172.21.9.0/29], match: {os: windows}}, \
                     {name: linux, cidrs: [172.21.0.0/24], reserved: 50, match: {os: linux}}]}}";
    for last in 1..7 {
        service(plane(), "busy", &format!("taken-{last}"), &format!("172.21.9.{last}"), "windows").await;
    }
    service(plane(), "busy", "cart", "172.21.0.71", "windows").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.yaml");
    std::fs::write(&file, settings).unwrap();
    let mut command = Command::new(program());
    command.args(["move", "-n", "busy", "--yes", "--kubeconfig"]).arg(plane().kubeconfig());
    command.arg("--settings").arg(&file);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    let lines: Vec<&str> = stdout.lines().collect();
    let [_, row, stays, "", "0 to move, 1 stay"] = lines[..] else { panic!("{stdout}") };
    assert!(row.starts_with("busy       cart     172.21.0.71  stays"), "{row}");
    assert!(
        stays.contains("stays: Service busy/cart: pool \"windows\" (172.21.9.0/29) is full: 6 of 6 addresses used"),
        "{stays}"
    );
    assert_eq!(address(plane(), "busy", "cart").await, r#"172.21.0.71 {"clusterip-policy/os":"windows"}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn service_keeps_its_address_if_a_step_of_its_move_is_forbidden() {
    const FORBIDDEN: &str = "moves are forbidden in this namespace";
    // A pool that the other tests do not use, so that no test takes an address that another test expects.
    let settings = "{services: {pools: [{name: windows, cidrs: [172.21.10.0/24], match: {os: windows}}, \
                    {name: linux, cidrs: [172.21.0.0/24], reserved: 50, match: {os: linux}}]}}";
    struct Case {
        /// The step that is forbidden, and the name of the namespace.
        name: &'static str,
        /// The CEL expression that is true of the allowed updates.
        allowed: &'static str,
        address: &'static str,
        /// The beginning and the end of the reason in the report.
        reason: [&'static str; 2],
    }
    let cases = [
        Case {
            name: "forbidden-release",
            allowed: "object.spec.type != 'ExternalName'",
            address: "172.21.0.72",
            reason: [
                "Service forbidden-release/cart can't be moved: the step \"release\" was refused: ",
                "; nothing was changed",
            ],
        },
        Case {
            name: "forbidden-target",
            allowed: "!has(object.spec.clusterIP) || !object.spec.clusterIP.startsWith('172.21.10.')",
            address: "172.21.0.73",
            reason: ["kept 172.21.0.73: it lies in pool linux, and belongs to pool windows: ", ""],
        },
    ];
    for Case { name, allowed, address: before, reason: [begin, end] } in cases {
        assert_eq!(plane().namespace(name).await, name);
        service(plane(), name, "cart", before, "windows").await;
        let version = "admissionregistration.k8s.io/v1";
        let policy = json!({
            "apiVersion": version, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
            "spec": {
                "matchConstraints": {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                    "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["services"],
                        "operations": ["CREATE", "UPDATE"]}],
                },
                "validations": [
                    {"expression": allowed, "message": FORBIDDEN},
                    {"expression": "object.metadata.name != 'probe'", "message": FORBIDDEN},
                ],
            },
        });
        let binding = json!({
            "apiVersion": version, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        });
        plane().apply(&json!({"apiVersion": "v1", "kind": "List", "items": [policy, binding]}).to_string()).await;
        let probe = ["create", "service", "clusterip", "probe", "--tcp=80", "--dry-run=server", "-n", name];
        eventually("the policy to be in force", async || {
            plane().kubectl(&probe).await.stderr.contains(FORBIDDEN).then_some(())
        })
        .await;

        // The Lease of the command is in this namespace, because a command of another test may hold the usual one.
        let moved = clusterip_with(plane(), settings, &["-n", name, "--server-namespace", name, "--yes"]).await;
        assert_eq!(moved.status, 1, "{name}: {}", moved.stderr);
        assert_eq!(moved.stdout.lines().last(), Some("moved 0 of 1, 0 stay"), "{name}");
        let line = moved.stderr.lines().last().unwrap_or_default();
        assert!(line.starts_with(&format!("error: {name}/cart was not moved: {begin}")), "{name}: {line}");
        assert!(line.ends_with(&format!("{FORBIDDEN}{end}")), "{name}: {line}");
        let expected = format!(r#"{before} {{"clusterip-policy/os":"windows"}}"#);
        assert_eq!(address(plane(), name, "cart").await, expected, "{name}");
        let records = ["get", "controllerrevisions", "-n", name, "-o", "name"];
        assert_eq!(plane().kubectl(&records).await.ok(), "", "{name}: the record of the move is left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn running_server_executes_the_moves() {
    let plane = LentControlPlane::get().await;
    let namespace = plane.namespace("handed").await;
    let mut server = ServerBuilder::new(&plane).settings(SETTINGS).arg("--no-webhook").start().await;
    let manifest = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{namespace: {namespace}, name: cart}}, \
          spec: {{ports: [{{port: 80}}]}}}}"
    );
    plane.kubectl_with(&["create", "-f", "-"], &manifest).await.ok();
    server.logged("outcome=\"moved").await;
    // The endpoints have no node, so the server does not move the Service by itself.
    let slice = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
          metadata: {{namespace: {namespace}, name: cart-1, labels: {{kubernetes.io/service-name: cart}}}}, \
          endpoints: [{{addresses: [10.1.2.3], conditions: {{ready: true}}}}], ports: [{{port: 80}}]}}"
    );
    plane.kubectl_with(&["create", "-f", "-"], &slice).await.ok();
    plane.kubectl(&["annotate", "service", "-n", &namespace, "cart", "clusterip-policy/os=windows"]).await.ok();
    server.logged("reason=\"ready_endpoints\"").await;

    let mut command = Command::new(program());
    command.args(["move", "--yes", "--kubeconfig"]).arg(plane.kubeconfig());
    command.arg("--settings").arg(server.folder().join("settings.yaml"));
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    assert!(
        stderr.lines().any(|line| line.starts_with("handed over to ") && line.ends_with(" in namespace default")),
        "{stderr}"
    );
    assert_eq!(stdout.lines().last(), Some("moved 1 of 1, 0 stay"));
    let path = "-o=jsonpath={.spec.clusterIP} {.metadata.annotations}";
    let now = plane.kubectl(&["get", "service", "-n", &namespace, "cart", path]).await.ok();
    assert!(now.starts_with("172.21.1."), "{now}");
    assert!(now.ends_with(r#" {"clusterip-policy/os":"windows"}"#), "the annotation of the request is left: {now}");
    assert_eq!(server.terminate().await, 0);
}
