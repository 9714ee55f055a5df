//! The fields of a Service that a decision reads, and the IP families of its addresses.

use std::net::IpAddr;

use serde_json::Value;

use crate::address::{Family, parse_address};
use crate::annotations::AnnotationMap;
use crate::distinct;
use crate::external::claim::shown;
use crate::json::{Located, TypeMismatch};
use crate::label_selector::{Labels, MAX_LABELS};

/// The most addresses and families of a Service. The API server refuses more, but only after its webhooks have
/// answered, so each list is read up to the first item beyond.
pub const MAX_FAMILIES: usize = 2;

/// `spec.ipFamilyPolicy`, in increasing order of strictness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum FamilyPolicy {
    /// One address. The API server uses this if the field is absent.
    #[default]
    SingleStack,
    /// A second address if the cluster has both families.
    PreferDualStack,
    RequireDualStack,
}

impl FamilyPolicy {
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "SingleStack" => Some(Self::SingleStack),
            "PreferDualStack" => Some(Self::PreferDualStack),
            "RequireDualStack" => Some(Self::RequireDualStack),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// `metadata.name`; empty if the API server has yet to generate it.
    pub name: String,
    /// `metadata.labels`: the first [`MAX_LABELS`] by key.
    pub labels: Labels,
    pub annotations: AnnotationMap,
    pub external_name: bool,
    pub node_port: bool,
    pub load_balancer: bool,
    pub load_balancer_class: Option<String>,
    /// `spec.loadBalancerIP`, as written.
    pub load_balancer_ip: Option<String>,
    /// `spec.externalIPs`, as written.
    pub external_ips: Vec<String>,
    /// The protocol and port of each item of `spec.ports`; `None` if they are not known.
    pub ports: Option<Vec<(&'static str, u16)>>,
    /// Whether `spec.externalTrafficPolicy` is `Local`.
    pub local: bool,
    /// The addresses of `status.loadBalancer.ingress`.
    pub shown: Vec<IpAddr>,
    /// Whether the Service is being deleted: `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// `spec.selector`: at most one label more than [`MAX_LABELS`], which shows that there are too many.
    pub selector: Labels,
    /// `spec.clusterIP`, as written; `None` if absent or empty.
    pub cluster_ip: Option<String>,
    /// Whether the request itself names `spec.clusterIP`: an update may leave it out, and has that of the stored Service then.
    pub names_cluster_ip: bool,
    /// `spec.clusterIPs`, as written, without empty items: the first three items.
    pub cluster_ips: Vec<String>,
    pub families: Vec<Family>,
    pub family_policy: FamilyPolicy,
    /// Whether the request itself names `spec.ipFamilyPolicy`: an update may leave it out, and has that of the stored Service then.
    pub names_family_policy: bool,
}

impl Service {
    /// Reads the fields of a Service object that is at `path` of a document.
    pub fn read(object: &Value, path: &str) -> Result<Self, TypeMismatch> {
        let object = Located::new(object, path);
        let (metadata, spec) = (object.at("metadata")?, object.at("spec")?);
        let families = match spec.get("ipFamilies")? {
            Some(families) => families
                .items()?
                .take(MAX_FAMILIES + 1)
                .map(|family| Family::parse(family.text()?).ok_or_else(|| family.mismatch("IPv4 or IPv6")))
                .collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        let unknown = || Err(spec.at("ipFamilyPolicy")?.mismatch("SingleStack, PreferDualStack or RequireDualStack"));
        let read = |name| FamilyPolicy::parse(name).map_or_else(unknown, Ok);
        let family_policy = spec.text_of("ipFamilyPolicy")?.map(read).transpose()?;
        let kind = spec.text_of("type")?;
        let cluster_ip = spec.text_of("clusterIP")?;
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Ok(Self {
            name: owned(metadata.text_of("name")?).unwrap_or_default(),
            labels: metadata.first_of("labels", MAX_LABELS)?,
            annotations: metadata.map_of("annotations")?.into(),
            external_name: kind == Some("ExternalName"),
            node_port: kind == Some("NodePort"),
            load_balancer: kind == Some("LoadBalancer"),
            load_balancer_class: owned(spec.text_of("loadBalancerClass")?),
            load_balancer_ip: owned(spec.text_of("loadBalancerIP")?),
            external_ips: spec.texts_of("externalIPs", usize::MAX)?.into_iter().map(str::to_owned).collect(),
            ports: ports(spec.value.get("ports")),
            local: spec.value.get("externalTrafficPolicy").is_some_and(|policy| policy == "Local"),
            shown: shown(object.value.pointer("/status/loadBalancer/ingress")),
            deleting: metadata.get("deletionTimestamp")?.is_some(),
            selector: spec.first_of("selector", MAX_LABELS + 1)?,
            cluster_ip: owned(cluster_ip),
            names_cluster_ip: cluster_ip.is_some(),
            cluster_ips: spec
                .texts_of("clusterIPs", MAX_FAMILIES + 1)?
                .into_iter()
                .filter(|ip| !ip.is_empty())
                .map(str::to_owned)
                .collect(),
            families,
            family_policy: family_policy.unwrap_or_default(),
            names_family_policy: family_policy.is_some(),
        })
    }

    /// Completes an update as the API server does after its webhooks have answered: takes over what the update leaves out
    /// from the stored Service, and brings `clusterIPs` in line with a new `clusterIP`. These are `patchAllocatedValues`
    /// and `normalizeClusterIPs` in its pkg/registry/core/service/storage/storage.go, and for the policy
    /// `initIPFamilyFields` in alloc.go there.
    pub(crate) fn complete(&mut self, stored: &Self) {
        if !self.names_family_policy {
            self.family_policy = stored.family_policy;
        }
        // The stored Service, also one of `type: ExternalName`, may have only the first field.
        let first = || stored.cluster_ip.iter().cloned().collect();
        let before = if stored.cluster_ips.is_empty() { first() } else { stored.cluster_ips.clone() };
        let needs_address = !self.external_name && !stored.external_name;
        if needs_address && !self.names_cluster_ip {
            self.cluster_ip.clone_from(&stored.cluster_ip);
        }
        let is_same = self.cluster_ip == stored.cluster_ip;
        if self.cluster_ips.is_empty() && (needs_address || is_same) {
            self.cluster_ips.clone_from(&before);
        }
        if !is_same && self.cluster_ips == before {
            self.cluster_ips = self.cluster_ip.iter().cloned().collect();
        }
    }

    /// Whether the Service requests no address (`clusterIP: None`).
    pub fn is_headless(&self) -> bool {
        self.cluster_ip.as_deref() == Some("None") || self.cluster_ips.first().is_some_and(|ip| ip == "None")
    }

    /// The cluster IPs without duplicates, see [`parse_address`]. Values that can't be parsed are left out: the API
    /// server refuses them.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let texts = self.cluster_ip.iter().chain(&self.cluster_ips).map(String::as_str);
        if self.external_name { Vec::new() } else { distinct(texts.filter_map(parse_address)) }
    }

    /// Whether the API server adds a second address to a Service that had one before this update, as `allocateUpdate` in
    /// its pkg/registry/core/service/storage/alloc.go does: the policy asks for one, and the update is not one of a
    /// `PreferDualStack` Service that changes nothing about addresses.
    pub(crate) fn gets_second_address(&self, old: &Self) -> bool {
        let prefers = FamilyPolicy::PreferDualStack;
        let has_same_type = (self.node_port, self.load_balancer) == (old.node_port, old.load_balancer);
        let stays = self.names_family_policy
            && (self.family_policy, old.family_policy) == (prefers, prefers)
            && has_same_type
            && self.families == old.families;
        self.family_policy != FamilyPolicy::SingleStack && !stays
    }
}

/// The ports of a Service with fewer than these are known: a host may read no more of them.
pub const MAX_PORTS: usize = 128;

/// The protocol and port of each item of `spec.ports`; `None` if there are too many, or an item can't be read.
fn ports(list: Option<&Value>) -> Option<Vec<(&'static str, u16)>> {
    let items = list?.as_array().filter(|items| items.len() < MAX_PORTS)?;
    let port = |item: &Value| {
        let protocol = item.get("protocol").map_or(Some("TCP"), Value::as_str)?;
        let protocol = ["TCP", "UDP", "SCTP"].into_iter().find(|known| *known == protocol)?;
        Some((protocol, item.get("port")?.as_u64()?.try_into().ok()?))
    };
    items.iter().map(port).collect()
}

/// The addresses of a Service object without repetition, the primary one first. Of a list that the API server refuses,
/// only the first three items are read. An ExternalName Service has none: the API server stores any text in its
/// `clusterIP`, and allocates nothing.
pub fn addresses(service: &Value) -> Vec<IpAddr> {
    let is_external_name = service.pointer("/spec/type").is_some_and(|kind| kind == "ExternalName");
    if is_external_name { Vec::new() } else { named_addresses(service) }
}

/// As [`addresses`], also those that an ExternalName Service names and does not have.
pub fn named_addresses(service: &Value) -> Vec<IpAddr> {
    let spec = |key: &str| service.get("spec").and_then(|spec| spec.get(key));
    let all = spec("clusterIPs").and_then(Value::as_array).into_iter().flatten();
    let texts = spec("clusterIP").into_iter().chain(all.take(MAX_FAMILIES + 1)).filter_map(Value::as_str);
    distinct(texts.filter_map(parse_address))
}

/// The field manager of the moves of `clusterip`.
pub const MANAGER: &str = "clusterip-mover";

/// The fields of `spec` in `fieldsV1` whose owner has set the address: `clusterIP` and `clusterIPs`, in this order.
pub const ADDRESS_FIELDS: [&str; 2] = ["f:clusterIP", "f:clusterIPs"];

/// Whether this Service's address was set by hand, which `metadata.managedFields` shows: a manager owns the address.
/// The API server computes `managedFields` before mutating admission, so an address that a webhook or the allocator
/// picked has no owner. `None` for a Service without `managedFields`, about which nothing is known. Fields that an
/// unfinished move owns do not count.
pub fn is_set_by_hand(service: &Value) -> Option<bool> {
    let entries = service.pointer("/metadata/managedFields").and_then(Value::as_array);
    let entries = entries.filter(|entries| !entries.is_empty())?;
    let others = entries.iter().filter(|entry| entry.get("manager").is_none_or(|manager| manager != MANAGER));
    Some(
        others
            .filter_map(|entry| entry.pointer("/fieldsV1/f:spec"))
            .any(|spec| ADDRESS_FIELDS.iter().any(|field| spec.get(field).is_some())),
    )
}

/// As [`is_set_by_hand`], but a Service about which nothing is known counts as set by hand: nothing may move it.
pub fn may_be_set_by_hand(service: &Value) -> bool {
    is_set_by_hand(service).unwrap_or(true)
}
