//! `deploy/kubewarden` as it is shipped: it can be applied, which requests reach the policy of a team, and the
//! permissions of the mover beside it. The other policies are sent the same requests as the webhooks of `deploy/webhook`
//! and `deploy/nodes`: `kubewarden_deployment.rs` of `crates/cluster` compares them.

use std::process::Command;

use axum::http::Method;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::deploy_webhook::apply;
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;
use crate::support::move_helpers::send;
use crate::support::serve_process::ServerBuilder;
use crate::support::service_webhook_rules::{Call, assert_calls, outcome, service, services};
use crate::support::webhook_cluster;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kubewarden");
const RESOURCES: &str = include_str!("../fixtures/kubewarden.yaml");
const NAMESPACE: &str = "clusterip-policy";
const ACCOUNT: &str = "clusterip";
const CHECK: &str = "deploy/kubewarden/check-permissions";
/// The namespace of Kubewarden.
const KUBEWARDEN: &str = "kubewarden";

/// The permission of the mover to read its settings.
fn reads_the_policy() -> Value {
    json!({"apiGroups": ["policies.kubewarden.io"], "resources": ["clusteradmissionpolicies"],
        "resourceNames": ["clusterip-policy"], "verbs": ["get", "list", "watch"]})
}

/// A control plane with the resource definitions of Kubewarden, but without its controller.
async fn with_kubewarden() -> ControlPlane {
    let plane = ControlPlane::start(Options::dual_stack());
    plane.apply(RESOURCES).await;
    for kind in ["clusteradmissionpolicies", "admissionpolicies"] {
        let name = format!("customresourcedefinition/{kind}.policies.kubewarden.io");
        plane.kubectl(&["wait", "--for=condition=Established", &name]).await.ok();
    }
    plane.namespace(KUBEWARDEN).await;
    plane
}

/// Every part in one cluster, because each would need a control plane of its own.
#[tokio::test]
async fn deployment_works_as_documented() {
    let plane = with_kubewarden().await;
    commands_of_the_documentation_work(&plane).await;
    missing_permissions_are_reported_to_the_operator(&plane).await;
    apply(&plane, FOLDER).await;
    mover_has_no_webhook_and_no_permissions_for_one(&plane).await;
    mover_moves_misplaced_services(&plane).await;
    only_new_addresses_reach_the_policy_of_a_team(&plane).await;
}

async fn get(plane: &ControlPlane, args: &[&str]) -> Value {
    let json = plane.kubectl(&[&["get", "--output", "json"], args].concat()).await.ok();
    serde_json::from_str(&json).unwrap()
}

/// The webhook configuration that Kubewarden creates for a policy, with an address where no server answers and
/// `failurePolicy: Fail`, so that each call fails its request.
fn registered(policy: &Value, webhook: &str, namespaces: &Value) -> Value {
    let spec = &policy["spec"];
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": webhook},
        "webhooks": [{
            "name": webhook,
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:1/validate"},
            "rules": spec["rules"],
            "matchConditions": spec["matchConditions"],
            "namespaceSelector": namespaces,
            "failurePolicy": "Fail",
            "sideEffects": "None",
        }],
    })
}

async fn only_new_addresses_reach_the_policy_of_a_team(plane: &ControlPlane) {
    const WEBHOOK: &str = "namespaced-payments-clusterip-of-the-team.kubewarden.admission";
    let namespace = plane.namespace("payments").await;
    plane.kubectl(&["apply", "-k", &format!("{FOLDER}/team")]).await.ok();
    let services = services(plane.client(), &namespace);
    let external = json!({"type": "ExternalName", "externalName": "example.com"});
    for (name, spec) in [("placed", json!({})), ("external", external)] {
        services.create(&PostParams::default(), &service(name, spec)).await.unwrap();
    }
    let policy = get(plane, &["admissionpolicy", "clusterip-of-the-team", "--namespace", &namespace]).await;
    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}});
    let configuration = registered(&policy, WEBHOOK, &selector);
    plane.apply(&configuration.to_string()).await;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let create = async |spec: Value| outcome(WEBHOOK, services.create(&dry_run, &service("new", spec)).await);
    eventually("the API server to call the webhook", async || {
        (create(json!({"clusterIP": "172.21.48.9"})).await == "called").then_some(())
    })
    .await;

    let update = async |name: &str, change: fn(&mut Value)| {
        let mut changed = services.get(name).await.unwrap();
        change(&mut changed.data["spec"]);
        outcome(WEBHOOK, services.replace(name, &dry_run, &changed).await)
    };
    let with_address = |spec: &mut Value| {
        spec["type"] = json!("ClusterIP");
        spec["clusterIP"] = json!("172.21.48.9");
    };
    let second_address = |spec: &mut Value| {
        spec["ipFamilyPolicy"] = json!("PreferDualStack");
        spec["clusterIPs"].as_array_mut().unwrap().push(json!("fd00:21::9"));
    };
    let ports = |spec: &mut Value| spec["ports"] = json!([{"port": 81}]);
    let second_family = |spec: &mut Value| spec["ipFamilyPolicy"] = json!("PreferDualStack");
    let without_address = |spec: &mut Value| spec["type"] = json!("ClusterIP");
    let call = |request: &str, outcome, expected| Call { request: request.to_owned(), outcome, expected };
    let calls = vec![
        call("create with an address", create(json!({"clusterIP": "172.21.48.9"})).await, "called"),
        call("create without", create(json!({})).await, "not called"),
        call("create with an empty one", create(json!({"clusterIP": ""})).await, "not called"),
        call("ports", update("placed", ports).await, "not called"),
        call("a second family", update("placed", second_family).await, "not called"),
        call("a second address", update("placed", second_address).await, "called"),
        call("away from ExternalName, without an address", update("external", without_address).await, "not called"),
        call("away from ExternalName, with an address", update("external", with_address).await, "called"),
    ];
    assert_calls(calls);
}

/// The kustomization removes the webhook, the pools and the permissions for both from `deploy/webhook`, and lets the
/// mover read the settings of the policy.
async fn mover_has_no_webhook_and_no_permissions_for_one(plane: &ControlPlane) {
    let names = async |kind: &str| {
        let label = "app.kubernetes.io/name=clusterip";
        plane.kubectl(&["get", kind, "--all-namespaces", "--selector", label, "--output", "name"]).await.ok()
    };
    assert_eq!(names("mutatingwebhookconfigurations,services").await, "");
    assert_eq!(names("deployments").await, "deployment.apps/clusterip\n");
    let args = &get(plane, &["deployment", ACCOUNT, "--namespace", NAMESPACE]).await["spec"]["template"]["spec"];
    assert_eq!(
        args["containers"][0]["args"],
        json!(["serve", "--listen", "0.0.0.0:8443", "--no-webhook", "--policy", "clusterip-policy"])
    );
    let role = |folder: &str| {
        let folder = format!("{ROOT}/{folder}");
        async move {
            let all = plane.kubectl(&["kustomize", &folder]).await.ok();
            let all = clusterip_cluster::yaml::documents(&all).map(|document| document.unwrap().to_value());
            let mut roles = all
                .filter(|object| object["kind"] == "ClusterRole" && object["metadata"]["name"] == "clusterip-policy");
            roles.next().unwrap()["rules"].as_array().unwrap().clone()
        }
    };
    let mut expected = role("deploy/webhook").await;
    let all = expected.len();
    expected.retain(|rule| rule["resources"] != json!(["mutatingwebhookconfigurations"]));
    assert_eq!(expected.len(), all - 1);
    expected.retain(|rule| rule["apiGroups"] != json!(["clusterip-policy.io"]));
    expected.push(reads_the_policy());
    assert_eq!(role("deploy/kubewarden/moves").await, expected);
}

/// The mover runs with the arguments of its Deployment and the permissions of its account.
async fn mover_moves_misplaced_services(plane: &ControlPlane) {
    let deployment = get(plane, &["deployment", ACCOUNT, "--namespace", NAMESPACE]).await;
    let args: Vec<String> =
        serde_json::from_value(deployment["spec"]["template"]["spec"]["containers"][0]["args"].clone()).unwrap();
    // The test listens on another address, and a kubeconfig does not contain the namespace of the Pod.
    let args: Vec<&str> = args.iter().map(String::as_str).filter(|arg| !arg.starts_with("0.0.0.0")).collect();
    let ["serve", "--listen", args @ ..] = &args[..] else { panic!("{args:?}") };

    let namespace = plane.namespace("moves").await;
    let services = services(plane.client(), &namespace);
    let windows = |service: &Value| {
        // A Service has no address during its move.
        let address = service["spec"]["clusterIP"].as_str().unwrap_or_default();
        address.strip_prefix("172.21.1.").is_some_and(|last| last.parse::<u8>().unwrap() >= 50)
    };
    let value = |service| serde_json::to_value(service).unwrap();
    // There is no webhook, so Kubernetes picks the address, from a range that is far larger than the pool.
    let mut number = 0;
    let before = loop {
        number += 1;
        let created = services.create(&PostParams::default(), &service(&format!("web-{number}"), json!({}))).await;
        let created = value(created.unwrap());
        if !windows(&created) {
            break created;
        }
    };
    let name = before["metadata"]["name"].as_str().unwrap();
    let mut web = webhook_cluster::deployment("web", webhook_cluster::on("windows"));
    web["metadata"]["namespace"] = json!(namespace);
    plane.apply(&web.to_string()).await;

    let kubeconfig = plane.kubeconfig_of(NAMESPACE, ACCOUNT).await;
    let mut mover = ServerBuilder::as_user(&kubeconfig).args(args).args(&["--namespace", NAMESPACE]).start().await;
    let after = eventually("the Service to be moved", async || {
        let service = value(services.get(name).await.unwrap());
        (windows(&service) && service["metadata"]["annotations"].is_null()).then_some(service)
    })
    .await;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    // The log contains refused requests.
    assert_eq!(mover.terminate().await, 0);
    let log = mover.log();
    assert_eq!(log.iter().filter(|line| line.contains("forbidden")).collect::<Vec<_>>(), Vec::<&String>::new());
    // No webhook was registered.
    let webhooks = plane.kubectl(&["get", "mutatingwebhookconfigurations", "--output", "name"]).await.ok();
    assert_eq!(webhooks, "");
}

/// Runs a command line in the root directory of the project, as an operator would: exit status, output, errors.
fn run(plane: &ControlPlane, command: &str) -> (Option<i32>, String, String) {
    let kubectl = plane.kubectl_program().parent().unwrap();
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", command])
        .current_dir(ROOT)
        .env("PATH", format!("{}:{}", kubectl.display(), std::env::var("PATH").unwrap()))
        .env("KUBECONFIG", plane.kubeconfig())
        .env("GOGC", "off")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Follows the commands of the documentation, which grant all permissions.
async fn missing_permissions_are_reported_to_the_operator(plane: &ControlPlane) {
    let may_not = |account: &str, missing: &str| {
        let remedy = "Each request that needs one of these permissions is refused, or hangs. To grant them: kubectl \
                      apply -k deploy/kubewarden/permissions";
        let errors = format!("system:serviceaccount:{account} may not:\n{missing}{remedy}\n");
        (Some(1), String::new(), errors)
    };
    let mut all = String::new();
    for resource in [
        "services",
        // A kind that the cluster does not have needs no permission.
        if plane.tells_addresses() { "ipaddresses.networking.k8s.io" } else { "" },
        "namespaces",
        "nodes",
        "pods",
        "replicationcontrollers",
        "daemonsets.apps",
        "deployments.apps",
        "replicasets.apps",
        "statefulsets.apps",
        "cronjobs.batch",
        "jobs.batch",
        "runtimeclasses.node.k8s.io",
    ]
    .into_iter()
    .filter(|resource| !resource.is_empty())
    {
        for verb in ["get", "list", "watch"] {
            all.push_str(&format!("  {verb} {resource}\n"));
        }
    }
    // Another account has no permissions.
    let other = run(plane, &format!("NAMESPACE=cattle-kubewarden-system SERVICE_ACCOUNT=other {CHECK}"));
    assert_eq!(other, may_not("cattle-kubewarden-system:other", &all));

    // A verb of one rule is removed.
    let take = r#"[{"op": "test", "path": "/rules/4/resources", "value": ["cronjobs", "jobs"]},
                   {"op": "replace", "path": "/rules/4/verbs", "value": ["get", "list"]}]"#;
    plane.kubectl(&["patch", "clusterrole", "clusterip-policy-server", "--type=json", "--patch", take]).await.ok();
    watches_jobs(plane, false).await;
    let some = may_not("kubewarden:policy-server", "  watch cronjobs.batch\n  watch jobs.batch\n");
    assert_eq!(run(plane, CHECK), some);

    // An operator who may not impersonate the account gets this error instead of a list of missing permissions.
    plane.kubectl(&["create", "serviceaccount", "without-permissions", "--namespace", "default"]).await.ok();
    let without_permissions = plane.kubeconfig_of("default", "without-permissions").await;
    let (status, _, errors) = run(plane, &format!("KUBECONFIG={} {CHECK}", without_permissions.display()));
    assert_eq!(status, Some(2), "{errors}");
    assert!(errors.contains("cannot impersonate"), "{errors}");
    let (status, _, errors) = run(plane, &format!("KUBECONFIG=/nowhere {CHECK}"));
    assert_eq!(status, Some(2), "{errors}");
}

/// Waits until the API server lets policy-server watch Jobs, or no longer.
async fn watches_jobs(plane: &ControlPlane, expected: bool) {
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
        "user": "system:serviceaccount:kubewarden:policy-server",
        "resourceAttributes": {"group": "batch", "resource": "jobs", "verb": "watch"},
    }});
    eventually("the permissions to take effect", async || {
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = send(&plane.client(), Method::POST, path, Some(&review)).await.unwrap();
        (answer["status"]["allowed"] == expected).then_some(())
    })
    .await;
}

/// Runs each line in order, except those that install Kubewarden and wait for it: `make test-kubewarden` runs all.
async fn commands_of_the_documentation_work(plane: &ControlPlane) {
    let text = std::fs::read_to_string(format!("{ROOT}/docs/kubewarden.md")).unwrap();
    let console = text.split("```console\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let commands: Vec<&str> = console.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    let needs_kubewarden = |command: &&str| command.contains("helm") || command.contains("kubectl wait");
    let (kubewarden, ours): (Vec<&str>, Vec<&str>) = commands.into_iter().partition(needs_kubewarden);
    assert_eq!((kubewarden.len(), ours.len()), (2, 4));
    assert!(ours.contains(&CHECK), "{ours:?}");
    for command in ours {
        if command == CHECK {
            watches_jobs(plane, true).await;
        }
        let (status, output, errors) = run(plane, command);
        assert_eq!((status, errors.as_str()), (Some(0), ""), "{command}: {output}");
        if command == CHECK {
            let granted =
                "system:serviceaccount:kubewarden:policy-server may read everything that the policy looks up\n";
            assert_eq!(output, granted);
        }
    }
    let policy = get(plane, &["clusteradmissionpolicy", "clusterip-policy"]).await;
    assert_eq!(policy["spec"]["mode"], "protect");
}
