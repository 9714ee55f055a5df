//! What is kept of a watched object: the fields that the policy reads, the controller, or the rule that
//! says whose an address is.

use std::collections::BTreeMap;

use clusterip_core::annotations::{
    ASKED_ANNOTATION, FOREIGN_ANNOTATIONS, MOVE_ANNOTATION, MOVING_ANNOTATION, NODE_SELECTOR_ANNOTATION, OS_ANNOTATION,
    POOL_ANNOTATION, RECORD_ANNOTATION, shortened,
};
use serde_json::{Map, Value};

use super::bounds;
use super::kinds::{Kind, own_name};
use super::masked::Mask;
use super::snapshot::SERVICE_NAME_LABEL;
use super::watched::Watched;
use crate::controller::ownership::of_address;

/// Keeps of each object of a kind the fields that somebody reads.
pub struct Keeper {
    kind: Kind,
    mask: Mask,
}

impl Keeper {
    /// Keeps objects of `kind`.
    pub fn new(kind: &Kind) -> Self {
        const SERVICE: [&str; 13] = [
            "spec.clusterIP",
            "spec.clusterIPs",
            "spec.externalIPs",
            "spec.externalName",
            "spec.ipFamilies",
            "spec.ipFamilyPolicy",
            "spec.loadBalancerClass",
            "spec.loadBalancerIP",
            "spec.ports.port",
            "spec.ports.protocol",
            "spec.selector",
            "spec.type",
            "status.loadBalancer.ingress",
        ];
        const POD_SPEC: [&str; 8] = [
            "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchExpressions.key",
            "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchExpressions.operator",
            "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchExpressions.values",
            "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchFields.key",
            "nodeName",
            "nodeSelector",
            "os.name",
            "runtimeClassName",
        ];
        let paths: Vec<String> = match own_name(kind) {
            "Service" => SERVICE.map(str::to_owned).into(),
            "ServiceCIDR" => vec!["spec.cidrs".to_owned(), "status.conditions".to_owned()],
            "RuntimeClass" => vec!["scheduling.nodeSelector".to_owned()],
            "EndpointSlice" => vec!["endpoints.conditions.ready".to_owned(), "endpoints.nodeName".to_owned()],
            "Node" => ["spec.podCIDR", "spec.podCIDRs", "status.conditions"].map(str::to_owned).into(),
            // A mask that no object has: nothing but `metadata` is kept.
            "Namespace" | "IPAddress" => vec!["-".to_owned()],
            "Pod" => POD_SPEC.map(|field| format!("spec.{field}")).into(),
            _ => {
                let job = *kind == ("batch/v1".to_owned(), "CronJob".to_owned());
                let template = if job { "spec.jobTemplate.spec.template" } else { "spec.template" };
                let fields = POD_SPEC.iter().map(|field| format!("{template}.spec.{field}"));
                fields.chain([format!("{template}.metadata.labels")]).collect()
            }
        };
        Self { kind: kind.clone(), mask: Mask::new(&paths.into_iter().collect()) }
    }

    /// The API version and kind.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// What is kept of an object. Nothing where it has no name.
    pub fn keep(&self, object: Watched) -> Option<Value> {
        let metadata = kept_metadata(&self.kind, &object)?;
        let mut fields = object.data;
        self.mask.prune(&mut fields);
        bounds::bound(&self.kind, &mut fields);
        fields.insert("apiVersion".to_owned(), self.kind.0.clone().into());
        fields.insert("kind".to_owned(), self.kind.1.clone().into());
        fields.insert("metadata".to_owned(), metadata);
        Some(Value::Object(fields))
    }
}

fn kept_metadata(kind: &Kind, object: &Watched) -> Option<Value> {
    let from = &object.metadata;
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), from.name.clone()?.into());
    if let Some(namespace) = &from.namespace {
        metadata.insert("namespace".to_owned(), namespace.clone().into());
    }
    if own_name(kind) == "IPAddress" {
        return Some(metadata.into());
    }
    let labels = kept_labels(kind, from.labels.as_ref());
    if !labels.is_empty() {
        metadata.insert("labels".to_owned(), labels.into());
    }
    let annotations = kept_annotations(kind, from.annotations.as_ref());
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), annotations.into());
    }
    if own_name(kind) == "ServiceCIDR" && from.deletion_timestamp.is_some() {
        metadata.insert("deletionTimestamp".to_owned(), true.into());
    }
    if own_name(kind) == "Service" {
        metadata.insert("uid".to_owned(), from.uid.clone().unwrap_or_default().into());
        if from.deletion_timestamp.is_some() {
            metadata.insert("deletionTimestamp".to_owned(), true.into());
        }
        if !object.managers.is_empty() {
            metadata.insert("managedFields".to_owned(), of_address(&object.managers).into());
        }
    }
    Some(metadata.into())
}

fn kept_labels(kind: &Kind, labels: Option<&BTreeMap<String, String>>) -> Map<String, Value> {
    let strings = labels.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone().into()));
    let mut labels: Map<String, Value> = match own_name(kind) {
        "Service" | "Namespace" | "Node" | "Pod" => strings.collect(),
        "EndpointSlice" => strings.filter(|(key, _)| key == SERVICE_NAME_LABEL).collect(),
        // Of workloads the labels of their Pods matter, not their own.
        _ => Map::new(),
    };
    // Administrators label Namespaces and Nodes.
    if matches!(own_name(kind), "Service" | "Pod") {
        bounds::labels(&mut labels);
    }
    labels
}

/// The annotations that a parser of the core reads, each no longer than that parser reads it.
fn kept_annotations(kind: &Kind, annotations: Option<&BTreeMap<String, String>>) -> Map<String, Value> {
    const SERVICE: [&str; 6] =
        [ASKED_ANNOTATION, MOVE_ANNOTATION, MOVING_ANNOTATION, OS_ANNOTATION, POOL_ANNOTATION, RECORD_ANNOTATION];
    const NAMESPACE: [&str; 2] = [NODE_SELECTOR_ANNOTATION, OS_ANNOTATION];
    let is_read = |key: &str| match own_name(kind) {
        "Service" => SERVICE.contains(&key) || FOREIGN_ANNOTATIONS.contains(&key),
        "Namespace" => NAMESPACE.contains(&key),
        _ => false,
    };
    let kept = annotations.into_iter().flatten().filter(|(key, _)| is_read(key));
    kept.filter_map(|(key, text)| Some((key.clone(), shortened(key, text)?.into_owned().into()))).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Everything that is kept of some kind, and more.
    fn object() -> Value {
        let pod = json!({
            "affinity": {"nodeAffinity": {"a": 1}, "podAffinity": {"b": 2}},
            "containers": [{"name": "web"}],
            "nodeName": "n",
            "nodeSelector": {"kubernetes.io/os": "windows"},
            "os": {"name": "windows"},
            "runtimeClassName": "r",
        });
        let template = json!({"metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}}, "spec": pod});
        let mut spec = json!({
            "type": "LoadBalancer",
            "externalName": "x",
            "clusterIP": "10.0.0.1",
            "clusterIPs": ["10.0.0.1"],
            "selector": {"app": "web"},
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "externalIPs": ["10.0.9.1"],
            "loadBalancerIP": "10.0.9.2",
            "loadBalancerClass": "a/b",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
            "cidrs": ["10.0.0.0/24"],
            "podCIDR": "10.1.0.0/24",
            "podCIDRs": ["10.1.0.0/24"],
            "providerID": "p",
            "template": template,
            "jobTemplate": {"spec": {"template": template}},
        });
        spec.as_object_mut().unwrap().extend(pod.as_object().unwrap().clone());
        json!({
            "metadata": {
                "name": "web",
                "namespace": "shop",
                "uid": "u",
                "deletionTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"app": "web"},
                "annotations": {
                    "clusterip-policy/os": "windows",
                    "scheduler.alpha.kubernetes.io/node-selector": "a=b",
                    "metallb.io/loadBalancerIPs": "10.0.9.3",
                    "other": "x",
                },
                "managedFields": [{"manager": "author"}],
            },
            "spec": spec,
            "scheduling": {"nodeSelector": {"a": "b"}, "tolerations": []},
            "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": true, "serving": true}, "nodeName": "n"}],
            "status": {
                "loadBalancer": {"ingress": [{"ip": "10.0.9.2", "ipMode": "VIP"}]},
                "conditions": [{"type": "Ready", "status": "True", "reason": "r"}],
            },
        })
    }

    #[test]
    fn fields_by_kind() {
        let annotations =
            json!({"clusterip-policy/os": "windows", "scheduler.alpha.kubernetes.io/node-selector": "a=b"});
        let bare = json!({"name": "web", "namespace": "shop", "annotations": annotations});
        let mut labelled = bare.clone();
        labelled["labels"] = json!({"app": "web"});
        let mut ended = bare.clone();
        ended["deletionTimestamp"] = json!(true);
        let mut service = labelled.clone();
        service["uid"] = json!("u");
        service["annotations"]["metallb.io/loadBalancerIPs"] = json!("10.0.9.3");
        service["deletionTimestamp"] = json!(true);
        service["managedFields"] = json!([{}]);
        let pod = json!({
            "affinity": {"nodeAffinity": {"a": 1}},
            "nodeName": "n",
            "nodeSelector": {"kubernetes.io/os": "windows"},
            "os": {"name": "windows"},
            "runtimeClassName": "r",
        });
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": pod});
        let rows = [
            (
                "v1",
                "Service",
                json!({"metadata": service, "spec": {
                    "type": "LoadBalancer", "externalName": "x", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
                    "selector": {"app": "web"}, "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "externalIPs": ["10.0.9.1"],
                    "loadBalancerIP": "10.0.9.2", "loadBalancerClass": "a/b", "ports": [{"port": 80, "protocol": "TCP"}],
                }, "status": {"loadBalancer": {"ingress": [{"ip": "10.0.9.2", "ipMode": "VIP"}]}}}),
            ),
            ("v1", "Namespace", json!({"metadata": labelled})),
            (
                "v1",
                "Node",
                json!({
                    "metadata": labelled, "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]},
                    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
                }),
            ),
            ("v1", "Pod", json!({"metadata": labelled, "spec": pod})),
            ("node.k8s.io/v1", "RuntimeClass", json!({"metadata": bare, "scheduling": {"nodeSelector": {"a": "b"}}})),
            ("networking.k8s.io/v1", "IPAddress", json!({"metadata": {"name": "web", "namespace": "shop"}})),
            (
                "networking.k8s.io/v1",
                "ServiceCIDR",
                json!({
                    "metadata": ended, "spec": {"cidrs": ["10.0.0.0/24"]},
                    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
                }),
            ),
            (
                "discovery.k8s.io/v1",
                "EndpointSlice",
                json!({"metadata": labelled, "endpoints": [{"conditions": {"ready": true}, "nodeName": "n"}]}),
            ),
            ("apps/v1", "Deployment", json!({"metadata": bare, "spec": {"template": template}})),
            (
                "batch/v1",
                "CronJob",
                json!({"metadata": bare, "spec": {"jobTemplate": {"spec": {"template": template}}}}),
            ),
            ("mesh.example.org/v1", "Service", json!({"metadata": bare, "spec": {"template": template}})),
        ];
        for (api_version, kind, mut expected) in rows {
            let found = serde_json::from_value(object()).unwrap();
            let found = Keeper::new(&(api_version.to_owned(), kind.to_owned())).keep(found).unwrap();
            expected["apiVersion"] = json!(api_version);
            expected["kind"] = json!(kind);
            assert_eq!(found, expected, "{api_version}/{kind}");
        }
        let nameless = serde_json::from_value(json!({"metadata": {"namespace": "shop"}, "spec": {}})).unwrap();
        assert_eq!(Keeper::new(&("v1".to_owned(), "Service".to_owned())).keep(nameless), None);
    }
}
