//! An object of a list or a watch, of which only the fields that are used are read: by the policy, by the controller, or
//! by the rule that tells who manages an address. Of long lists and maps that users write, no more is read than counts.

use std::borrow::Cow;
use std::sync::LazyLock;

use clusterip_core::annotations::has_parser;
use clusterip_core::field_mask::{Mask, MaskedReader};
use clusterip_core::label_selector::MAX_LABELS;
use clusterip_core::service::{ADDRESS_FIELDS, MANAGER};
use clusterip_core::workload::{MAX_AFFINITY_TERMS, TemplateAt};
use kube::Resource;
use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use kube::core::DynamicResourceScope;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error};
use serde_json::{Value, json};

use crate::kinds::{Kind, own_name};
use crate::snapshot::{IGNORED_BY_KUBE_PROXY, MANY, MAX_PORTS, SERVICE_FIELDS, SERVICE_NAME_LABEL, TEXT};

/// An object whose kind is known from the watch. A [`DynamicObject`] would first be read into a buffer and
/// then out of it twice, with all its managed fields, which is noticeable with tens of thousands of objects or
/// thousands of changes at once.
///
/// Fields that are not used are skipped while the object is read, and all others are bounded: tenants can write objects
/// of 1.5 MB, a page of a list has many of them, and their parsed values would take ten times the memory of their text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartialObject {
    /// Name, namespace, UID and version.
    pub metadata: ObjectMeta,
    /// The fields that are used, see [`fields_of_kind`].
    pub object: Value,
}

impl PartialObject {
    /// The object as JSON, with its kind; `None` if it has no name.
    pub fn value(self, (api_version, kind): &Kind) -> Option<Value> {
        self.metadata.name?;
        let mut object = self.object;
        object["apiVersion"] = api_version.as_str().into();
        object["kind"] = kind.as_str().into();
        Some(object)
    }

    /// The fields of an object that are used, of whatever kind it is.
    pub fn fields<'de, D: Deserializer<'de>>(object: D) -> Result<Value, D::Error> {
        MaskedReader::new(&OF_ALL_KINDS).deserialize(object)
    }

    /// The object with these fields, which [`Self::fields`] has returned.
    pub fn with_fields<E: Error>(mut object: Value) -> Result<Self, E> {
        let fields = object.as_object_mut().ok_or_else(|| Error::custom("expected an object of the API"))?;
        let mut metadata = ObjectMeta::default();
        if let Some(Value::Object(read)) = fields.get_mut("metadata") {
            let text = |value: Option<&Value>| value.map_or(Ok(None), Deserialize::deserialize).map_err(Error::custom);
            metadata.name = text(read.get("name"))?;
            metadata.namespace = text(read.get("namespace"))?;
            metadata.uid = text(read.get("uid"))?;
            metadata.resource_version = text(read.remove("resourceVersion").as_ref())?;
            let is_map_of_texts = |value: &Value| match value {
                Value::Object(map) => map.values().all(Value::is_string),
                other => other.is_null(),
            };
            if !["labels", "annotations"].iter().filter_map(|field| read.get(*field)).all(is_map_of_texts) {
                return Err(Error::custom("expected labels and annotations that are texts"));
            }
            if let Some(Value::Array(managers)) = read.get_mut("managedFields") {
                keep_owner(managers);
            }
        }
        Ok(Self { metadata, object })
    }
}

impl<'de> Deserialize<'de> for PartialObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::with_fields(Self::fields(deserializer)?)
    }
}

/// Keeps one entry of the managers, which may be any number: one that owns the address of a Service, another one than
/// this program if there is any, because that is enough for
/// [`is_set_by_hand`](clusterip_core::service::is_set_by_hand). An empty entry if no manager owns the address.
fn keep_owner(managers: &mut Vec<Value>) {
    let owns = |entry: &&Value| {
        let owned = entry.pointer("/fieldsV1/f:spec").and_then(Value::as_object);
        owned.is_some_and(|fields| !fields.is_empty())
    };
    let is_other = |entry: &&Value| entry.get("manager").is_none_or(|manager| manager != MANAGER);
    let owner = managers.iter().filter(owns).max_by_key(is_other).cloned();
    if !managers.is_empty() {
        *managers = vec![owner.unwrap_or_else(|| json!({}))];
    }
}

/// As for a [`DynamicObject`], an `ApiResource` tells the kind.
impl Resource for PartialObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::kind(resource)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::group(resource)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::version(resource)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::plural(resource)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A field, and how many values are read of a list or map in it.
type Field = (&'static str, usize);

/// A port consists of its number and its protocol.
const PORTS: [Field; 3] = [("spec.ports", 3 * MAX_PORTS), ("spec.ports.port", TEXT), ("spec.ports.protocol", TEXT)];
const TRAFFIC: [Field; 1] = [("spec.externalTrafficPolicy", TEXT)];
const CONDITIONS: [Field; 2] = [("status.conditions.status", TEXT), ("status.conditions.type", TEXT)];
const SERVICE_CIDR: [Field; 1] = [("spec.cidrs", MANY)];
const RUNTIME_CLASS: [Field; 1] = [("scheduling.nodeSelector", MANY)];
const ENDPOINT_SLICE: [Field; 4] = [
    ("endpoints.conditions.ready", TEXT),
    ("endpoints.conditions.serving", TEXT),
    ("endpoints.conditions.terminating", TEXT),
    ("endpoints.nodeName", TEXT),
];
const NODE: [Field; 2] = [("spec.podCIDR", TEXT), ("spec.podCIDRs", MANY)];
/// The Service for which the API server has allocated the address.
const IP_ADDRESS: [Field; 2] = [("spec.parentRef.name", TEXT), ("spec.parentRef.namespace", TEXT)];
/// A webhook configuration, an APIService or a CustomResourceDefinition.
const CALLER: [Field; 15] = [
    ("spec.conversion.webhook.clientConfig.service.name", TEXT),
    ("spec.conversion.webhook.clientConfig.service.namespace", TEXT),
    ("spec.service.name", TEXT),
    ("spec.service.namespace", TEXT),
    // More webhooks than an object has: a Service must not move because its caller was cut.
    ("webhooks", 8 * MANY),
    ("webhooks.clientConfig.service.name", TEXT),
    ("webhooks.clientConfig.service.namespace", TEXT),
    ("webhooks.failurePolicy", TEXT),
    ("webhooks.matchConditions.expression", TEXT),
    ("webhooks.name", TEXT),
    ("webhooks.namespaceSelector", TEXT),
    ("webhooks.objectSelector", TEXT),
    ("webhooks.rules.apiGroups", TEXT),
    ("webhooks.rules.operations", TEXT),
    ("webhooks.rules.resources", TEXT),
];
const POD_SPEC: [Field; 5] = [
    // More than the terms that are evaluated have, each with its key, its operator and a value.
    (TERMS, 16 * MAX_AFFINITY_TERMS),
    ("nodeName", TEXT),
    ("nodeSelector", MAX_LABELS),
    ("os.name", TEXT),
    ("runtimeClassName", TEXT),
];
const TERMS: &str = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
/// The fields of a term: texts, and `values`, a list of texts.
const TERM: [&str; 4] =
    ["matchExpressions.key", "matchExpressions.operator", "matchExpressions.values", "matchFields.key"];
/// How many labels are read, in their order, which is that of the keys. Nodes and Namespaces of administrators have
/// fewer, and of other objects fewer count.
const LABELS_OF_OBJECT: usize = 4096;

/// The fields of a kind that are used, with those that identify an object.
pub fn fields_of_kind(kind: &Kind) -> Mask {
    let template = TemplateAt::of(&kind.0, &kind.1);
    match own_name(kind) {
        "Service" => mask(&["annotations", "labels", "managedFields"], &[&SERVICE_FIELDS, &PORTS, &TRAFFIC], &[]),
        // Pools select ServiceCIDRs by their labels.
        "ServiceCIDR" => mask(&["deletionTimestamp", "labels"], &[&SERVICE_CIDR, &CONDITIONS], &[]),
        "RuntimeClass" => mask(&[], &[&RUNTIME_CLASS], &[]),
        "EndpointSlice" => mask(&["labels"], &[&ENDPOINT_SLICE], &[]),
        "Node" => mask(&["labels"], &[&NODE, &CONDITIONS], &[]),
        "Namespace" => mask(&["annotations", "labels"], &[], &[]),
        "Pod" => mask(&["labels"], &[], &[template]),
        // For workloads, the labels of their Pods matter, not their own.
        "" => mask(&[], &[], &[template]),
        _ => mask(&[], &[], &[]),
    }
}

/// The fields of all kinds: all others can be skipped while an object is read whose kind is not known yet.
static OF_ALL_KINDS: LazyLock<Mask> = LazyLock::new(|| {
    let metadata = ["annotations", "labels", "managedFields", "resourceVersion"];
    let of_services = [&SERVICE_FIELDS[..], &PORTS, &TRAFFIC, &ENDPOINT_SLICE, &SERVICE_CIDR, &IP_ADDRESS];
    let of_others = [&NODE[..], &CONDITIONS, &RUNTIME_CLASS, &CALLER];
    let fields = [&of_services[..], &of_others].concat();
    mask(&metadata, &fields, &TemplateAt::ALL)
});

fn mask(metadata: &[&str], fields: &[&[Field]], templates: &[TemplateAt]) -> Mask {
    let mut mask = Mask::new(["apiVersion", "kind", "metadata.name", "metadata.namespace"]);
    for (field, most) in fields.iter().copied().flatten() {
        mask.at(field).most = *most;
    }
    for field in metadata {
        let at = mask.at(&format!("metadata.{field}"));
        match *field {
            "labels" => {
                at.most = MANY;
                at.reads = |count, key| {
                    count < LABELS_OF_OBJECT || key == SERVICE_NAME_LABEL || IGNORED_BY_KUBE_PROXY.contains(&key)
                }
            }
            "annotations" => at.reads = |_, key| has_parser(key),
            "managedFields" => {
                at.at("manager");
                for field in ADDRESS_FIELDS {
                    at.at(&format!("fieldsV1.f:spec.{field}"));
                }
            }
            _ => at.most = TEXT,
        }
    }
    for template in templates {
        let mut at = |field: &[&str], most| mask.at(&[template.path(), field].concat().join(".")).most = most;
        POD_SPEC.iter().for_each(|(field, most)| at(&["spec", field], *most));
        TERM.iter().for_each(|field| at(&["spec", TERMS, field], TEXT));
        if *template != TemplateAt::Itself {
            at(&["metadata", "labels"], MAX_LABELS);
        }
    }
    mask
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn read(object: &Value) -> PartialObject {
        serde_json::from_str(&object.to_string()).unwrap()
    }

    #[test]
    fn only_used_fields_are_read() {
        let whole = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "labels": {"b": "c"},
                "annotations": {"d": "e", "clusterip-policy/os": "linux"}, "generation": 3,
                "deletionTimestamp": "2026-01-02T03:04:05Z", "creationTimestamp": "2026-01-02T03:04:05Z",
                "finalizers": ["f"],
                "managedFields": [
                    {"manager": "m", "fieldsV1": {"f:metadata": {"f:labels": {}}, "f:spec": {"f:clusterIP": {}, "f:b": {".": {}}}}},
                    {"manager": "other", "fieldsV1": {"f:spec": {"f:ports": {}}}},
                    {},
                ],
            },
            "spec": {"podCIDR": "10.0.0.0/24", "providerID": "x"}, "other": [1, null],
            "status": {
                "capacity": {"cpu": "1"}, "loadBalancer": {"ingress": []},
                "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T03:04:05Z"}],
            },
        });
        let expected = PartialObject {
            metadata: ObjectMeta {
                name: Some("a".to_owned()),
                namespace: Some("n".to_owned()),
                uid: Some("u".to_owned()),
                resource_version: Some("7".to_owned()),
                ..ObjectMeta::default()
            },
            object: json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {
                    "name": "a", "namespace": "n", "uid": "u", "labels": {"b": "c"},
                    "annotations": {"clusterip-policy/os": "linux"}, "deletionTimestamp": "2026-01-02T03:04:05Z",
                    "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {"f:clusterIP": {}}}}],
                },
                "spec": {"podCIDR": "10.0.0.0/24"},
                "status": {"conditions": [{"type": "Ready", "status": "True"}], "loadBalancer": {"ingress": []}},
            }),
        };
        assert_eq!(read(&whole), expected);
        assert_eq!(serde_json::from_value::<PartialObject>(whole).unwrap(), expected, "out of a value");
        let spec = json!({"type": "ClusterIP"});
        for without in [json!({"metadata": {}, "spec": spec}), json!({"spec": spec})] {
            assert_eq!(read(&without), PartialObject { object: without, ..PartialObject::default() });
        }
        assert!(serde_json::from_str::<PartialObject>("[]").is_err());
        assert!(serde_json::from_str::<PartialObject>(r#"{"metadata": {"name": 1}}"#).is_err());
    }

    #[test]
    fn large_object_is_read_within_bounds() {
        let many = |count: usize| Value::Array(vec!["".into(); count]);
        let keys = |count: usize| -> Value {
            (0..count).map(|key| (format!("k{key:06}"), "".into())).collect::<Map<_, _>>().into()
        };
        let managers =
            (0..1000).map(|name| json!({"manager": name.to_string(), "fieldsV1": {"f:spec": {"f:clusterIP": {}}}}));
        let mut labels = keys(10_000);
        for label in [SERVICE_NAME_LABEL].iter().chain(&IGNORED_BY_KUBE_PROXY) {
            labels[*label] = "a".into();
        }
        let object = read(&json!({
            "metadata": {
                "labels": labels, "annotations": keys(10_000),
                "managedFields": managers.collect::<Vec<_>>(),
            },
            "spec": {
                "template": {"spec": {"containers": [{"args": many(700_000)}], "nodeSelector": keys(100_000)}},
                "ports": vec![json!({"name": "", "port": 1, "protocol": "TCP"}); 10_000],
                "podCIDRs": many(100_000),
                "externalIPs": [many(100_000)],
            },
            "endpoints": vec![json!({"conditions": {"ready": true}, "nodeName": "a", "addresses": many(9)}); 5000],
        }));
        let entries = |field: &str| object.object["metadata"][field].as_object().unwrap().len();
        assert_eq!(entries("labels"), 4096 + 3, "with those that always count");
        assert_eq!(entries("annotations"), 0);
        assert_eq!(object.object["metadata"]["managedFields"].as_array().unwrap().len(), 1);
        let read = &object.object["spec"];
        let spec = &read["template"]["spec"];
        assert_eq!(spec.as_object().unwrap().len(), 1, "{:?}", spec.as_object().unwrap().keys());
        assert_eq!(spec["nodeSelector"].as_object().unwrap().len(), 64);
        let length = |list: &Value| list.as_array().unwrap().len();
        assert_eq!(read["ports"], json!(vec![json!({"port": 1, "protocol": "TCP"}); MAX_PORTS]));
        assert_eq!(length(&read["podCIDRs"]), 16_384);
        assert_eq!(read["externalIPs"], json!([]), "an item that has too many values itself");
        assert_eq!(length(&object.object["endpoints"]), 16_384 / 4, "each with all of its four values");
        assert_eq!(object.object["endpoints"][4095], json!({"conditions": {"ready": true}, "nodeName": "a"}));
    }

    /// An object of a custom kind, in which the API server checks no types.
    #[test]
    fn little_is_read_of_fields_that_should_be_texts() {
        let nested = (0..90).fold(json!(""), |inner, _| json!([inner]));
        let many = || Value::Array(vec![nested.clone(); 300]);
        let expression = json!({"key": many(), "operator": many(), "values": many()});
        let terms = json!([{"matchExpressions": [expression]}]);
        let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        let pod = json!({"affinity": {"nodeAffinity": affinity}, "nodeName": many(), "os": {"name": {"a": many()}},
            "runtimeClassName": many()});
        let read = read(&json!({"metadata": {"name": "a"}, "spec": {"template": {"spec": pod}}}));
        assert!(read.object["spec"].to_string().len() < 500, "{}", read.object["spec"]);
    }

    /// The object as JSON with the field at this path before all others.
    fn with_first(value: &Value, path: &[&str]) -> String {
        let (Value::Object(fields), [first, inner @ ..]) = (value, path) else { return value.to_string() };
        let others = fields.iter().filter(|(key, _)| key != first).map(|(key, value)| format!("\"{key}\":{value}"));
        let first = format!("\"{first}\":{}", with_first(&fields[*first], inner));
        format!("{{{}}}", std::iter::once(first).chain(others).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn long_field_hides_no_other() {
        let keys = || -> Value { (0..20_000).map(|key| (format!("k{key}"), "".into())).collect::<Map<_, _>>().into() };
        let many = |item: Value| Value::Array(vec![item; 20_000]);
        let condition = json!({"type": "Ready", "status": "True"});
        let term = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]});
        let terms = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
        let pod = json!({
            "affinity": {"nodeAffinity": terms}, "nodeName": "a", "nodeSelector": {"a": "b"},
            "os": {"name": "windows"}, "runtimeClassName": "a",
        });
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod});
        struct Case {
            kind: &'static str,
            /// An object with all fields that are used.
            whole: Value,
            /// The paths of the fields that can be long, each with a long value.
            long: Vec<(&'static str, Value)>,
        }
        let cases = [
            Case {
                kind: "Service",
                whole: json!({
                    "spec": {
                        "clusterIP": "a", "clusterIPs": ["a"], "externalIPs": ["a"], "externalName": "a",
                        "externalTrafficPolicy": "a",
                        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "a", "loadBalancerClass": "a", "loadBalancerIP": "a",
                        "ports": [{"port": 1, "protocol": "TCP"}], "selector": {"a": "b"}, "type": "a",
                    },
                    "status": {"loadBalancer": {"ingress": [{"ip": "a"}]}},
                }),
                long: vec![
                    ("spec/selector", keys()),
                    ("spec/ports", many(json!({"port": 1, "protocol": "TCP"}))),
                    ("spec/externalIPs", many("a".into())),
                    ("status/loadBalancer/ingress", many(json!({"ip": "a"}))),
                ],
            },
            Case {
                kind: "ServiceCIDR",
                whole: json!({"spec": {"cidrs": ["a"]}, "status": {"conditions": [condition]}}),
                long: vec![("spec/cidrs", many("a".into())), ("status/conditions", many(condition.clone()))],
            },
            Case {
                kind: "Node",
                whole: json!({"spec": {"podCIDR": "a", "podCIDRs": ["a"]}, "status": {"conditions": [condition]}}),
                long: vec![("spec/podCIDRs", many("a".into())), ("status/conditions", many(condition.clone()))],
            },
            Case {
                kind: "EndpointSlice",
                whole: json!({"endpoints": [{"nodeName": "a"}]}),
                long: vec![("endpoints", many(json!({"nodeName": "a"})))],
            },
            Case {
                kind: "Pod",
                whole: json!({"spec": pod}),
                long: vec![
                    ("spec/nodeSelector", keys()),
                    (
                        "spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
                        many(term.clone()),
                    ),
                ],
            },
            Case {
                kind: "Deployment",
                whole: json!({"spec": {"template": template}}),
                long: vec![
                    ("spec/template/metadata/labels", keys()),
                    ("spec/template/spec/nodeSelector", keys()),
                    ("spec/template/spec/os/name", many("a".into())),
                ],
            },
            Case {
                kind: "CronJob",
                whole: json!({"spec": {"jobTemplate": {"spec": {"template": template}}}}),
                long: vec![
                    ("spec/jobTemplate/spec/template/metadata/labels", keys()),
                    ("spec/jobTemplate/spec/template/spec/nodeSelector", keys()),
                ],
            },
        ];
        let manager = |name: &str| json!({"manager": name, "fieldsV1": {"f:spec": {"f:clusterIP": {}}}});
        for Case { kind, mut whole, long } in cases {
            whole["metadata"] = json!({
                "annotations": {"clusterip-policy/os": "linux"}, "deletionTimestamp": "2026-01-02T03:04:05Z",
                "labels": {"a": "b"}, "managedFields": [manager("m")], "name": "a", "namespace": "b", "uid": "c",
            });
            whole["apiVersion"] = "v1".into();
            whole["kind"] = kind.into();
            let kind = ("v1".to_owned(), kind.to_owned());
            assert_eq!(read(&whole).value(&kind).unwrap(), whole, "{kind:?}");
            let of_metadata = [
                ("metadata/labels", keys()),
                ("metadata/annotations", keys()),
                ("metadata/managedFields", many(manager("n"))),
            ];
            for (path, value) in long.into_iter().chain(of_metadata) {
                let mut object = whole.clone();
                *object.pointer_mut(&format!("/{path}")).unwrap() = value;
                let text = with_first(&object, &path.split('/').collect::<Vec<_>>());
                let mut found = serde_json::from_str::<PartialObject>(&text).unwrap().value(&kind).unwrap();
                let values = found.pointer_mut(&format!("/{path}")).map(Value::take).unwrap_or_default();
                let count = values.as_object().map(Map::len).or_else(|| values.as_array().map(Vec::len));
                assert!(count.unwrap() < 20_000, "{kind:?}: {path}");
                *found.pointer_mut(&format!("/{path}")).unwrap() = whole.pointer(&format!("/{path}")).unwrap().clone();
                assert_eq!(found, whole, "{kind:?}: {path}");
            }
        }
    }
}
