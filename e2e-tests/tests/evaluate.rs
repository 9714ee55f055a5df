//! The same request, settings and state of the cluster give the same bytes in `clusterip serve`, in `evaluate` with
//! each of its sources and with the module, and, as far as it prints them, in `plan`.

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::command::{self, Ended};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::{MAX_WAIT, eventually};
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::program;
use crate::support::serve_process::ServerBuilder;
use crate::support::webhook_cluster::{all, annotated, deployment, on, service, template};

/// `serve` and `plan` would learn the Service ranges from the cluster, but Kubewarden can't, so they are written down.
const SETTINGS: &str = "
services:
  serviceCIDRs: [172.21.0.0/16]
  pools:
  - {name: full, cidrs: [172.21.40.0/30], reserved: 2, match: {namespaces: [full]}}
  - {name: windows, cidrs: [172.21.1.0/24], reserved: 50, match: {os: windows}}
  - {name: linux, cidrs: [172.21.0.0/24], reserved: 50, match: {os: linux}}
  evidence: {kinds: [Deployment, example.com/v1/Roster, Pod]}
";

const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../policy.wasm");

/// A kind with Pod templates and an irregular plural.
const ROSTERS: &str = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, \
     metadata: {name: rota.example.com}, spec: {group: example.com, scope: Namespaced, \
     names: {kind: Roster, plural: rota, singular: roster, listKind: RosterList}, \
     versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, \
     x-kubernetes-preserve-unknown-fields: true}}}]}}";

/// Runs `clusterip` with this kubeconfig.
pub async fn clusterip(folder: &Path, kubeconfig: &Path, args: &[&str]) -> Ended {
    let mut command = Command::new(program());
    command.args(args).current_dir(folder).env("KUBECONFIG", kubeconfig);
    command::ended(command).await
}

fn request(service: &Value) -> Value {
    let (namespace, name) = (&service["metadata"]["namespace"], &service["metadata"]["name"]);
    json!({
        "uid": format!("evaluated-{}", name.as_str().unwrap()),
        "kind": {"group": "", "version": "v1", "kind": "Service"},
        "resource": {"group": "", "version": "v1", "resource": "services"},
        "namespace": namespace,
        "name": name,
        "operation": "CREATE",
        "userInfo": {"username": "alice"},
        "object": service,
        // A dry run reserves nothing, so the request can be repeated.
        "dryRun": true,
    })
}

/// A folder with a request to create the Service `web`, in `r.json`.
fn folder_with_request(namespace: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut service = service("web", json!({}));
    service["metadata"]["namespace"] = namespace.into();
    std::fs::write(folder.path().join("r.json"), request(&service).to_string()).unwrap();
    folder
}

/// The row of `plan -o json` that corresponds to a response.
fn row(service: &Value, response: &str) -> Value {
    let response: Value = serde_json::from_str(response).unwrap();
    let audit = &response["auditAnnotations"];
    let patch: Value = response["patch"]
        .as_str()
        .map_or(json!([]), |patch| serde_json::from_slice(&STANDARD.decode(patch).unwrap()).unwrap());
    let given = patch.as_array().unwrap().iter().map(|operation| operation["value"].clone());
    let by_hand = service["spec"].get("clusterIP").filter(|address| *address != "None").cloned();
    let addresses: Vec<Value> = by_hand.into_iter().chain(given).collect();
    let evidence = audit["evidence"].as_str().map(|text| serde_json::from_str::<Value>(text).unwrap());
    json!({
        "namespace": service["metadata"]["namespace"],
        "name": service["metadata"]["name"],
        "decision": audit["decision"],
        "pool": audit["pool"],
        "evidence": evidence,
        "clusterIPs": addresses,
        "warnings": response["warnings"].as_array().cloned().unwrap_or_default(),
        "message": audit["reason"],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn all_commands_give_the_same_answer_byte_for_byte() {
    let plane = LentControlPlane::get().await;
    plane.apply(ROSTERS).await;
    plane.kubectl(&["wait", "--for=condition=Established", "crd/rota.example.com"]).await.ok();
    for namespace in ["shop", "full"] {
        plane.kubectl(&["create", "namespace", namespace]).await.ok();
    }
    let roster = json!({
        "apiVersion": "example.com/v1", "kind": "Roster", "metadata": {"name": "custom"},
        "spec": {"template": template("custom", on("windows"))},
    });
    let twice = |os: &str, name: &str| {
        let mut deployment = deployment("twice", on(os));
        deployment["metadata"]["name"] = name.into();
        deployment
    };
    let workloads = [deployment("web", on("windows")), roster, twice("linux", "a"), twice("windows", "b")];
    plane.apply(&all("shop", workloads)).await;
    plane.apply(&all("full", [service("first", json!({"clusterIP": "172.21.40.2"}))])).await;
    // The first address that `spread` tries for this Service.
    plane.apply(&all("shop", [service("in-the-way", json!({"clusterIP": "172.21.1.59"}))])).await;

    struct Case {
        name: &'static str,
        namespace: &'static str,
        service: Value,
    }
    let cases = [
        Case { name: "assumed", namespace: "shop", service: service("assumed", json!({})) },
        Case { name: "its first address is taken", namespace: "shop", service: service("web", json!({})) },
        Case { name: "a custom kind", namespace: "shop", service: service("custom", json!({})) },
        Case { name: "workloads that disagree", namespace: "shop", service: service("twice", json!({})) },
        Case {
            name: "an annotation",
            namespace: "shop",
            service: annotated("noted", json!({"clusterip-policy/os": "windows"}), json!({})),
        },
        Case { name: "by hand", namespace: "shop", service: service("by-hand", json!({"clusterIP": "172.21.1.60"})) },
        Case { name: "headless", namespace: "shop", service: service("headless", json!({"clusterIP": "None"})) },
        Case { name: "a pool that is full", namespace: "full", service: service("second", json!({})) },
    ];
    let mut server = ServerBuilder::new(&plane).settings(SETTINGS).registered().start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    file("settings.yaml", SETTINGS);
    let addresses = if plane.tells_addresses() { ",ipaddresses,servicecidrs" } else { "" };
    let kinds = format!("services,namespaces,nodes,deployments,rota,pods,runtimeclasses{addresses}");
    file("cluster.yaml", &plane.kubectl(&["get", "-A", "-o", "yaml", &kinds]).await.ok());
    for Case { name: case, namespace, mut service } in cases {
        service["metadata"]["namespace"] = namespace.into();
        let request = request(&service);
        file("request.json", &request.to_string());
        file("service.json", &service.to_string());
        let run = async |args: &[&str]| {
            let all = [&["evaluate", "--request", "request.json", "--settings", "settings.yaml"], args].concat();
            let ended = clusterip(folder.path(), plane.kubeconfig(), &all).await;
            assert_eq!(ended.stderr, "", "{case}: {args:?}");
            (ended.status, ended.stdout)
        };
        let expected = run(&["--cluster", "--record", "session.yml"]).await;
        assert_eq!(run(&["--session", "session.yml"]).await, expected, "{case}: the recorded session");
        assert_eq!(run(&["--snapshot", "cluster.yaml"]).await, expected, "{case}: the snapshot");
        let by_module = ["--module", MODULE, "--cluster", "--record", "by-module.yml"];
        assert_eq!(run(&by_module).await, expected, "{case}: the module");
        let recorded = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(recorded("by-module.yml"), recorded("session.yml"), "{case}: the look-ups of the module");

        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let response = expected.1.trim_end();
        let served =
            format!(r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{response}}}"#);
        // The server watches the cluster, and may lag for a moment.
        let deadline = std::time::Instant::now() + MAX_WAIT;
        let mut answer = server.post_for_text("/mutate", &review).await.unwrap();
        while answer != served && std::time::Instant::now() < deadline {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            answer = server.post_for_text("/mutate", &review).await.unwrap();
        }
        assert_eq!(answer, served, "{case}: clusterip serve");

        let args = ["plan", "service.json", "--settings", "settings.yaml", "--cluster", "-o", "json"];
        let planned = clusterip(folder.path(), plane.kubeconfig(), &args).await;
        let plan: Value = serde_json::from_str(&planned.stdout).unwrap();
        assert_eq!((planned.status, &plan["services"][0]), (expected.0, &row(&service, response)), "{case}: plan");
    }
    server.terminate().await;
}

/// A forbidden look-up is recorded, and denies the request again without a cluster.
#[tokio::test]
async fn missing_permission_is_recorded() {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("evaluate").await;
    plane.kubectl(&["create", "serviceaccount", "without-permissions", "--namespace", &namespace]).await.ok();
    let kubeconfig = plane.kubeconfig_of(&namespace, "without-permissions").await;
    let folder = folder_with_request("shop");
    let live = eventually("an answer of the API server", async || {
        let args = ["evaluate", "--request", "r.json", "--cluster", "--record", "s.yml"];
        let ended = clusterip(folder.path(), &kubeconfig, &args).await;
        // Tokens of new accounts may not be known at once.
        (!ended.stdout.contains("Unauthorized") && !ended.stderr.contains("Unauthorized")).then_some(ended)
    })
    .await;
    let warning = "warning: the pools of the cluster can't be read: servicepools.clusterip-policy.io is forbidden: ";
    let pools = "settings: the pools of K2s (no --settings): windows 172.21.1.0/24, linux 172.21.0.0/24\n";
    assert!(live.stderr.starts_with(warning) && live.stderr.ends_with(pools), "{}", live.stderr);
    assert_eq!(live.status, 1);
    let response: Value = serde_json::from_str(&live.stdout).unwrap();
    let message = response["status"]["message"].as_str().unwrap();
    let expected = format!(
        "Service shop/web: no permission to read apps/v1/Deployment: ApiError: deployments.apps is forbidden: User \
         \"system:serviceaccount:{namespace}:without-permissions\" cannot list resource \"deployments\" in API group \"apps\" at the \
         cluster scope: Forbidden"
    );
    assert!(message.starts_with(&expected), "{message}");
    let replayed =
        clusterip(folder.path(), &kubeconfig, &["evaluate", "--request", "r.json", "--session", "s.yml"]).await;
    assert_eq!((replayed.status, replayed.stdout, replayed.stderr), (1, live.stdout, String::new()));
}

/// A missing kind is recorded in the words of Kubewarden, and denies the request again without a cluster.
#[tokio::test]
async fn missing_kind_is_recorded() {
    let plane = ControlPlane::shared().await;
    let folder = folder_with_request("shop");
    for (case, kind) in [("no such group", "gone.example.com/v1/Thing"), ("no such kind", "apps/v1/Gone")] {
        let settings = format!("services: {{serviceCIDRs: [172.21.0.0/16], evidence: {{kinds: [{kind}]}}}}");
        std::fs::write(folder.path().join("s.yaml"), settings).unwrap();
        let run = async |args: &[&str]| {
            let evaluate = ["evaluate", "--request", "r.json", "--settings", "s.yaml"];
            let ended = clusterip(folder.path(), plane.kubeconfig(), &[&evaluate[..], args].concat()).await;
            (ended.status, ended.stdout, ended.stderr)
        };
        let live = run(&["--cluster", "--record", "s.yml"]).await;
        let response: Value = serde_json::from_str(&live.1).unwrap();
        let message = response["status"]["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("Service shop/web: the cluster has no {kind}")), "{case}: {message}");
        assert_eq!(run(&["--session", "s.yml"]).await, live, "{case}");
        let recorded = std::fs::read_to_string(folder.path().join("s.yml")).unwrap();
        let errors: Vec<&str> = recorded.lines().filter_map(|line| line.trim().strip_prefix("message: ")).collect();
        assert_eq!(errors, [format!("'Cannot find resource {kind}'")], "{case}");
    }
}

/// policy-server has its lists in memory, and gives the policy two seconds. Here each list comes from a slow API
/// server.
#[tokio::test(flavor = "multi_thread")]
async fn evaluate_waits_for_a_slow_api_server() {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("slow").await;
    plane.apply(&all(&namespace, [deployment("web", on("windows"))])).await;
    let proxy = Proxy::start(&plane).await;
    let file = format!("{namespace}.kubeconfig");
    let kubeconfig = plane.write_kubeconfig(&file, proxy.url(), plane.admin_token());
    let folder = folder_with_request(&namespace);
    std::fs::write(folder.path().join("s.yaml"), "services: {serviceCIDRs: [172.21.0.0/16]}").unwrap();
    let args = ["evaluate", "--request", "r.json", "--settings", "s.yaml"];
    let gate = proxy.on(|seen| seen.path == "/apis/apps/v1/deployments", Fault::PauseBefore);
    let slow = [&args[..], &["--cluster", "--record", "s.yml"]].concat();
    let (slow, ()) = tokio::join!(clusterip(folder.path(), &kubeconfig, &slow), async {
        gate.arrived().await;
        tokio::time::sleep(std::time::Duration::from_millis(2_500)).await;
        gate.release();
    });
    assert_eq!((slow.status, slow.stderr.as_str()), (0, ""));
    let response: Value = serde_json::from_str(&slow.stdout).unwrap();
    assert_eq!(response["auditAnnotations"]["pool"], "windows", "{response}");
    let replayed = [&args[..], &["--session", "s.yml"]].concat();
    let replayed = clusterip(folder.path(), &kubeconfig, &replayed).await;
    assert_eq!((replayed.status, replayed.stdout, replayed.stderr), (0, slow.stdout, String::new()));
}
