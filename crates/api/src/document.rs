//! The settings document and the objects: the parts of the document that come from objects, and the objects that a
//! document stands for.

use clusterip_core::json::describe;
use clusterip_core::json::unknown_name_message;
use clusterip_core::settings::{Mistake, Settings, default_pools};
use serde_json::{Map, Value, json};

use crate::object_key::{ENUM_FIELDS, Kind, ObjectKey, SECTIONS};
use crate::{GROUP, VERSION};

/// The entry of a pool object in the document: its spec, with the name and with the given ranges in place of
/// `serviceCIDRSelector`.
pub(crate) fn entry(key: &ObjectKey, object: &Value, cidrs: Option<Vec<String>>) -> Value {
    let mut entry = Map::new();
    entry.insert("name".to_owned(), json!(key.name));
    entry.extend(fields(object.get("spec")));
    // Only objects have these.
    entry.retain(|field, _| !["priority", "serviceCIDRSelector", "fence"].contains(&field.as_str()));
    entry.extend(cidrs.map(|cidrs| ("cidrs".to_owned(), json!(cidrs))));
    rename_values(&mut entry, str::make_ascii_lowercase);
    Value::Object(entry)
}

/// The document of a ClusterIPPolicy's spec and of the entries of pools, of each kind in the order in which they are
/// tried. `external` and `nodes` are absent if they have no pools.
pub(crate) fn document(policy: Option<&Value>, pools: impl Fn(Kind) -> Vec<Value>) -> Value {
    let mut services = fields(policy);
    let [external, nodes] = ["external", "nodes"].map(|name| match services.remove(name) {
        Some(Value::Object(fields)) => fields,
        // The core reports that this is not an object.
        Some(other) => Map::from_iter([(name.to_owned(), other)]),
        None => Map::new(),
    });
    let mut document = Map::new();
    for ((name, kind), mut section) in SECTIONS.into_iter().zip([services, external, nodes]) {
        let pools = pools(kind);
        if kind == Kind::ServicePool || !pools.is_empty() {
            rename_values(&mut section, str::make_ascii_lowercase);
            section.insert("pools".to_owned(), pools.into());
            document.insert(name.to_owned(), section.into());
        }
    }
    document.into()
}

pub(crate) fn policy_mistakes(spec: &Value) -> Vec<String> {
    // The document has `nodes` and `external` only with pools, so these are documentation ranges that meet no other.
    let pool = |kind| match kind {
        Kind::ExternalPool => vec![json!({"name": "any", "cidrs": ["203.0.113.0/24"]})],
        Kind::NodeBlockPool => vec![json!({"name": "any", "cidrs": ["198.51.100.0/24"]})],
        _ => Vec::new(),
    };
    let document = document(Some(spec), pool);
    let Err(invalid) = Settings::from_value(&document) else { return Vec::new() };
    let below_spec = |Mistake { path, reason }: &Mistake| {
        format!("spec.{}: {reason}", path.strip_prefix("services.").unwrap_or(path))
    };
    invalid.mistakes.iter().map(below_spec).collect()
}

/// Changes the first letter of names: `Deny` to `deny`, or the reverse. All names are ASCII.
fn rename_values(section: &mut Map<String, Value>, change: fn(&mut str)) {
    for name in ENUM_FIELDS {
        if let Some(Value::String(value)) = section.get_mut(name) {
            value.get_mut(..1).into_iter().for_each(change);
        }
    }
}

/// The priority of the last pool, and the step to the pool before it. A new pool fits in between, and one with the
/// default priority 0 is tried last.
const STEP: usize = 10;

/// The fields of `services` that no object has, because `clusterip` sets them itself.
const NOT_IN_OBJECTS: [&str; 2] = ["/services/evidence/lookups", "/services/unusableServiceCIDRs"];

/// The objects that stand for a settings document: a ClusterIPPolicy if the document has settings that belong to no
/// pool, and then an object for each pool. The pools of each kind are in the order in which they are tried, and the
/// last one has priority 10. A document without pools, such as `{}`, becomes the default pools, those of K2s.
///
/// Mistakes of the document become mistakes of the objects.
pub fn objects(document: &Value) -> Vec<Value> {
    let mut sections = SECTIONS.map(|(section, _)| fields(document.get(section)));
    let has_others = sections[1..].iter().any(|section| !section.is_empty());
    let [services, external, nodes] = &mut sections;
    services.remove("unusableServiceCIDRs");
    if let Some(Value::Object(evidence)) = services.get_mut("evidence") {
        evidence.remove("lookups");
        if evidence.is_empty() {
            services.remove("evidence");
        }
    }
    if !has_others {
        services.entry("pools").or_insert_with(default_pools);
    }
    rename_values(services, str::make_ascii_uppercase);
    rename_values(nodes, str::make_ascii_uppercase);
    let pools = [services, external, nodes].map(|section| section.remove("pools").unwrap_or_default());

    let [mut policy, external, nodes] = sections;
    for (section, fields) in [("nodes", nodes), ("external", external)] {
        if !fields.is_empty() {
            policy.insert(section.to_owned(), Value::Object(fields));
        }
    }
    let mut objects = Vec::new();
    if !policy.is_empty() {
        let ObjectKey { kind, name } = ObjectKey::policy();
        objects.push(object(kind, name.into(), policy));
    }
    objects.extend(SECTIONS.iter().zip(pools).flat_map(|((_, kind), pools)| pool_objects(*kind, &pools)));
    objects
}

/// The paths of the settings in a document that its [`objects`] do not have.
pub fn not_in_objects(document: &Value) -> Vec<String> {
    let is_set = |path: &&str| document.pointer(path).is_some_and(|value| !value.is_null());
    NOT_IN_OBJECTS.into_iter().filter(is_set).map(|path| path.trim_start_matches('/').replace('/', ".")).collect()
}

/// A message for each field of these objects that the document does not have.
pub fn not_in_document(objects: &[Value]) -> Vec<String> {
    let mut lost = Vec::new();
    for object in objects {
        let Some(key) = ObjectKey::of(object) else { continue };
        let field = |name: &str| object.get("spec").and_then(|spec| spec.get(name)).filter(|value| !value.is_null());
        if field("fence").is_some_and(|fence| *fence != json!("Allow")) {
            lost.push(format!("{key}: spec.fence: only objects have it, because the API server reads it there"));
        }
        if field("serviceCIDRSelector").is_some() {
            lost.push(format!(
                "{key}: spec.serviceCIDRSelector: the document has the ranges of the ServiceCIDR objects as they are \
                 now, in cidrs"
            ));
        }
    }
    lost
}

/// The fields of objects with a name as their value, and the names that the API server accepts.
const NAMES: [(&str, &[&str]); 7] = [
    ("announcer", &["agents", "metallb", "cilium", "kube-vip"]),
    ("fence", &["Allow", "Warn", "Deny"]),
    ("order", &["Spread", "Lowest"]),
    ("explicit", &["Allow", "Warn", "Deny"]),
    ("whenFull", &["Deny", "Unmanaged"]),
    ("unmatched", &["Unmanaged", "Outside", "Deny"]),
    ("nodes.explicit", &["Allow", "Warn", "Deny"]),
];

/// Why the API server would refuse an object in which the core has found no mistake; `None` if it would not. The core
/// does not read the fields that the document lacks, the document has other names for some values, and there an empty
/// list of namespaces matches all.
pub fn mistake_of_type(object: &Value) -> Option<String> {
    let key = ObjectKey::of(object)?;
    let spec = Value::Object(fields(object.get("spec")));
    let field = |path: &str| spec.pointer(&format!("/{}", path.replace('.', "/"))).filter(|value| !value.is_null());
    let mistake = |path: &str, reason: String| Some(format!("spec.{path}: {reason}"));
    if field("match.namespaces") == Some(&json!([])) {
        return mistake("match.namespaces", "empty: name a namespace, or remove the field".to_owned());
    }
    // Only a ServicePool may have other ranges than `cidrs`.
    if matches!(key.kind, Kind::ExternalPool | Kind::NodeBlockPool) && field("cidrs").is_none() {
        return mistake("cidrs", "missing".to_owned());
    }
    for (path, names) in NAMES {
        match field(path) {
            Some(Value::String(name)) if !names.contains(&name.as_str()) => {
                return mistake(path, unknown_name_message("value", name, names));
            }
            None | Some(Value::String(_)) => {}
            Some(other) => return mistake(path, format!("expected a string, found {}", describe(other))),
        }
    }
    let limits = [("priority", i64::from(i32::MIN)..=i64::from(i32::MAX)), ("reserved", i64::MIN..=i64::MAX)];
    let wrong = limits.into_iter().find_map(|(path, fits)| {
        let value = field(path)?;
        value.as_i64().is_none_or(|number| !fits.contains(&number)).then_some((path, value))
    });
    wrong.and_then(|(path, value)| mistake(path, format!("expected an integer, found {}", describe(value))))
}

fn fields(object: Option<&Value>) -> Map<String, Value> {
    let mut fields = object.and_then(Value::as_object).cloned().unwrap_or_default();
    fields.retain(|_, value| !value.is_null());
    fields
}

fn pool_objects(kind: Kind, pools: &Value) -> Vec<Value> {
    let pools = pools.as_array().map(Vec::as_slice).unwrap_or_default();
    let with_priority = |(index, pool): (usize, &Value)| {
        let mut spec = fields(Some(pool));
        let name = spec.remove("name").unwrap_or_default();
        rename_values(&mut spec, str::make_ascii_uppercase);
        // In the document, an empty list matches all namespaces. The API server refuses it.
        if let Some(Value::Object(matches)) = spec.get_mut("match") {
            matches.retain(|field, value| field != "namespaces" || *value != json!([]));
        }
        spec.insert("priority".to_owned(), json!((pools.len() - index) * STEP));
        object(kind, name, spec)
    };
    pools.iter().enumerate().map(with_priority).collect()
}

fn object(kind: Kind, name: Value, spec: Map<String, Value>) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": kind.as_str(),
        "metadata": {"name": name},
        "spec": spec,
    })
}
