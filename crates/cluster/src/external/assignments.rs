//! The addresses that agents are to hold: which Service has each recorded address, the ports of each address and the Nodes
//! that may hold it. An agent keeps them up to date with the cluster and the settings.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clusterip_core::label_selector::LabelSelector;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::ExternalSettings;
use clusterip_failover::assignments::{Assignment, Assignments};
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::{ExternalPolicy, Refusal, recorded};
use crate::kinds::{self, own_name};
use crate::live_settings::LiveSettings;
use crate::panics;
use crate::send_if_changed::send_if_changed;
use crate::snapshot::{Stored, StoredNode, StoredService};
use crate::watch::stores::{Change, Stores};

pub type Owners = BTreeMap<IpAddr, Arc<StoredService>>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RefusedRecord {
    pub service: ServiceKey,
    pub address: IpAddr,
    pub reason: String,
}

/// The Services that have the recorded addresses of the pools, and the recorded addresses that Services do not get.
/// `refusal` says why a Service may not have its recorded addresses. If that is unknown, the Service keeps those that its
/// status shows, and gets no others: so all agents and the controller agree about them, also after a restart.
///
/// Several Services have the same address only if they bypassed the policy. Then a Service whose status contains the
/// address has precedence; among several of them, or if there is none, the first by namespace and name.
pub fn owners(
    settings: &ExternalSettings,
    services: impl IntoIterator<Item = Arc<StoredService>>,
    refusal: &mut dyn FnMut(&StoredService) -> Refusal,
) -> (Owners, Vec<RefusedRecord>) {
    let mut claimants: BTreeMap<IpAddr, Vec<Arc<StoredService>>> = BTreeMap::new();
    let mut refused = Vec::new();
    for service in services {
        let mut inside = recorded(&service, settings);
        inside.retain(|address| settings.pool_of(*address).is_some());
        if inside.is_empty() || service.is_deleting() || service.key().name.is_empty() {
            continue;
        }
        let refusal = refusal(&service);
        let (has, lacks): (Vec<IpAddr>, Vec<IpAddr>) = inside.into_iter().partition(|address| match &refusal {
            Ok(reason) => reason.is_none(),
            Err(_) => service.shown().contains(address),
        });
        if let Ok(Some(reason)) | Err(reason) = refusal {
            let refusal = |address| RefusedRecord { service: service.key().clone(), address, reason: reason.clone() };
            refused.extend(lacks.into_iter().map(refusal));
        }
        for address in has {
            claimants.entry(address).or_default().push(Arc::clone(&service));
        }
    }
    let mut owners = Owners::new();
    for (address, mut services) in claimants {
        services.sort_by_key(|service| (!service.shown().contains(&address), service.key().clone()));
        let mut services = services.into_iter();
        let Some(first) = services.next() else { continue };
        let reason = format!("Service {} has recorded it, too", first.key());
        refused.extend(services.map(|other| RefusedRecord {
            service: other.key().clone(),
            address,
            reason: reason.clone(),
        }));
        owners.insert(address, first);
    }
    refused.sort();
    (owners, refused)
}

/// `endpoints` tells on which Nodes a Service has endpoints that get requests; `None` if that is unknown. Only these
/// may hold the addresses of a Service with `externalTrafficPolicy: Local`: kube-proxy on others drops its traffic.
pub fn assignments(
    settings: &ExternalSettings,
    owners: &Owners,
    nodes: &[Arc<StoredNode>],
    endpoints: &dyn Fn(&ServiceKey) -> Option<BTreeSet<String>>,
) -> Assignments {
    let mut assigned = Assignments::new();
    let mut eligible_nodes: BTreeMap<&str, Arc<BTreeSet<String>>> = BTreeMap::new();
    for (address, owner) in owners {
        let Some(pool) = settings.pool_of(*address) else { continue };
        let of_pool = || Arc::new(eligible(nodes, &pool.nodes));
        let mut nodes = Arc::clone(eligible_nodes.entry(&pool.name).or_insert_with(of_pool));
        if let Some(local) = Some(owner.key()).filter(|_| owner.is_local()).and_then(endpoints) {
            nodes = Arc::new(nodes.intersection(&local).cloned().collect());
        }
        assigned.insert(*address, Assignment { service: owner.key().clone(), ports: owner.ports(), nodes });
    }
    assigned
}

/// The names of the Nodes that may hold the addresses of a pool with this selector for its nodes: those that are ready,
/// are not excluded from load balancers, and have matching labels.
///
/// Kubernetes keeps a Node out of load balancers by a label (KEP-1143).
fn eligible(nodes: &[Arc<StoredNode>], selector: &LabelSelector) -> BTreeSet<String> {
    let is_excluded =
        |node: &StoredNode| node.labels.contains_key("node.kubernetes.io/exclude-from-external-load-balancers");
    let fitting = nodes.iter().filter(|node| node.is_ready && !is_excluded(node) && selector.matches(&node.labels));
    fitting.map(|node| node.name.clone()).collect()
}

/// How long the first list of EndpointSlices is waited for.
const LIST_TIME: Duration = Duration::from_secs(5);
/// How long changes are collected at least before they are handled, because many Services may change at once.
const GATHER_TIME: Duration = Duration::from_millis(100);

pub struct AssignmentWatcher {
    pub settings: watch::Receiver<Arc<LiveSettings>>,
    /// They must have synced.
    pub stores: Stores,
    /// Is notified of each change of the stores that [`matters`].
    pub changes: watch::Receiver<()>,
    pub refused: BTreeSet<RefusedRecord>,
    pub local: LocalServices,
}

/// The Services with recorded addresses and `externalTrafficPolicy: Local`. Clones share them.
#[derive(Clone, Default)]
pub struct LocalServices(Arc<RwLock<BTreeSet<ServiceKey>>>);

impl AssignmentWatcher {
    /// Computes the addresses to hold now, and logs each new refusal. `None` if the computation fails: then the agent
    /// must keep the addresses that it holds.
    pub async fn look(&mut self) -> Option<Assignments> {
        self.follow_endpoints().await;
        let stores = self.stores.clone();
        let settings = Arc::clone(&self.settings.borrow_and_update());
        let knows_endpoints = stores.is_listed(&kinds::endpoint_slices());
        let computed = panics::catch_blocking(move || {
            let external = &settings.settings.external;
            let (services, nodes): (_, Vec<_>) = {
                let snapshot = stores.read_snapshot();
                (snapshot.external_services(), snapshot.nodes().cloned().collect())
            };
            let policy = ExternalPolicy::new(external);
            let refusal = &mut |service: &StoredService| policy.refusal(stores.snapshot(), service);
            let (owners, refused) = owners(external, services, refusal);
            let endpoints = |service: &ServiceKey| {
                let slices = knows_endpoints.then(|| stores.read_snapshot().endpoints_of(service))?;
                let nodes = slices.iter().flat_map(|slice| &slice.nodes).filter(|node| !node.is_empty());
                Some(nodes.map(|node| node.to_string()).collect())
            };
            (assignments(external, &owners, &nodes, &endpoints), refused)
        });
        let (assigned, refused) = match computed.await {
            Ok(result) => result,
            Err(error) => {
                tracing::error!(%error, "can't determine the addresses to hold, the previous ones stay");
                return None;
            }
        };
        let refused: BTreeSet<RefusedRecord> = refused.into_iter().collect();
        for RefusedRecord { service: ServiceKey { namespace, name }, address, reason } in
            refused.difference(&self.refused)
        {
            tracing::warn!(namespace, name, %address, reason, "not held");
        }
        self.refused = refused;
        Some(assigned)
    }

    /// Watches the EndpointSlices of the cluster from the first Service on that needs them. Until they are listed,
    /// every node of its pool may hold the addresses of that Service.
    async fn follow_endpoints(&self) {
        let has_record = |service: &Arc<StoredService>| service.is_local() && !service.record().is_empty();
        let services = self.stores.read_snapshot().external_services();
        let local: BTreeSet<ServiceKey> =
            services.into_iter().filter(has_record).map(|service| service.key().clone()).collect();
        let is_any = !local.is_empty();
        // Before the endpoints are read, so that every later change of them is noticed.
        *self.local.0.write() = local;
        if is_any && self.stores.watch_kinds([kinds::endpoint_slices()]) {
            let _ = timeout(LIST_TIME, self.stores.completed()).await;
        }
    }

    pub async fn run(mut self, sender: watch::Sender<Arc<Assignments>>, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut took = Duration::ZERO;
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                Ok(()) = self.settings.changed() => {}
                Ok(()) = self.changes.changed() => {}
            }
            tokio::select! {
                () = &mut shutdown => return,
                // A tenant can change a Service all the time, so looks take at most a fifth of the time.
                () = sleep(GATHER_TIME.max(4 * took)) => {}
            }
            self.changes.mark_unchanged();
            let begin = Instant::now();
            let assigned = self.look().await.map(Arc::new);
            took = begin.elapsed();
            assigned.into_iter().for_each(|assigned| send_if_changed(&sender, assigned));
        }
    }
}

/// Whether a change may affect which addresses are to be held, if these Services need to know their endpoints.
pub fn matters(change: &Change<'_>, local: &LocalServices) -> bool {
    if own_name(change.kind) == "EndpointSlice" {
        let local = local.0.read();
        return !local.is_empty()
            && [change.before, change.after].into_iter().flatten().any(|version| match version {
                Stored::Endpoints(slice) => local.contains(&ServiceKey::new(change.namespace, &*slice.service)),
                _ => false,
            });
    }
    let recorded = |version: Option<&Stored>| matches!(version, Some(Stored::Service(of)) if !of.record().is_empty());
    own_name(change.kind) != "Service" || recorded(change.before) || recorded(change.after)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_core::settings::Settings;
    use clusterip_failover::assignments::{Port, Protocol};
    use prometheus_client::metrics::counter::Counter;
    use serde_json::{Value, json};

    use super::*;
    use crate::snapshot::MAX_PORTS;

    fn settings() -> ExternalSettings {
        let document = json!({"external": {"pools": [
            {"name": "all", "cidrs": ["10.0.9.0/24"]},
            {"name": "edge", "cidrs": ["10.0.10.10-10.0.10.40"], "nodes": {"matchLabels": {"edge": "yes"}}},
        ]}});
        Settings::from_value(&document).unwrap().external
    }

    fn service(name: &str, record: &str, more: Value) -> Value {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "shop", "name": name, "annotations": {"clusterip-policy/external-addresses": record}},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external", "ports": [{"port": 80}]},
        });
        json_patch::merge(&mut service, &more);
        service
    }

    fn node(name: &str, ready: &str, labels: Value) -> Arc<StoredNode> {
        Arc::new(StoredNode::read(&json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]},
        })))
    }

    #[test]
    fn recorded_addresses_are_assigned_to_one_service_and_its_nodes() {
        let nodes = [
            node("a", "True", json!({"edge": "yes"})),
            node("b", "True", json!({})),
            node("c", "Unknown", json!({"edge": "yes"})),
            node("d", "True", json!({"node.kubernetes.io/exclude-from-external-load-balancers": ""})),
        ];
        struct Case {
            name: &'static str,
            services: Vec<Value>,
            /// Each address with its Service and the nodes that may hold it.
            assigned: &'static [&'static str],
            /// Each refused record with its reason.
            refused: &'static [&'static str],
        }
        // Those of the Service `unknown` are not known.
        let endpoints = |service: &ServiceKey| match service.name.as_str() {
            "unknown" => None,
            "web" => Some(["b", "c", "e"].map(str::to_owned).into()),
            _ => Some(BTreeSet::new()),
        };
        let local = |name: &str| service(name, "10.0.9.10", json!({"spec": {"externalTrafficPolicy": "Local"}}));
        let shown = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.0.9.10"}]}}});
        let deleted = json!({"metadata": {"deletionTimestamp": true}});
        let of = |name: &str| service(name, "10.0.9.10", json!({}));
        let at = |address: &str| service("web", address, json!({}));
        let case = |name, services, assigned, refused| Case { name, services, assigned, refused };
        let of_web: &[&str] = &["10.0.9.10 shop/web a b"];
        let cases = [
            case("one Service", vec![of("web")], of_web, &[]),
            case("only nodes with a label may hold it", vec![at("10.0.10.10")], &["10.0.10.10 shop/web a"], &[]),
            case("only nodes with endpoints may hold it", vec![local("web")], &["10.0.9.10 shop/web b"], &[]),
            case("no node has endpoints", vec![local("api")], &["10.0.9.10 shop/api"], &[]),
            case("unknown endpoints", vec![local("unknown")], &["10.0.9.10 shop/unknown a b"], &[]),
            case("an address in no pool", vec![at("10.0.8.10")], &[], &[]),
            case("a Service that is being deleted", vec![service("web", "10.0.9.10", deleted)], &[], &[]),
            case(
                "a Service that the policy denies",
                vec![of("bad"), of("web")],
                of_web,
                &["10.0.9.10 shop/bad: not for you"],
            ),
            case(
                "two Services: the first by name has the address",
                vec![of("web"), of("api")],
                &["10.0.9.10 shop/api a b"],
                &["10.0.9.10 shop/web: Service shop/api has recorded it, too"],
            ),
            case(
                "two Services: the one whose status shows the address has it",
                vec![service("web", "10.0.9.10", shown), of("api")],
                of_web,
                &["10.0.9.10 shop/api: Service shop/web has recorded it, too"],
            ),
        ];
        for Case { name, services, assigned, refused } in cases {
            let services = services.iter().map(|service| Arc::new(StoredService::read(service)));
            let (owners, found_refused) = owners(&settings(), services, &mut |service| {
                Ok((service.key().name == "bad").then(|| "not for you".to_owned()))
            });
            let found = assignments(&settings(), &owners, &nodes, &endpoints);
            assert!(found.values().all(|found| *found.ports == [(Protocol::Tcp, 80)]), "{name}");
            let nodes = |nodes: &BTreeSet<String>| nodes.iter().map(|node| format!(" {node}")).collect::<String>();
            let found =
                found.iter().map(|(address, found)| format!("{address} {}{}", found.service, nodes(&found.nodes)));
            assert_eq!(found.collect::<Vec<_>>(), assigned, "{name}");
            let found = found_refused.iter().map(|one| format!("{} {}: {}", one.address, one.service, one.reason));
            assert_eq!(found.collect::<Vec<_>>(), refused, "{name}");
        }
    }

    #[test]
    fn service_whose_decision_panics_keeps_what_it_has_and_leaves_the_others_decided() {
        let shown = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.0.9.10"}]}}});
        let services = [
            service("api", "10.0.9.10", json!({})),
            service("hostile", "10.0.9.10", shown),
            service("hostile-new", "10.0.9.11", json!({})),
            service("web", "10.0.9.11", json!({})),
        ];
        let services = services.iter().map(|service| Arc::new(StoredService::read(service)));
        let panics = Counter::default();
        let policy = ExternalPolicy::counting(&settings(), &panics);
        let (owners, refused) = owners(&settings(), services, &mut |service| {
            let decide = || assert!(!service.key().name.starts_with("hostile"), "on purpose");
            policy.guarded(service, decide).map(|()| None)
        });
        let owners: Vec<_> = owners.iter().map(|(address, owner)| format!("{address} {}", owner.key())).collect();
        assert_eq!(owners, ["10.0.9.10 shop/hostile", "10.0.9.11 shop/web"]);
        let refused: Vec<_> = refused.iter().map(|one| format!("{} {}", one.service, one.reason)).collect();
        let expected =
            ["shop/api Service shop/hostile has recorded it, too", "shop/hostile-new the decision failed: on purpose"];
        assert_eq!((refused.as_slice(), panics.get()), (&expected.map(str::to_owned)[..], 2));
    }

    #[test]
    fn nodes_of_a_pool_are_kept_once_for_all_its_addresses() {
        let services = ["10.0.9.1", "10.0.9.2"].map(|address| service(address, address, json!({})));
        let services = services.iter().map(|service| Arc::new(StoredService::read(service)));
        let (owners, _) = owners(&settings(), services, &mut |_| Ok(None));
        let assigned = assignments(&settings(), &owners, &[node("a", "True", json!({}))], &|_| None);
        let nodes: Vec<&Arc<BTreeSet<String>>> = assigned.values().map(|assigned| &assigned.nodes).collect();
        assert!(matches!(nodes[..], [one, other] if one.len() == 1 && Arc::ptr_eq(one, other)));
    }

    #[test]
    fn ports_of_an_assignment_take_no_memory_beside_those_of_the_service() {
        let ports: Vec<Value> = (1..=MAX_PORTS).map(|port| json!({"port": port})).collect();
        let web = service("web", "10.0.9.1", json!({"spec": {"ports": ports}}));
        let (owners, _) = owners(&settings(), [Arc::new(StoredService::read(&web))], &mut |_| Ok(None));
        let assigned = assignments(&settings(), &owners, &[], &|_| None);
        let ports: Vec<&Arc<[Port]>> = assigned.values().map(|assigned| &assigned.ports).collect();
        assert!(matches!(ports[..], [ports] if ports.len() == MAX_PORTS && Arc::strong_count(ports) == 2));
    }
}
