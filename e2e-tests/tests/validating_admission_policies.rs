//! The ValidatingAdmissionPolicies of `deploy`, as they are shipped: what they refuse, and what they must allow.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use clusterip::agent::assignments::{Assignment, Assignments, Protocol};
use clusterip::agent::event_loop::Agent;
use clusterip::agent::health::Health;
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
use crate::support::service_webhook_rules::{Call, MOVING, assert_calls, service, services};

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
        Call {
            request: "mallory creates with it".into(),
            outcome: outcome(mallory.create(&dry_run, &new()).await),
            expected: "refused",
        },
        Call {
            request: "an administrator creates with it".into(),
            outcome: outcome(admin.create(&dry_run, &new()).await),
            expected: "allowed",
        },
    ];
    /// An update of the annotation, and its result.
    struct Row<'a> {
        name: &'static str,
        user: &'a Api<DynamicObject>,
        before: Option<&'static str>,
        after: Option<&'static str>,
        expected: &'static str,
    }
    let rows = [
        Row { name: "mallory adds it", user: &mallory, before: None, after: Some(ONE), expected: "refused" },
        Row { name: "mallory adds an empty one", user: &mallory, before: None, after: Some(""), expected: "refused" },
        Row { name: "mallory changes it", user: &mallory, before: Some(ONE), after: Some(OTHER), expected: "refused" },
        Row { name: "mallory keeps it", user: &mallory, before: Some(ONE), after: Some(ONE), expected: "allowed" },
        Row { name: "mallory removes it", user: &mallory, before: Some(ONE), after: None, expected: "allowed" },
        Row { name: "the server adds it", user: &server, before: None, after: Some(ONE), expected: "allowed" },
        Row {
            name: "the server changes it",
            user: &server,
            before: Some(ONE),
            after: Some(OTHER),
            expected: "allowed",
        },
        Row { name: "the server removes it", user: &server, before: Some(ONE), after: None, expected: "allowed" },
        Row { name: "an administrator adds it", user: &admin, before: None, after: Some(ONE), expected: "allowed" },
    ];
    for (row, Row { name, user, before, after, expected }) in rows.into_iter().enumerate() {
        let before = marked(service(&format!("row-{row}"), json!({})), before);
        let before = admin.create(&PostParams::default(), &before).await.unwrap();
        let mut changed = marked(before, after);
        changed.metadata.labels = Some(BTreeMap::from([("changed".to_owned(), "yes".to_owned())]));
        let replaced = user.replace(&format!("row-{row}"), &PostParams::default(), &changed).await;
        seen.push(Call { request: name.to_owned(), outcome: outcome(replaced), expected });
    }
    let patch = Patch::Merge(json!({"metadata": {"annotations": {MOVING: ONE}}}));
    let patched = mallory.patch("row-0", &PatchParams::default(), &patch).await;
    seen.push(Call { request: "mallory adds it with a patch".into(), outcome: outcome(patched), expected: "refused" });
    let applied =
        Patch::Apply(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"annotations": {MOVING: ONE}}}));
    let applied = mallory.patch("row-0", &PatchParams::apply("mallory"), &applied).await;
    seen.push(Call { request: "mallory adds it with an apply".into(), outcome: outcome(applied), expected: "refused" });
    assert_calls(seen);
}

/// A change of the webhook configuration, and its result for the account of the server.
struct Change {
    name: &'static str,
    /// A JSON pointer into the configuration.
    path: &'static str,
    /// The new value; `None` removes the field.
    value: Option<Value>,
    expected: &'static str,
}

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
    let rows = [
        Change {
            name: "its authority",
            path: "/webhooks/0/clientConfig/caBundle",
            value: Some(json!("Y2VydGlmaWNhdGU=")),
            expected: "allowed",
        },
        Change {
            name: "that of another webhook",
            path: "/webhooks/1/clientConfig/caBundle",
            value: Some(json!("Y2VydGlmaWNhdGU=")),
            expected: "allowed",
        },
        Change {
            name: "nothing",
            path: "/webhooks/0/name",
            value: Some(json!("services.clusterip-policy.io")),
            expected: "allowed",
        },
        Change {
            name: "a URL",
            path: "/webhooks/0/clientConfig",
            value: Some(json!({"url": "https://192.0.2.1/mutate"})),
            expected: "refused",
        },
        Change {
            name: "another Service",
            path: "/webhooks/0/clientConfig/service/name",
            value: Some(json!("mallory")),
            expected: "refused",
        },
        Change {
            name: "another namespace",
            path: "/webhooks/0/clientConfig/service/namespace",
            value: Some(json!("mallory")),
            expected: "refused",
        },
        Change {
            name: "another path",
            path: "/webhooks/0/clientConfig/service/path",
            value: Some(json!("/other")),
            expected: "refused",
        },
        Change { name: "all resources", path: "/webhooks/0/rules", value: Some(all.clone()), expected: "refused" },
        Change {
            name: "all resources, of the second webhook",
            path: "/webhooks/1/rules",
            value: Some(all),
            expected: "refused",
        },
        Change {
            name: "one more resource",
            path: "/webhooks/0/rules/0/resources/1",
            value: Some(json!("endpoints")),
            expected: "refused",
        },
        Change {
            name: "the failure policy",
            path: "/webhooks/0/failurePolicy",
            value: Some(json!("Fail")),
            expected: "refused",
        },
        Change {
            name: "the match policy",
            path: "/webhooks/0/matchPolicy",
            value: Some(json!("Exact")),
            expected: "refused",
        },
        Change {
            name: "the namespaces",
            path: "/webhooks/0/namespaceSelector",
            value: Some(json!({})),
            expected: "refused",
        },
        Change { name: "the objects", path: "/webhooks/0/objectSelector", value: Some(labels), expected: "refused" },
        Change {
            name: "side effects",
            path: "/webhooks/0/sideEffects",
            value: Some(json!("None")),
            expected: "refused",
        },
        Change { name: "the timeout", path: "/webhooks/0/timeoutSeconds", value: Some(json!(30)), expected: "refused" },
        Change {
            name: "versions",
            path: "/webhooks/0/admissionReviewVersions",
            value: Some(json!(["v1", "v1beta1"])),
            expected: "refused",
        },
        Change {
            name: "reinvocation",
            path: "/webhooks/0/reinvocationPolicy",
            value: Some(json!("Never")),
            expected: "refused",
        },
        Change { name: "conditions", path: "/webhooks/0/matchConditions", value: None, expected: "refused" },
        Change {
            name: "the name of a webhook",
            path: "/webhooks/0/name",
            value: Some(json!("pods.clusterip-policy.io")),
            expected: "refused",
        },
        Change { name: "a webhook less", path: "/webhooks/1", value: None, expected: "refused" },
        Change { name: "a label", path: "/metadata/labels", value: Some(json!({"team": "blue"})), expected: "refused" },
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
    for Change { name, path, value, expected } in rows {
        seen.push(Call { request: name.to_owned(), outcome: put(&server, path, &value).await, expected });
        // An administrator may write the same configuration, so it is valid.
        seen.push(Call {
            request: format!("{name}, by an administrator"),
            outcome: put(&admin, path, &value).await,
            expected: "allowed",
        });
    }
    assert_calls(seen);
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
    let mut seen = vec![
        Call {
            request: "its heartbeat".into(),
            outcome: create(&me, heartbeat("policy-node", ME, 0)).await,
            expected: "allowed",
        },
        Call {
            request: "its heartbeat, renewed".into(),
            outcome: replace(&me, heartbeat("policy-node", ME, 1)).await,
            expected: "allowed",
        },
        Call {
            request: "its heartbeat, for another".into(),
            outcome: replace(&me, heartbeat("policy-node", OTHER, 2)).await,
            expected: "refused",
        },
        Call { request: "any Lease".into(), outcome: create(&me, any).await, expected: "refused" },
        Call {
            request: "its heartbeat, by the name of another".into(),
            outcome: create(&me, renamed.clone()).await,
            expected: "refused",
        },
        Call {
            request: "a new heartbeat of another".into(),
            outcome: create(&me, heartbeat("policy-node-2", OTHER, 0)).await,
            expected: "refused",
        },
        Call {
            request: "the other's own".into(),
            outcome: create(&other, heartbeat("policy-node-2", OTHER, 0)).await,
            expected: "allowed",
        },
        Call {
            request: "the heartbeat of another, renewed".into(),
            outcome: replace(&me, heartbeat("policy-node-2", OTHER, 1)).await,
            expected: "refused",
        },
        Call {
            request: "the heartbeat of another, taken".into(),
            outcome: replace(&me, heartbeat("policy-node-2", ME, 1)).await,
            expected: "refused",
        },
        Call {
            request: "the heartbeat of another, renamed".into(),
            outcome: replace(&me, renamed).await,
            expected: "refused",
        },
        Call {
            request: "the heartbeat of another, ended while it lives".into(),
            outcome: replace(&me, heartbeat("policy-node-2", "", 2)).await,
            expected: "refused",
        },
        Call {
            request: "the same, with forged times".into(),
            outcome: replace(&me, forged).await,
            expected: "refused",
        },
        Call {
            request: "the heartbeat of another, deleted".into(),
            outcome: delete(&me, heartbeat_of_other).await,
            expected: "refused",
        },
        Call { request: "an address".into(), outcome: create(&me, claim(10, ME)).await, expected: "allowed" },
        Call { request: "an address, again".into(), outcome: replace(&me, claim(10, ME)).await, expected: "allowed" },
        Call {
            request: "an address for another".into(),
            outcome: create(&me, claim(11, OTHER)).await,
            expected: "refused",
        },
        Call {
            request: "an address for another later".into(),
            outcome: replace(&me, claim(10, OTHER)).await,
            expected: "refused",
        },
        Call {
            request: "an address without the label".into(),
            outcome: create(&me, unlabelled).await,
            expected: "refused",
        },
        Call {
            request: "the other's address".into(),
            outcome: create(&other, claim(12, OTHER)).await,
            expected: "allowed",
        },
        Call {
            request: "the address of another that lives".into(),
            outcome: replace(&me, claim(12, ME)).await,
            expected: "refused",
        },
        Call {
            request: "the address of another, given back".into(),
            outcome: replace(&me, claim(12, "")).await,
            expected: "refused",
        },
        Call {
            request: "the address of another, deleted".into(),
            outcome: delete(&me, "clusterip-external-10-0-9-12").await,
            expected: "refused",
        },
        Call {
            request: "an address, given back".into(),
            outcome: replace(&me, claim(10, "")).await,
            expected: "allowed",
        },
        Call {
            request: "an address that was given back".into(),
            outcome: replace(&other, claim(10, OTHER)).await,
            expected: "allowed",
        },
        Call {
            request: "without a node".into(),
            outcome: create(&unbound, claim(13, "_agent_0123456789abcdef")).await,
            expected: "refused",
        },
    ];
    // The other agent does not renew its heartbeat for more than ten seconds, so its heartbeat may be ended, and its
    // addresses taken over.
    tokio::time::sleep(Duration::from_secs(12)).await;
    seen.push(Call {
        request: "a silent heartbeat, taken".into(),
        outcome: replace(&me, heartbeat("policy-node-2", ME, 3)).await,
        expected: "refused",
    });
    seen.push(Call {
        request: "a silent heartbeat, deleted".into(),
        outcome: delete(&me, heartbeat_of_other).await,
        expected: "refused",
    });
    seen.push(Call {
        request: "its address, before that is ended".into(),
        outcome: replace(&me, claim(12, ME)).await,
        expected: "refused",
    });
    seen.push(Call {
        request: "a silent heartbeat, ended".into(),
        outcome: replace(&me, heartbeat("policy-node-2", "", 3)).await,
        expected: "allowed",
    });
    let taken = eventually("the API server to know that it has ended", async || {
        let taken = replace(&me, claim(12, ME)).await;
        (taken != "refused").then_some(taken)
    })
    .await;
    seen.push(Call { request: "its address".into(), outcome: taken, expected: "allowed" });
    seen.push(Call {
        request: "a heartbeat that nobody holds, deleted".into(),
        outcome: delete(&me, heartbeat_of_other).await,
        expected: "allowed",
    });
    let put_back = heartbeat("policy-node-2", "policy-node-2_agent_0000000000000000", 4);
    seen.push(Call {
        request: "a heartbeat that was missing".into(),
        outcome: create(&me, put_back).await,
        expected: "allowed",
    });
    seen.push(Call {
        request: "its address that is left".into(),
        outcome: delete(&me, "clusterip-external-10-0-9-10").await,
        expected: "refused",
    });
    seen.push(Call {
        request: "its own address, deleted".into(),
        outcome: delete(&me, "clusterip-external-10-0-9-12").await,
        expected: "allowed",
    });
    assert_calls(seen);

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
        let (health, _seen) = watch::channel(Health::new());
        let work = agent.run(health, async {
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
