//! Reads what decides the next step of a renumbering.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clusterip_api::Kind as PoolKind;
use clusterip_cluster::api_error::{failed, if_found};
use clusterip_cluster::kinds;
use clusterip_cluster::list_pages::visit_pages;
use clusterip_cluster::object;
use clusterip_core::service::addresses;
use clusterip_moves::method::ready_endpoints;
use clusterip_moves::renumbering::change::Change;
use clusterip_moves::renumbering::observed::{Held, Observed, ServiceRange, SwapState};
use clusterip_moves::renumbering::record::{
    ALIAS_LABEL, DEFAULT_RANGES, Phase, Record, SLICE_WRITER, SLICE_WRITER_LABEL, Swap, trigger,
};
use clusterip_moves::renumbering::step::Goal;
use clusterip_moves::temporary::looks_temporary;
use ipnet::IpNet;
use jiff::Timestamp;
use kube::api::{Api, DynamicObject, ListParams};
use kube::{Client, Error as KubeError};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::check::{api_servers, check_kubelets, each, lacking};
use super::findings::{Before, Findings};
use super::services::{is_dns, is_kubernetes};
use crate::text::joined;

/// After this time, each API server has compared the default ServiceCIDR with its flag: it does so every 10 seconds.
const COMPARED_AFTER: Duration = Duration::from_secs(15);
/// How many names of objects are kept for a message.
const MOST_NAMES: usize = 20;

/// Observes a cluster. It remembers what this run of a command has seen and done.
pub struct Observer {
    pub client: Client,
    pub server_namespace: String,
    /// The UID of the default ServiceCIDR, and since when it is known.
    default: Option<(String, Instant)>,
    pub has_moved: bool,
    pub has_tried: bool,
    pub asks_kubelets: bool,
}

pub fn api(client: &Client, api_version: &str, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = kinds::regular(&(api_version.to_owned(), kind.to_owned()));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

pub async fn get(
    client: &Client,
    api_version: &str,
    kind: &str,
    namespace: Option<&str>,
    name: &str,
) -> anyhow::Result<Option<Value>> {
    let found = api(client, api_version, kind, namespace).get_opt(name).await;
    let found = found.map_err(|error| failed(format!("{kind} {name} can't be read"), &error))?;
    Ok(found.map(|found| json!(found)))
}

/// The EndpointSlices of a Service.
pub async fn slices(client: &Client, namespace: &str, service: &str) -> anyhow::Result<Vec<Value>> {
    let api = &api(client, "discovery.k8s.io/v1", "EndpointSlice", Some(namespace));
    let mut slices = Vec::new();
    let parameters = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
    let list = |page: ListParams| async move { api.list(&page).await };
    let visited = visit_pages(parameters, list, |slice: DynamicObject| slices.push(json!(slice))).await;
    if_found(visited).map_err(|error| failed("EndpointSlices can't be listed", &error))?;
    Ok(slices)
}

/// All pools of Services.
pub async fn pools(client: &Client) -> anyhow::Result<Vec<Value>> {
    let api = &Api::<DynamicObject>::all_with(client.clone(), &PoolKind::ServicePool.api_resource());
    let mut pools = Vec::new();
    let list = |page: ListParams| async move { api.list(&page).await };
    let visited = visit_pages(ListParams::default(), list, |pool: DynamicObject| pools.push(json!(pool))).await;
    if_found(visited).map_err(|error| failed("ServicePools can't be listed", &error))?;
    Ok(pools)
}

/// Whether a pool has addresses of a range that the change replaces.
pub fn is_changed(pool: &Value, change: &Change) -> bool {
    pool.get("spec").is_some_and(|spec| change.spec(spec).as_ref() != Ok(spec))
}

impl Observer {
    pub fn new(client: Client, server_namespace: &str) -> Self {
        let server_namespace = server_namespace.to_owned();
        Self { client, server_namespace, default: None, has_moved: false, has_tried: false, asks_kubelets: true }
    }

    pub async fn observe(&mut self, goal: Goal, record: &Record) -> anyhow::Result<Observed> {
        let client = self.client.clone();
        let (ranges, other_flags) = self.ranges().await?;
        let mut observed = Observed {
            ranges,
            other_flags,
            has_moved: self.has_moved,
            has_tried: self.has_tried,
            ..Observed::default()
        };
        match (goal, record.phase) {
            (Goal::Begin, _) | (Goal::Rollback, _) => {
                let pools = pools(&client).await?;
                let count = |change: &Change| pools.iter().filter(|pool| is_changed(pool, change)).count();
                observed.pools_with_old = count(&record.change);
                observed.pools_with_new = count(&record.change.inverse());
            }
            (Goal::Switch, Phase::Moved) => {
                observed.old_flags = old_flags(&client, &record.new_ranges()).await?;
                observed.old_certificates = old_certificates(&client, record).await?;
                observed.taken = taken(&client, &swaps(&client, &record.change).await?).await?;
            }
            _ => {}
        }
        if matches!(record.phase, Phase::Switching | Phase::Switched | Phase::Finishing) {
            for swap in &record.swaps {
                observed.swaps.push(swap_state(&client, swap).await?);
            }
            let name = trigger(&self.server_namespace)["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if goal == Goal::Switch && observed.swaps.iter().any(|state| state.service == Held::Old) {
                observed.taken = taken(&client, &record.swaps).await?;
            }
            observed.has_trigger = get(&client, "v1", "Service", Some(&self.server_namespace), &name).await?.is_some();
        }
        let counts_services = match (goal, record.phase) {
            (Goal::Begin, _) => self.has_moved,
            (Goal::Finish { .. }, _) | (Goal::Switch, Phase::Switching) | (Goal::Rollback, Phase::RollingBack) => true,
            _ => false,
        };
        if counts_services {
            (observed.left_old, observed.left_new) = left(&client, record).await?;
        }
        if matches!((goal, record.phase), (Goal::Finish { .. }, Phase::Switched)) {
            observed.users_of_old = self.users_of_old(record).await?;
        }
        Ok(observed)
    }

    /// The ServiceCIDRs, and the reports of API servers whose flag differs from the default one.
    async fn ranges(&mut self) -> anyhow::Result<(BTreeMap<String, ServiceRange>, Vec<String>)> {
        let (mut ranges, mut default) = (BTreeMap::new(), None);
        each(&self.client, ("networking.k8s.io/v1", "ServiceCIDR"), None, |found| {
            let cidrs = found.pointer("/spec/cidrs").and_then(Value::as_array).into_iter().flatten();
            let range = ServiceRange {
                cidrs: cidrs.filter_map(|cidr| cidr.as_str()?.parse().ok()).collect(),
                is_being_deleted: found.pointer("/metadata/deletionTimestamp").is_some(),
                is_settled: false,
            };
            if object::name(&found) == DEFAULT_RANGES {
                default = Some(object::text(&found, &["metadata", "uid"]).to_owned());
            }
            ranges.insert(object::name(&found).to_owned(), range);
        })
        .await?;
        let Some(uid) = default else {
            self.default = None;
            return Ok((ranges, Vec::new()));
        };
        let since = match &self.default {
            Some((known, since)) if *known == uid => *since,
            _ => Instant::now(),
        };
        self.default = Some((uid.clone(), since));
        if let Some(range) = ranges.get_mut(DEFAULT_RANGES) {
            range.is_settled = since.elapsed() >= COMPARED_AFTER;
        }
        Ok((ranges, self.other_flags(&uid).await?))
    }

    async fn other_flags(&self, uid: &str) -> anyhow::Result<Vec<String>> {
        const REASON: &str = "reason=KubernetesDefaultServiceCIDRInconsistent";
        let api = api(&self.client, "v1", "Event", Some("default"));
        let selector = format!("{REASON},involvedObject.uid={uid}");
        let events = api.list(&ListParams::default().fields(&selector).limit(10)).await;
        let events = events.map_err(|error| failed("Events of namespace default can't be listed", &error))?;
        let text = |event: DynamicObject| Some(event.data.get("message")?.as_str()?.to_owned());
        Ok(events.items.into_iter().filter_map(text).collect())
    }
}

/// The Pods of API servers that show a flag with other ranges.
async fn old_flags(client: &Client, wanted: &[IpNet]) -> anyhow::Result<Vec<String>> {
    const FLAG: &str = "--service-cluster-ip-range=";
    let api = &api(client, "v1", "Pod", Some("kube-system"));
    let parameters = ListParams::default().labels("component=kube-apiserver");
    let pods = api.list(&parameters).await.map_err(|error| failed("Pods of kube-system can't be listed", &error))?;
    let mut others = Vec::new();
    for pod in pods.items.iter().map(|pod| json!(pod)) {
        let containers = pod.pointer("/spec/containers").and_then(Value::as_array).cloned().unwrap_or_default();
        let words = containers.iter().flat_map(|container| ["command", "args"].map(|field| container.get(field)));
        let words: Vec<&str> =
            words.flatten().filter_map(Value::as_array).flatten().filter_map(Value::as_str).collect();
        let Some(flag) = words.iter().find_map(|word| word.strip_prefix(FLAG)) else { continue };
        let ranges: Result<Vec<IpNet>, _> = flag.split(',').map(|range| range.trim().parse()).collect();
        if ranges.as_deref() != Ok(wanted) {
            others.push(format!("Pod kube-system/{}", object::name(&pod)));
        }
    }
    Ok(others)
}

/// The API servers that can be reached and whose certificates do not name the new address of `default/kubernetes`.
async fn old_certificates(client: &Client, record: &Record) -> anyhow::Result<Vec<String>> {
    let servers: Vec<_> = slices(client, "default", "kubernetes").await?.iter().flat_map(api_servers).collect();
    let (lacking, _) = lacking(&servers, &record.change.new_kubernetes(&record.ranges)).await;
    let text = |(server, missing): &(SocketAddr, Vec<IpAddr>)| {
        format!("the certificate of API server {server} does not name {}", joined(missing, ", "))
    };
    Ok(lacking.iter().map(text).collect())
}

pub async fn swap_state(client: &Client, swap: &Swap) -> anyhow::Result<SwapState> {
    let (namespace, alias_name) = (Some(swap.namespace.as_str()), swap.alias_name());
    let service = get(client, "v1", "Service", namespace, &swap.name).await?;
    let alias = get(client, "v1", "Service", namespace, &alias_name).await?;
    let of_service = slices(client, &swap.namespace, &swap.name).await?;
    let of_alias = slices(client, &swap.namespace, &alias_name).await?;
    let is_copy = |slice: &&Value| object::text(slice, &["metadata", "labels", SLICE_WRITER_LABEL]) == SLICE_WRITER;
    let (copies, own): (Vec<&Value>, Vec<&Value>) = of_alias.iter().partition(is_copy);
    let is_ready = |slice: &Value| ready_endpoints(std::slice::from_ref(slice)).next().is_some();
    let contents = |slice: &Value| {
        let part = |field: &str| slice.get(field).filter(|value| !value.is_null()).cloned();
        (object::name(slice).to_owned(), part("addressType"), part("endpoints"), part("ports"))
    };
    let mut wanted: Vec<_> = of_service.iter().map(|slice| contents(&swap.copied(slice))).collect();
    let mut found: Vec<_> = copies.iter().map(|slice| contents(slice)).collect();
    wanted.sort_by(|one, other| one.0.cmp(&other.0));
    found.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(SwapState {
        service: match service.as_ref().map(addresses) {
            None => Held::Absent,
            Some(at) if at == swap.new => Held::New,
            Some(at) if at.iter().any(|address| swap.old.contains(address)) => Held::Old,
            Some(_) => Held::Other,
        },
        alias: match &alias {
            None => Held::Absent,
            Some(alias) if is_alias_of(alias, swap) => Held::Old,
            Some(_) => Held::Other,
        },
        has_equal_copies: wanted == found,
        has_copies: !copies.is_empty(),
        // Without a ready endpoint, the control plane has none to list.
        has_own_endpoints: own.iter().any(|slice| is_ready(slice)) || !copies.iter().any(|slice| is_ready(slice)),
    })
}

/// Whether a Service is the alias of a swap, and not one that another client has created with its name.
pub fn is_alias_of(service: &Value, swap: &Swap) -> bool {
    addresses(service) == swap.old && is_alias(service)
}

fn is_alias(service: &Value) -> bool {
    service.pointer("/metadata/labels").is_some_and(|labels| labels.get(ALIAS_LABEL).is_some())
}

/// The first Services that have an address that the Service of a swap gets, each with this one.
async fn taken(client: &Client, swaps: &[Swap]) -> anyhow::Result<Vec<String>> {
    let mut taken = Vec::new();
    each(client, ("v1", "Service"), None, |service| {
        let (namespace, name) = (object::namespace(&service), object::name(&service));
        let at = addresses(&service);
        let others = swaps.iter().filter(|swap| (swap.namespace.as_str(), swap.name.as_str()) != (namespace, name));
        let swap = others.into_iter().find(|swap| swap.new.iter().any(|address| at.contains(address)));
        if let Some(Swap { namespace: of, name: swapped, .. }) = swap
            && taken.len() < MOST_NAMES
        {
            taken.push(format!("Service {namespace}/{name} has an address that Service {of}/{swapped} gets"));
        }
    })
    .await?;
    Ok(taken)
}

/// The first Services with addresses of the old, and of the new ranges, beside those of swaps and temporary ones.
async fn left(client: &Client, record: &Record) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let (mut old, mut new) = (Vec::new(), Vec::new());
    each(client, ("v1", "Service"), None, |service| {
        let (namespace, name) = (object::namespace(&service), object::name(&service));
        let label = |key: &str| service.get("metadata")?.get("labels")?.get(key)?.as_str();
        let is_swap = record.swaps.iter().any(|swap| {
            swap.namespace == namespace && (swap.name == name || swap.alias_name() == name && is_alias(&service))
        });
        let will_be_swapped = record.swaps.is_empty() && is_dns(&service);
        if is_swap || will_be_swapped || is_kubernetes(&service) || looks_temporary(name, label) {
            return;
        }
        let at = addresses(&service);
        let note = |list: &mut Vec<String>| {
            if list.len() < MOST_NAMES {
                list.push(format!("Service {namespace}/{name}"));
            }
        };
        if at.iter().any(|address| record.change.is_old(*address)) {
            note(&mut old);
        }
        if at.iter().any(|address| record.change.is_new(*address)) {
            note(&mut new);
        }
    })
    .await?;
    Ok((old, new))
}

impl Observer {
    /// The Pods and kubelets that know old addresses, each owner of Pods once.
    async fn users_of_old(&self, record: &Record) -> anyhow::Result<Vec<String>> {
        let kubelets = self.old_kubelets(record).await?;
        let changes_dns = record.swaps.iter().any(|swap| swap.namespace == "kube-system");
        let since = if changes_dns { record.kubelets_at } else { record.switched_at };
        let mut users: Vec<String> = kubelets.iter().take(MOST_NAMES).cloned().collect();
        let mut pods = BTreeMap::<String, usize>::new();
        each(&self.client, ("v1", "Pod"), None, |pod| {
            let phase = object::text(&pod, &["status", "phase"]);
            // The kubelet itself runs a Pod with this annotation, which has a kubeconfig.
            let is_mirror = pod.pointer("/metadata/annotations/kubernetes.io~1config.mirror").is_some();
            let created = object::text(&pod, &["metadata", "creationTimestamp"]).parse::<Timestamp>();
            let is_older = created.is_ok_and(|created| since.is_none_or(|since| created.as_second() <= since));
            if is_older && !is_mirror && !matches!(phase, "Succeeded" | "Failed") {
                let owners = pod.pointer("/metadata/ownerReferences").and_then(Value::as_array);
                let owner = owners.and_then(|owners| owners.first());
                let owner = owner.map(|owner| (object::text(owner, &["kind"]), object::text(owner, &["name"])));
                let (kind, name) = owner.unwrap_or(("Pod", object::name(&pod)));
                let key = format!("{kind} {}/{name}", object::namespace(&pod));
                let key = if pods.len() < MOST_NAMES || pods.contains_key(&key) { key } else { "others".to_owned() };
                *pods.entry(key).or_default() += 1;
            }
        })
        .await?;
        users.extend(pods.into_iter().map(|(owner, count)| format!("{owner}: Pods older than the change: {count}")));
        Ok(users)
    }

    /// The kubelets that give Pods an old DNS address, and those that can't be asked.
    pub async fn old_kubelets(&self, record: &Record) -> anyhow::Result<Vec<String>> {
        if !self.asks_kubelets {
            return Ok(Vec::new());
        }
        let mut nodes = Vec::new();
        each(&self.client, ("v1", "Node"), None, |node| nodes.push(object::name(&node).to_owned())).await?;
        let mut findings = Findings::default();
        check_kubelets(&self.client, &nodes, &record.change, &mut findings).await;
        let found = findings.into_sorted().into_iter().filter(|finding| finding.before == Before::Finish);
        Ok(found.map(|finding| format!("{}: {}", finding.object, finding.message)).collect())
    }
}

/// The Services whose addresses swaps change: `default/kubernetes` and those of the cluster's DNS.
pub async fn swaps(client: &Client, change: &Change) -> anyhow::Result<Vec<Swap>> {
    let mut services = Vec::new();
    services.extend(get(client, "v1", "Service", Some("default"), "kubernetes").await?);
    each(client, ("v1", "Service"), Some("kube-system"), |service| {
        if is_dns(&service) {
            services.push(service);
        }
    })
    .await?;
    let swaps = services.iter().map(|service| Swap::of(service, change).map_err(anyhow::Error::msg));
    Ok(swaps.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// The reason why an object exists already, or is gone already, does not matter.
pub fn unless_done(result: Result<(), KubeError>) -> Result<(), KubeError> {
    match result {
        Err(KubeError::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => other,
    }
}
