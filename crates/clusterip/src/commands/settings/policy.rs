//! The policy of Kubewarden with other settings than those of `deploy/kubewarden/policy`.

use clusterip_cluster::yaml::{self, YamlError};
use clusterip_core::settings::Settings;
use clusterip_core::workload::WorkloadKind;
use serde_json::{Value, json};

/// The policy as it is deployed, with settings that are examples.
const DEPLOYED: &str = include_str!("../../../../../deploy/kubewarden/policy/policy.yaml");

/// The ClusterAdmissionPolicy with this settings document. Without `module`, it names the module of the deployed
/// policy.
///
/// What depends on the settings is adapted: the namespaces that are not sent to the policy, and the kinds that the
/// policy may look up.
///
/// # Errors
/// If the deployed policy is not YAML.
pub fn policy(document: &Value, settings: &Settings, module: Option<&str>) -> Result<Value, YamlError> {
    let mut policy = yaml::single(DEPLOYED)?;
    let spec = &mut policy["spec"];
    if let Some(module) = module {
        spec["module"] = json!(module);
    }
    let granted = spec["contextAwareResources"].take();
    spec["contextAwareResources"] = context_aware_resources(granted, &settings.kinds);
    // A requirement without values is invalid.
    spec["namespaceSelector"] = match settings.exempt_namespaces.as_slice() {
        [] => json!({}),
        exempt => json!({"matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": exempt},
        ]}),
    };
    spec["settings"] = document.clone();
    Ok(policy)
}

/// The resources of the deployed policy with these kinds of workloads in place of its own.
fn context_aware_resources(deployed: Value, kinds: &[WorkloadKind]) -> Value {
    let resource = |api_version: &str, kind: &str| json!({"apiVersion": api_version, "kind": kind});
    let known: Vec<Value> =
        WorkloadKind::known().iter().map(|known| resource(&known.api_version, &known.kind)).collect();
    let mut workloads: Vec<Value> = kinds.iter().map(|kind| resource(&kind.api_version, &kind.kind)).collect();
    if workloads.contains(&resource("v1", "Pod")) {
        // A Pod names its Node.
        workloads.insert(0, resource("v1", "Node"));
    }
    let deployed = deployed.as_array().cloned().unwrap_or_default();
    let place = deployed.iter().position(|resource| known.contains(resource)).unwrap_or(deployed.len());
    let mut resources: Vec<Value> = deployed.into_iter().filter(|resource| !known.contains(resource)).collect();
    let behind = resources.split_off(place);
    resources.extend(workloads);
    resources.extend(behind);
    Value::Array(resources)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn with(settings: Value) -> Value {
        let read = Settings::from_value(&settings).unwrap();
        policy(&settings, &read, None).unwrap()
    }

    #[test]
    fn policy_with_its_own_settings_is_the_deployed_one() {
        let deployed = yaml::single(DEPLOYED).unwrap();
        assert_eq!(with(deployed["spec"]["settings"].clone()), deployed);
    }

    #[test]
    fn policy_may_look_up_the_kinds_of_its_settings() {
        struct Case {
            name: &'static str,
            kinds: Value,
            expected: &'static str,
        }
        let cases = [
            Case {
                name: "all kinds",
                kinds: Value::Null,
                expected: "Service Namespace Node Deployment StatefulSet DaemonSet ReplicaSet ReplicationController \
                           Job CronJob Pod RuntimeClass IPAddress",
            },
            Case {
                name: "a custom resource",
                kinds: json!(["example.com/v1/Rollout", "Deployment"]),
                expected: "Service Namespace Rollout Deployment RuntimeClass IPAddress",
            },
            Case { name: "none", kinds: json!([]), expected: "Service Namespace RuntimeClass IPAddress" },
        ];
        for Case { name, kinds, expected } in cases {
            let policy = with(json!({"services": {"evidence": {"kinds": kinds}}}));
            let resources = policy["spec"]["contextAwareResources"].as_array().unwrap();
            let found: Vec<&str> = resources.iter().map(|resource| resource["kind"].as_str().unwrap()).collect();
            assert_eq!(found.join(" "), expected, "{name}");
        }
    }

    #[test]
    fn exempt_namespaces_are_not_sent_to_the_policy() {
        let selector = |exempt: Value| {
            with(json!({"services": {"exemptNamespaces": exempt}}))["spec"]["namespaceSelector"].clone()
        };
        assert_eq!(
            selector(json!(["kube-system", "own"])),
            json!({"matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "own"]},
            ]})
        );
        assert_eq!(selector(json!([])), json!({}));
    }

    #[test]
    fn module_of_another_registry_is_used() {
        let module = "registry://registry.example.com/clusterip-policy:v0.1.0";
        let policy = policy(&json!({}), &Settings::default(), Some(module)).unwrap();
        assert_eq!((&policy["spec"]["module"], &policy["spec"]["settings"]), (&json!(module), &json!({})));
    }
}
