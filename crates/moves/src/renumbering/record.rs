//! The record of a renumbering.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::change::Change;
use super::observed::Held;
use crate::seamless::COPIED;
use crate::step;
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
            Self::Switched => "change the kubelets, then clusterip renumber finish, which lists the Pods to restart",
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
    /// The addresses of `default/kubernetes` and DNS after the change: no other Service may take them.
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
        match record.swaps.iter().find(|swap| !swap.may_be_recorded(&record.change)) {
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

/// Which addresses of a swap an alias holds: the old ones from the switch to the end of the renumbering, or the new ones
/// until the Service gets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    Old,
    New,
}

impl Side {
    pub const ALL: [Self; 2] = [Self::Old, Self::New];

    pub fn held(self) -> Held {
        match self {
            Self::Old => Held::Old,
            Self::New => Held::New,
        }
    }

    /// A name for this side of a swap.
    fn name(self, prefix: &str, of: &str) -> String {
        match self {
            Self::Old => format!("{prefix}-{of}"),
            Self::New => format!("{prefix}-new-{of}"),
        }
    }
}

/// The change of the addresses of `default/kubernetes` or of the DNS Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Swap {
    pub namespace: String,
    pub name: String,
    /// The addresses that change, as they were.
    pub old: Vec<IpAddr>,
    /// All addresses of the Service after the change.
    pub new: Vec<IpAddr>,
    /// Fields of the spec that an ExternalName Service does not have. Records of older versions lack them.
    #[serde(default)]
    pub ip_family_policy: String,
    #[serde(default)]
    pub internal_traffic_policy: String,
}

impl Swap {
    /// The swap of a Service as it is stored; `None` if it has no address that changes. An error if it is not of type
    /// ClusterIP.
    pub fn of(service: &Value, change: &Change) -> Result<Option<Self>, String> {
        let addresses = clusterip_core::service::addresses(service);
        let old: Vec<IpAddr> = addresses.iter().copied().filter(|address| change.is_old(*address)).collect();
        if old.is_empty() {
            return Ok(None);
        }
        let text = |path: &str| service.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        if !matches!(text("/spec/type").as_str(), "" | "ClusterIP") {
            return Err(format!("Service {namespace}/{name} is not of type ClusterIP: change its type"));
        }
        let new = addresses.iter().map(|address| change.address(*address)).collect::<Option<Vec<IpAddr>>>();
        let new = new.ok_or_else(|| format!("the new range has no address for Service {namespace}/{name}"))?;
        let (ip_family_policy, internal_traffic_policy) =
            (text("/spec/ipFamilyPolicy"), text("/spec/internalTrafficPolicy"));
        Ok(Some(Self { namespace, name, old, new, ip_family_policy, internal_traffic_policy }))
    }

    /// Whether the swap is one that [`Swap::of`] can have returned for `default/kubernetes` or a Service in
    /// `kube-system`.
    fn may_be_recorded(&self, change: &Change) -> bool {
        let is_swapped = self.namespace == "kube-system"
            || (self.namespace.as_str(), self.name.as_str()) == ("default", "kubernetes");
        let wanted = self.old.iter().map(|old| change.address(*old).filter(|_| change.is_old(*old)));
        is_swapped && wanted.eq(self.addresses(Side::New).into_iter().map(Some)) && !self.old.is_empty()
    }

    pub fn alias_name(&self, side: Side) -> String {
        side.name("clusterip-alias", &self.name)
    }

    /// The addresses of an alias: those that change.
    pub fn addresses(&self, side: Side) -> Vec<IpAddr> {
        let is_changed = |address: &IpAddr| self.old.iter().any(|old| old.is_ipv4() == address.is_ipv4());
        match side {
            Side::Old => self.old.clone(),
            Side::New => self.new.iter().copied().filter(is_changed).collect(),
        }
    }

    /// An alias that sends traffic where the Service sends it.
    pub fn alias(&self, side: Side, service: &Value) -> Value {
        let mut spec = json!({"type": "ClusterIP"});
        for field in COPIED {
            if let Some(value) = service["spec"].get(field) {
                spec[field] = value.clone();
            }
        }
        self.set_addresses(&mut spec, &self.addresses(side));
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": self.alias_name(side), "namespace": self.namespace,
                "labels": {ALIAS_LABEL: self.name, "app.kubernetes.io/managed-by": MANAGED_BY},
            },
            "spec": spec,
        })
    }

    fn set_addresses(&self, spec: &mut Value, addresses: &[IpAddr]) {
        let families = addresses.iter().map(|address| Family::of(*address).to_string());
        spec["ipFamilies"] = families.collect::<Vec<String>>().into();
        // With one address, another policy would let the API server add one of the other family.
        spec["ipFamilyPolicy"] = if addresses.len() > 1 { &*self.ip_family_policy } else { "SingleStack" }.into();
        spec["clusterIP"] = json!(addresses.first());
        spec["clusterIPs"] = json!(addresses);
    }

    /// The Service whose name points to this alias; `None` if this is not its next change. See [`Request::PointTo`].
    ///
    /// [`Request::PointTo`]: super::step::Request::PointTo
    pub fn pointing_to(&self, service: &Value, side: Side, cluster_domain: &str) -> Option<Value> {
        let kept = self.new.first().filter(|first| !self.addresses(Side::New).contains(first));
        let mut changed = step::bare(service);
        let spec = &mut changed["spec"];
        match (self.held(service), side, kept) {
            (Held::Old, Side::New, Some(first)) => self.set_addresses(spec, &[*first]),
            (Held::Old, Side::New, None) | (Held::Released, Side::Old, None) => {
                let name = format!("{}.{}.svc.{cluster_domain}", self.alias_name(side), self.namespace);
                spec["type"] = "ExternalName".into();
                spec["externalName"] = name.into();
            }
            _ => return None,
        }
        Some(changed).filter(|changed| changed["spec"] != service["spec"])
    }

    /// The Service with its new addresses; `None` if it has not released those that change.
    pub fn with_new_addresses(&self, service: &Value) -> Option<Value> {
        let mut changed = step::bare(service);
        let spec = &mut changed["spec"];
        spec["type"] = "ClusterIP".into();
        spec["externalName"] = Value::Null;
        if !self.internal_traffic_policy.is_empty() {
            spec["internalTrafficPolicy"] = self.internal_traffic_policy.as_str().into();
        }
        self.set_addresses(spec, &self.new);
        Some(changed).filter(|_| self.held(service) == Held::Released)
    }

    /// What the stored Service holds.
    pub fn held(&self, service: &Value) -> Held {
        let at = clusterip_core::service::addresses(service);
        let target = step::text(service, "externalName").and_then(|name| name.split('.').next());
        let is_alias = |name: &str| Side::ALL.iter().any(|side| name == self.alias_name(*side));
        let changes = self.addresses(Side::New);
        let is_released = match step::text(service, "type") {
            Some("ExternalName") => target.is_some_and(is_alias),
            _ => !at.is_empty() && self.new.iter().filter(|address| !changes.contains(address)).eq(&at),
        };
        match () {
            () if at == self.new => Held::New,
            () if at.iter().any(|address| self.old.contains(address)) => Held::Old,
            () if is_released => Held::Released,
            () => Held::Other,
        }
    }

    /// The EndpointSlices of the aliases with the endpoints of those of the Service, in the families that change.
    pub fn copies(&self, service: Held, slices: &[Value]) -> Vec<Value> {
        // The alias with the new addresses is deleted before the Service takes them.
        let sides: &[Side] = if service == Held::New { &[Side::Old] } else { &Side::ALL };
        let changes = |slice: &&Value| {
            let family = slice.get("addressType").and_then(Value::as_str).and_then(Family::parse);
            self.old.iter().any(|address| Some(Family::of(*address)) == family)
        };
        let changed: Vec<&Value> = slices.iter().filter(changes).collect();
        sides.iter().flat_map(|side| changed.iter().map(|slice| self.copied(*side, slice))).collect()
    }

    fn copied(&self, side: Side, slice: &Value) -> Value {
        let name = slice.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": side.name("clusterip-copy", name), "namespace": self.namespace,
                "labels": {
                    "kubernetes.io/service-name": self.alias_name(side), ALIAS_LABEL: self.name,
                    SLICE_WRITER_LABEL: SLICE_WRITER,
                },
            },
            "addressType": slice.get("addressType"), "endpoints": slice.get("endpoints"), "ports": slice.get("ports"),
        })
    }
}

/// The Service whose creation makes kube-proxy wait, so that it programs a swap in one transaction. It has no endpoints.
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
                "internalTrafficPolicy": "Local", "selector": {"k8s-app": "kube-dns"},
                "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}],
            },
            "status": {"loadBalancer": {}},
        })
    }

    fn swap(service: &Value, to: &[(&str, &str)]) -> Swap {
        Swap::of(service, &change(to)).unwrap().unwrap()
    }

    const FIRST: (&str, &str) = ("10.96.0.0/16", "10.100.0.0/16");
    const SECOND: (&str, &str) = ("fd00::/112", "fd00:100::/112");

    #[test]
    fn alias_has_the_addresses_that_change() {
        let swap = swap(&dns(), &[FIRST]);
        let alias = |name: &str, address: &str| {
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {
                    "name": name, "namespace": "kube-system",
                    "labels": {"clusterip-policy/alias": "kube-dns", "app.kubernetes.io/managed-by": "clusterip"},
                },
                "spec": {
                    "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
                    "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None", "selector": {"k8s-app": "kube-dns"},
                    "internalTrafficPolicy": "Local", "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}],
                },
            })
        };
        assert_eq!(swap.alias(Side::Old, &dns()), alias("clusterip-alias-kube-dns", "10.96.0.10"));
        assert_eq!(swap.alias(Side::New, &dns()), alias("clusterip-alias-new-kube-dns", "10.100.0.10"));
        let slice = |name: &str, family: &str| json!({"metadata": {"name": name}, "addressType": family});
        let slices = [slice("kube-dns-a", "IPv4"), slice("kube-dns-b", "IPv6")];
        let names = |held| -> Vec<String> {
            let copies = swap.copies(held, &slices).into_iter();
            copies.map(|copy| copy["metadata"]["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(Held::Old), ["clusterip-copy-kube-dns-a", "clusterip-copy-new-kube-dns-a"]);
        assert_eq!(names(Held::New), ["clusterip-copy-kube-dns-a"]);
    }

    #[test]
    fn record_is_read_as_it_was_written() {
        let swaps = vec![swap(&dns(), &[FIRST])];
        let record = Record { swaps, ..Record::new(change(&[FIRST]), Vec::new()) };
        assert_eq!(Record::parse(&serde_json::to_string(&record).unwrap()), Ok(record.clone()));
        // An older version has begun the renumbering.
        let mut older = json!(record);
        let swap = older["swaps"][0].as_object_mut().unwrap();
        swap.retain(|field, _| !matches!(field.as_str(), "ipFamilyPolicy" | "internalTrafficPolicy"));
        swap.insert("alias".to_owned(), json!({}));
        assert!(Record::parse(&older.to_string()).is_ok());
    }

    #[test]
    fn service_points_to_its_aliases_and_then_takes_its_new_addresses() {
        struct Case {
            name: &'static str,
            to: &'static [(&'static str, &'static str)],
            /// What changes in the spec when the Service points to the first, and to the second alias.
            changes: [Option<Value>; 2],
            new: [&'static str; 2],
        }
        let points_to = |alias: &str| {
            Some(json!({"type": "ExternalName", "externalName": format!("{alias}.kube-system.svc.cluster.local")}))
        };
        let named = || [points_to("clusterip-alias-new-kube-dns"), points_to("clusterip-alias-kube-dns")];
        let first = json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"], "clusterIPs": ["10.96.0.10"]});
        let cases = [
            Case { name: "the first", to: &[FIRST], changes: named(), new: ["10.100.0.10", "fd00::a"] },
            Case { name: "both", to: &[FIRST, SECOND], changes: named(), new: ["10.100.0.10", "fd00:100::a"] },
            Case {
                name: "the second",
                to: &[SECOND],
                changes: [Some(first), None],
                new: ["10.96.0.10", "fd00:100::a"],
            },
        ];
        for Case { name, to, changes, new } in cases {
            let swap = swap(&dns(), to);
            let pointing = |service: &Value, side| swap.pointing_to(service, side, "cluster.local");
            assert_eq!(swap.held(&dns()), Held::Old, "{name}");
            assert_eq!([pointing(&dns(), Side::Old), swap.with_new_addresses(&dns())], [None, None], "{name}");
            let mut service = dns();
            for (side, change) in [Side::New, Side::Old].into_iter().zip(changes) {
                let expected = change.map(|change| {
                    let mut expected = service.clone();
                    json_patch::merge(&mut expected["spec"], &change);
                    expected
                });
                let changed = pointing(&service, side);
                assert_eq!(changed, expected, "{name}");
                service = changed.unwrap_or(service);
                // The API server removes these fields of an ExternalName Service.
                if service["spec"]["type"] == "ExternalName" {
                    let lost = json!({"clusterIP": null, "clusterIPs": null, "internalTrafficPolicy": null});
                    json_patch::merge(&mut service["spec"], &lost);
                }
                assert_eq!((swap.held(&service), pointing(&service, side)), (Held::Released, None), "{name}");
            }
            let mut expected = dns();
            let addresses = json!({"clusterIP": new[0], "clusterIPs": new, "externalName": null});
            expected["spec"].as_object_mut().unwrap().extend(addresses.as_object().unwrap().clone());
            let finished = swap.with_new_addresses(&service).unwrap();
            assert_eq!((&finished, swap.held(&finished)), (&expected, Held::New), "{name}");
            let nothing = [swap.with_new_addresses(&finished), pointing(&finished, Side::New)];
            assert_eq!(nothing, [None, None], "{name}");
            for other in [json!({"type": "ExternalName", "externalName": "example.com"}), json!({"clusterIP": "None"})]
            {
                service["spec"] = other;
                assert_eq!(swap.held(&service), Held::Other, "{name}");
            }
        }
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
            case("an address of another range", "/old", json!(["10.97.0.10"])),
            case("another new address", "/new", json!(["10.100.0.77", "fd00::a"])),
            case("an address of another range beside it", "/old", json!(["10.96.0.10", "10.97.0.99"])),
            case("no address that changes", "/old", json!([])),
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
    fn service_that_can_not_be_swapped_is_refused() {
        struct Case {
            name: &'static str,
            path: &'static str,
            value: Value,
            expected: &'static str,
        }
        let case = |name, path, value, expected| Case { name, path, value, expected };
        let cases = [
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
