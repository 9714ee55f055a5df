//! The policies of `deploy/fence` with the pools written into them, in place of parameters: for the files of an API
//! server, which may have no parameters, and for clusters without the custom resources.

use clusterip_api::{Kind, ObjectKey};
use clusterip_cluster::yaml::{self, YamlError};
use clusterip_core::settings::Settings;
use serde_json::{Map, Value, json};

const FENCE: &str = include_str!("../../../deploy/fence/fence.yaml");

/// The API server requires this end of the names in its files, and refuses it elsewhere.
const STATIC: &str = "static.k8s.io";

/// What a pool is in the expressions of the fence.
const PARAMETER: &str = "params";

/// A policy and a binding for each pool with a fence. The names are those that the API server requires in its files
/// if `in_files` is set.
pub fn fence_policies(objects: &[Value], settings: &Settings, in_files: bool) -> Result<Vec<Value>, YamlError> {
    let fence = yaml::single(FENCE)?;
    let templates = fence.get("items").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut policies = Vec::new();
    for (key, pool) in objects.iter().filter_map(|object| fenced(object, settings)) {
        let kind = if key.kind == Kind::ServicePool { "service" } else { "external" };
        let warning = if pool["spec"]["fence"] == "Warn" { "-warning" } else { "" };
        let fence = format!("{kind}-fence{warning}.clusterip-policy");
        let name = format!("{}.{fence}.{}", key.name, if in_files { STATIC } else { "io" });
        let of_pool = templates.iter().filter(|object| object["metadata"]["name"] == format!("{fence}.io"));
        policies.extend(of_pool.map(|template| written(template.clone(), &name, &pool)));
    }
    Ok(policies)
}

/// A pool that has a fence, with what the fence reads of it. The ranges of a `serviceCIDRSelector` are those of the
/// settings.
fn fenced(object: &Value, settings: &Settings) -> Option<(ObjectKey, Value)> {
    let key = ObjectKey::of(object).filter(|key| [Kind::ServicePool, Kind::ExternalPool].contains(&key.kind))?;
    let spec = object.get("spec")?.as_object()?;
    let fence = spec.get("fence").and_then(Value::as_str).filter(|fence| ["Deny", "Warn"].contains(fence))?;
    let selected = || settings.pool(&key.name).map(|pool| pool.cidrs.iter().map(ToString::to_string).collect());
    let cidrs = spec.get("cidrs").filter(|cidrs| !cidrs.is_null()).cloned().or_else(selected)?;
    let mut read = Map::from_iter([("cidrs".to_owned(), cidrs), ("fence".to_owned(), fence.into())]);
    let conditions = ["namespaces", "namespaceSelector", "serviceSelector"];
    let matches = |condition: &&str| object.pointer(&format!("/spec/match/{condition}")).filter(|it| !it.is_null());
    let scope: Map<String, Value> =
        conditions.iter().filter_map(|it| Some(((*it).to_owned(), matches(it)?.clone()))).collect();
    read.insert("match".to_owned(), scope.into());
    read.extend(spec.get("reservations").filter(|it| !it.is_null()).map(|it| ("reservations".to_owned(), it.clone())));
    let pool = json!({"kind": key.kind.as_str(), "metadata": {"name": key.name}, "spec": read});
    Some((key, pool))
}

/// A policy or a binding of the fence with this name, and with the pool in place of its parameter.
fn written(mut object: Value, name: &str, pool: &Value) -> Value {
    object["metadata"]["name"] = name.into();
    let Some(spec) = object["spec"].as_object_mut() else { return object };
    spec.remove("paramKind");
    spec.remove("paramRef");
    spec.entry("policyName").and_modify(|policy| *policy = name.into());
    // Conditions can't read variables, so each has the pool as the only item of a list.
    for condition in items(spec, "matchConditions") {
        let expression = condition["expression"].as_str().unwrap_or_default();
        condition["expression"] = format!("[{}].exists({PARAMETER}, {expression})", in_cel(pool)).into();
    }
    for variable in items(spec, "variables") {
        let expression = variable["expression"].as_str().unwrap_or_default();
        variable["expression"] = with_variable(expression).into();
    }
    if let Some(variables) = spec.get_mut("variables").and_then(Value::as_array_mut) {
        variables.insert(0, json!({"name": PARAMETER, "expression": in_cel(pool)}));
    }
    object
}

fn items<'o>(spec: &'o mut Map<String, Value>, list: &str) -> impl Iterator<Item = &'o mut Value> {
    spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

/// The expression with the variable of this name in place of the parameter.
fn with_variable(expression: &str) -> String {
    let is_in_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let mut parts = expression.split(PARAMETER);
    let mut written = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        if !written.ends_with(is_in_name) && !part.starts_with(|c: char| is_in_name(c) && c != '.') {
            written.push_str("variables.");
        }
        written.push_str(PARAMETER);
        written.push_str(part);
    }
    written
}

/// A value as a literal of the Common Expression Language. The values of a map must be of one type, which `dyn` is.
fn in_cel(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| format!("{}: dyn({})", json!(key), in_cel(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(in_cel).collect::<Vec<_>>().join(", ")),
        // The strings of JSON are also strings of the language.
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pool(kind: &str, name: &str, spec: Value) -> Value {
        json!({"apiVersion": "clusterip-policy.io/v1alpha1", "kind": kind, "metadata": {"name": name, "uid": "1"},
            "spec": spec, "status": {"ranges": ["10.96.9.0/24"]}})
    }

    #[test]
    fn each_fenced_pool_has_a_policy_and_a_binding() {
        let range = json!(["10.96.1.0/24"]);
        let objects = [
            pool("ServicePool", "a", json!({"cidrs": range, "fence": "Deny"})),
            pool("ServicePool", "b", json!({"cidrs": range, "fence": "Warn"})),
            pool("ServicePool", "open", json!({"cidrs": range, "fence": "Allow"})),
            pool("ServicePool", "default", json!({"cidrs": range})),
            pool("ExternalPool", "a", json!({"cidrs": ["192.0.2.1-192.0.2.9"], "fence": "Deny"})),
            pool("NodeBlockPool", "a", json!({"cidrs": range})),
        ];
        let named = |in_files| -> Vec<String> {
            let policies = fence_policies(&objects, &Settings::default(), in_files).unwrap();
            let name = |object: &Value| {
                let (kind, policy) = (object["kind"].as_str().unwrap(), object["spec"]["policyName"].as_str());
                let name = object["metadata"]["name"].as_str().unwrap();
                assert!(policy.is_none_or(|policy| policy == name), "{policy:?} of {name}");
                format!("{kind} {name} {}", object["spec"]["validationActions"])
            };
            policies.iter().map(name).collect()
        };
        assert_eq!(
            named(true),
            [
                "ValidatingAdmissionPolicy a.service-fence.clusterip-policy.static.k8s.io null",
                "ValidatingAdmissionPolicyBinding a.service-fence.clusterip-policy.static.k8s.io [\"Deny\"]",
                "ValidatingAdmissionPolicy b.service-fence-warning.clusterip-policy.static.k8s.io null",
                "ValidatingAdmissionPolicyBinding b.service-fence-warning.clusterip-policy.static.k8s.io [\"Warn\"]",
                "ValidatingAdmissionPolicy a.external-fence.clusterip-policy.static.k8s.io null",
                "ValidatingAdmissionPolicyBinding a.external-fence.clusterip-policy.static.k8s.io [\"Deny\"]",
            ]
        );
        assert_eq!(named(false)[0], "ValidatingAdmissionPolicy a.service-fence.clusterip-policy.io null");
    }

    /// Only the parameters differ from `deploy/fence`.
    #[test]
    fn policy_has_the_expressions_of_the_fence() {
        let spec = json!({"cidrs": ["10.96.1.0/24"], "fence": "Deny", "priority": 5, "match": {"os": "linux",
            "namespaceSelector": {"matchLabels": {"tenant": "a\"b"}}},
            "reservations": [{"address": "10.96.1.7", "namespace": "shop", "name": "web"}]});
        let policies = fence_policies(&[pool("ServicePool", "a", spec)], &Settings::default(), true).unwrap();
        let written = policies.iter().map(ToString::to_string).collect::<String>();
        assert!(!["paramKind", "paramRef", "params.params"].iter().any(|text| written.contains(text)), "{written}");
        let literal = concat!(
            r#"{"kind": dyn("ServicePool"), "metadata": dyn({"name": dyn("a")}), "spec": dyn({"#,
            r#""cidrs": dyn(["10.96.1.0/24"]), "fence": dyn("Deny"), "#,
            r#""match": dyn({"namespaceSelector": dyn({"matchLabels": dyn({"tenant": dyn("a\"b")})})}), "#,
            r#""reservations": dyn([{"address": dyn("10.96.1.7"), "name": dyn("web"), "namespace": dyn("shop")}])})}"#
        );
        let policy = &policies[0]["spec"];
        assert_eq!(policy["variables"][0], json!({"name": "params", "expression": literal}));
        let fence = yaml::single(FENCE).unwrap();
        let original = &fence["items"][0]["spec"];
        let condition = original["matchConditions"][0]["expression"].as_str().unwrap();
        let expected = format!("[{literal}].exists(params, {condition})");
        assert_eq!(policy["matchConditions"][0]["expression"], expected);
        let variables = |spec: &Value, from: usize| spec["variables"].as_array().unwrap()[from..].to_vec();
        for (own, its) in variables(policy, 1).iter().zip(variables(original, 0)) {
            let expression = own["expression"].as_str().unwrap();
            assert_eq!(expression.replace("variables.params", "params"), its["expression"].as_str().unwrap());
            assert_eq!(expression.matches("params").count(), expression.matches("variables.params").count());
        }
        assert_eq!(
            (&policy["validations"], &policy["matchConstraints"]),
            (&original["validations"], &original["matchConstraints"])
        );
    }

    #[test]
    fn only_the_parameter_itself_is_replaced() {
        let cases = [
            ("params.kind + dyn(params).spec", "variables.params.kind + dyn(variables.params).spec"),
            ("my_params + paramsOf + x.params + params2", "my_params + paramsOf + x.params + params2"),
            ("object", "object"),
        ];
        for (expression, expected) in cases {
            assert_eq!(with_variable(expression), expected);
        }
    }
}
