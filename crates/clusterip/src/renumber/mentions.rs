//! Which objects name addresses of the old ranges.

use clusterip_cluster::object::{self, items};
use clusterip_moves::renumbering::change::Change;
use clusterip_moves::renumbering::record::RECORD;
use serde_json::Value;

use super::findings::{Before, Finding};
use super::objects::{Kind, named};

/// A kind, and the parts of its objects in which addresses are searched.
pub struct Place {
    pub kind: Kind,
    /// The only namespace whose objects are searched; `None` for all.
    pub namespace: Option<&'static str>,
    parts: &'static [&'static str],
}

const fn place(kind: Kind, namespace: Option<&'static str>, parts: &'static [&'static str]) -> Place {
    Place { kind, namespace, parts }
}

const ANNOTATIONS: &str = "/metadata/annotations";

/// The Services are last: what happens to one depends on its endpoints, and on what calls it.
pub const PLACES: [Place; 12] = [
    place(("v1", "Pod"), None, &["/spec", ANNOTATIONS]),
    place(("v1", "ConfigMap"), Some("kube-system"), &["/data"]),
    place(("v1", "Node"), None, &[ANNOTATIONS]),
    place(("v1", "Namespace"), None, &[ANNOTATIONS]),
    place(("discovery.k8s.io/v1", "EndpointSlice"), None, &["/endpoints"]),
    place(("networking.k8s.io/v1", "NetworkPolicy"), None, &["/spec"]),
    place(("networking.k8s.io/v1", "Ingress"), None, &[ANNOTATIONS]),
    place(("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"), None, &["/webhooks"]),
    place(("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"), None, &["/webhooks"]),
    place(("apiextensions.k8s.io/v1", "CustomResourceDefinition"), None, &["/spec/conversion"]),
    place(("apiregistration.k8s.io/v1", "APIService"), None, &[]),
    place(("v1", "Service"), None, &[ANNOTATIONS, "/spec/externalName"]),
];

const STEPS: &str = "change it with the steps of the administrator";

/// The manifest that `kubectl apply` notes. The Service itself tells that its address was set by hand.
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

impl Place {
    /// The first address of an old range in an object of this kind. A Pod is named by its owner, whose other Pods name
    /// the same address.
    pub fn mention(&self, object: &Value, change: &Change) -> Option<Finding> {
        let (kind, namespace, name) = (self.kind.1, object::namespace(object), object::name(object));
        let configuration = if (kind, namespace) == ("ConfigMap", "kube-system") { name } else { "" };
        let old_in: OldIn = match configuration {
            // It belongs to the renumbering.
            RECORD => return None,
            // The steps of the administrator add the old address to the names of certificates.
            "kubeadm-config" => old_range_in,
            _ => Change::old_in,
        };
        let (path, text) = self.parts.iter().find_map(|part| {
            let (path, text) = first(object.pointer(part)?, change, old_in)?;
            Some((format!("{}{path}", part.trim_start_matches('/').replace('/', ".")), text))
        })?;
        let is_control_plane = (kind, namespace) == ("Pod", "kube-system")
            && ["kube-apiserver-", "kube-controller-manager-"].iter().any(|it| name.starts_with(it));
        let (before, remedy) = match configuration {
            "kubeadm-config" => (Before::Switch, STEPS),
            // Kubelets that join before the switch need the old address.
            "kubelet-config" => (Before::Finish, STEPS),
            _ if is_control_plane => (Before::Switch, STEPS),
            _ => (Before::Finish, "change it to the new address, or to the name of the Service"),
        };
        let owner = owner(object).filter(|_| kind == "Pod" && !is_control_plane);
        let (kind, name) = owner.unwrap_or((kind, name));
        let (object, message) = (named(kind, namespace, name), format!("{path} names {text}"));
        Some(Finding { before, kind: "address", object, message, remedy: remedy.to_owned() })
    }
}

/// The kind and the name of the controller of a Pod.
pub fn owner(object: &Value) -> Option<(&str, &str)> {
    let mut owners = items(object, "/metadata/ownerReferences");
    let controller = owners.find(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true))?;
    Some((controller.get("kind")?.as_str()?, controller.get("name")?.as_str()?))
}

/// Finds the first address or range in a text that belongs to an old range.
type OldIn = for<'t> fn(&Change, &'t str) -> Option<&'t str>;

/// The first range in a text that belongs to an old range.
fn old_range_in<'t>(change: &Change, text: &'t str) -> Option<&'t str> {
    text.split([' ', '\n', ',']).filter(|word| word.contains('/')).find_map(|range| change.old_in(range))
}

/// The path of the first text that names an address of an old range, and the address. A value has at most the depth
/// that requests allow.
fn first<'v>(value: &'v Value, change: &Change, old_in: OldIn) -> Option<(String, &'v str)> {
    match value {
        Value::String(text) => Some((String::new(), old_in(change, text)?)),
        Value::Array(items) => items.iter().enumerate().find_map(|(at, item)| {
            let (path, text) = first(item, change, old_in)?;
            Some((format!("[{at}]{path}"), text))
        }),
        Value::Object(fields) => fields.iter().filter(|(name, _)| *name != APPLIED).find_map(|(name, field)| {
            let (path, text) = first(field, change, old_in)?;
            Some((format!(".{name}{path}"), text))
        }),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_with_old_addresses_are_found() {
        let ranges = |range: &str| [range.parse().unwrap()];
        let change = Change::new(&ranges("10.96.0.0/16"), &ranges("10.100.0.0/16")).unwrap();
        struct Case {
            kind: &'static str,
            object: Value,
            expected: Option<(&'static str, &'static str, Before)>,
        }
        let metadata = |namespace: &str, name: &str| json!({"namespace": namespace, "name": name});
        let mut owned = metadata("shop", "web-x7k2p");
        owned["ownerReferences"] = json!([{"kind": "ReplicaSet", "name": "web", "controller": true}]);
        let env = json!({"containers": [{"env": [{"name": "A"}, {"name": "DB", "value": "tcp://10.96.7.7:5432"}]}]});
        let arguments = json!({"containers": [{"command": ["--service-cluster-ip-range=10.96.0.0/16"]}]});
        let names = "apiServer:\n  certSANs:\n  - 10.96.0.1\n  - 10.100.0.1\nnetworking:\n";
        let mut annotated = metadata("shop", "web");
        annotated["annotations"] = json!({APPLIED: "10.96.0.9"});
        let case = |kind, object, expected| Case { kind, object, expected };
        let cases = [
            case(
                "Pod",
                json!({"metadata": owned, "spec": env}),
                Some(("ReplicaSet shop/web", "spec.containers[0].env[1].value names 10.96.7.7:5432", Before::Finish)),
            ),
            case(
                "Pod",
                json!({"metadata": metadata("kube-system", "kube-apiserver-a"), "spec": arguments}),
                Some((
                    "Pod kube-system/kube-apiserver-a",
                    "spec.containers[0].command[0] names 10.96.0.0/16",
                    Before::Switch,
                )),
            ),
            case("Pod", json!({"metadata": owned, "status": {"podIP": "10.96.0.9"}}), None),
            case(
                "ConfigMap",
                json!({"metadata": metadata("kube-system", "coredns"), "data": {"Corefile": "forward . 10.96.0.10\n"}}),
                Some(("ConfigMap kube-system/coredns", "data.Corefile names 10.96.0.10", Before::Finish)),
            ),
            case(
                "ConfigMap",
                json!({"metadata": metadata("kube-system", "kubelet-config"), "data": {"kubelet": "clusterDNS:\n- 10.96.0.10"}}),
                Some(("ConfigMap kube-system/kubelet-config", "data.kubelet names 10.96.0.10", Before::Finish)),
            ),
            case(
                "ConfigMap",
                json!({"metadata": metadata("kube-system", "kubeadm-config"),
                    "data": {"ClusterConfiguration": format!("{names}  serviceSubnet: fd00::/112,10.96.0.0/16\n")}}),
                Some((
                    "ConfigMap kube-system/kubeadm-config",
                    "data.ClusterConfiguration names 10.96.0.0/16",
                    Before::Switch,
                )),
            ),
            case(
                "ConfigMap",
                json!({"metadata": metadata("kube-system", "kubeadm-config"),
                    "data": {"ClusterConfiguration": format!("{names}  serviceSubnet: 10.100.0.0/16\n")}}),
                None,
            ),
            case(
                "ConfigMap",
                json!({"metadata": metadata("kube-system", "clusterip-renumbering"),
                    "data": {"oldRanges": "10.96.0.0/16"}}),
                None,
            ),
            case("Service", json!({"metadata": annotated, "spec": {"clusterIP": "10.96.0.9"}}), None),
        ];
        for Case { kind, object, expected } in cases {
            let place = PLACES.iter().find(|place| place.kind.1 == kind).unwrap();
            let found = place.mention(&object, &change);
            let found = found.as_ref().map(|it| (it.object.as_str(), it.message.as_str(), it.before));
            assert_eq!(found, expected, "{object}");
        }
    }
}
