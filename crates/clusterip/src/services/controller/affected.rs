//! Collects which objects have changed, and finds the Services whose place may change with them.
//!
//! A tenant can change an object hundreds of times a second, and thousands of Services may depend on the object. So the
//! changes of each namespace are collected in sets, which keep equal changes once, and which have a limit. The Services
//! are found in steps on the background threads, where the namespaces take turns. A step looks at a limited number of
//! objects, so that the snapshot is not locked for long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, RwLock};

use clusterip_cluster::background;
use clusterip_cluster::kinds::own_name;
use clusterip_cluster::snapshot::{LabelHashes, Snapshot, Stored};
use clusterip_cluster::watch::stores::Change;
use clusterip_core::service_key::ServiceKey;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// A namespace keeps the names of at most this many changed Services, and at most this many other changes. Beyond either
/// number, the search looks at all Services of the namespace.
const MAX_CHANGES: usize = 256;
/// How many pairs of a Service and a set of labels, or how many Pods, are looked at in one step.
const STEP: usize = 1024;

/// The changes that have not been handled yet. Clones share them.
#[derive(Clone, Default)]
pub struct Changes(Arc<(Mutex<Collected>, Notify)>);

#[derive(Default)]
struct Collected {
    /// The changes by namespace. Those of objects without a namespace concern all, and are under the empty name.
    namespaces: BTreeMap<String, Changed>,
    /// The namespaces whose changes are being handled. Further changes of these namespaces wait until then.
    taken: BTreeSet<String>,
    freed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Changed {
    /// The Services that have changed themselves, or whose endpoints have.
    services: BTreeSet<String>,
    /// The labels of the Pods that have changed, or whose workloads have.
    pods: BTreeSet<LabelHashes>,
    /// The Nodes whose labels have changed. They concern the Services that select Pods on them.
    nodes: BTreeSet<Arc<str>>,
    all: bool,
}

impl Changed {
    /// Forgets the details if there are too many, or if they don't matter.
    fn limit(&mut self) {
        if self.services.len() > MAX_CHANGES {
            (self.all, self.services) = (true, BTreeSet::new());
        }
        if self.all || self.pods.len() + self.nodes.len() > MAX_CHANGES {
            *self = Self { all: true, services: std::mem::take(&mut self.services), ..Self::default() };
        }
    }
}

impl Collected {
    fn change(&mut self, namespace: &str, add: impl FnOnce(&mut Changed)) {
        let changed = self.namespaces.entry(namespace.to_owned()).or_default();
        add(changed);
        changed.limit();
    }
}

impl Changes {
    fn lock(&self) -> MutexGuard<'_, Collected> {
        self.0.0.lock()
    }

    pub fn add(&self, change: &Change<'_>) {
        let mut collected = self.lock();
        let versions = [change.before, change.after].into_iter().flatten();
        match own_name(change.kind) {
            "Service" => {
                collected.freed |= frees_an_address(change);
                collected.change(change.namespace, |it| it.services.extend([change.name.to_owned()]));
            }
            "Namespace" => collected.change(change.name, |it| it.all = true),
            // The labels are the only field of a Node that is evidence.
            "Node" if has_same_labels(change) => return,
            "Node" => collected.change("", |it| it.nodes.extend([Arc::from(change.name)])),
            // A RuntimeClass rarely changes, and any workload may name it.
            "RuntimeClass" => collected.change("", |it| it.all = true),
            "IPAddress" => collected.freed |= change.after.is_none(),
            // Ranges are not evidence.
            "ServiceCIDR" => return,
            _ => collected.change(change.namespace, |it| {
                versions.for_each(|version| match version {
                    Stored::Endpoints(endpoints) if endpoints.service.is_empty() => {}
                    Stored::Endpoints(endpoints) => it.services.extend([endpoints.service.to_string()]),
                    Stored::Workload(workload) => it.pods.extend([workload.labels().clone()]),
                    _ => {}
                });
            }),
        }
        drop(collected);
        self.0.1.notify_one();
    }

    pub async fn added(&self) {
        self.0.1.notified().await;
    }

    pub fn clear(&self) {
        *self.lock() = Collected::default();
    }

    pub fn take_freed(&self) -> bool {
        std::mem::take(&mut self.lock().freed)
    }

    /// Takes the changes of each namespace of which none are being handled. Each search ends with [`Self::done`].
    pub fn take(&self, snapshot: &RwLock<Snapshot>) -> Vec<Search> {
        let of_cluster = self.lock().namespaces.remove("");
        if let Some(of_cluster) = of_cluster {
            // A Node concerns only namespaces with Pods.
            let concerned: Vec<String> = {
                let snapshot = Snapshot::read(snapshot);
                let has_pods = |namespace: &String| snapshot.pods_after(namespace, "").next().is_some();
                snapshot.namespaces().into_iter().filter(|it| of_cluster.all || has_pods(it)).collect()
            };
            for namespace in concerned {
                self.lock().change(&namespace, |it| {
                    it.all |= of_cluster.all;
                    it.nodes.extend(of_cluster.nodes.iter().cloned());
                });
            }
        }
        let mut collected = self.lock();
        let Collected { namespaces, taken, .. } = &mut *collected;
        let free = namespaces.extract_if(.., |namespace, _| taken.insert(namespace.clone()));
        free.map(|(namespace, changed)| Search { namespace, changed, after: String::new() }).collect()
    }

    pub fn done(&self, namespace: &str) {
        let mut collected = self.lock();
        collected.taken.remove(namespace);
        if collected.namespaces.contains_key(namespace) {
            self.0.1.notify_one();
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Search {
    namespace: String,
    changed: Changed,
    /// The name of the Pod or Service that was looked at last.
    after: String,
}

/// The namespace, the Services that a step has found, and the rest of the search; `None` at its end.
pub type Found = (String, Vec<ServiceKey>, Option<Search>);

impl Search {
    pub fn whole_namespace(&self) -> Option<&str> {
        self.changed.all.then_some(&self.namespace)
    }

    /// Takes the next step, when it is the turn of the namespace.
    pub async fn next(self, snapshot: Arc<RwLock<Snapshot>>) -> Found {
        let namespace = self.namespace.clone();
        let step = background::run(&namespace, move || self.step(&Snapshot::read(&snapshot))).await;
        let (services, rest) = step.unwrap_or_else(|error| {
            tracing::error!(namespace, %error, "the Services that a change concerns are not known");
            (Vec::new(), None)
        });
        (namespace, services, rest)
    }

    fn step(mut self, snapshot: &Snapshot) -> (Vec<ServiceKey>, Option<Self>) {
        let changed = &mut self.changed;
        if !changed.nodes.is_empty() {
            let (mut looked_at, mut last) = (0, String::new());
            for (name, pod) in snapshot.pods_after(&self.namespace, &self.after).take(STEP) {
                if pod.node().is_some_and(|node| changed.nodes.contains(node)) {
                    changed.pods.insert(pod.labels().clone());
                }
                (looked_at, last) = (looked_at + 1, name.to_owned());
            }
            if looked_at < STEP {
                changed.nodes.clear();
            }
            changed.limit();
            // The Services are looked at from the first one on, also if the other Pods don't matter any more.
            self.after = if changed.nodes.is_empty() { String::new() } else { last };
            return (Vec::new(), Some(self));
        }
        let services = std::mem::take(&mut changed.services);
        let mut found: Vec<_> = services.into_iter().map(|name| ServiceKey::new(&*self.namespace, name)).collect();
        if !changed.all && changed.pods.is_empty() {
            return (found, None);
        }
        let most = STEP / changed.pods.len().max(1);
        let (mut looked_at, mut last) = (0, String::new());
        for service in snapshot.services_after(&self.namespace, &self.after).take(most) {
            // A Service without addresses is not misplaced, whatever the nodes of its Pods are.
            let has_place = !service.addresses().is_empty();
            if has_place && (changed.all || changed.pods.iter().any(|labels| service.selects(labels))) {
                found.push(service.key().clone());
            }
            (looked_at, last) = (looked_at + 1, service.key().name.clone());
        }
        self.after = last;
        (found, (looked_at == most).then_some(self))
    }
}

/// Whether a Service had an address before the change that it does not have any more.
fn frees_an_address(change: &Change<'_>) -> bool {
    let of = |version: Option<&Stored>| match version {
        Some(Stored::Service(service)) => BTreeSet::from_iter(service.addresses().iter().copied()),
        _ => BTreeSet::new(),
    };
    !of(change.before).is_subset(&of(change.after))
}

fn has_same_labels(change: &Change<'_>) -> bool {
    matches!(
        (change.before, change.after),
        (Some(Stored::Node(before)), Some(Stored::Node(after))) if before.labels == after.labels
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_cluster::object;
    use clusterip_cluster::snapshot::Insertion;
    use serde_json::{Value, json};

    use super::*;

    /// A cluster, and the changes of its objects.
    #[derive(Default)]
    struct Cluster {
        snapshot: RwLock<Snapshot>,
        changes: Changes,
    }

    impl Cluster {
        fn knows(&self, object: &Value) {
            self.snapshot.write().unwrap().insert(object);
        }

        fn write(&self, object: &Value) {
            let Insertion::Changed { before, after } = Snapshot::insert_in(&self.snapshot, object) else { return };
            self.report(object, before.as_ref(), Some(&after));
        }

        fn delete(&self, object: &Value) {
            let id = (object::namespace(object), object::name(object));
            let before =
                self.snapshot.write().unwrap().remove(object::api_version(object), object::kind(object), id.0, id.1);
            self.report(object, before.as_ref(), None);
        }

        fn report(&self, object: &Value, before: Option<&Stored>, after: Option<&Stored>) {
            let kind = &(object::api_version(object).to_owned(), object::kind(object).to_owned());
            let (namespace, name) = (object::namespace(object), object::name(object));
            self.changes.add(&Change { kind, namespace, name, before, after });
        }

        /// The Services that the changes concern, and the number of steps in which they are found.
        fn found(&self) -> (Vec<String>, usize) {
            let (mut found, mut steps) = (Vec::new(), 0);
            for search in self.changes.take(&self.snapshot) {
                let namespace = search.namespace.clone();
                let mut rest = Some(search);
                while let Some(search) = rest {
                    let (services, next) = search.step(&self.snapshot.read().unwrap());
                    (rest, steps) = (next, steps + 1);
                    found.extend(services.iter().map(ToString::to_string));
                }
                self.changes.done(&namespace);
            }
            (found, steps)
        }
    }

    fn service(namespace: &str, name: &str, address: &str, app: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": address, "clusterIPs": [address], "selector": {"app": app}}})
    }

    fn deployment(namespace: &str, app: &str, os: &str) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": namespace, "name": app},
            "spec": {"template": {"metadata": {"labels": {"app": app}}, "spec": {"nodeSelector": {"os": os}}}}})
    }

    fn pod(namespace: &str, name: &str, app: &str, node: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name,
            "labels": {"app": app}}, "spec": {"nodeName": node}})
    }

    fn of_cluster(api_version: &str, kind: &str, name: &str, label: &str) -> Value {
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "labels": {"label": label}},
            "scheduling": {"nodeSelector": {"label": label}}})
    }

    #[test]
    fn changes_of_one_workload_are_kept_once_and_concern_services_with_addresses_only() {
        let cluster = Cluster::default();
        for nth in 0..3 * STEP {
            cluster.knows(&service("mallory", &format!("web-{nth}"), "None", "web"));
        }
        cluster.knows(&service("mallory", "web", "10.0.0.1", "web"));
        cluster.knows(&service("mallory", "other", "10.0.0.2", "other"));
        for _ in 0..500 {
            cluster.write(&deployment("mallory", "web", "windows"));
            cluster.write(&deployment("mallory", "web", "linux"));
        }
        {
            let collected = cluster.changes.lock();
            let changed = &collected.namespaces["mallory"];
            assert_eq!((collected.namespaces.len(), changed.pods.len(), changed.all), (1, 1, false));
        }
        assert_eq!(cluster.found(), (vec!["mallory/web".to_owned()], 4));
        assert_eq!(cluster.found(), (Vec::new(), 0));
    }

    #[test]
    fn memory_for_changes_of_a_namespace_has_a_limit() {
        let cluster = Cluster::default();
        cluster.knows(&service("mallory", "web", "10.0.0.1", "web"));
        cluster.knows(&service("shop", "web", "10.0.0.2", "web"));
        for nth in 0..=MAX_CHANGES {
            let short = service("mallory", &format!("short-{nth}"), "None", "web");
            cluster.write(&short);
            cluster.delete(&short);
            cluster.write(&deployment("mallory", &format!("web-{nth}"), "linux"));
        }
        let changed = cluster.changes.lock().namespaces["mallory"].clone();
        let last = format!("short-{MAX_CHANGES}");
        assert_eq!(changed, Changed { all: true, services: [last.clone()].into(), ..Changed::default() });
        assert_eq!(cluster.found(), (vec![format!("mallory/{last}"), "mallory/web".to_owned()], 1));
    }

    #[test]
    fn node_concerns_the_services_that_select_its_pods() {
        let cluster = Cluster::default();
        for namespace in ["mallory", "shop"] {
            for app in ["here", "there"] {
                cluster.knows(&service(namespace, app, "10.0.0.1", app));
            }
        }
        for nth in 0..2 * STEP {
            let (app, node) = if nth % 2 == 0 { ("here", "a") } else { ("there", "b") };
            cluster.knows(&pod("mallory", &format!("pod-{nth}"), app, node));
        }
        let (one, other) = (of_cluster("v1", "Node", "a", "1"), of_cluster("v1", "Node", "a", "2"));
        cluster.write(&one);
        for _ in 0..50 {
            cluster.write(&other);
            cluster.write(&one);
        }
        // Three steps for the Pods, the last of which finds none, and one for the Services; none in the other namespace,
        // which has no Pods.
        assert_eq!(cluster.found(), (vec!["mallory/here".to_owned()], 3 + 1));
        let mut ready = one.clone();
        ready["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        cluster.write(&ready);
        assert_eq!(cluster.found(), (Vec::new(), 0), "it has the same labels");
    }

    #[test]
    fn nodes_of_pods_with_many_labels_concern_all_services() {
        let cluster = Cluster::default();
        for name in ["api", "zoo"] {
            cluster.knows(&service("shop", name, "10.0.0.1", name));
        }
        // The names of the Pods lie between those of the Services, and each Pod has labels of its own.
        for nth in 0..2 * STEP {
            cluster.knows(&pod("shop", &format!("pod-{nth:04}"), &format!("job-{nth}"), "a"));
        }
        cluster.knows(&pod("shop", "api-0", "api", "a"));
        cluster.write(&of_cluster("v1", "Node", "a", "1"));
        assert_eq!(cluster.found().0, ["shop/api", "shop/zoo"]);
    }

    #[test]
    fn each_change_concerns_some_services() {
        let cluster = Cluster::default();
        let headless = service("shop", "headless", "None", "web");
        let slice = |service: &str| {
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"namespace": "shop",
                "name": "slice", "labels": {"kubernetes.io/service-name": service}}})
        };
        let address = of_cluster("networking.k8s.io/v1", "IPAddress", "10.0.0.9", "");
        let check = |name: &str, expected: &[&str], freed: bool| {
            assert_eq!(cluster.changes.take_freed(), freed, "{name}");
            assert_eq!(cluster.found().0, expected, "{name}");
        };
        cluster.write(&service("shop", "web", "10.0.0.1", "web"));
        check("a Service", &["shop/web"], false);
        cluster.write(&headless);
        check("a headless Service", &["shop/headless"], false);
        cluster.write(&service("blue", "web", "10.0.0.2", "web"));
        check("a Service of another namespace", &["blue/web"], false);
        cluster.write(&of_cluster("v1", "Namespace", "blue", "1"));
        check("a Namespace", &["blue/web"], false);
        cluster.write(&slice("web"));
        check("endpoints", &["shop/web"], false);
        cluster.write(&slice("old"));
        check("endpoints of another Service", &["shop/old", "shop/web"], false);
        cluster.write(&address);
        check("an address", &[], false);
        cluster.delete(&address);
        check("a free address", &[], true);
        cluster.write(&of_cluster("node.k8s.io/v1", "RuntimeClass", "wasm", "1"));
        check("a RuntimeClass", &["blue/web", "shop/web"], false);
        cluster.delete(&service("shop", "web", "10.0.0.1", "web"));
        assert!(cluster.changes.take_freed(), "without IPAddress objects, only the Service tells it");
    }

    #[tokio::test]
    async fn changes_of_a_namespace_wait_until_those_before_have_been_handled() {
        let cluster = Cluster::default();
        cluster.write(&service("mallory", "web", "10.0.0.1", "web"));
        assert_eq!(cluster.changes.take(&cluster.snapshot).len(), 1);
        cluster.write(&deployment("mallory", "web", "linux"));
        cluster.write(&service("shop", "web", "10.0.0.2", "web"));
        let others = cluster.changes.take(&cluster.snapshot);
        assert_eq!(others.iter().map(|it| it.namespace.as_str()).collect::<Vec<_>>(), ["shop"]);
        cluster.changes.added().await;
        cluster.changes.done("mallory");
        cluster.changes.added().await;
        assert_eq!(cluster.found().0, ["mallory/web"]);
    }
}
