//! A tenant gains nothing from `clusterip serve`, and can't harm others by it. Mallory may write every object of one
//! namespace that the role `edit` allows, and nothing else. The server runs with the arguments and the permissions of
//! `deploy`. The ValidatingAdmissionPolicies of `deploy` are left out here: `validating_admission_policies.rs` tests
//! them, and the server must not depend on them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{Method, Request};
use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::control_plane::{ControlPlane, Options};
use crate::support::documented_steps::{Operator, Step};
use crate::support::eventually::{eventually, eventually_within};
use crate::support::fake_kubelet::as_in_a_pod;
use crate::support::move_helpers::{path, stored};
use crate::support::process_usage::peak_memory;
use crate::support::serve_process::{Host, free_port};
use crate::support::webhook_cluster::{addresses, annotated, deployment, on, service, with_ranges, within};

const MALLORY: &str = "mallory";
const LINUX: &str = "172.21.0.0/24";
const WINDOWS: &str = "172.21.1.0/24";
const BLUE: &str = "172.21.8.0/24";
const NARROW: &str = "172.21.9.0/26";
/// A pool of the team `blue`, a small one of the namespace `narrow`, and external addresses of the team `blue`.
const SETTINGS: &str = "
services:
  pools:
  - {name: blue, cidrs: [172.21.8.0/24], match: {namespaces: [blue]}}
  - {name: narrow, cidrs: [172.21.9.0/26], match: {namespaces: [narrow]}}
  - {name: windows, cidrs: [172.21.1.0/24], reserved: 10, match: {os: windows}}
  - {name: linux, cidrs: [172.21.0.0/24], reserved: 10, match: {os: linux}}
  explicit: deny
  exemptNamespaces: [kube-system, clusterip-policy]
external:
  pools:
  - {name: blue, cidrs: [192.0.2.16/28], match: {namespaces: [blue]}}
";
const MOVING: &str = "clusterip-policy/moving";
/// The reason of the Event about a Service that looks half moved, but was not moved by the server.
const NOT_RECORDED: &str = "MoveNotRecorded";
/// How long a test checks that something does not happen. A vulnerable server did it within a second.
const BOUND: Duration = Duration::from_secs(5);
/// The maximum delay that a tenant may cause to moves of another namespace.
const DELAY: Duration = Duration::from_secs(1);
/// How many times slower a machine that runs other tests may become between two measurements.
const BUSY: u32 = 5;
/// The time after which a move counts as lost.
const LOST: Duration = Duration::from_secs(20);

/// A control plane with `deploy/external`, and the server that its Deployment runs.
struct Scene {
    plane: ControlPlane,
    host: Option<Host>,
    port: u16,
}

impl Scene {
    /// A cluster that tests share. They change only the namespaces that they create, and run in parallel.
    async fn shared() -> &'static Self {
        static SHARED: OnceCell<Scene> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await
    }

    async fn start() -> Self {
        let mut scene = Self::without_server();
        scene.install().await;
        scene.serve(SETTINGS).await;
        scene.host.as_mut().unwrap().ready().await;
        eventually("the webhook to be asked", async || {
            let unknown = annotated("trial", json!({"clusterip-policy/pool": "unknown"}), json!({}));
            scene.create(&scene.admin(), "default", &unknown, "?dryRun=All").await.err()
        })
        .await;
        scene.host.as_ref().unwrap().logged("leading").await;
        let marked = annotated("marked", json!({MOVING: "{}"}), json!({}));
        eventually("the policies of the API server to be gone", async || {
            scene.create(&scene.admin(), "default", &marked, "?dryRun=All").await.ok()
        })
        .await;
        scene
    }

    fn without_server() -> Self {
        Self { plane: ControlPlane::start(Options::default()), host: None, port: free_port() }
    }

    /// A client of the administrator, for the runtime of the calling test.
    fn admin(&self) -> Client {
        self.plane.client()
    }

    /// Applies `deploy/external` without its ValidatingAdmissionPolicies, and with a webhook that this test can reach.
    async fn install(&self) {
        let operator = Operator::new(&self.plane, &format!("https://127.0.0.1:{}", self.port));
        operator.does(&Step::Type("kubectl apply -k deploy/external".to_owned())).await;
        // The permission that `deploy/load-balancers` adds.
        let right = r#"[{"op": "add", "path": "/rules/-", "value": {"apiGroups": [""], "resources": ["services/status"], "verbs": ["update"]}}]"#;
        self.plane.kubectl(&["patch", "clusterrole", "clusterip-policy", "--type=json", "--patch", right]).await.ok();
        self.plane.kubectl(&["delete", "validatingadmissionpolicybindings", "--all"]).await.ok();
    }

    /// Starts the program of the Deployment with moves of load balancers, and does not wait.
    async fn serve(&mut self, settings: &str) {
        let path = "/apis/apps/v1/namespaces/clusterip-policy/deployments/clusterip";
        let deployed: Value = self.admin().request(Request::get(path).body(Vec::new()).unwrap()).await.unwrap();
        let mut pod = deployed["spec"]["template"].clone();
        let args = pod.pointer_mut("/spec/containers/0/args").unwrap().as_array_mut().unwrap();
        let configmap = args.iter().position(|arg| *arg == "--settings-configmap").unwrap();
        args.drain(configmap..configmap + 2);
        args.retain(|arg| *arg != "--move-load-balancers");
        args.push("--move-load-balancers".into());
        let settings = with_ranges(&self.plane, settings);
        self.host = Some(as_in_a_pod(&self.plane, self.port, &pod).await.settings(&settings).spawn());
    }

    /// Creates a namespace in which the user of this name has the permissions of `edit`, and returns a client of that
    /// user.
    async fn tenant(&self, name: &str) -> Tenant<'_> {
        let namespace = self.plane.namespace(name).await;
        let group = "rbac.authorization.k8s.io";
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "edit", "namespace": namespace}, "rules": edit()});
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "edit", "namespace": namespace},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "edit"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": namespace}]});
        self.plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": [role, binding]}).to_string()).await;
        let tenant = Tenant { client: self.plane.client_as(&namespace), scene: self, namespace };
        let list = format!("/api/v1/namespaces/{}/services", tenant.namespace);
        eventually("the rights of a tenant", async || tenant.request(Method::GET, &list, &json!({})).await.ok()).await;
        tenant
    }

    async fn create(&self, client: &Client, namespace: &str, object: &Value, query: &str) -> Result<Value, String> {
        let path = format!("/api/v1/namespaces/{namespace}/services{query}");
        request(client, Method::POST, &path, object).await
    }

    /// The time from the change of its annotation until a Service of the namespace is in the Windows pool; at most
    /// [`LOST`].
    async fn time_to_move(&self, namespace: &str, name: &str) -> Duration {
        let admin = self.admin();
        let linux = annotated(name, json!({"clusterip-policy/os": "linux"}), json!({}));
        let created = self.create(&admin, namespace, &linux, "").await.unwrap();
        assert!(within(addresses(&created)[0], LINUX), "{created}");
        let begin = Instant::now();
        let windows = json!({"metadata": {"annotations": {"clusterip-policy/os": "windows"}}});
        request(&admin, Method::PATCH, &path(namespace, name), &windows).await.unwrap();
        while begin.elapsed() < LOST {
            let now = stored(&admin, namespace, name).await.unwrap();
            if addresses(&now).first().is_some_and(|address| within(*address, WINDOWS)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        begin.elapsed()
    }

    /// The median of the times of five moves, one after the other, of Services with this prefix.
    async fn median_time_to_move(&self, namespace: &str, names: &str) -> Duration {
        let mut took = Vec::new();
        for nth in 0..5 {
            took.push(self.time_to_move(namespace, &format!("{names}-{nth}")).await);
            // After a lost move, more measurements are not needed.
            if took.iter().any(|took| *took >= LOST) {
                return LOST;
            }
        }
        took.sort();
        took[took.len() / 2]
    }

    /// Waits for an Event with this reason about a Service.
    async fn told(&self, namespace: &str, name: &str, reason: &str) {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let (admin, mut last) = (self.admin(), Vec::new());
        let deadline = Instant::now() + LOST;
        while Instant::now() < deadline {
            let list: Value = admin.request(Request::get(&path).body(Vec::new()).unwrap()).await.unwrap();
            let events = list["items"].as_array().unwrap().iter();
            let about = events.filter(|event| event["regarding"]["name"] == name);
            last = about.map(|event| format!("{}: {}", event["reason"], event["note"])).collect();
            if last.iter().any(|event| event.starts_with(&format!("\"{reason}\""))) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("no event {reason} about {namespace}/{name}, but {last:#?}");
    }

    /// Checks for [`BOUND`] that a Service stays correct: `wrong` returns what is wrong with it.
    async fn stays(&self, namespace: &str, name: &str, wrong: impl Fn(&Value) -> Option<String>) {
        let (admin, deadline) = (self.admin(), Instant::now() + BOUND);
        while Instant::now() < deadline {
            let now = stored(&admin, namespace, name).await.unwrap();
            if let Some(wrong) = wrong(&now) {
                panic!("{namespace}/{name}: {wrong}: {now:#}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A user with the permissions of `edit` in a namespace of the same name.
struct Tenant<'s> {
    scene: &'s Scene,
    client: Client,
    namespace: String,
}

impl Tenant<'_> {
    async fn request(&self, method: Method, path: &str, body: &Value) -> Result<Value, String> {
        request(&self.client, method, path, body).await
    }

    /// Creates a Service, which must succeed.
    async fn creates(&self, service: &Value) -> Value {
        self.scene.create(&self.client, &self.namespace, service, "").await.unwrap()
    }

    /// Changes annotations of a Service.
    async fn annotates(&self, name: &str, annotations: Value) -> Result<Value, String> {
        let patch = json!({"metadata": {"annotations": annotations}});
        self.request(Method::PATCH, &path(&self.namespace, name), &patch).await
    }

    /// Creates a Service that looks half moved, with this journal.
    async fn forges(&self, name: &str, journal: &Value, more: Value) -> Value {
        let half_moved = json!({"type": "ExternalName", "externalName": "moving.invalid"});
        let mut service = annotated(name, more, half_moved);
        // The spec with the defaults of the API server: a journal detects later changes by it.
        let tried = self.scene.create(&self.client, &self.namespace, &service, "?dryRun=All").await.unwrap();
        let mut journal = journal.clone();
        journal["released"] = tried["spec"].clone();
        service["metadata"]["annotations"][MOVING] = journal.to_string().into();
        self.creates(&service).await
    }
}

/// The rules of the built-in role `edit` that matter here. Without a controller manager, the role itself is empty.
fn edit() -> Value {
    let write = json!(["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]);
    json!([
        {"apiGroups": [""], "verbs": write, "resources": ["configmaps", "persistentvolumeclaims", "pods",
            "replicationcontrollers", "replicationcontrollers/scale", "secrets", "serviceaccounts", "services",
            "services/proxy"]},
        {"apiGroups": ["apps"], "verbs": write, "resources": ["daemonsets", "deployments", "deployments/rollback",
            "deployments/scale", "replicasets", "replicasets/scale", "statefulsets", "statefulsets/scale"]},
        {"apiGroups": ["autoscaling"], "verbs": write, "resources": ["horizontalpodautoscalers"]},
        {"apiGroups": ["batch"], "verbs": write, "resources": ["cronjobs", "jobs"]},
        {"apiGroups": ["networking.k8s.io"], "verbs": write, "resources": ["ingresses", "networkpolicies"]},
        {"apiGroups": ["policy"], "verbs": write, "resources": ["poddisruptionbudgets"]},
        {"apiGroups": ["coordination.k8s.io"], "verbs": write, "resources": ["leases"]},
        {"apiGroups": [""], "verbs": ["get", "list", "watch"], "resources": ["endpoints", "events", "limitranges",
            "namespaces/status", "pods/log", "pods/status", "resourcequotas", "services/status"]},
        {"apiGroups": ["apps"], "verbs": ["get", "list", "watch"], "resources": ["controllerrevisions"]},
        {"apiGroups": ["discovery.k8s.io"], "verbs": ["get", "list", "watch"], "resources": ["endpointslices"]},
    ])
}

async fn request(client: &Client, method: Method, path: &str, body: &Value) -> Result<Value, String> {
    let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let body = if method == Method::GET { Vec::new() } else { serde_json::to_vec(body).unwrap() };
    let request = Request::builder().method(method).uri(path).header("content-type", kind).body(body).unwrap();
    client.request(request).await.map_err(|error| match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    })
}

fn in_state(type_: &'static str) -> impl Fn(&Value) -> Option<String> {
    move |service| (service["spec"]["type"] != type_).then(|| format!("it is not of type {type_} any more"))
}

/// The first row of `docs/security.md`: an annotation that makes the server write the status of a load balancer.
#[tokio::test]
async fn forged_journal_writes_no_load_balancer_status() {
    let scene = Scene::shared().await;
    let mallory = scene.tenant(MALLORY).await;
    let ingress = json!([{"ip": "192.0.2.66", "ipMode": "VIP"}]);
    let no_controller = json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/none"});
    let plain = mallory.creates(&service("allowed", no_controller.clone())).await;
    let status = json!({"status": {"loadBalancer": {"ingress": ingress}}});
    let of_plain = format!("{}/status", path(&mallory.namespace, "allowed"));
    let forbidden = mallory.request(Method::PATCH, &of_plain, &status).await;
    assert!(forbidden.unwrap_err().contains("forbidden"), "a tenant may write the status: {plain}");

    let no_status = |service: &Value| {
        (!service["status"]["loadBalancer"]["ingress"].is_null())
            .then(|| "the server has written its status".to_owned())
    };
    for phase in ["placed", "released"] {
        let journal = json!({"phase": phase, "way": "externalName", "from": ["172.21.0.250"], "to": [],
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "example.com/none", "ports": [{"port": 80}]},
            "managedFields": [], "loadBalancer": {"ingress": ingress}});
        let name = format!("balancer-{phase}");
        let forged = annotated(&name, json!({MOVING: journal.to_string()}), no_controller.clone());
        mallory.creates(&forged).await;
        scene.stays(&mallory.namespace, &name, no_status).await;
        let alias = format!("alias-{phase}");
        mallory.forges(&alias, &journal, json!({})).await;
        scene.stays(&mallory.namespace, &alias, no_status).await;
        scene.stays(&mallory.namespace, &alias, in_state("ExternalName")).await;
        scene.told(&mallory.namespace, &alias, NOT_RECORDED).await;
    }
    let neighbour = scene.plane.namespace("neighbour").await;
    assert!(scene.time_to_move(&neighbour, "web").await < LOST, "a neighbour's Service is not moved");
}

/// The second row: an annotation that makes the server take an address of another team's pool.
#[tokio::test]
async fn forged_journal_gets_no_address_of_another_pool() {
    let scene = Scene::shared().await;
    let mallory = scene.tenant(MALLORY).await;
    let denied = service("denied", json!({"clusterIP": "172.21.8.100"}));
    let denied = scene.create(&mallory.client, &mallory.namespace, &denied, "").await.unwrap_err();
    assert!(denied.contains("pool \"blue\""), "{denied}");

    let no_foreign = |service: &Value| {
        let foreign = addresses(service).into_iter().find(|address| within(*address, BLUE));
        foreign.map(|address| format!("it has {address} of the pool of another team"))
    };
    let nowhere = json!({"clusterip-policy/pool": "nowhere"});
    let spec = json!({"type": "ClusterIP", "ports": [{"port": 80}]});
    struct Forged {
        name: &'static str,
        phase: &'static str,
        from: Value,
        to: Value,
        annotations: Value,
    }
    let journals = [
        Forged {
            name: "from",
            phase: "released",
            from: json!(["172.21.8.101"]),
            to: json!([]),
            annotations: nowhere.clone(),
        },
        Forged {
            name: "to",
            phase: "released",
            from: json!(["172.21.0.251"]),
            to: json!(["172.21.8.102"]),
            annotations: json!({}),
        },
        Forged {
            name: "to-nowhere",
            phase: "released",
            from: json!(["172.21.0.252"]),
            to: json!(["172.21.8.103"]),
            annotations: nowhere,
        },
        Forged {
            name: "placed",
            phase: "placed",
            from: json!(["172.21.8.104"]),
            to: json!(["172.21.8.104"]),
            annotations: json!({}),
        },
    ];
    for Forged { name, phase, from, to, annotations } in journals {
        let journal = json!({"phase": phase, "way": "externalName", "from": from, "to": to, "spec": spec,
            "managedFields": []});
        mallory.forges(name, &journal, annotations).await;
    }
    for name in ["from", "to", "to-nowhere", "placed"] {
        scene.stays(&mallory.namespace, name, no_foreign).await;
        scene.stays(&mallory.namespace, name, in_state("ExternalName")).await;
        scene.told(&mallory.namespace, name, NOT_RECORDED).await;
    }
    // The addresses still belong to the other team.
    scene.plane.namespace("blue").await;
    let blue = service("blue", json!({"clusterIP": "172.21.8.101"}));
    scene.create(&scene.admin(), "blue", &blue, "").await.unwrap();
}

/// The third row: the same for external addresses.
#[tokio::test]
async fn forged_journal_gets_no_external_address_of_another_pool() {
    let scene = Scene::shared().await;
    let mallory = scene.tenant(MALLORY).await;
    let denied = service("denied", json!({"externalIPs": ["192.0.2.20"]}));
    let denied = scene.create(&mallory.client, &mallory.namespace, &denied, "").await.unwrap_err();
    assert!(denied.contains("does not admit this Service"), "{denied}");

    let rows = [
        ("external-ips", json!({"type": "ClusterIP", "externalIPs": ["192.0.2.20"], "ports": [{"port": 80}]})),
        ("balancer-ip", json!({"type": "LoadBalancer", "loadBalancerIP": "192.0.2.21", "ports": [{"port": 80}]})),
    ];
    for (name, spec) in &rows {
        let journal = json!({"phase": "released", "way": "externalName", "from": ["172.21.0.253"], "to": [],
            "spec": spec, "managedFields": []});
        mallory.forges(name, &journal, json!({})).await;
    }
    let no_external = |service: &Value| {
        service["spec"]
            .to_string()
            .contains("192.0.2.")
            .then(|| "it has an external address of another pool".to_owned())
    };
    for (name, _) in &rows {
        scene.stays(&mallory.namespace, name, no_external).await;
        scene.stays(&mallory.namespace, name, in_state("ExternalName")).await;
        scene.told(&mallory.namespace, name, NOT_RECORDED).await;
    }
}

/// The fifth row: Services that look half moved, and can never be finished.
#[tokio::test]
async fn forged_moves_delay_no_other_move() {
    let scene = Scene::start().await;
    let neighbour = scene.plane.namespace("neighbour").await;
    let usual = scene.median_time_to_move(&neighbour, "before").await;
    let mallory = scene.tenant(MALLORY).await;
    for nth in 0..20 {
        let journal = json!({"phase": "released", "way": "externalName", "from": [format!("172.21.0.{}", 200 + nth)],
            "to": [], "spec": {"type": "ClusterIP", "ports": [{"port": 99_999}]}, "managedFields": []});
        mallory.forges(&format!("stuck-{nth}"), &journal, json!({})).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let took = scene.median_time_to_move(&neighbour, "after").await;
    assert!(took <= usual * BUSY + DELAY, "moves of a neighbour take {took:?}, before {usual:?}");
    scene.told(&mallory.namespace, "stuck-7", NOT_RECORDED).await;
}

/// Moves of the server that the cluster does not let it finish.
#[tokio::test]
async fn hundred_failing_moves_delay_other_namespaces_by_at_most_a_second() {
    const MANY: usize = 100;
    let scene = Scene::start().await;
    let neighbour = scene.plane.namespace("neighbour").await;
    let usual = scene.median_time_to_move(&neighbour, "before").await;
    let mallory = scene.tenant(MALLORY).await;
    // A rule of the cluster that refuses the second half of a move in this namespace.
    let refuses = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "aliases-stay-aliases"}, "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["UPDATE"], "resources": ["services"]}]},
            "validations": [{"expression": "oldObject.spec.?type.orValue('') != 'ExternalName' || object.spec.?type.orValue('') == 'ExternalName'"}]}});
    let here = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "aliases-stay-aliases"}, "spec": {"policyName": "aliases-stay-aliases",
            "validationActions": ["Deny"], "matchResources": {"namespaceSelector": {"matchLabels":
                {"kubernetes.io/metadata.name": mallory.namespace}}}}});
    scene.plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": [refuses, here]}).to_string()).await;
    let alias = service("alias", json!({"type": "ExternalName", "externalName": "example.com"}));
    mallory.creates(&alias).await;
    let back = json!({"spec": {"type": "ClusterIP", "externalName": null}});
    let alias = format!("{}?dryRun=All", path(&mallory.namespace, "alias"));
    eventually("the rule", async || mallory.request(Method::PATCH, &alias, &back).await.err()).await;

    let linux = json!({"clusterip-policy/os": "linux"});
    let names: Vec<String> = (0..MANY).map(|nth| format!("web-{nth}")).collect();
    join_all(names.iter().map(async |name| drop(mallory.creates(&annotated(name, linux.clone(), json!({}))).await)))
        .await;
    let windows = json!({"clusterip-policy/os": "windows"});
    join_all(names.iter().map(async |name| drop(mallory.annotates(name, windows.clone()).await.unwrap()))).await;
    let took = scene.median_time_to_move(&neighbour, "after").await;
    assert!(took <= usual * BUSY + DELAY, "moves of a neighbour take {took:?}, before {usual:?}");
}

/// An annotation with all addresses of another pool, which is written again and again.
#[tokio::test]
async fn addresses_in_an_annotation_fill_no_pool() {
    let scene = Scene::start().await;
    let mallory = scene.tenant(MALLORY).await;
    scene.plane.namespace("narrow").await;
    let all: Vec<String> = (0..64).map(|last| format!("172.21.9.{last}")).collect();
    let fits = |addresses: &[String]| {
        json!({"phase": "released", "way": "externalName", "from": addresses, "to": addresses,
            "spec": {"ports": [{"port": 80}]}, "managedFields": []})
    };
    // Many addresses in one annotation, and one address in each of many annotations.
    for (nth, address) in all.iter().enumerate() {
        mallory.forges(&format!("one-{nth}"), &fits(std::slice::from_ref(address)), json!({})).await;
    }
    mallory.creates(&service("all", json!({}))).await;
    let shop = Arc::new(tokio::sync::Notify::new());
    let rewriting = async {
        let mut count = 0_u32;
        loop {
            let mut journal = fits(&all);
            journal["why"] = count.to_string().into();
            count += 1;
            // A merge patch has no conflict with the writes of the server.
            mallory.annotates("all", json!({MOVING: journal.to_string()})).await.unwrap();
            if count == 5 {
                shop.notify_one();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let creating = async {
        shop.notified().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut refused = Vec::new();
        for nth in 0..50 {
            match scene.create(&scene.admin(), "narrow", &service(&format!("web-{nth}"), json!({})), "").await {
                Ok(created) => assert!(within(addresses(&created)[0], NARROW), "{created}"),
                Err(error) => refused.push(error),
            }
        }
        refused
    };
    let refused = tokio::select! {
        refused = creating => refused,
        () = rewriting => unreachable!(),
    };
    assert_eq!(refused, [""; 0]);
}

/// Charts render `clusterIP: ""`, and Flux applies it with server-side apply.
#[tokio::test]
async fn empty_cluster_ip_pins_no_address() {
    let scene = Scene::shared().await;
    let author = scene.tenant("author").await;
    let namespace = &author.namespace;
    let apply = async |mut object: Value, path: String| {
        object["metadata"]["namespace"] = namespace.as_str().into();
        let path = format!("{path}?fieldManager=flux&force=true");
        let request = Request::patch(path).header("content-type", "application/apply-patch+yaml");
        let request = request.body(serde_json::to_vec(&object).unwrap()).unwrap();
        author.client.request::<Value>(request).await.unwrap()
    };
    let empty = service("web", json!({"clusterIP": ""}));
    for _ in 0..2 {
        let applied = apply(empty.clone(), path(namespace, "web")).await;
        assert!(within(addresses(&applied)[0], LINUX), "{applied}");
    }
    let deployments = format!("/apis/apps/v1/namespaces/{namespace}/deployments/web");
    apply(deployment("web", on("windows")), deployments).await;
    let moved = async || {
        let web = stored(&scene.admin(), namespace, "web").await.unwrap();
        addresses(&web).first().is_some_and(|address| within(*address, WINDOWS)).then_some(())
    };
    eventually_within(LOST, "the Service to follow its Deployment", moved).await;
    // The author can apply the manifest again without a conflict, and the address stays.
    let applied = apply(empty, path(namespace, "web")).await;
    assert!(within(addresses(&applied)[0], WINDOWS), "{applied}");
}

/// An update whose review is larger than the server reads. With `failurePolicy: Ignore` it would pass if the server did
/// not answer.
#[tokio::test]
async fn request_too_large_to_review_gets_no_address_of_another_pool() {
    let scene = Scene::shared().await;
    let mallory = scene.tenant("bulky").await;
    // JSON needs six bytes for each of these characters.
    let filling = json!({"example.com/filling": "\u{1}".repeat(261_000)});
    let ports: Vec<Value> = (1..=2000).map(|port| json!({"name": format!("port-{port:050}"), "port": port})).collect();
    let alias = json!({"type": "ExternalName", "externalName": "example.com", "ports": ports});
    mallory.creates(&annotated("bulky", filling, alias)).await;
    let takes = json!({"spec": {"type": "ClusterIP", "clusterIP": "172.21.8.77"}});
    let refused = mallory.request(Method::PATCH, &path(&mallory.namespace, "bulky"), &takes).await.unwrap_err();
    assert!(refused.contains("could not decide: the body is larger than 3145728 bytes"), "{refused}");
}

/// Workloads of the maximum size that the API server accepts, listed by a starting server, whose container has 384 MiB.
#[tokio::test]
async fn large_workloads_do_not_fill_the_memory_of_a_starting_server() {
    const MOST: f64 = 300.0;
    let mut scene = Scene::without_server();
    let mallory = scene.tenant("large").await;
    for nth in 0..40 {
        let mut large = deployment(&format!("large-{nth}"), json!({}));
        large["spec"]["replicas"] = 0.into();
        large["spec"]["template"]["spec"]["containers"][0]["args"] = vec![""; 690_000].into();
        let path = format!("/apis/apps/v1/namespaces/{}/deployments", mallory.namespace);
        mallory.request(Method::POST, &path, &large).await.unwrap();
    }
    scene.install().await;
    scene.serve(SETTINGS).await;
    let host = scene.host.as_mut().unwrap();
    host.ready().await;
    let peak = peak_memory(host.pid());
    assert!(peak < MOST, "{peak} MB");
}

/// A first installation, and then a change of settings, in a cluster whose Services are in no pool.
#[tokio::test]
async fn creates_succeed_while_many_misplaced_services_are_listed() {
    const OTHERS: usize = 400;
    let mut scene = Scene::without_server();
    let others = scene.plane.namespace("others").await;
    let create = async |nth: usize| {
        scene.create(&scene.admin(), &others, &service(&format!("other-{nth}"), json!({})), "").await.unwrap()
    };
    stream::iter((0..OTHERS).map(create)).buffer_unordered(40).collect::<Vec<_>>().await;
    scene.install().await;
    // Until the server answers, creates fail. So it has placed all Services that are created.
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/clusterip-policy";
    let mut webhooks: Value = scene.admin().request(Request::get(path).body(Vec::new()).unwrap()).await.unwrap();
    webhooks["webhooks"][0]["failurePolicy"] = "Fail".into();
    scene.plane.kubectl_with(&["replace", "-f", "-"], &webhooks.to_string()).await.ok();
    let shop = scene.plane.namespace("shop").await;
    let probe = service("probe", json!({}));
    let path = "?dryRun=All";
    eventually("the webhook to be in force", async || scene.create(&scene.admin(), &shop, &probe, path).await.err())
        .await;

    // The pool has hardly more addresses than Services that are created.
    let half = SETTINGS.replace(LINUX, "172.21.0.0/25");
    scene.serve(&half).await;
    let first = creates_while_it_works(&scene, &shop, "first").await;
    // The Linux pool changes to another range, which no Service is in.
    let file = scene.host.as_ref().unwrap().folder().join("settings.yaml");
    let other = SETTINGS.replace(LINUX, "172.21.2.0/25");
    std::fs::write(file, with_ranges(&scene.plane, &other)).unwrap();
    let second = creates_while_it_works(&scene, &shop, "second").await;
    let placed = |range: &str| second.get(range).copied().unwrap_or_default();
    // The first Services may be placed by the old settings.
    let all = placed(LINUX) + placed("172.21.2.0/24");
    assert_eq!((&first, all), (&BTreeMap::from([(LINUX.to_owned(), 60)]), 60), "after the change: {second:?}");
    assert!(placed("172.21.2.0/24") >= 20, "the new settings are not in use: {second:?}");
}

/// Creates 60 Services within ten seconds after the first success, a third of them at once, and counts them by pool or
/// by error.
async fn creates_while_it_works(scene: &Scene, namespace: &str, names: &str) -> BTreeMap<String, usize> {
    let create = async |nth: u64| {
        // The others are created one after the other.
        tokio::time::sleep(Duration::from_millis(200 * nth.saturating_sub(20))).await;
        let manifest = service(&format!("{names}-{nth}"), json!({}));
        // The server has not started, or is not ready.
        let there = async || match scene.create(&scene.admin(), namespace, &manifest, "").await {
            Err(error) if error.contains("failed calling webhook") => None,
            done => Some(done),
        };
        eventually("the webhook to answer", there).await
    };
    let created = join_all((0..60).map(create)).await;
    let mut count = BTreeMap::new();
    for created in created {
        let place = match created {
            Ok(service) => range_of(addresses(&service)[0]),
            // Without the name, so that the same error is counted together.
            Err(error) => error.split_once("pool ").map_or(error.clone(), |(_, rest)| rest.to_owned()),
        };
        *count.entry(place).or_insert(0) += 1;
    }
    count
}

fn range_of(address: IpAddr) -> String {
    let ranges = [LINUX, WINDOWS, BLUE, NARROW, "172.21.2.0/24"];
    ranges.into_iter().find(|range| within(address, range)).map_or_else(|| address.to_string(), str::to_owned)
}
