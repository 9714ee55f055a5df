//! Reads what decides the next step of a renumbering.

use std::collections::BTreeMap;
use std::time::Duration;

use clusterip_cluster::object::{self, items, texts};
use clusterip_core::service::addresses;
use clusterip_moves::method::ready_endpoints;
use clusterip_moves::renumbering::change::{Change, Direction};
use clusterip_moves::renumbering::observed::{Held, Names, Observed, ServiceCidr, SwapState};
use clusterip_moves::renumbering::record::{
    ALIAS_LABEL, DEFAULT_SERVICE_CIDR, Phase, Record, SLICE_WRITER, SLICE_WRITER_LABEL, Side, Swap, trigger,
};
use clusterip_moves::renumbering::step::Goal;
use ipnet::IpNet;
use jiff::Timestamp;
use kube::Client;
use kube::api::ListParams;
use serde_json::Value;
use tokio::time::Instant;

use super::certificates;
use super::mentions::owner;
use super::objects::{
    EVENT, POD, SERVICE, SERVICE_CIDR, SERVICE_POOL, api_servers, endpoint_slices, for_each, get, is_being_deleted,
    list, named, parsed,
};
use super::services::{is_dns, is_kubernetes};

/// After this time, each API server has compared the default ServiceCIDR with its flag: it does so every 10 seconds.
const COMPARED_AFTER: Duration = Duration::from_secs(15);

/// Observes a cluster. It remembers what this run of a command has seen and done.
pub struct Observer {
    pub client: Client,
    pub server_namespace: String,
    /// The UID of the default ServiceCIDR, and since when it is known.
    default: Option<(String, Instant)>,
    pub has_moved: bool,
    pub has_replaced_default: bool,
    pub asks_kubelets: bool,
    /// What was found out about kubelets in this look. [`Observer::old_kubelets`] takes it, so that none is asked twice.
    pub kubelets: Option<Vec<String>>,
}

pub async fn pools(client: &Client) -> anyhow::Result<Vec<Value>> {
    list(client, SERVICE_POOL).await
}

/// Whether a pool has addresses of a range that the change replaces.
pub fn is_changed(pool: &Value, change: &Change) -> bool {
    pool.get("spec").is_some_and(|spec| change.spec(spec).as_ref() != Ok(spec))
}

impl Observer {
    pub fn new(client: Client, server_namespace: &str) -> Self {
        let server_namespace = server_namespace.to_owned();
        let (has_moved, has_replaced_default, asks_kubelets) = (false, false, true);
        let (default, kubelets) = (None, None);
        Self { client, server_namespace, default, has_moved, has_replaced_default, asks_kubelets, kubelets }
    }

    pub async fn observe(&mut self, goal: Goal, record: &Record) -> anyhow::Result<Observed> {
        let client = self.client.clone();
        let (has_moved, has_replaced_default) = (self.has_moved, self.has_replaced_default);
        let mut observed = Observed { has_moved, has_replaced_default, ..Observed::default() };
        self.observe_service_cidrs(&mut observed).await?;
        let mut swaps = record.swaps.clone();
        match (goal, record.phase) {
            (Goal::Begin | Goal::Rollback, _) => {
                let (pools, back) = (pools(&client).await?, record.change.directed(Direction::Back));
                observed.has_old_pools = pools.iter().any(|pool| is_changed(pool, &record.change));
                observed.has_new_pools = pools.iter().any(|pool| is_changed(pool, &back));
            }
            (Goal::Switch, Phase::Moved) => {
                observed.old_flags = old_flags(&client, &record.new_ranges()).await?;
                observed.old_certificates = old_certificates(&client, record).await?;
                // A Service that can't be swapped is refused before the phase begins.
                swaps = self::swaps(&client, &record.change).await?;
            }
            _ => {}
        }
        if matches!(record.phase, Phase::Switching | Phase::Switched | Phase::Finishing) {
            for swap in &swaps {
                observed.swaps.push(swap_state(&client, swap).await?);
            }
            let name = trigger(&self.server_namespace)["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            observed.has_trigger = get(&client, SERVICE, Some(&self.server_namespace), &name).await?.is_some();
        }
        let counts_services = match goal {
            Goal::Begin => self.has_moved,
            Goal::Rollback => record.phase == Phase::RollingBack,
            Goal::Switch | Goal::Finish { .. } => true,
        };
        if counts_services {
            let note = |service| note_service(&service, record, &swaps, &mut observed);
            for_each(&client, SERVICE, None, ListParams::default(), note).await?;
        }
        if matches!((goal, record.phase), (Goal::Finish { .. }, Phase::Switched)) {
            observed.users_of_old = self.users_of_old(record).await?;
        }
        Ok(observed)
    }

    /// The ServiceCIDRs, and the reports of API servers whose flag differs from the default one.
    async fn observe_service_cidrs(&mut self, observed: &mut Observed) -> anyhow::Result<()> {
        let found = list(&self.client, SERVICE_CIDR).await?;
        observed.service_cidrs.extend(found.iter().map(|found| {
            let (cidrs, is_being_deleted) = (parsed(found, "/spec/cidrs"), is_being_deleted(found));
            (object::name(found).to_owned(), ServiceCidr { cidrs, is_being_deleted, is_settled: false })
        }));
        let default = found.iter().find(|found| object::name(found) == DEFAULT_SERVICE_CIDR);
        let default = default.map(|found| object::text(found, &["metadata", "uid"]).to_owned());
        let known = self.default.take().filter(|(known, _)| default.as_ref() == Some(known));
        let Some(uid) = default else { return Ok(()) };
        let since = known.map_or_else(Instant::now, |(_, since)| since);
        if let Some(range) = observed.service_cidrs.get_mut(DEFAULT_SERVICE_CIDR) {
            range.is_settled = since.elapsed() >= COMPARED_AFTER;
        }
        let selector = format!("reason=KubernetesDefaultServiceCIDRInconsistent,involvedObject.uid={uid}");
        self.default = Some((uid, since));
        for_each(&self.client, EVENT, Some("default"), ListParams::default().fields(&selector), |event| {
            observed.other_flags.add(object::text(&event, &["message"]).to_owned());
        })
        .await
    }
}

/// The Pods of API servers that show a flag with other ranges.
async fn old_flags(client: &Client, wanted: &[IpNet]) -> anyhow::Result<Vec<String>> {
    const FLAG: &str = "--service-cluster-ip-range=";
    let mut others = Vec::new();
    let selected = ListParams::default().labels("component=kube-apiserver");
    for_each(client, POD, Some("kube-system"), selected, |pod| {
        let containers = items(&pod, "/spec/containers");
        let mut words = containers.flat_map(|container| texts(container, "/command").chain(texts(container, "/args")));
        let Some(flag) = words.find_map(|word| word.strip_prefix(FLAG)) else { return };
        let ranges: Result<Vec<IpNet>, _> = flag.split(',').map(|range| range.trim().parse()).collect();
        if ranges.as_deref() != Ok(wanted) {
            others.push(format!("Pod kube-system/{}", object::name(&pod)));
        }
    })
    .await?;
    Ok(others)
}

/// The API servers that can be reached and whose certificates do not name the new address of `default/kubernetes`.
async fn old_certificates(client: &Client, record: &Record) -> anyhow::Result<Vec<String>> {
    let Some(new) = record.change.new_kubernetes(&record.ranges) else { return Ok(Vec::new()) };
    let (lacking, _) = certificates::lacking(new, &api_servers(client).await?, true).await;
    let text = |server| format!("the certificate of API server {server} does not name {new}");
    Ok(lacking.into_iter().map(text).collect())
}

pub async fn swap_state(client: &Client, swap: &Swap) -> anyhow::Result<SwapState> {
    let namespace = Some(swap.namespace.as_str());
    let service = get(client, SERVICE, namespace, &swap.name).await?;
    let held = service.as_ref().map_or(Held::Absent, |service| swap.held(service));
    let selector = service.as_ref().and_then(|service| service.pointer("/spec/selector")?.as_object());
    let has_selector = selector.is_some_and(|selector| !selector.is_empty());
    let mut state = SwapState { service: held, has_selector, ..SwapState::default() };
    let wanted = swap.copies(held, &endpoint_slices(client, &swap.namespace, &swap.name).await?);
    let (mut copies, mut own) = (Vec::new(), Vec::new());
    for side in Side::ALL {
        let name = swap.alias_name(side);
        let alias = get(client, SERVICE, namespace, &name).await?;
        let held = alias.map_or(Held::Absent, |alias| match is_alias_of(&alias, swap, side) {
            true => side.held(),
            false => Held::Other,
        });
        let is_copy = |slice: &Value| object::text(slice, &["metadata", "labels", SLICE_WRITER_LABEL]) == SLICE_WRITER;
        let (copied, listed): (Vec<Value>, Vec<Value>) =
            endpoint_slices(client, &swap.namespace, &name).await?.into_iter().partition(is_copy);
        copies.extend(copied);
        match side {
            Side::Old => (state.old_alias, own) = (held, listed),
            Side::New => state.new_alias = held,
        }
    }
    let is_ready = |slice: &Value| ready_endpoints(std::slice::from_ref(slice)).next().is_some();
    let contents = |slice: &Value| {
        let part = |field: &str| slice.get(field).filter(|value| !value.is_null()).cloned();
        (object::name(slice).to_owned(), part("addressType"), part("endpoints"), part("ports"))
    };
    let sorted = |slices: &[Value]| {
        let mut sorted: Vec<_> = slices.iter().map(contents).collect();
        sorted.sort_by(|one, other| one.0.cmp(&other.0));
        sorted
    };
    state.has_equal_copies = sorted(&wanted) == sorted(&copies);
    state.has_copies = !copies.is_empty();
    // If no copied endpoint is ready, there is none to wait for.
    state.has_own_endpoints = own.iter().any(is_ready) || !copies.iter().any(is_ready);
    Ok(state)
}

/// Whether a Service is this alias of a swap, and not one that another client has created with its name.
pub fn is_alias_of(service: &Value, swap: &Swap, side: Side) -> bool {
    addresses(service) == swap.addresses(side) && is_alias(service)
}

fn is_alias(service: &Value) -> bool {
    service.pointer("/metadata/labels").is_some_and(|labels| labels.get(ALIAS_LABEL).is_some())
}

/// Notes a Service if it has an address of the old or of the new ranges and is not part of a swap. Any user can make a
/// Service that looks temporary: it counts as any other, because it keeps a ServiceCIDR from being deleted.
fn note_service(service: &Value, record: &Record, swaps: &[Swap], observed: &mut Observed) {
    let (namespace, name) = (object::namespace(service), object::name(service));
    let is_swapped = swaps.iter().any(|swap| {
        let is_named = Side::ALL.iter().any(|side| swap.alias_name(*side) == name);
        swap.namespace == namespace && (swap.name == name || is_named && is_alias(service))
    });
    // Before the switch, no swap is recorded.
    let will_be_swapped = is_kubernetes(service) || record.swaps.is_empty() && is_dns(service);
    if is_swapped || will_be_swapped {
        return;
    }
    let (at, named) = (addresses(service), format!("Service {namespace}/{name}"));
    if at.iter().any(|address| record.change.is_old(*address)) {
        observed.left_old.add(named.clone());
    }
    if at.iter().any(|address| record.change.is_new(*address)) {
        observed.left_new.add(named);
    }
}

impl Observer {
    /// The Pods and kubelets that know old addresses, each owner of Pods once.
    async fn users_of_old(&mut self, record: &Record) -> anyhow::Result<Vec<String>> {
        let mut users = self.old_kubelets(record).await?.into_iter().collect::<Names>().texts();
        let changes_dns = record.swaps.iter().any(|swap| swap.namespace == "kube-system");
        let since = if changes_dns { record.kubelets_at } else { record.switched_at };
        let mut pods = BTreeMap::<String, usize>::new();
        for_each(&self.client, POD, None, ListParams::default(), |pod| {
            let phase = object::text(&pod, &["status", "phase"]);
            // The kubelet itself runs a Pod with this annotation, and the Pod finds the API server with a kubeconfig.
            let is_mirror = pod.pointer("/metadata/annotations/kubernetes.io~1config.mirror").is_some();
            let created = object::text(&pod, &["metadata", "creationTimestamp"]).parse::<Timestamp>();
            let is_older = created.is_ok_and(|created| since.is_none_or(|since| created.as_second() <= since));
            if is_older && !is_mirror && !matches!(phase, "Succeeded" | "Failed") {
                let (kind, name) = owner(&pod).unwrap_or(("Pod", object::name(&pod)));
                let key = named(kind, object::namespace(&pod), name);
                let key = if pods.len() < Names::MOST || pods.contains_key(&key) { key } else { "others".to_owned() };
                *pods.entry(key).or_default() += 1;
            }
        })
        .await?;
        users.extend(pods.into_iter().map(|(owner, count)| format!("{owner}: Pods older than the change: {count}")));
        Ok(users)
    }
}

/// The Services whose addresses swaps change: `default/kubernetes` and those of the cluster's DNS.
pub async fn swaps(client: &Client, change: &Change) -> anyhow::Result<Vec<Swap>> {
    let mut services: Vec<Value> = get(client, SERVICE, Some("default"), "kubernetes").await?.into_iter().collect();
    for_each(client, SERVICE, Some("kube-system"), ListParams::default(), |service| {
        services.extend(is_dns(&service).then_some(service));
    })
    .await?;
    let swaps = services.iter().map(|service| Swap::of(service, change).map_err(anyhow::Error::msg));
    Ok(swaps.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    const TEMPORARY: &str = "clusterip-old-0123456789";

    fn service(namespace: &str, name: &str, address: &str) -> Value {
        let is_temporary = name == TEMPORARY;
        let labels = json!({"clusterip-policy/temporary": "old", "app.kubernetes.io/managed-by": "clusterip"});
        let labels = if is_temporary { labels } else { json!({}) };
        json!({"metadata": {"namespace": namespace, "name": name, "labels": labels}, "spec": {"clusterIP": address}})
    }

    #[test]
    fn services_with_addresses_of_the_ranges_are_noted_whatever_their_labels_are() {
        let range = |range: &str| [range.parse().unwrap()];
        let change = Change::new(&range("10.96.0.0/24"), &range("10.100.0.0/24")).unwrap();
        let swaps = [Swap::of(&service("default", "kubernetes", "10.96.0.1"), &change).unwrap().unwrap()];
        let record = Record::new(change, range("10.96.0.0/24").into());
        let mut observed = Observed::default();
        for service in [
            service("shop", "old", "10.96.0.7"),
            service("shop", "new", "10.100.0.7"),
            service("shop", "other", "10.9.0.7"),
            service("shop", "headless", "None"),
            service("shop", TEMPORARY, "10.100.0.77"),
            service("shop", "thief", "10.100.0.1"),
            service("default", "kubernetes", "10.96.0.1"),
            service("kube-system", "kube-dns", "10.96.0.10"),
        ] {
            note_service(&service, &record, &swaps, &mut observed);
        }
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Names>();
        let expected = Observed {
            left_old: texts(&["Service shop/old"]),
            left_new: texts(&["Service shop/new", "Service shop/clusterip-old-0123456789", "Service shop/thief"]),
            ..Observed::default()
        };
        assert_eq!(observed, expected);
    }
}
