//! The record of a renumbering.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::change::Change;
use crate::temporary::{MANAGED_BY, Role};
use clusterip_core::address::Family;
use clusterip_core::annotations::TEMPORARY_LABEL;

/// The name of the ConfigMap with the record, in the namespace of the server.
pub const RECORD: &str = "clusterip-renumbering";
/// The ServiceCIDR that covers the ranges before the change when the default one does not any more.
pub const OLD_SERVICE_CIDR: &str = "clusterip-old";
/// The ServiceCIDR that covers the new ranges until the default one does.
pub const NEW_SERVICE_CIDR: &str = "clusterip-new";
/// The ServiceCIDR that the API server creates from its flag.
pub const DEFAULT_SERVICE_CIDR: &str = "kubernetes";
/// The label of aliases. The control plane copies it to the EndpointSlices that it lists for them.
pub const ALIAS_LABEL: &str = "clusterip-policy/alias";
/// The label of EndpointSlices with the program that writes them, and its value on the copies.
pub const SLICE_WRITER_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
pub const SLICE_WRITER: &str = "clusterip-policy.io";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Services get addresses of the new ranges.
    Moving,
    /// The API servers are restarted.
    Moved,
    /// `default/kubernetes` and the DNS Service get addresses of the new ranges, and aliases hold the old ones.
    Switching,
    /// Pods and kubelets that know old addresses are restarted.
    Switched,
    /// The aliases and the old ranges are removed.
    Finishing,
    /// Services get addresses of the old ranges back.
    RollingBack,
}

impl Phase {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Moving => "moving",
            Self::Moved => "moved",
            Self::Switching => "switching",
            Self::Switched => "switched",
            Self::Finishing => "finishing",
            Self::RollingBack => "rolling back",
        }
    }

    /// What is done next.
    pub fn next(self) -> &'static str {
        match self {
            Self::Moving => "clusterip renumber begin",
            Self::Moved => "restart the API servers with the new range, then clusterip renumber switch",
            Self::Switching => "clusterip renumber switch",
            Self::Switched => "restart kubelets and Pods, then clusterip renumber finish",
            Self::Finishing => "clusterip renumber finish",
            Self::RollingBack => "clusterip renumber rollback",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub change: Change,
    /// The ranges of the API server's flag before the change, the primary one first.
    pub ranges: Vec<IpNet>,
    pub phase: Phase,
    /// Whether a command carries out steps. If one was killed, its last requests may still arrive.
    #[serde(default)]
    pub is_running: bool,
    /// The longest time that a request of this command takes, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_seconds: Option<u64>,
    /// The addresses that `default/kubernetes` and DNS will get: no other Service may take them.
    #[serde(default)]
    pub new_addresses: Vec<IpAddr>,
    /// The swaps, which are known from the phase [`Phase::Switching`] on.
    #[serde(default)]
    pub swaps: Vec<Swap>,
    /// When the switch ended, in seconds since 1970. Pods that are older know old addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switched_at: Option<i64>,
    /// When all kubelets were first seen to give Pods the new DNS address. Pods that are older may know the old one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelets_at: Option<i64>,
}

impl Record {
    /// Reads a record. A command carries out its swaps with the permissions of an administrator, so it is an error if they
    /// could write anything else than the swaps of `default/kubernetes` and of Services in `kube-system`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let record: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match record.swaps.iter().find(|swap| !swap.is_as_begun()) {
            None => Ok(record),
            Some(Swap { namespace, name, .. }) => {
                Err(format!("no command has recorded the swap of Service {namespace}/{name} like this"))
            }
        }
    }

    pub fn new(change: Change, ranges: Vec<IpNet>) -> Self {
        let (new_addresses, swaps) = (Vec::new(), Vec::new());
        let (phase, is_running, request_seconds) = (Phase::Moving, false, None);
        let (switched_at, kubelets_at) = (None, None);
        Self { change, ranges, phase, is_running, request_seconds, new_addresses, swaps, switched_at, kubelets_at }
    }

    /// The ranges of the API server's flag after the change.
    pub fn new_ranges(&self) -> Vec<IpNet> {
        self.change.applied(&self.ranges)
    }

    /// The ranges whose addresses users must not take.
    pub fn kept_ranges(&self) -> Vec<IpNet> {
        let old = self.change.0.iter().map(|pair| pair.from);
        // The Services that move back leave these.
        let left = self.change.0.iter().map(|pair| pair.to).filter(|_| self.phase == Phase::RollingBack);
        old.chain(left).chain(self.new_addresses.iter().copied().map(IpNet::from)).collect()
    }
}

/// A Service that is deleted and created again with new addresses, and the alias that takes its old ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Swap {
    pub namespace: String,
    pub name: String,
    pub old: Vec<IpAddr>,
    pub new: Vec<IpAddr>,
    /// The Service with its new addresses, and the alias, as they are created.
    pub service: Value,
    pub alias: Value,
}

impl Swap {
    /// The swap of a Service as it is stored; `None` if it has no address that changes. An error if it can't be created
    /// again as it is.
    pub fn of(service: &Value, change: &Change) -> Result<Option<Self>, String> {
        let old = clusterip_core::service::addresses(service);
        if !old.iter().any(|address| change.is_old(*address)) {
            return Ok(None);
        }
        let text = |path: &str| service.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        let has = |path: &str| service.pointer(path).and_then(Value::as_array).is_some_and(|all| !all.is_empty());
        if has("/metadata/finalizers") {
            return Err(format!("Service {namespace}/{name} has a finalizer, which delays its deletion: remove it"));
        }
        if !matches!(text("/spec/type").as_str(), "" | "ClusterIP") {
            return Err(format!("Service {namespace}/{name} is not of type ClusterIP: change its type"));
        }
        let new = old.iter().map(|address| change.address(*address));
        let new = new.collect::<Option<Vec<IpAddr>>>();
        let new = new.ok_or_else(|| format!("the new range has no address for Service {namespace}/{name}"))?;
        let changed: Vec<IpAddr> = old.iter().copied().filter(|address| change.is_old(*address)).collect();
        let alias = alias(&namespace, &name, service, &changed);
        let created = created(service, &new);
        Ok(Some(Self { namespace, name, old: changed, new, service: created, alias }))
    }

    /// Whether the swap is one that [`Swap::of`] can have returned for `default/kubernetes` or a Service in
    /// `kube-system`, as far as it reaches beyond the Service itself.
    fn is_as_begun(&self) -> bool {
        let is_swapped = self.namespace == "kube-system"
            || (self.namespace.as_str(), self.name.as_str()) == ("default", "kubernetes");
        let is_of_swap = |object: &Value, name: &str, at: &[IpAddr]| {
            let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
            let is_empty = |path: &str| {
                let found = object.pointer(path);
                found.is_none_or(|found| found.is_null() || found.as_array().is_some_and(Vec::is_empty))
            };
            (text("/metadata/namespace"), text("/metadata/name")) == (self.namespace.as_str(), name)
                && matches!(text("/spec/type"), "" | "ClusterIP")
                && is_empty("/spec/externalIPs")
                && is_empty("/metadata/finalizers")
                && clusterip_core::service::addresses(object) == at
        };
        is_swapped
            && is_of_swap(&self.service, &self.name, &self.new)
            && is_of_swap(&self.alias, &self.alias_name(), &self.old)
    }

    pub fn alias_name(&self) -> String {
        alias_name(&self.name)
    }

    /// Whether the control plane lists the endpoints of the alias: it has a selector. Otherwise they are copied.
    pub fn has_selector(&self) -> bool {
        self.alias.pointer("/spec/selector").and_then(Value::as_object).is_some_and(|selector| !selector.is_empty())
    }

    /// The EndpointSlices of the alias that have the endpoints of those of the Service, in the families of the alias.
    pub fn copies(&self, slices: &[Value]) -> Vec<Value> {
        let is_of_alias = |slice: &&Value| {
            let family = slice.get("addressType").and_then(Value::as_str).and_then(Family::parse);
            self.old.iter().any(|address| Some(Family::of(*address)) == family)
        };
        slices.iter().filter(is_of_alias).map(|slice| self.copied(slice)).collect()
    }

    fn copied(&self, slice: &Value) -> Value {
        let name = slice.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let alias = self.alias_name();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("clusterip-copy-{name}"), "namespace": self.namespace,
                "labels": {
                    "kubernetes.io/service-name": alias, ALIAS_LABEL: self.name,
                    SLICE_WRITER_LABEL: SLICE_WRITER,
                },
            },
            "addressType": slice.get("addressType"), "endpoints": slice.get("endpoints"), "ports": slice.get("ports"),
        })
    }
}

pub fn alias_name(service: &str) -> String {
    format!("clusterip-alias-{service}")
}

/// The Service that is created in place of the deleted one, with these addresses.
fn created(service: &Value, addresses: &[IpAddr]) -> Value {
    let part = |path: &str| service.pointer(path).cloned();
    let mut metadata = Map::new();
    for field in ["name", "namespace", "labels", "annotations", "ownerReferences"] {
        metadata.extend(part(&format!("/metadata/{field}")).map(|value| (field.to_owned(), value)));
    }
    let mut spec = part("/spec").unwrap_or_else(|| json!({}));
    spec["clusterIP"] = json!(addresses.first());
    spec["clusterIPs"] = json!(addresses);
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
}

fn alias(namespace: &str, name: &str, service: &Value, addresses: &[IpAddr]) -> Value {
    let families: Vec<&str> = addresses.iter().map(|it| if it.is_ipv4() { "IPv4" } else { "IPv6" }).collect();
    let policy = if addresses.len() > 1 { "RequireDualStack" } else { "SingleStack" };
    let mut spec = json!({
        "type": "ClusterIP", "clusterIP": addresses.first(), "clusterIPs": addresses,
        "ipFamilies": families, "ipFamilyPolicy": policy,
    });
    for field in ["ports", "selector", "sessionAffinity", "sessionAffinityConfig", "internalTrafficPolicy"] {
        if let Some(value) = service.get("spec").and_then(|spec| spec.get(field)) {
            spec[field] = value.clone();
        }
    }
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": alias_name(name), "namespace": namespace,
            "labels": {ALIAS_LABEL: name, "app.kubernetes.io/managed-by": MANAGED_BY},
        },
        "spec": spec,
    })
}

/// The Service whose creation makes kube-proxy wait until a swap is complete. It has no endpoints.
pub fn trigger(server_namespace: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": Role::Trigger.name(RECORD), "namespace": server_namespace,
            "labels": {TEMPORARY_LABEL: Role::Trigger.as_str(), "app.kubernetes.io/managed-by": MANAGED_BY},
        },
        "spec": {"ports": [{"port": 80}]},
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn change(pairs: &[(&str, &str)]) -> Change {
        let nets = |at: fn(&(&str, &str)) -> String| -> Vec<IpNet> {
            pairs.iter().map(|pair| at(pair).parse().unwrap()).collect()
        };
        Change::new(&nets(|pair| pair.0.to_owned()), &nets(|pair| pair.1.to_owned())).unwrap()
    }

    fn dns() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": "kube-dns", "namespace": "kube-system", "uid": "u", "resourceVersion": "7",
                "labels": {"k8s-app": "kube-dns"}, "annotations": {"a": "b"},
            },
            "spec": {
                "type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00::a"],
                "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack", "sessionAffinity": "None",
                "selector": {"k8s-app": "kube-dns"}, "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}],
            },
            "status": {"loadBalancer": {}},
        })
    }

    #[test]
    fn service_is_created_with_new_addresses_and_its_alias_with_the_ones_that_change() {
        let swap = Swap::of(&dns(), &change(&[("10.96.0.0/16", "10.100.0.0/16")])).unwrap().unwrap();
        let mut service = dns();
        service["metadata"]
            .as_object_mut()
            .unwrap()
            .retain(|field, _| !matches!(field.as_str(), "uid" | "resourceVersion"));
        service.as_object_mut().unwrap().remove("status");
        service["spec"]["clusterIP"] = json!("10.100.0.10");
        service["spec"]["clusterIPs"] = json!(["10.100.0.10", "fd00::a"]);
        let alias = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": "clusterip-alias-kube-dns", "namespace": "kube-system",
                "labels": {"clusterip-policy/alias": "kube-dns", "app.kubernetes.io/managed-by": "clusterip"},
            },
            "spec": {
                "type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None", "selector": {"k8s-app": "kube-dns"},
                "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}],
            },
        });
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let expected = Swap {
            namespace: "kube-system".to_owned(),
            name: "kube-dns".to_owned(),
            old: vec![address("10.96.0.10")],
            new: vec![address("10.100.0.10"), address("fd00::a")],
            service,
            alias,
        };
        assert_eq!(swap, expected);
        assert!(swap.has_selector());
        let slice = |name: &str, family: &str| json!({"metadata": {"name": name}, "addressType": family});
        let copies = swap.copies(&[slice("kube-dns-a", "IPv4"), slice("kube-dns-b", "IPv6")]);
        let names: Vec<&Value> = copies.iter().map(|copy| &copy["metadata"]["name"]).collect();
        assert_eq!(names, ["clusterip-copy-kube-dns-a"]);
        // A record is read as it was written.
        let mut record = Record::new(change(&[("10.96.0.0/16", "10.100.0.0/16")]), Vec::new());
        record.swaps = vec![swap];
        assert_eq!(Record::parse(&serde_json::to_string(&record).unwrap()), Ok(record));
    }

    #[test]
    fn record_whose_swaps_write_other_objects_is_refused() {
        struct Case {
            name: &'static str,
            path: &'static str,
            value: Value,
        }
        let case = |name, path, value| Case { name, path, value };
        let cases = [
            case("another namespace", "/namespace", json!("shop")),
            case("another Service in default", "/namespace", json!("default")),
            case("another name", "/name", json!("metrics")),
            case("a Service in another namespace", "/service/metadata/namespace", json!("shop")),
            case("a Service with another name", "/service/metadata/name", json!("web")),
            case("a Service with another address", "/service/spec/clusterIPs", json!(["10.100.0.77"])),
            case("a Service with node ports", "/service/spec/type", json!("NodePort")),
            case("a Service with external addresses", "/service/spec/externalIPs", json!(["192.0.2.1"])),
            case("a Service with a finalizer", "/service/metadata/finalizers", json!(["example.com/stay"])),
            case("an alias in another namespace", "/alias/metadata/namespace", json!("shop")),
            case("an alias with another name", "/alias/metadata/name", json!("web")),
            case("an alias with another address", "/alias/spec/clusterIPs", json!(["10.96.0.77"])),
            case("an alias with external addresses", "/alias/spec/externalIPs", json!(["192.0.2.1"])),
            case("a load balancer as alias", "/alias/spec/type", json!("LoadBalancer")),
        ];
        let change = change(&[("10.96.0.0/16", "10.100.0.0/16")]);
        let swap = Swap::of(&dns(), &change).unwrap().unwrap();
        let record = Record { swaps: vec![swap], ..Record::new(change, Vec::new()) };
        for Case { name, path, value } in cases {
            let mut changed = json!(record);
            let (parent, field) = path.rsplit_once('/').unwrap();
            changed["swaps"][0].pointer_mut(parent).unwrap()[field] = value;
            let swap = &changed["swaps"][0];
            let service = format!("{}/{}", swap["namespace"].as_str().unwrap(), swap["name"].as_str().unwrap());
            let expected = format!("no command has recorded the swap of Service {service} like this");
            assert_eq!(Record::parse(&changed.to_string()), Err(expected), "{name}");
        }
    }

    #[test]
    fn users_are_kept_from_old_ranges_from_new_addresses_and_in_a_rollback_from_new_ranges() {
        let mut record = Record::new(change(&[("10.96.0.0/16", "10.100.0.0/16")]), Vec::new());
        record.new_addresses = vec!["10.100.0.1".parse().unwrap(), "fd00::a".parse().unwrap()];
        let kept = |phase| {
            let record = Record { phase, ..record.clone() };
            record.kept_ranges().iter().map(IpNet::to_string).collect::<Vec<_>>()
        };
        assert_eq!(kept(Phase::Moving), ["10.96.0.0/16", "10.100.0.1/32", "fd00::a/128"]);
        assert_eq!(kept(Phase::RollingBack), ["10.96.0.0/16", "10.100.0.0/16", "10.100.0.1/32", "fd00::a/128"]);
    }

    #[test]
    fn service_that_can_not_be_created_again_as_it_is_is_refused() {
        struct Case {
            name: &'static str,
            path: &'static str,
            value: Value,
            expected: &'static str,
        }
        let case = |name, path, value, expected| Case { name, path, value, expected };
        let cases = [
            case(
                "a finalizer",
                "/metadata",
                json!({"namespace": "a", "name": "b", "finalizers": ["c"]}),
                "Service a/b has a finalizer, which delays its deletion: remove it",
            ),
            case(
                "node ports",
                "/spec/type",
                json!("NodePort"),
                "Service kube-system/kube-dns is not of type ClusterIP: change its type",
            ),
            case(
                "an address too far",
                "/spec/clusterIPs",
                json!(["10.96.9.10"]),
                "the new range has no address for Service kube-system/kube-dns",
            ),
        ];
        for Case { name, path, value, expected } in cases {
            let mut service = dns();
            *service.pointer_mut(path).unwrap() = value;
            let swap = Swap::of(&service, &change(&[("10.96.0.0/16", "10.100.0.0/24")]));
            assert_eq!(swap, Err(expected.to_owned()), "{name}");
        }
        assert_eq!(Swap::of(&dns(), &change(&[("10.9.0.0/16", "10.100.0.0/24")])), Ok(None), "another range");
    }
}
