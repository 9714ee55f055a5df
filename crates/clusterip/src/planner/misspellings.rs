//! Names in manifests that are ignored, and almost those that a plan reads.

use clusterip_cluster::kinds::Kind;
use clusterip_cluster::object;
use clusterip_cluster::snapshot::ReadObject;
use clusterip_core::workload::TemplateAt;
use serde_json::Value;
use strsim::damerau_levenshtein;

use super::api_server_rules::ADDRESS_FIELDS;

/// The fields that a plan reads, by the object that they belong to. Of a Pod, those that say on which nodes it runs.
const METADATA: [&str; 4] = ["name", "namespace", "labels", "annotations"];
const SERVICE: [&str; 8] =
    ["type", "selector", "clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "externalIPs", "loadBalancerIP"];
const WORKLOAD: [&str; 2] = ["template", "jobTemplate"];
const POD: [&str; 5] = ["os", "nodeSelector", "nodeName", "affinity", "runtimeClassName"];

/// A manifest whose kind is not one that a plan reads, but almost. The Service of Knative is another kind.
pub(crate) fn of_kind(asked: &[Kind], object: &ReadObject) -> Option<String> {
    let ReadObject { kind, namespace, name: object, .. } = object;
    let (api_version, kind) = &**kind;
    let is_like_this = |(of_api, name): &&Kind| {
        let same_group = of_api == api_version || is_almost(of_api, api_version);
        let core_service = name == "Service" && of_api == "v1" && !api_version.contains('/');
        (same_group || core_service) && (name == kind || is_almost(name, kind))
    };
    let (of_api, name) = asked.iter().find(is_like_this)?;
    let object = if namespace.is_empty() { object.to_owned() } else { format!("{namespace}/{object}") };
    let effect = if name == "Service" { "planned" } else { "used as evidence" };
    Some(format!("{api_version} {kind} {object} is not {effect}: did you mean {of_api} {name}?"))
}

/// Fields that are ignored because their names are almost those of fields that a plan reads.
pub(super) fn of_fields(object: &Value) -> Vec<String> {
    let (api_version, kind) = (object::api_version(object), object::kind(object));
    let mut found: Vec<String> = Vec::new();
    let mut check = |path: &str, known: &[&str]| {
        let fields = object.pointer(path).and_then(Value::as_object);
        let is_reported = |key: &str| {
            // The row of the Service has a warning about these.
            ADDRESS_FIELDS.iter().any(|field| field.eq_ignore_ascii_case(key))
        };
        let keys = fields.into_iter().flat_map(|fields| fields.keys()).map(String::as_str);
        for key in keys.filter(|key| !known.contains(key) && !is_reported(key)) {
            if let Some(meant) = known.iter().find(|known| is_almost(known, key)) {
                let path = format!("{path}/{key}")[1..].replace('/', ".");
                found.push(format!("{path} is ignored: did you mean {meant}?"));
            }
        }
    };
    check("/metadata", &METADATA);
    match (api_version, kind) {
        ("v1", "Namespace" | "Node") => return Vec::new(),
        (_, "Service") => check("/spec", &SERVICE),
        (_, "Pod") => check("/spec", &POD),
        _ => {
            let template = TemplateAt::of(api_version, kind).path();
            let at = |path: &[&str]| format!("/{}", path.join("/"));
            for (place, _) in template.iter().enumerate().filter(|(_, key)| **key == "spec") {
                check(&at(&template[..=place]), &WORKLOAD);
            }
            check(&at(&[template, &["metadata"]].concat()), &METADATA);
            check(&at(&[template, &["spec"]].concat()), &POD);
        }
    }
    found
}

/// Whether two names differ by the case of letters, or by one character that is missing, added, another one, or has
/// changed places with the next one.
fn is_almost(known: &str, name: &str) -> bool {
    // Most pairs of names need no further comparison. Longer names that differ by so little begin or end alike.
    let is_of_other_length = known.chars().count().abs_diff(name.chars().count()) > 1;
    let alike = |one: Option<char>, other: Option<char>| match (one, other) {
        (Some(one), Some(other)) => one.eq_ignore_ascii_case(&other),
        _ => false,
    };
    let begin_or_end_alike =
        || alike(known.chars().next(), name.chars().next()) || alike(known.chars().last(), name.chars().last());
    let differ = || damerau_levenshtein(&known.to_ascii_lowercase(), &name.to_ascii_lowercase());
    !is_of_other_length && known != name && (known.len() < 3 || begin_or_end_alike()) && differ() <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_by_one_edit_are_almost_the_same() {
        let pairs = [
            ("Service", "Servce", true),
            ("Service", "Services", true),
            ("Service", "service", true),
            ("Service", "Sevrice", true),
            ("Service", "Serbice", true),
            ("Service", "Service", false),
            ("Service", "Srvce", false),
            ("Deployment", "Deploymnt", true),
            ("apps/v1", "app/v1", true),
            ("nodeSelector", "nodeselector", true),
            ("os", "so", true),
            ("Pod", "Node", false),
            ("aa", "a", true),
            ("", "a", true),
        ];
        for (known, name, expected) in pairs {
            assert_eq!(is_almost(known, name), expected, "{known} {name}");
        }
    }
}
