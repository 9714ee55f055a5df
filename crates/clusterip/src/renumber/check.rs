//! Finds out what happens to each Service in a renumbering, and what must be done before each command. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anyhow::{Context, bail};
use clusterip_api::Kind as PoolKind;
use clusterip_cluster::api_error::{error_message, failed};
use clusterip_cluster::kinds;
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
use clusterip_moves::renumbering::record::{DEFAULT_SERVICE_CIDR, NEW_SERVICE_CIDR, OLD_SERVICE_CIDR};
use futures::StreamExt as _;
use http::Request;
use ipnet::IpNet;
use kube::api::ListParams;
use kube::{Client, Error as KubeError};
use serde::Serialize;
use serde_json::Value;

use super::certificates::certificates_lacking;
use super::findings::{Before, Finding, Findings, ServiceRow, Way};
use super::installer::Installer;
use super::mentions::{PLACES, Place};
use super::objects::{self, SERVICE_CIDR};
use super::services::{self, Surroundings, is_dns, is_kubernetes};
use crate::announcer_pools::parse_span;
use crate::services::cluster_dns;
use crate::text::{joined, several};

/// The ConfigMap that kubeadm leaves in kube-system.
const KUBEADM: &str = "kubeadm-config";
/// Since this version, the API server keeps addresses of Services in IPAddresses alone.
const LEAST_MINOR: u32 = 34;
/// How many kubelets are asked at once.
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

#[derive(Debug, Serialize)]
pub struct Check {
    pub change: Change,
    /// The ranges of the API server's flag, the primary one first.
    #[serde(skip)]
    pub ranges: Vec<IpNet>,
    /// The addresses that `default/kubernetes` and DNS will get.
    #[serde(skip)]
    pub new_addresses: Vec<IpAddr>,
    pub version: String,
    pub installer: &'static str,
    /// The Services with addresses of old ranges, ordered by namespace and name.
    pub services: Vec<ServiceRow>,
    pub findings: Vec<Finding>,
    pub steps: Vec<String>,
    pub summary: Summary,
}

/// How many Services change in each way.
#[derive(Debug, Serialize)]
pub struct Summary {
    pub seamless: usize,
    pub plain: usize,
    pub switch: usize,
    pub stay: usize,
    /// Whether `clusterip renumber begin` would begin.
    pub ready: bool,
}

/// The permissions to check, which only read.
pub fn needs() -> Vec<Need> {
    let config = Need::read("get", "", "configmaps", Some("kube-system"));
    let places = PLACES.iter().map(|place| {
        let (api_version, kind) = place.kind;
        let resource = kinds::regular(&(api_version.to_owned(), kind.to_owned()));
        Need { namespace: place.namespace.map(str::to_owned), ..Need::list(&resource) }
    });
    [Need::read("list", "networking.k8s.io", "servicecidrs", None), Need { name: Some(KUBEADM.into()), ..config }]
        .into_iter()
        .chain(places)
        .chain(PoolKind::ALL.iter().map(|kind| Need::list(&kind.api_resource())))
        .collect()
}

/// The Service ranges of the API server's flag, the primary one first: those of the default ServiceCIDR.
async fn default_ranges(client: &Client) -> anyhow::Result<Vec<IpNet>> {
    let found = objects::get(client, SERVICE_CIDR, None, DEFAULT_SERVICE_CIDR).await?;
    let found = found.context("there is no ServiceCIDR kubernetes: Kubernetes 1.34 or later is needed")?;
    Ok(parsed(&found, "/spec/cidrs"))
}

/// The items of a list that can be parsed.
pub fn parsed<T: FromStr>(object: &Value, path: &str) -> Vec<T> {
    texts(object, path).filter_map(|text| text.parse().ok()).collect()
}

/// The texts in a list.
pub fn texts<'o>(object: &'o Value, path: &str) -> impl Iterator<Item = &'o str> {
    object.pointer(path).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

pub async fn check(client: &Client, given: &Given) -> anyhow::Result<Check> {
    let version = client.apiserver_version().await.map_err(|error| failed("the version can't be read", &error))?;
    let groups = client.list_api_groups().await.map_err(|error| failed("the API groups can't be read", &error))?;
    let groups: Vec<String> = groups.groups.into_iter().map(|group| group.name).collect();
    let kubeadm = objects::get(client, ("v1", "ConfigMap"), Some("kube-system"), KUBEADM).await?;
    let installer = Installer::of(&version.git_version, &groups, kubeadm.is_some());
    if installer == Installer::OpenShift {
        bail!(
            "this is an OpenShift cluster: its Cluster Network Operator owns the Service range (serviceNetwork), and \
             reverts and forbids any change of it, so that it can't be renumbered"
        );
    }
    let ranges = default_ranges(client).await?;
    let change = Change::new(&ranges, &given.to).map_err(anyhow::Error::msg)?;
    let mut findings = Findings::default();
    if version.minor.trim_end_matches('+').parse::<u32>().unwrap_or_default() < LEAST_MINOR {
        let message =
            format!("it has version 1.{}, which also keeps addresses in a bitmap of the flag's range", version.minor);
        findings.add(Before::Begin, "version", "API server", message, "upgrade Kubernetes to 1.34 or later");
    }
    if let Some(why) = &given.unmapped_settings {
        let remedy = "let the server use pool objects: `clusterip settings` converts the settings";
        findings.add(Before::Begin, "settings", "server", why, remedy);
    }
    for name in [OLD_SERVICE_CIDR, NEW_SERVICE_CIDR] {
        let found = objects::get(client, SERVICE_CIDR, None, name).await?;
        if found.is_some_and(|found| found.pointer("/metadata/deletionTimestamp").is_some()) {
            let message = "Services have had its addresses since an earlier renumbering";
            findings.add(Before::Begin, "range", format!("ServiceCIDR {name}"), message, "give them other addresses");
        }
    }
    let settings = check_pools(client, &change, &mut findings).await?;
    let around = Surroundings {
        exempt_namespaces: settings.exempt_namespaces.clone(),
        load_balancers: given.load_balancers,
        dns_seconds: cluster_dns::options(client, None, None).await.grace_period,
        ..Surroundings::default()
    };
    let (nodes, api_servers, swapped, rows, owners) = Default::default();
    let mut read = Read { change: &change, around, nodes, api_servers, swapped, rows, findings, owners };
    for place in &PLACES {
        objects::for_each(client, place.kind, place.namespace, ListParams::default(), |object| {
            read.note(place, &object)
        })
        .await?;
    }
    let Read { rows: mut services, mut findings, nodes, api_servers, swapped, .. } = read;
    services.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    check_sizes(&services, &change, &mut findings);
    check_new_addresses(settings, &swapped, &mut findings);
    check_certificates(&api_servers, given, &change.new_kubernetes(&ranges), &mut findings).await;
    check_kubelets(client, &nodes, &change, &mut findings).await;
    let dns = swapped.iter().filter(|swapped| swapped.is_dns).map(|swapped| swapped.new);
    let steps = installer.steps(&change, &change.applied(&ranges), &joined(dns, ","))?;
    let (version, installer, findings) = (version.git_version, installer.as_str(), findings.into_sorted());
    let new_addresses = swapped.into_iter().map(|swapped| swapped.new).collect();
    let count = |way| services.iter().filter(|row| row.way == way).count();
    let summary = Summary {
        seamless: count(Way::Seamless),
        plain: count(Way::Plain),
        switch: count(Way::Switch),
        stay: count(Way::Stays),
        ready: findings.iter().all(|finding| finding.before != Before::Begin),
    };
    Ok(Check { change, ranges, new_addresses, version, installer, services, findings, steps, summary })
}

/// What is collected while the objects of a cluster are listed.
struct Read<'c> {
    change: &'c Change,
    around: Surroundings,
    nodes: Vec<String>,
    api_servers: Vec<SocketAddr>,
    swapped: Vec<Swapped>,
    rows: Vec<ServiceRow>,
    findings: Findings,
    /// The objects with findings: the Pods of one owner have the same.
    owners: BTreeSet<String>,
}

/// An address of `default/kubernetes` or of DNS, and the one that it gets.
struct Swapped {
    is_dns: bool,
    old: IpAddr,
    new: IpAddr,
}

impl Read<'_> {
    fn note(&mut self, place: &Place, object: &Value) {
        let kind = place.kind.1;
        match kind {
            "Service" => self.note_service(object),
            "Node" => self.nodes.push(object::name(object).to_owned()),
            "EndpointSlice" => {
                let service = object::text(object, &["metadata", "labels", "kubernetes.io/service-name"]);
                let service = ServiceKey::new(object::namespace(object), service);
                if (service.namespace.as_str(), service.name.as_str()) == ("default", "kubernetes") {
                    self.api_servers.extend(api_servers(object));
                    return;
                }
                if ready_endpoints(std::slice::from_ref(object)).next().is_some() {
                    self.around.ready.insert(service);
                }
            }
            _ => {
                for (service, blocking) in Calls::of(object).services {
                    let caller = || (format!("{kind} {}", object::name(object)), None);
                    let (_, webhook) = self.around.callers.entry(service).or_insert_with(caller);
                    *webhook = webhook.take().or(blocking.into_iter().next().map(|webhook| webhook.name));
                }
            }
        }
        self.note_overlaps(kind, object);
        if let Some(mention) = place.mention(object, self.change)
            && self.owners.insert(mention.object.clone())
        {
            self.findings.push(mention);
        }
    }

    fn note_service(&mut self, service: &Value) {
        self.rows.extend(services::row(service, self.change, &self.around));
        let is_dns = is_dns(service);
        if is_dns || is_kubernetes(service) {
            let old = addresses(service).into_iter().filter(|address| self.change.is_old(*address));
            let swapped = old.filter_map(|old| Some(Swapped { is_dns, old, new: self.change.address(old)? }));
            self.swapped.extend(swapped);
        }
    }

    /// Nodes and Pods must have no address of a new range.
    fn note_overlaps(&mut self, kind: &str, object: &Value) {
        let fields = |path: &str, field: &'static str| {
            let items = object.pointer(path).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(move |item| item.get(field)?.as_str())
        };
        let parts: Vec<&str> = match kind {
            "Node" => texts(object, "/spec/podCIDRs").chain(fields("/status/addresses", "address")).collect(),
            "Pod" => fields("/status/podIPs", "ip").collect(),
            _ => return,
        };
        let name = [object::namespace(object), object::name(object)].into_iter().filter(|part| !part.is_empty());
        let name = format!("{kind} {}", joined(name, "/"));
        parts.into_iter().for_each(|text| note_overlap(self.change, text, &name, &mut self.findings));
    }
}

fn note_overlap(change: &Change, text: &str, object: &str, findings: &mut Findings) {
    let Some(span) = parse_span(text) else { return };
    if let Some(pair) = change.0.iter().find(|pair| Span::from(pair.to).meets(&span)) {
        let message = format!("it has {text}, which overlaps with the new range {}", pair.to);
        findings.add(Before::Begin, "overlap", object, message, "choose another range");
    }
}

/// The addresses of the API servers in an EndpointSlice of `default/kubernetes`.
pub fn api_servers(slice: &Value) -> Vec<SocketAddr> {
    let items = |field: &str| slice.get(field).and_then(Value::as_array).into_iter().flatten();
    let ports: Vec<u16> = items("ports").filter_map(|port| port.get("port")?.as_u64()?.try_into().ok()).collect();
    let addresses = items("endpoints").flat_map(|endpoint| parsed::<IpAddr>(endpoint, "/addresses"));
    addresses.flat_map(|address| ports.iter().map(move |port| SocketAddr::new(address, *port))).collect()
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
            texts(spec, "/cidrs").for_each(|text| note_overlap(change, text, &object, findings));
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

/// Whether a pool could give another Service an address that `default/kubernetes` or DNS will get. It is free until the
/// switch.
fn check_new_addresses(mut settings: Settings, swapped: &[Swapped], findings: &mut Findings) {
    // A pool never hands out the first address of the Service range, but does not know that of the new one.
    settings.service_cidrs.clear();
    for pool in &settings.pools {
        for Swapped { old, new, .. } in swapped {
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

/// Whether the certificate of each API server names the new address of `default/kubernetes`.
async fn check_certificates(endpoints: &[SocketAddr], given: &Given, new: &[IpAddr], findings: &mut Findings) {
    if new.is_empty() {
        return;
    }
    let remedy = format!("add {} to the certificate, and keep the old one", joined(new, ", "));
    let (mut found, unreachable) = certificates_lacking(endpoints, new, true).await;
    if !unreachable.is_empty() {
        // From outside of the cluster, perhaps only a load balancer in front of the API servers can be reached.
        found.extend(certificates_lacking(&given.api_server, new, false).await.0);
        let message =
            format!("their certificates can't be read from here: {}", joined(unreachable.iter().take(5), "; "));
        findings.add(Before::Switch, "certificate", "API servers", message, format!("check them yourself: {remedy}"));
    }
    for (server, missing) in found {
        let message = format!("its certificate does not name {}", joined(missing, ", "));
        findings.add(Before::Switch, "certificate", format!("API server {server}"), message, &remedy);
    }
}

/// Which kubelets give Pods an old DNS address.
pub async fn check_kubelets(client: &Client, nodes: &[String], change: &Change, findings: &mut Findings) {
    let asked = nodes.iter().map(|node| async move { (node, cluster_dns_of(client, node).await) });
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
    Ok(parsed(&answer, "/kubeletconfig/clusterDNS"))
}
