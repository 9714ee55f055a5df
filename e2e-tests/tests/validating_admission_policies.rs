//! The ValidatingAdmissionPolicies of `deploy`, as they are shipped: what they refuse, and what they must allow.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use clusterip::agent::assignments::{Assignment, Assignments, Protocol};
use clusterip::agent::health::Health;
use clusterip::agent::run::Agent;
use clusterip::cluster::service_key::ServiceKey;
use clusterip::metrics::Metrics;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, oneshot, watch};

use crate::support::cluster::pool_of;
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::documented_steps::{Operator, Step};
use crate::support::eventually::{eventually, eventually_within};
use crate::support::fake_kubelet::Installed;
use crate::support::fake_network::FakeNetwork;
use crate::support::move_helpers::stored;
use crate::support::service_webhook_rules::{MOVING, service, services};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const NAMESPACE: &str = "clusterip-policy";
const SERVER: &str = "clusterip";
const AGENTS: &str = "clusterip-policy-agents";
const AGENT: &str = "clusterip-agent";
/// The text that identifies a refusal of a policy.
const BY_POLICY: &str = ".clusterip-policy.io' denied request";

/// A control plane with `deploy/external`. No server answers at the Service of its webhooks.
async fn deployed() -> &'static ControlPlane {
    static DEPLOYED: OnceCell<ControlPlane> = OnceCell::const_new();
    DEPLOYED
        .get_or_init(async || {
            let plane = ControlPlane::start(Options { audit: false, ..Options::default() });
            plane.kubectl(&["apply", "-k", &format!("{ROOT}/deploy/external")]).await.ok();
            plane
        })
        .await
}

/// A client of a user with the permissions of the role `edit` in this namespace that matter here.
async fn editor(plane: &ControlPlane, namespace: &str) -> Client {
    plane.kubectl(&["create", "serviceaccount", "mallory", "--namespace", namespace]).await.ok();
    let rules = json!([
        {"apiGroups": ["", "apps"], "resources": ["services", "deployments", "pods"],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"]},
        {"apiGroups": ["apps"], "resources": ["controllerrevisions"], "verbs": ["get", "list", "watch"]},
    ]);
    let api_version = "rbac.authorization.k8s.io/v1";
    let metadata = json!({"name": "mallory", "namespace": namespace});
    let role = json!({"apiVersion": api_version, "kind": "Role", "metadata": metadata, "rules": rules});
    let binding = json!({
        "apiVersion": api_version, "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "mallory"},
        "subjects": [{"kind": "ServiceAccount", "name": "mallory", "namespace": namespace}],
    });
    plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": [role, binding]}).to_string()).await;
    plane.client_with(&plane.token(namespace, "mallory").await)
}

/// `allowed`, `refused` by a policy, or another error.
fn outcome<T>(result: Result<T, kube::Error>) -> String {
    match result {
        Ok(_) => "allowed".to_owned(),
        Err(kube::Error::Api(status)) if status.message.contains(BY_POLICY) => "refused".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Compares all rows at once.
#[track_caller]
fn assert_rows(seen: Vec<(String, String, &'static str)>) {
    let (seen, expected): (Vec<_>, Vec<_>) =
        seen.into_iter().map(|(name, seen, expected)| ((name.clone(), seen), (name, expected.to_owned()))).unzip();
    assert_eq!(seen, expected);
}

fn marked(mut service: DynamicObject, marker: Option<&str>) -> DynamicObject {
    service.metadata.annotations = marker.map(|marker| BTreeMap::from([(MOVING.to_owned(), marker.to_owned())]));
    service
}

#[tokio::test]
async fn tenants_can_not_write_the_annotation_of_a_move() {
    const ONE: &str = r#"{"from":["172.21.0.77"],"to":["172.21.1.77"]}"#;
    const OTHER: &str = r#"{"from":["172.21.0.77"],"to":["172.21.1.78"]}"#;
    let plane = deployed().await;
    let namespace = plane.namespace("policies-moving").await;
    let mallory = services(editor(plane, &namespace).await, &namespace);
    let server = services(plane.client_with(&plane.token(NAMESPACE, SERVER).await), &namespace);
    let admin = services(plane.client(), &namespace);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let new = || marked(service("new", json!({})), Some(ONE));
    eventually("the policy to be in force", async || {
        (outcome(mallory.create(&dry_run, &new()).await) == "refused").then_some(())
    })
    .await;

    let mut seen = vec![
        ("mallory creates with it".to_owned(), outcome(mallory.create(&dry_run, &new()).await), "refused"),
        ("an administrator creates with it".to_owned(), outcome(admin.create(&dry_run, &new()).await), "allowed"),
    ];
    // The user, the annotation before and after, and the result of the update.
    type Row<'a> = (&'a str, &'a Api<DynamicObject>, Option<&'a str>, Option<&'a str>, &'static str);
    let rows: [Row<'_>; 9] = [
        ("mallory adds it", &mallory, None, Some(ONE), "refused"),
        ("mallory adds an empty one", &mallory, None, Some(""), "refused"),
        ("mallory changes it", &mallory, Some(ONE), Some(OTHER), "refused"),
        ("mallory keeps it", &mallory, Some(ONE), Some(ONE), "allowed"),
        ("mallory removes it", &mallory, Some(ONE), None, "allowed"),
        ("the server adds it", &server, None, Some(ONE), "allowed"),
        ("the server changes it", &server, Some(ONE), Some(OTHER), "allowed"),
        ("the server removes it", &server, Some(ONE), None, "allowed"),
        ("an administrator adds it", &admin, None, Some(ONE), "allowed"),
    ];
    for (row, (name, who, before, after, expected)) in rows.into_iter().enumerate() {
        let before = marked(service(&format!("row-{row}"), json!({})), before);
        let before = admin.create(&PostParams::default(), &before).await.unwrap();
        let mut changed = marked(before, after);
        changed.metadata.labels = Some(BTreeMap::from([("changed".to_owned(), "yes".to_owned())]));
        let replaced = who.replace(&format!("row-{row}"), &PostParams::default(), &changed).await;
        seen.push((name.to_owned(), outcome(replaced), expected));
    }
    let patch = Patch::Merge(json!({"metadata": {"annotations": {MOVING: ONE}}}));
    let patched = mallory.patch("row-0", &PatchParams::default(), &patch).await;
    seen.push(("mallory adds it with a patch".to_owned(), outcome(patched), "refused"));
    let applied =
        Patch::Apply(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"annotations": {MOVING: ONE}}}));
    let applied = mallory.patch("row-0", &PatchParams::apply("mallory"), &applied).await;
    seen.push(("mallory adds it with an apply".to_owned(), outcome(applied), "refused"));
    assert_rows(seen);
}

/// A JSON pointer into the webhook configuration, and the new value; `None` to remove it.
type Change = (&'static str, &'static str, Option<Value>, &'static str);

#[tokio::test]
async fn server_changes_only_the_ca_bundle_of_its_webhook_configuration() {
    let plane = deployed().await;
    let configurations = |client: Client| -> Api<DynamicObject> {
        Api::all_with(client, &ApiResource::erase::<MutatingWebhookConfiguration>(&()))
    };
    let server = configurations(plane.client_with(&plane.token(NAMESPACE, SERVER).await));
    let admin = configurations(plane.client());
    let all =
        json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"], "scope": "*"}]);
    let labels = json!({"matchLabels": {"team": "blue"}});
    let rows: [Change; 22] = [
        ("its authority", "/webhooks/0/clientConfig/caBundle", Some(json!("Y2VydGlmaWNhdGU=")), "allowed"),
        ("that of another webhook", "/webhooks/1/clientConfig/caBundle", Some(json!("Y2VydGlmaWNhdGU=")), "allowed"),
        ("nothing", "/webhooks/0/name", Some(json!("services.clusterip-policy.io")), "allowed"),
        ("a URL", "/webhooks/0/clientConfig", Some(json!({"url": "https://192.0.2.1/mutate"})), "refused"),
        ("another Service", "/webhooks/0/clientConfig/service/name", Some(json!("mallory")), "refused"),
        ("another namespace", "/webhooks/0/clientConfig/service/namespace", Some(json!("mallory")), "refused"),
        ("another path", "/webhooks/0/clientConfig/service/path", Some(json!("/other")), "refused"),
        ("all resources", "/webhooks/0/rules", Some(all.clone()), "refused"),
        ("all resources, of the second webhook", "/webhooks/1/rules", Some(all), "refused"),
        ("one more resource", "/webhooks/0/rules/0/resources/1", Some(json!("endpoints")), "refused"),
        ("the failure policy", "/webhooks/0/failurePolicy", Some(json!("Fail")), "refused"),
        ("the match policy", "/webhooks/0/matchPolicy", Some(json!("Exact")), "refused"),
        ("the namespaces", "/webhooks/0/namespaceSelector", Some(json!({})), "refused"),
        ("the objects", "/webhooks/0/objectSelector", Some(labels), "refused"),
        ("side effects", "/webhooks/0/sideEffects", Some(json!("None")), "refused"),
        ("the timeout", "/webhooks/0/timeoutSeconds", Some(json!(30)), "refused"),
        ("versions", "/webhooks/0/admissionReviewVersions", Some(json!(["v1", "v1beta1"])), "refused"),
        ("reinvocation", "/webhooks/0/reinvocationPolicy", Some(json!("Never")), "refused"),
        ("conditions", "/webhooks/0/matchConditions", None, "refused"),
        ("the name of a webhook", "/webhooks/0/name", Some(json!("pods.clusterip-policy.io")), "refused"),
        ("a webhook less", "/webhooks/1", None, "refused"),
        ("a label", "/metadata/labels", Some(json!({"team": "blue"})), "refused"),
    ];
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let put = async |who: &Api<DynamicObject>, path: &str, value: &Option<Value>| {
        let now = admin.get("clusterip-policy").await.unwrap();
        let mut changed = serde_json::to_value(now).unwrap();
        let (parent, key) = path.rsplit_once('/').unwrap();
        let parent = changed.pointer_mut(parent).unwrap();
        match (parent, value) {
            (Value::Object(parent), Some(value)) => drop(parent.insert(key.to_owned(), value.clone())),
            (Value::Object(parent), None) => drop(parent.remove(key)),
            (Value::Array(parent), Some(value)) => parent.push(value.clone()),
            (Value::Array(parent), None) => drop(parent.remove(key.parse().unwrap())),
            (parent, _) => panic!("{path}: {parent}"),
        }
        outcome(who.replace("clusterip-policy", &dry_run, &serde_json::from_value(changed).unwrap()).await)
    };
    eventually("the policy to be in force", async || {
        (put(&server, "/webhooks/0/timeoutSeconds", &Some(json!(30))).await == "refused").then_some(())
    })
    .await;
    let mut seen = Vec::new();
    for (name, path, value, expected) in rows {
        seen.push((name.to_owned(), put(&server, path, &value).await, expected));
        // An administrator may write the same configuration, so it is valid.
        seen.push((format!("{name}, by an administrator"), put(&admin, path, &value).await, "allowed"));
    }
    assert_rows(seen);
}

/// The program moves a Service with the account, the arguments and the policies of `deploy/webhook`, and no policy
/// refuses a request of the server.
#[tokio::test(flavor = "multi_thread")]
async fn server_moves_services_with_the_policies_installed() {
    let cluster = Installed::nothing().await;
    let operator = Operator::new(&cluster.plane, &cluster.node.url());
    cluster.install(&operator).await;
    let shop = cluster.place("shop").await;
    let mallory = services(editor(&cluster.plane, &shop.namespace).await, &shop.namespace);
    eventually("the policy to be in force", async || {
        let new = marked(service("new", json!({})), Some("{}"));
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        (outcome(mallory.create(&dry_run, &new).await) == "refused").then_some(())
    })
    .await;
    let created = mallory.create(&PostParams::default(), &service("web", json!({"selector": null}))).await.unwrap();
    let pool = |service: &Value| {
        let address = service["spec"]["clusterIP"].as_str().and_then(|address| address.parse().ok());
        address.map_or("no address", pool_of)
    };
    let before = stored(&cluster.client, &shop.namespace, "web").await.unwrap();
    assert_eq!(pool(&before), "linux");
    let windows = Patch::Merge(json!({"metadata": {"annotations": {"clusterip-policy/os": "windows"}}}));
    mallory.patch("web", &PatchParams::default(), &windows).await.unwrap();
    let after = eventually("the Service to move", async || {
        let service = stored(&cluster.client, &shop.namespace, "web").await.unwrap();
        (pool(&service) == "windows" && service["metadata"]["annotations"][MOVING].is_null()).then_some(service)
    })
    .await;
    assert_eq!(after["metadata"]["uid"].as_str(), created.metadata.uid.as_deref());
    let refused: Vec<String> =
        cluster.node.log().await.into_iter().filter(|line| line.contains("denied request")).collect();
    assert_eq!(refused, Vec::<String>::new());
    // The API server calls the webhook, so the server has written its CA bundle into the configuration.
    let trusted = "kubectl get mutatingwebhookconfiguration clusterip-policy --output \
                   jsonpath='{.webhooks[0].clientConfig.caBundle}'";
    assert!(!operator.does(&Step::Type(trusted.to_owned())).await.is_empty());
}

/// A client of the agent on the node of this name.
async fn agent_on(plane: &ControlPlane, node: &str) -> Client {
    plane.client_with(&plane.token_on(node, AGENTS, AGENT).await)
}

fn heartbeat(node: &str, holder: &str, second: u32) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": format!("clusterip-agent-{node}"), "labels": {"clusterip-policy/lease": "agent"},
            "annotations": {"clusterip-policy/node": node}},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 20,
            "renewTime": format!("2026-01-01T00:00:{second:02}.000000Z")},
    })
}

fn claim(last: u8, holder: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": format!("clusterip-external-10-0-9-{last}"), "labels": {"clusterip-policy/lease": "external"},
            "annotations": {"clusterip-policy/address": format!("10.0.9.{last}")}},
        "spec": {"holderIdentity": holder},
    })
}

async fn create(leases: &Api<Lease>, lease: Value) -> String {
    outcome(leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await)
}

/// Replaces the existing Lease by this one.
async fn replace(leases: &Api<Lease>, lease: Value) -> String {
    let mut lease: Lease = serde_json::from_value(lease).unwrap();
    let name = lease.metadata.name.clone().unwrap();
    lease.metadata.resource_version = leases.get(&name).await.unwrap().metadata.resource_version;
    outcome(leases.replace(&name, &PostParams::default(), &lease).await)
}

async fn delete(leases: &Api<Lease>, name: &str) -> String {
    outcome(leases.delete(name, &DeleteParams::default()).await)
}

#[tokio::test]
async fn agent_writes_only_the_leases_of_its_own_node() {
    // The name of one Node is a prefix of the other.
    const ME: &str = "policy-node_agent_0123456789abcdef";
    const OTHER: &str = "policy-node-2_agent_fedcba9876543210";
    let plane = deployed().await;
    let leases = |client: Client| -> Api<Lease> { Api::namespaced(client, AGENTS) };
    let me = leases(agent_on(plane, "policy-node").await);
    let other = leases(agent_on(plane, "policy-node-2").await);
    let unbound = leases(plane.client_with(&plane.token(AGENTS, AGENT).await));
    eventually("the policies to be in force", async || {
        (create(&unbound, heartbeat("unbound", "unbound_agent_0", 0)).await == "refused").then_some(())
    })
    .await;

    let mut forged = heartbeat("policy-node-2", "", 2);
    forged["metadata"]["managedFields"] = json!([
        {"manager": "forged", "operation": "Update", "apiVersion": "coordination.k8s.io/v1", "fieldsType": "FieldsV1",
            "time": "2099-01-01T00:00:00Z", "fieldsV1": {"f:spec": {"f:holderIdentity": {}, "f:renewTime": {}}}},
        {"manager": "other", "operation": "Update", "apiVersion": "coordination.k8s.io/v1", "fieldsType": "FieldsV1",
            "time": "2020-01-01T00:00:00Z", "fieldsV1": {"f:metadata": {"f:labels": {"f:clusterip-policy/lease": {}}}}},
    ]);
    let mut renamed = heartbeat("policy-node", ME, 0);
    renamed["metadata"]["name"] = json!("clusterip-agent-policy-node-2");
    let mut unlabelled = claim(19, ME);
    unlabelled["metadata"]["labels"] = json!({});
    let any = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "any"},
        "spec": {"holderIdentity": ME}});
    let heartbeat_of_other = "clusterip-agent-policy-node-2";
    let mut seen: Vec<(&str, String, &'static str)> = vec![
        ("its heartbeat", create(&me, heartbeat("policy-node", ME, 0)).await, "allowed"),
        ("its heartbeat, renewed", replace(&me, heartbeat("policy-node", ME, 1)).await, "allowed"),
        ("its heartbeat, for another", replace(&me, heartbeat("policy-node", OTHER, 2)).await, "refused"),
        ("any Lease", create(&me, any).await, "refused"),
        ("its heartbeat, by the name of another", create(&me, renamed.clone()).await, "refused"),
        ("a new heartbeat of another", create(&me, heartbeat("policy-node-2", OTHER, 0)).await, "refused"),
        ("the other's own", create(&other, heartbeat("policy-node-2", OTHER, 0)).await, "allowed"),
        ("the heartbeat of another, renewed", replace(&me, heartbeat("policy-node-2", OTHER, 1)).await, "refused"),
        ("the heartbeat of another, taken", replace(&me, heartbeat("policy-node-2", ME, 1)).await, "refused"),
        ("the heartbeat of another, renamed", replace(&me, renamed).await, "refused"),
        (
            "the heartbeat of another, ended while it lives",
            replace(&me, heartbeat("policy-node-2", "", 2)).await,
            "refused",
        ),
        ("the same, with forged times", replace(&me, forged).await, "refused"),
        ("the heartbeat of another, deleted", delete(&me, heartbeat_of_other).await, "refused"),
        ("an address", create(&me, claim(10, ME)).await, "allowed"),
        ("an address, again", replace(&me, claim(10, ME)).await, "allowed"),
        ("an address for another", create(&me, claim(11, OTHER)).await, "refused"),
        ("an address for another later", replace(&me, claim(10, OTHER)).await, "refused"),
        ("an address without the label", create(&me, unlabelled).await, "refused"),
        ("the other's address", create(&other, claim(12, OTHER)).await, "allowed"),
        ("the address of another that lives", replace(&me, claim(12, ME)).await, "refused"),
        ("the address of another, given back", replace(&me, claim(12, "")).await, "refused"),
        ("the address of another, deleted", delete(&me, "clusterip-external-10-0-9-12").await, "refused"),
        ("an address, given back", replace(&me, claim(10, "")).await, "allowed"),
        ("an address that was given back", replace(&other, claim(10, OTHER)).await, "allowed"),
        ("without a node", create(&unbound, claim(13, "_agent_0123456789abcdef")).await, "refused"),
    ];
    // The other agent does not renew its heartbeat for more than ten seconds, so its heartbeat may be ended, and its
    // addresses taken over.
    tokio::time::sleep(Duration::from_secs(12)).await;
    seen.push(("a silent heartbeat, taken", replace(&me, heartbeat("policy-node-2", ME, 3)).await, "refused"));
    seen.push(("a silent heartbeat, deleted", delete(&me, heartbeat_of_other).await, "refused"));
    seen.push(("its address, before that is ended", replace(&me, claim(12, ME)).await, "refused"));
    seen.push(("a silent heartbeat, ended", replace(&me, heartbeat("policy-node-2", "", 3)).await, "allowed"));
    let taken = eventually("the API server to know that it has ended", async || {
        let taken = replace(&me, claim(12, ME)).await;
        (taken != "refused").then_some(taken)
    })
    .await;
    seen.push(("its address", taken, "allowed"));
    seen.push(("a heartbeat that nobody holds, deleted", delete(&me, heartbeat_of_other).await, "allowed"));
    let put_back = heartbeat("policy-node-2", "policy-node-2_agent_0000000000000000", 4);
    seen.push(("a heartbeat that was missing", create(&me, put_back).await, "allowed"));
    seen.push(("its address that is left", delete(&me, "clusterip-external-10-0-9-10").await, "refused"));
    seen.push(("its own address, deleted", delete(&me, "clusterip-external-10-0-9-12").await, "allowed"));
    assert_rows(seen.into_iter().map(|(name, seen, expected)| (name.to_owned(), seen, expected)).collect());

    // The policies apply only to agents.
    let admin = leases(plane.client());
    assert_eq!(replace(&admin, heartbeat("policy-node-2", "", 5)).await, "allowed");
    assert_eq!(delete(&admin, heartbeat_of_other).await, "allowed");
}

/// Agents with bound tokens take over from each other as they do without the policies.
#[tokio::test]
async fn agents_take_over_from_a_dead_agent() {
    const NODES: [&str; 2] = ["takes-over-1", "takes-over-2"];
    let plane = deployed().await;
    let assignment = Assignment {
        service: ServiceKey::new("shop", "web"),
        ports: [(Protocol::Tcp, 443)].into(),
        nodes: NODES.iter().map(|node| (*node).to_owned()).collect(),
    };
    let assigned: Assignments =
        (0..8).map(|last| (IpAddr::from(Ipv4Addr::new(10, 0, 8, last)), assignment.clone())).collect();
    let (network, assignments) = (FakeNetwork::default(), watch::Sender::new(Arc::new(assigned)));
    let mut running = Vec::new();
    for node in NODES {
        let agent = Agent {
            client: agent_on(plane, node).await,
            heartbeat: agent_on(plane, node).await,
            namespace: AGENTS.to_owned(),
            node: node.to_owned(),
            assignments: assignments.subscribe(),
            network: network.node(node),
            metrics: Arc::new(Metrics::of_agent()),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let (signs, _seen) = watch::channel(Health::new());
        let work = agent.run(signs, async {
            let _ = stopped.await;
        });
        running.push((tokio::spawn(work), stop));
    }
    let held_by = async |within: u64, nodes: &[&str]| {
        eventually_within(Duration::from_secs(within), &format!("all addresses on {nodes:?}"), async || {
            let held = network.holders();
            let mut holders: Vec<&str> = held.values().map(String::as_str).collect();
            holders.sort_unstable();
            holders.dedup();
            (held.len() == 8 && holders == nodes).then_some(())
        })
        .await;
        network.assert_no_conflicts();
    };
    held_by(60, &NODES).await;
    // As SIGKILL does. The API server may learn a moment later that the heartbeat was ended.
    running[0].0.abort();
    held_by(28, &NODES[1..]).await;
    drop(running);
}
