//! A cluster with `deploy/external`, and a tenant with the permissions of the role `edit` in one namespace.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::shared::Shared;
use axum::http::Method;
use kube::Client;
use serde_json::{Value, json};

use crate::support::command::{self, Ended};
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::documented_steps::{Operator, Step};
use crate::support::eventually::eventually;
use crate::support::fake_kubelet::as_in_a_pod;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::move_helpers::{path, send, services, stored, tries};
use crate::support::serve_process::{Server, free_port};
use crate::support::webhook_cluster::{addresses, annotated, with_ranges, within};

pub const MALLORY: &str = "mallory";
pub const LINUX: &str = "172.21.0.0/24";
pub const WINDOWS: &str = "172.21.1.0/24";
pub const BLUE: &str = "172.21.8.0/24";
pub const NARROW: &str = "172.21.9.0/26";

/// A pool of the team `blue`, a small one of the namespace `narrow`, and external addresses of the team `blue`.
pub const SETTINGS: &str = "
services:
  pools:
  - name: blue
    cidrs: [172.21.8.0/24]
    match: {namespaces: [blue]}
    reservations: [{address: 172.21.8.99, namespace: blue, name: kept}]
  - {name: narrow, cidrs: [172.21.9.0/26], match: {namespaces: [narrow]}}
  - {name: windows, cidrs: [172.21.1.0/24], reserved: 10, match: {os: windows}}
  - {name: linux, cidrs: [172.21.0.0/24], reserved: 10, match: {os: linux}}
  explicit: deny
  exemptNamespaces: [kube-system, clusterip-policy]
external:
  pools:
  - {name: blue, cidrs: [192.0.2.16/28], match: {namespaces: [blue]}}
";

pub const MOVING: &str = "clusterip-policy/moving";

/// The reason of the Event about a Service that looks half moved, but was not moved by the server.
pub const NOT_RECORDED: &str = "MoveNotRecorded";

/// How long a test checks that something does not happen. A vulnerable server did it within a second.
const BOUND: Duration = Duration::from_secs(5);

/// The maximum delay that a tenant may cause to moves of another namespace.
pub const DELAY: Duration = Duration::from_secs(1);

/// How many times slower a machine that runs other tests may become between two measurements, beyond what a bare request
/// shows.
const BUSY: f64 = 5.0;

/// The time after which a move counts as lost.
pub const LOST: Duration = Duration::from_secs(20);

/// How long moves took, and how long bare requests to the API server took in the same seconds. The second is the speed of
/// a machine that also runs other tests.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub moves: Duration,
    pub request: Duration,
}

impl Pace {
    /// This many moves, one after the other.
    pub fn times(self, moves: u32) -> Self {
        Self { moves: self.moves * moves, ..self }
    }

    /// Checks that moves which a tenant may delay take at most [`DELAY`] longer than usual.
    pub fn is_at_most_delayed(self, usual: Pace) {
        let slower = (self.request.as_secs_f64() / usual.request.as_secs_f64()).max(1.0);
        let limit = usual.moves.mul_f64(BUSY * slower) + DELAY;
        assert!(self.moves <= limit, "moves of a neighbour: {self:?}, before: {usual:?}, limit {limit:?}");
        assert!(self.moves < LOST, "moves of a neighbour: {self:?}");
    }
}

/// A control plane with `deploy/external`, and the server that its Deployment runs.
pub struct Scene {
    /// The server is the first field, because it must end before the control plane is given back.
    pub server: Option<Server>,
    pub plane: Box<dyn Deref<Target = ControlPlane> + Send + Sync>,
    pub port: u16,
}

impl Scene {
    /// A cluster that tests share. They change only the namespaces that they create, and run in parallel.
    pub async fn shared() -> Arc<Self> {
        static SHARED: Shared<Scene> = Shared::new();
        SHARED.get(Self::start).await
    }

    pub async fn start() -> Self {
        let mut scene = Self::without_server().await;
        scene.begin().await;
        scene
    }

    /// Installs the policy, starts the server, and waits until both take effect.
    pub async fn begin(&mut self) {
        self.install().await;
        self.serve(SETTINGS).await;
        self.server.as_mut().unwrap().ready().await;
        eventually("the webhook to be called", async || {
            let unknown = annotated("trial", json!({"clusterip-policy/pool": "unknown"}), json!({}));
            self.create(&self.admin(), "default", &unknown, "?dryRun=All").await.err()
        })
        .await;
        self.server.as_ref().unwrap().logged("leading").await;
    }

    pub async fn without_server() -> Self {
        Self { server: None, plane: Box::new(LentControlPlane::get().await), port: free_port() }
    }

    /// As [`Self::without_server`], on a control plane that ends with the test: it gets policies, or so many or large
    /// objects that to start another one takes less time than to delete them.
    pub fn on_its_own() -> Self {
        Self { server: None, plane: Box::new(Box::new(ControlPlane::start(Options::default()))), port: free_port() }
    }

    /// A client of the administrator, for the runtime of the calling test.
    pub fn admin(&self) -> Client {
        self.plane.client()
    }

    /// Applies `deploy/external` without its ValidatingAdmissionPolicies, with a webhook that this test can reach, and with
    /// the permission that `deploy/load-balancers` adds.
    pub async fn install(&self) {
        const STATUS: &str =
            "- {op: add, path: /rules/-, value: {apiGroups: [\"\"], resources: [services/status], verbs: [update]}}\n";
        self.plane.install_pools().await;
        let operator = Operator::new(&self.plane, &format!("https://127.0.0.1:{}", self.port));
        for (file, policies) in [
            ("deploy/webhook/kustomization.yaml", "components:\n- ../policies\n"),
            ("deploy/external/component/kustomization.yaml", "- agent-policy.yaml\n"),
        ] {
            let text = operator.read(file);
            assert!(text.contains(policies), "{file} has no {policies:?}");
            operator.write(file, &text.replace(policies, ""));
        }
        let permissions = "deploy/external/component/cluster-permissions.yaml";
        operator.write(permissions, &(operator.read(permissions) + STATUS));
        operator.does(&Step::Type("kubectl apply -k deploy/external".to_owned())).await;
    }

    /// Starts the program of the Deployment with moves of load balancers, and does not wait.
    pub async fn serve(&mut self, settings: &str) {
        let path = "/apis/apps/v1/namespaces/clusterip-policy/deployments/clusterip";
        let deployed = send(&self.admin(), Method::GET, path, None).await.unwrap();
        let mut pod = deployed["spec"]["template"].clone();
        let args = pod.pointer_mut("/spec/containers/0/args").unwrap().as_array_mut().unwrap();
        args.retain(|arg| *arg != "--move-load-balancers");
        args.push("--move-load-balancers".into());
        let settings = with_ranges(&self.plane, settings);
        self.server = Some(as_in_a_pod(&self.plane, self.port, &pod).await.settings(&settings).spawn());
    }

    /// Creates a namespace in which the user of this name has the permissions of `edit`, and returns a client of that
    /// user.
    pub async fn tenant(&self, name: &str) -> Tenant<'_> {
        let namespace = self.plane.namespace(name).await;
        self.plane.grant(&namespace, Some(&namespace), edit()).await;
        let tenant = Tenant { client: self.plane.client_as(&namespace), scene: self, namespace };
        let list = format!("/api/v1/namespaces/{}/services", tenant.namespace);
        eventually("the permissions of a tenant", async || tenant.request(Method::GET, &list, &Value::Null).await.ok())
            .await;
        tenant
    }

    pub async fn create(&self, client: &Client, namespace: &str, object: &Value, query: &str) -> Result<Value, String> {
        tries(client, Method::POST, &format!("{}{query}", services(namespace)), object).await
    }

    /// The time from the change of its annotation until a Service of the namespace is in the Windows pool; at most
    /// [`LOST`].
    pub async fn time_to_move(&self, namespace: &str, name: &str) -> Duration {
        let admin = self.admin();
        let linux = annotated(name, json!({"clusterip-policy/os": "linux"}), json!({}));
        let created = self.create(&admin, namespace, &linux, "").await.unwrap();
        assert!(within(addresses(&created)[0], LINUX), "{created}");
        let begin = Instant::now();
        let windows = json!({"metadata": {"annotations": {"clusterip-policy/os": "windows"}}});
        tries(&admin, Method::PATCH, &path(namespace, name), &windows).await.unwrap();
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
    pub async fn pace(&self, namespace: &str, names: &str) -> Pace {
        let (mut moves, mut request) = (Vec::new(), Duration::ZERO);
        for nth in 0..5 {
            moves.push(self.time_to_move(namespace, &format!("{names}-{nth}")).await);
            request = request.max(self.time_of_a_request(namespace).await);
            // After a lost move, more measurements are not needed.
            if moves.last() >= Some(&LOST) {
                return Pace { moves: LOST, request };
            }
        }
        moves.sort();
        Pace { moves: moves[moves.len() / 2], request }
    }

    /// The mean time of ten writes that neither a webhook nor the server sees.
    pub async fn time_of_a_request(&self, namespace: &str) -> Duration {
        const REQUESTS: u32 = 10;
        let (admin, path) = (self.admin(), format!("/api/v1/namespaces/{namespace}/configmaps"));
        let begin = Instant::now();
        for _ in 0..REQUESTS {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "pace-"}});
            tries(&admin, Method::POST, &path, &object).await.unwrap();
        }
        begin.elapsed() / REQUESTS
    }

    /// Changes the settings of the server so that the pool `blue` is also for this namespace, and returns how long after
    /// that its Services are in this pool.
    pub async fn pace_to_blue(&self, namespace: &str, names: impl Iterator<Item = String>) -> Pace {
        let (admin, server) = (self.admin(), self.server.as_ref().unwrap());
        let in_use = || server.log().iter().filter(|line| line.contains("settings in use")).count();
        let before = in_use();
        let settings =
            SETTINGS.replace("match: {namespaces: [blue]}", &format!("match: {{namespaces: [blue, {namespace}]}}"));
        std::fs::write(server.folder().join("settings.yaml"), with_ranges(&self.plane, &settings)).unwrap();
        eventually("the settings to be in use", async || (in_use() > before).then_some(())).await;
        let begin = Instant::now();
        for name in names {
            eventually("a Service to move to the pool of another team", async || {
                let now = stored(&admin, namespace, &name).await?;
                addresses(&now).first().is_some_and(|address| within(*address, BLUE)).then_some(())
            })
            .await;
        }
        let moves = begin.elapsed();
        Pace { moves, request: self.time_of_a_request(namespace).await }
    }

    /// The findings of an audit of a namespace with the settings of the server.
    pub async fn findings(&self, namespace: &str) -> Vec<Value> {
        let settings = self.server.as_ref().unwrap().folder().join("settings.yaml").display().to_string();
        let audit = ["audit", "--namespace", namespace, "--settings", &settings, "--output", "json"];
        let audit: Value = serde_json::from_str(&clusterip(&self.plane, &audit).await.stdout).unwrap();
        audit["findings"].as_array().unwrap().clone()
    }

    /// The Events of a namespace.
    pub async fn events(&self, namespace: &str) -> Vec<Value> {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let mut list = send(&self.admin(), Method::GET, &path, None).await.unwrap();
        serde_json::from_value(list["items"].take()).unwrap()
    }

    /// Waits for an Event with this reason about a Service.
    pub async fn wait_for_event(&self, namespace: &str, name: &str, reason: &str) {
        let mut last = Vec::new();
        let deadline = Instant::now() + LOST;
        while Instant::now() < deadline {
            let events = self.events(namespace).await;
            let about = events.iter().filter(|event| event["regarding"]["name"] == name);
            last = about.map(|event| format!("{}: {}", event["reason"], event["note"])).collect();
            if last.iter().any(|event| event.starts_with(&format!("\"{reason}\""))) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("no event {reason} about {namespace}/{name}, but {last:#?}");
    }

    /// Checks for [`BOUND`] that a Service stays correct: `wrong` returns what is wrong with it.
    pub async fn stays(&self, namespace: &str, name: &str, wrong: impl Fn(&Value) -> Option<String>) {
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
pub struct Tenant<'s> {
    pub scene: &'s Scene,
    pub client: Client,
    pub namespace: String,
}

impl Tenant<'_> {
    pub async fn request(&self, method: Method, path: &str, body: &Value) -> Result<Value, String> {
        tries(&self.client, method, path, body).await
    }

    /// Creates a Service, which must succeed.
    pub async fn creates(&self, service: &Value) -> Value {
        self.scene.create(&self.client, &self.namespace, service, "").await.unwrap()
    }

    /// Changes annotations of a Service.
    pub async fn annotates(&self, name: &str, annotations: Value) -> Result<Value, String> {
        let patch = json!({"metadata": {"annotations": annotations}});
        self.request(Method::PATCH, &path(&self.namespace, name), &patch).await
    }

    /// Creates a Service that looks half moved, with this journal.
    pub async fn forges(&self, name: &str, journal: &Value, more: Value) -> Value {
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

/// Runs `clusterip` as the administrator.
pub async fn clusterip(plane: &ControlPlane, arguments: &[&str]) -> Ended {
    command::clusterip(plane.folder(), plane.kubeconfig(), arguments).await
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

pub fn in_state(type_: &'static str) -> impl Fn(&Value) -> Option<String> {
    move |service| (service["spec"]["type"] != type_).then(|| format!("it is not of type {type_} any more"))
}
