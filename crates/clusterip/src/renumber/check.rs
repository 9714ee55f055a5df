//! Finds out what happens to each Service in a renumbering, and what must be done before each command. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, bail};
use clusterip_api::Kind as PoolKind;
use clusterip_cluster::api_error::{error_message, failed};
use clusterip_cluster::live_settings;
use clusterip_cluster::object::{self, items, texts};
use clusterip_cluster::permissions::Need;
use clusterip_cluster::watch::control_plane_services::Calls;
use clusterip_core::address::{Family, Span};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_moves::method::ready_endpoints;
use clusterip_moves::renumbering::change::Change;
use clusterip_moves::renumbering::record::{DEFAULT_SERVICE_CIDR, NEW_SERVICE_CIDR, OLD_SERVICE_CIDR, Record};
use futures::StreamExt as _;
use http::Request;
use ipnet::IpNet;
use kube::api::ListParams;
use kube::{Client, Error as KubeError};
use serde::Serialize;
use serde_json::Value;

use super::certificates;
use super::findings::{Before, Finding, Findings, ServiceRow, Way};
use super::installer::Installer;
use super::mentions::{PLACES, Place};
use super::objects::{self, NODE, SERVICE_CIDR, api_servers, is_being_deleted, named, parsed};
use super::services::{self, Surroundings};
use crate::announcer_pools::parse_span;
use crate::services::cluster_dns;
use crate::text::{joined, several};

/// Since this version, the API server keeps addresses of Services in IPAddresses alone.
const LEAST_MINOR: u32 = 34;
const KUBELETS_AT_ONCE: usize = 8;
/// The addresses that a range needs beside those of its Services: for `default/kubernetes`, DNS and temporary Services.
const SPARE_ADDRESSES: u128 = 16;
/// The shortest prefix of an IPv6 range that the API server accepts.
const SHORTEST_V6: u8 = 64;

#[derive(Debug, Serialize)]
pub struct Check {
    pub change: Change,
    /// The record with which the renumbering begins.
    #[serde(skip)]
    pub record: Record,
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

/// The permissions to check, which only read, without those for the pools.
pub fn needs() -> Vec<Need> {
    let places = PLACES.iter().map(|place| {
        let namespace = place.namespace.map(str::to_owned);
        Need { namespace, ..Need::list(&objects::resource(place.kind)) }
    });
    iter::once(Need::list(&objects::resource(SERVICE_CIDR))).chain(places).collect()
}

/// `unmapped_settings` says why the settings of the server can't be changed with its pools, and is `None` if they can, or
/// without a server. `api_server` are the addresses in the kubeconfig, which serve if no endpoint can be reached.
pub async fn check(
    client: &Client,
    to: &[IpNet],
    load_balancers: bool,
    unmapped_settings: Option<String>,
    api_server: &[SocketAddr],
) -> anyhow::Result<Check> {
    let version = client.apiserver_version().await.map_err(|error| failed("the version can't be read", &error))?;
    let groups = client.list_api_groups().await.map_err(|error| failed("the API groups can't be read", &error))?;
    if groups.groups.iter().any(|group| group.name == "config.openshift.io") {
        bail!(
            "this is an OpenShift cluster: its Cluster Network Operator owns the Service range (serviceNetwork), and \
             reverts and forbids any change of it, so that it can't be renumbered"
        );
    }
    let service_cidrs = objects::list(client, SERVICE_CIDR).await?;
    let service_cidr = |name: &str| service_cidrs.iter().find(|found| object::name(found) == name);
    let default = service_cidr(DEFAULT_SERVICE_CIDR);
    let default = default.context("there is no ServiceCIDR kubernetes: Kubernetes 1.34 or later is needed")?;
    let ranges: Vec<IpNet> = parsed(default, "/spec/cidrs");
    let change = Change::new(&ranges, to).map_err(anyhow::Error::msg)?;
    let mut findings = Findings::default();
    if version.minor.trim_end_matches('+').parse::<u32>().unwrap_or_default() < LEAST_MINOR {
        let message =
            format!("it has version 1.{}, which also keeps addresses in a bitmap of the flag's range", version.minor);
        findings.add(Before::Begin, "version", "API server", &message, "upgrade Kubernetes to 1.34 or later");
    }
    if let Some(why) = unmapped_settings {
        let remedy = "let the server use pool objects: `clusterip settings` converts the settings";
        findings.add(Before::Begin, "settings", "server", &why, remedy);
    }
    for name in [OLD_SERVICE_CIDR, NEW_SERVICE_CIDR] {
        if service_cidr(name).is_some_and(is_being_deleted) {
            let message = "Services have had its addresses since an earlier renumbering";
            findings.add(Before::Begin, "range", &format!("ServiceCIDR {name}"), message, "give them other addresses");
        }
    }
    let settings = check_pools(client, &change, &mut findings).await?;
    let around = Surroundings {
        exempt_namespaces: settings.exempt_namespaces.clone(),
        load_balancers,
        dns_seconds: cluster_dns::options(client, None, None).await.grace_period,
        ..Surroundings::default()
    };
    let (rows, owners, has_kubeadm_config) = Default::default();
    let mut read = Read { change: &change, around, rows, findings, owners, has_kubeadm_config };
    for place in &PLACES {
        objects::for_each(client, place.kind, place.namespace, ListParams::default(), |object| {
            read.note(place, &object)
        })
        .await?;
    }
    let Read { rows: mut services, mut findings, has_kubeadm_config, .. } = read;
    services.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    let switched = services.iter().filter(|row| row.way == Way::Switch);
    let swapped: Vec<_> = switched.clone().flat_map(|row| change.changed(&row.addresses)).collect();
    check_sizes(&services, &change, &mut findings);
    check_new_addresses(settings, &swapped, &mut findings);
    if let Some(new) = change.new_kubernetes(&ranges) {
        check_certificates(new, &api_servers(client).await?, api_server, &mut findings).await;
    }
    check_kubelets(client, &change, &mut findings).await?;
    let dns = switched.filter(|row| row.namespace == "kube-system").flat_map(|row| change.changed(&row.addresses));
    let installer = Installer::of(&version.git_version, has_kubeadm_config);
    let steps = installer.steps(&change, &change.applied(&ranges), &joined(dns.map(|(_, new)| new), ","))?;
    // Also those that stay: for a moment of the switch, they are free.
    let all = services.iter().filter(|row| row.way == Way::Switch).flat_map(|row| &row.addresses);
    let new_addresses = all.filter_map(|address| change.address(*address)).collect();
    let record = Record { new_addresses, ..Record::new(change.clone(), ranges) };
    let (version, installer, findings) = (version.git_version, installer.as_str(), findings.into_sorted());
    let count = |way| services.iter().filter(|row| row.way == way).count();
    let [seamless, plain, switch, stay] = [Way::Seamless, Way::Plain, Way::Switch, Way::Stays].map(count);
    let ready = findings.iter().all(|finding| finding.before != Before::Begin);
    let summary = Summary { seamless, plain, switch, stay, ready };
    Ok(Check { change, record, version, installer, services, findings, steps, summary })
}

/// What is collected while the objects of a cluster are listed.
struct Read<'c> {
    change: &'c Change,
    around: Surroundings,
    rows: Vec<ServiceRow>,
    findings: Findings,
    /// The objects with findings: the Pods of one owner have the same.
    owners: BTreeSet<String>,
    has_kubeadm_config: bool,
}

impl Read<'_> {
    fn note(&mut self, place: &Place, object: &Value) {
        let kind = place.kind.1;
        match kind {
            "Service" => self.rows.extend(services::row(object, self.change, &self.around)),
            "EndpointSlice" if ready_endpoints(std::slice::from_ref(object)).next().is_some() => {
                let service = object::text(object, &["metadata", "labels", "kubernetes.io/service-name"]);
                self.around.ready.insert(ServiceKey::new(object::namespace(object), service));
            }
            "ConfigMap" => self.has_kubeadm_config |= object::name(object) == "kubeadm-config",
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

    /// Nodes and Pods must have no address of a new range.
    fn note_overlaps(&mut self, kind: &str, object: &Value) {
        let fields = items(object, "/status/addresses").filter_map(|address| address.get("address"));
        let fields = fields.chain(items(object, "/status/podIPs").filter_map(|address| address.get("ip")));
        for text in texts(object, "/spec/podCIDRs").chain(fields.filter_map(Value::as_str)) {
            let name = named(kind, object::namespace(object), object::name(object));
            note_overlap(self.change, text, &name, &mut self.findings);
        }
    }
}

fn note_overlap(change: &Change, text: &str, object: &str, findings: &mut Findings) {
    let Some(span) = parse_span(text) else { return };
    if let Some(pair) = change.0.iter().find(|pair| Span::from(pair.to).meets(&span)) {
        let message = format!("it has {text}, which overlaps with the new range {}", pair.to);
        findings.add(Before::Begin, "overlap", object, &message, "choose another range");
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
            texts(spec, "/cidrs").for_each(|text| note_overlap(change, text, &object, findings));
            continue;
        }
        if spec.get("serviceCIDRSelector").is_some_and(|selector| !selector.is_null()) {
            let remedy = "give it cidrs in place of serviceCIDRSelector";
            findings.add(Before::Begin, "pool", &object, "it selects ServiceCIDRs by labels", remedy);
        } else if let Err(text) = change.spec(spec) {
            let message = format!("{text} has no place in the new range, which is smaller");
            findings.add(Before::Begin, "pool", &object, &message, "choose a larger range, or change the pool first");
        }
    }
    let compiled = live_settings::compile_cluster(client).await;
    let compiled = compiled.map_err(|error| failed("the pools of the cluster can't be read", &error))?;
    Ok(compiled.map(|compiled| Settings::from_value(&compiled.document)).transpose()?.unwrap_or_default())
}

/// Whether a pool could give another Service an address that `default/kubernetes` or DNS will get. It is free until the
/// switch.
fn check_new_addresses(mut settings: Settings, swapped: &[(IpAddr, IpAddr)], findings: &mut Findings) {
    // A pool never hands out the first address of the Service range, but does not know that of the new one.
    settings.service_cidrs.clear();
    for pool in &settings.pools {
        for (old, new) in swapped {
            if settings.candidates(pool, Family::of(*old)).contains(*old) {
                let message = format!("it could give another Service {new}, to which {old} is changed by the switch");
                let remedy = format!("add {old} to its exclude, or let its reserved contain it");
                findings.add(Before::Begin, "pool", &format!("ServicePool {}", pool.name), &message, &remedy);
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
            findings.add(Before::Begin, "size", &range, &message, "choose a larger range");
        }
        if pair.to.addr().is_ipv6() && pair.to.prefix_len() < SHORTEST_V6 {
            let message = format!("the API server accepts no IPv6 range larger than /{SHORTEST_V6}");
            findings.add(Before::Begin, "size", &range, &message, "choose a smaller range");
        }
    }
}

/// Whether the certificate of each API server names the new address of `default/kubernetes`.
async fn check_certificates(new: IpAddr, endpoints: &[SocketAddr], api_server: &[SocketAddr], findings: &mut Findings) {
    let remedy = format!("add {new} to the certificate, and keep the old one");
    let (mut found, unreachable) = certificates::lacking(new, endpoints, true).await;
    if !unreachable.is_empty() {
        // From outside of the cluster, perhaps only a load balancer in front of the API servers can be reached.
        found.extend(certificates::lacking(new, api_server, false).await.0);
        let message =
            format!("their certificates can't be read from here: {}", joined(unreachable.iter().take(5), "; "));
        findings.add(Before::Switch, "certificate", "API servers", &message, &format!("check them yourself: {remedy}"));
    }
    for server in found {
        let message = format!("its certificate does not name {new}");
        findings.add(Before::Switch, "certificate", &format!("API server {server}"), &message, &remedy);
    }
}

/// Which kubelets give Pods an old DNS address.
pub async fn check_kubelets(client: &Client, change: &Change, findings: &mut Findings) -> anyhow::Result<()> {
    let mut nodes = Vec::new();
    let name = |node| nodes.push(object::name(&node).to_owned());
    objects::for_each(client, NODE, None, ListParams::default(), name).await?;
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
                    findings.add(Before::Finish, "kubelet", &format!("Node {node}"), &message, &remedy);
                }
            }
            Err(reason) => unknown.entry(reason).or_default().push(node),
        }
    }
    for (reason, nodes) in unknown {
        let message = format!("the configuration of {} can't be read: {reason}", several(nodes.len(), "kubelet"));
        let nodes = joined(nodes.iter().take(3), ", ");
        findings.add(Before::Finish, "kubelet", &format!("Nodes {nodes}"), &message, "check clusterDNS on these nodes");
    }
    Ok(())
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
