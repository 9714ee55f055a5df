//! Reads what a renumbering will meet in a cluster. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, bail};
use clusterip_api::Kind as PoolKind;
use clusterip_cluster::api_error::{error_message, failed, if_found};
use clusterip_cluster::kinds;
use clusterip_cluster::list_pages::visit_pages;
use clusterip_cluster::live_settings;
use clusterip_cluster::object;
use clusterip_cluster::permissions::Need;
use clusterip_cluster::watch::control_plane_services::Calls;
use clusterip_core::address::{Family, Span};
use clusterip_core::service::addresses;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_moves::method::ready_endpoints;
use clusterip_moves::renumbering::change::Change;
use futures::StreamExt as _;
use http::Request;
use ipnet::IpNet;
use kube::api::{Api, DynamicObject, ListParams};
use kube::{Client, Error as KubeError};
use serde_json::{Value, json};

use super::certificates;
use super::findings::{Before, Finding, Findings, ServiceRow, Way};
use super::installer::Installer;
use super::mentions::PLACES;
use super::services::{self, Surroundings};
use crate::services::cluster_dns;
use crate::text::{joined, several};

/// Since this version, the API server keeps addresses of Services in IPAddresses alone.
const LEAST_MINOR: u32 = 34;
/// How many kubelets are asked, and how many at once.
const MOST_KUBELETS: usize = 1000;
const KUBELETS_AT_ONCE: usize = 8;
/// The addresses that a range needs beside those of its Services: for `default/kubernetes`, DNS and temporary Services.
const SPARE_ADDRESSES: u128 = 16;
/// The shortest prefix of an IPv6 range that the API server accepts.
const SHORTEST_V6: u8 = 64;

/// What the caller of a check knows.
pub struct Given {
    pub to: Vec<IpNet>,
    pub load_balancers: bool,
    /// Why the settings of the server can't be changed with its pools; `None` if they can, or if there is no server.
    pub unmapped_settings: Option<String>,
    /// The addresses of the API server that the kubeconfig names, which serve if no endpoint can be reached.
    pub api_server: Vec<SocketAddr>,
}

#[derive(Debug)]
pub struct Check {
    pub version: String,
    pub installer: Installer,
    pub change: Change,
    /// The addresses that `default/kubernetes` and DNS will get.
    pub new_addresses: Vec<IpAddr>,
    /// The Services with addresses of old ranges, ordered by namespace and name.
    pub services: Vec<ServiceRow>,
    pub findings: Vec<Finding>,
    pub steps: Vec<String>,
}

impl Check {
    pub fn blocks(&self, before: Before) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.before == before)
    }
}

/// The permissions to check, which only read.
pub fn needs() -> Vec<Need> {
    let mut needs = vec![
        Need::read("list", "networking.k8s.io", "servicecidrs", None),
        Need { name: Some("kubeadm-config".into()), ..Need::read("get", "", "configmaps", Some("kube-system")) },
    ];
    needs.extend(PLACES.iter().map(|place| {
        let (api_version, kind) = place.kind;
        let resource = kinds::regular(&(api_version.to_owned(), kind.to_owned()));
        Need { namespace: place.namespace.map(str::to_owned), ..Need::list(&resource) }
    }));
    needs.push(Need::read("list", "apiregistration.k8s.io", "apiservices", None));
    needs.extend(PoolKind::ALL.iter().map(|kind| Need::list(&kind.api_resource())));
    needs
}

/// The Service ranges of the API server's flag, the primary one first: those of the ServiceCIDR `kubernetes`.
pub async fn default_ranges(client: &Client) -> anyhow::Result<Vec<IpNet>> {
    let kind = ("networking.k8s.io/v1".to_owned(), "ServiceCIDR".to_owned());
    let api = Api::<DynamicObject>::all_with(client.clone(), &kinds::regular(&kind));
    let found = api.get_opt("kubernetes").await.map_err(|error| failed("ServiceCIDRs can't be read", &error))?;
    let found = found.context("there is no ServiceCIDR kubernetes: Kubernetes 1.34 or later is needed")?;
    let cidrs = found.data.pointer("/spec/cidrs").and_then(Value::as_array).into_iter().flatten();
    Ok(cidrs.filter_map(|cidr| cidr.as_str()?.parse().ok()).collect())
}

/// Calls `visit` with all objects of a kind, in one namespace or in all; with none if the cluster does not have the
/// kind.
pub async fn each(
    client: &Client,
    (api_version, kind): (&str, &str),
    namespace: Option<&str>,
    mut visit: impl FnMut(Value),
) -> anyhow::Result<()> {
    let resource = kinds::regular(&(api_version.to_owned(), kind.to_owned()));
    let api: &Api<DynamicObject> = &match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let list = |page: ListParams| async move { api.list(&page).await };
    let visited = visit_pages(ListParams::default(), list, |object: DynamicObject| visit(json!(object))).await;
    if_found(visited).map_err(|error| failed(format!("{kind} objects can't be listed"), &error))
}

pub async fn check(client: &Client, given: &Given) -> anyhow::Result<Check> {
    let version = client.apiserver_version().await.map_err(|error| failed("the version can't be read", &error))?;
    let groups = client.list_api_groups().await.map_err(|error| failed("the API groups can't be read", &error))?;
    let groups: Vec<String> = groups.groups.into_iter().map(|group| group.name).collect();
    let installer = Installer::of(&version.git_version, &groups, has_kubeadm_config(client).await?);
    if installer == Installer::OpenShift {
        bail!(
            "this is an OpenShift cluster: its Cluster Network Operator owns the Service range (serviceNetwork), and \
             reverts and forbids any change of it, so that it can't be renumbered"
        );
    }
    let ranges = default_ranges(client).await?;
    let change = Change::new(&ranges, &given.to).map_err(anyhow::Error::msg)?;
    let mut findings = Findings::default();
    check_version(&version.minor, &mut findings);
    if let Some(why) = &given.unmapped_settings {
        let remedy = "let the server use pool objects: `clusterip settings` converts the settings";
        findings.add(Before::Begin, "settings", "server", why, remedy);
    }
    let settings = check_pools(client, &change, &mut findings).await?;
    let dns_seconds = cluster_dns::options(client, None, None).await.grace_period;
    let mut around = Surroundings {
        exempt_namespaces: settings.exempt_namespaces.clone(),
        load_balancers: given.load_balancers,
        dns_seconds,
        ..Surroundings::default()
    };
    let apis = ("apiregistration.k8s.io/v1", "APIService");
    each(client, apis, None, |object| note_callers(&mut around, apis.1, &object)).await?;
    let mut objects = Objects { change: &change, around, rows: Vec::new(), findings, owners: BTreeSet::new() };
    let mut services = Vec::new();
    let mut nodes = Vec::new();
    let mut endpoints = Vec::new();
    for place in &PLACES {
        let collected = &mut objects;
        each(client, place.kind, place.namespace, |object| {
            match place.kind.1 {
                "Service" => {
                    let is_old = addresses(&object).iter().any(|address| collected.change.is_old(*address));
                    services.extend(is_old.then(|| services::needed(&object)));
                }
                "Node" => nodes.push(object::name(&object).to_owned()),
                "EndpointSlice" => {
                    collected.note_ready(&object);
                    if is_of_kubernetes(&object) {
                        endpoints.extend(api_servers(&object));
                        return;
                    }
                }
                kind => note_callers(&mut collected.around, kind, &object),
            }
            collected.note_overlaps(place.kind.1, &object);
            if let Some(mention) = place.mention(&object, collected.change)
                && collected.owners.insert(mention.object.clone())
            {
                let (object, message) = (mention.object, mention.message);
                collected.findings.add(mention.before, "address", object, message, mention.remedy);
            }
        })
        .await?;
    }
    let Objects { around, mut rows, mut findings, .. } = objects;
    rows.extend(services.iter().filter_map(|service| services::row(service, &change, &around)));
    rows.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    check_sizes(&rows, &change, &mut findings);
    let changed = |is_one: fn(&Value) -> bool| -> Vec<(IpAddr, IpAddr)> {
        let old = services.iter().filter(|service| is_one(service)).flat_map(addresses);
        let old = old.filter(|address| change.is_old(*address));
        old.filter_map(|address| Some((address, change.address(address)?))).collect()
    };
    let dns = changed(services::is_dns);
    let swapped = [changed(services::is_kubernetes), dns.clone()].concat();
    check_new_addresses(settings, &swapped, &mut findings);
    check_certificates(&endpoints, given, &change.new_kubernetes(&ranges), &mut findings).await;
    check_kubelets(client, &nodes, &change, &mut findings).await;
    let steps = installer.steps(&change, &change.applied(&ranges), &dns);
    let (version, findings) = (version.git_version, findings.into_sorted());
    let new_addresses = swapped.into_iter().map(|(_, new)| new).collect();
    Ok(Check { version, installer, change, new_addresses, services: rows, findings, steps })
}

/// What is collected while the objects of a cluster are listed.
struct Objects<'c> {
    change: &'c Change,
    around: Surroundings,
    rows: Vec<ServiceRow>,
    findings: Findings,
    /// The objects with findings: the Pods of one owner have the same.
    owners: BTreeSet<String>,
}

impl Objects<'_> {
    fn note_ready(&mut self, slice: &Value) {
        let service = object::text(slice, &["metadata", "labels", "kubernetes.io/service-name"]);
        if !service.is_empty() && ready_endpoints(std::slice::from_ref(slice)).next().is_some() {
            self.around.ready.insert(ServiceKey::new(object::namespace(slice), service));
        }
    }

    /// Nodes and Pods must have no address of a new range.
    fn note_overlaps(&mut self, kind: &str, object: &Value) {
        let texts = |path: &str, field: &str| {
            let items = object.pointer(path).and_then(Value::as_array).into_iter().flatten();
            let field = field.to_owned();
            items.filter_map(move |item| if field.is_empty() { item.as_str() } else { item.get(&field)?.as_str() })
        };
        let parts: Vec<&str> = match kind {
            "Node" => texts("/spec/podCIDRs", "").chain(texts("/status/addresses", "address")).collect(),
            "Pod" => texts("/status/podIPs", "ip").collect(),
            _ => return,
        };
        for (text, span) in parts.into_iter().filter_map(|text| Some((text, span(text)?))) {
            let name = [object::namespace(object), object::name(object)].into_iter().filter(|part| !part.is_empty());
            note_overlap(self.change, text, &span, &format!("{kind} {}", joined(name, "/")), &mut self.findings);
        }
    }
}

/// A CIDR, an address, or a range from a first to a last address.
fn span(text: &str) -> Option<Span> {
    if let Some((first, last)) = text.split_once('-') {
        return Span::new(first.trim().parse().ok()?, last.trim().parse().ok()?);
    }
    let range = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    range.map(Span::from)
}

fn note_overlap(change: &Change, text: &str, span: &Span, object: &str, findings: &mut Findings) {
    if let Some(pair) = change.0.iter().find(|pair| Span::from(pair.to).meets(span)) {
        let message = format!("it has {text}, which overlaps with the new range {}", pair.to);
        findings.add(Before::Begin, "overlap", object, message, "choose another range");
    }
}

fn note_callers(around: &mut Surroundings, kind: &str, object: &Value) {
    for (service, closed) in Calls::of(object).services {
        let (_, webhook) =
            around.callers.entry(service).or_insert_with(|| (format!("{kind} {}", object::name(object)), None));
        *webhook = webhook.take().or(closed.into_iter().next().map(|webhook| webhook.name));
    }
}

fn is_of_kubernetes(slice: &Value) -> bool {
    object::namespace(slice) == "default"
        && object::text(slice, &["metadata", "labels", "kubernetes.io/service-name"]) == "kubernetes"
}

/// The addresses of the API servers in an EndpointSlice of `default/kubernetes`.
pub fn api_servers(slice: &Value) -> Vec<SocketAddr> {
    let list = |value: &Value, field: &str| value.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
    let ports: Vec<u16> =
        list(slice, "ports").iter().filter_map(|port| port.get("port")?.as_u64()?.try_into().ok()).collect();
    let endpoints = list(slice, "endpoints");
    let addresses = endpoints.iter().flat_map(|endpoint| list(endpoint, "addresses"));
    let addresses: Vec<IpAddr> = addresses.filter_map(|address| address.as_str()?.parse().ok()).collect();
    addresses.iter().flat_map(|address| ports.iter().map(|port| SocketAddr::new(*address, *port))).collect()
}

async fn has_kubeadm_config(client: &Client) -> anyhow::Result<bool> {
    let maps = Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(client.clone(), "kube-system");
    let found = maps.get_metadata_opt("kubeadm-config").await;
    Ok(found.map_err(|error| failed("ConfigMap kube-system/kubeadm-config can't be read", &error))?.is_some())
}

fn check_version(minor: &str, findings: &mut Findings) {
    let number = minor.trim_end_matches('+').parse::<u32>().unwrap_or_default();
    if number < LEAST_MINOR {
        let message = format!("it has version 1.{minor}, which also keeps addresses in a bitmap of the flag's range");
        findings.add(Before::Begin, "version", "API server", message, "upgrade Kubernetes to 1.34 or later");
    }
}

/// Whether the pools can be mapped to the new ranges, and pools of other kinds overlap with these. Returns the settings
/// of the pools.
async fn check_pools(client: &Client, change: &Change, findings: &mut Findings) -> anyhow::Result<Settings> {
    let objects = live_settings::list_if_defined(client).await;
    let objects = objects.map_err(|error| failed("the pools of the cluster can't be listed", &error))?;
    for pool in &objects {
        let object = format!("{} {}", object::kind(pool), object::name(pool));
        let spec = &pool["spec"];
        if object::kind(pool) != PoolKind::ServicePool.as_str() {
            let ranges = spec.get("cidrs").and_then(Value::as_array).into_iter().flatten();
            for (text, span) in ranges.filter_map(|range| Some((range.as_str()?, span(range.as_str()?)?))) {
                note_overlap(change, text, &span, &object, findings);
            }
            continue;
        }
        if spec.get("serviceCIDRSelector").is_some_and(|selector| !selector.is_null()) {
            let (message, remedy) =
                ("it selects ServiceCIDRs by labels", "give it cidrs in place of serviceCIDRSelector");
            findings.add(Before::Begin, "pool", object, message, remedy);
        } else if let Err(text) = change.spec(spec) {
            let message = format!("{text} has no place in the new range, which is smaller");
            findings.add(Before::Begin, "pool", object, message, "choose a larger range, or change the pool first");
        }
    }
    let compiled = live_settings::compile_cluster(client).await;
    let compiled = compiled.map_err(|error| failed("the pools of the cluster can't be read", &error))?;
    Ok(match compiled {
        Some(compiled) => Settings::from_value(&compiled.document)?,
        None => Settings::default(),
    })
}

/// Whether a pool could give another Service an address that `default/kubernetes` or DNS will get. `swapped` has their
/// old and new addresses. The new ones are free until the switch.
fn check_new_addresses(mut settings: Settings, swapped: &[(IpAddr, IpAddr)], findings: &mut Findings) {
    // A pool never hands out the first address of the Service range, but does not know that of the new one.
    settings.service_cidrs.clear();
    for pool in &settings.pools {
        for (old, new) in swapped {
            if settings.candidates(pool, Family::of(*old)).contains(*old) {
                let message = format!("it could give another Service {new}, to which {old} is changed by the switch");
                let remedy = format!("add {old} to its exclude, or let its reserved contain it");
                findings.add(Before::Begin, "pool", format!("ServicePool {}", pool.name), message, remedy);
            }
        }
    }
}

fn check_sizes(rows: &[ServiceRow], change: &Change, findings: &mut Findings) {
    for pair in &change.0 {
        let used = rows.iter().flat_map(|row| &row.addresses).filter(|address| pair.from.contains(*address)).count();
        let needed = used as u128 + SPARE_ADDRESSES;
        let range = format!("range {}", pair.to);
        if Span::from(pair.to).count() < needed {
            let message = format!("it has too few addresses: {needed} are needed");
            findings.add(Before::Begin, "size", &range, message, "choose a larger range");
        }
        if pair.to.addr().is_ipv6() && pair.to.prefix_len() < SHORTEST_V6 {
            let message = format!("the API server accepts no IPv6 range larger than /{SHORTEST_V6}");
            findings.add(Before::Begin, "size", &range, message, "choose a smaller range");
        }
    }
}

/// Whether each API server shows a certificate for the new address of `default/kubernetes`.
async fn check_certificates(endpoints: &[SocketAddr], given: &Given, new: &[IpAddr], findings: &mut Findings) {
    if new.is_empty() {
        return;
    }
    let remedy = format!("add {} to the certificate, and keep the old one", joined(new, ", "));
    let (mut lacking, unreachable) = lacking(endpoints, new).await;
    if !unreachable.is_empty() {
        // From outside of the cluster, perhaps only a load balancer in front of the API servers can be reached.
        lacking.extend(self::lacking(&given.api_server, new).await.0);
        let message =
            format!("their certificates can't be read from here: {}", joined(unreachable.iter().take(5), "; "));
        findings.add(Before::Switch, "certificate", "API servers", message, format!("check them yourself: {remedy}"));
    }
    for (server, missing) in lacking {
        let message = format!("its certificate does not name {}", joined(missing, ", "));
        findings.add(Before::Switch, "certificate", format!("API server {server}"), message, &remedy);
    }
}

/// The API servers whose certificates lack some of the wanted addresses, each with these, and the ones that can't be
/// reached.
pub async fn lacking(servers: &[SocketAddr], wanted: &[IpAddr]) -> (Vec<(SocketAddr, Vec<IpAddr>)>, Vec<String>) {
    let (mut lacking, mut unreachable) = (Vec::new(), Vec::new());
    for server in servers {
        match certificates::addresses(*server).await {
            Ok(named) => {
                let missing: Vec<IpAddr> = wanted.iter().filter(|it| !named.contains(it)).copied().collect();
                if !missing.is_empty() {
                    lacking.push((*server, missing));
                }
            }
            Err(error) => unreachable.push(format!("{server} ({error})")),
        }
    }
    (lacking, unreachable)
}

/// Which kubelets give Pods an old DNS address.
pub async fn check_kubelets(client: &Client, nodes: &[String], change: &Change, findings: &mut Findings) {
    let asked = nodes.iter().take(MOST_KUBELETS).map(|node| async move { (node, cluster_dns_of(client, node).await) });
    let answers: Vec<_> = futures::stream::iter(asked).buffered(KUBELETS_AT_ONCE).collect().await;
    let mut unknown = BTreeMap::<String, Vec<&String>>::new();
    for (node, answer) in answers {
        match answer {
            Ok(addresses) => {
                let old: Vec<_> = addresses.iter().filter(|address| change.is_old(**address)).collect();
                if !old.is_empty() {
                    let new = joined(old.iter().filter_map(|address| change.address(**address)), ",");
                    let message = format!("its kubelet gives Pods the DNS address {}", joined(&old, ","));
                    let remedy = format!("after the switch, set clusterDNS to {new}, and restart the kubelet");
                    findings.add(Before::Finish, "kubelet", format!("Node {node}"), message, remedy);
                }
            }
            Err(reason) => unknown.entry(reason).or_default().push(node),
        }
    }
    for (reason, nodes) in unknown {
        let message = format!("the configuration of {} can't be read: {reason}", several(nodes.len(), "kubelet"));
        let nodes = joined(nodes.iter().take(3), ", ");
        findings.add(Before::Finish, "kubelet", format!("Nodes {nodes}"), message, "check clusterDNS on these nodes");
    }
    if let Some(more) = nodes.len().checked_sub(MOST_KUBELETS).filter(|more| *more > 0) {
        findings.add(Before::Finish, "kubelet", "Nodes", format!("{more} more were not asked"), "check them yourself");
    }
}

async fn cluster_dns_of(client: &Client, node: &str) -> Result<Vec<IpAddr>, String> {
    let request = Request::get(format!("/api/v1/nodes/{node}/proxy/configz")).body(Vec::new());
    let answer = client.request::<Value>(request.map_err(|error| error.to_string())?).await;
    let answer = answer.map_err(|error| match &error {
        KubeError::Api(status) if status.code == 403 => "the permission to get nodes/proxy is missing".to_owned(),
        // The message of another failure names the node.
        KubeError::Api(status) => format!("the API server answers {}", status.code),
        error => error_message(error),
    })?;
    let addresses = answer.pointer("/kubeletconfig/clusterDNS").and_then(Value::as_array).into_iter().flatten();
    Ok(addresses.filter_map(|address| address.as_str()?.parse().ok()).collect())
}

/// How many Services are moved in each way.
pub fn count(services: &[ServiceRow], way: Way) -> usize {
    services.iter().filter(|row| row.way == way).count()
}
