//! `clusterip settings`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, ValueEnum};
use clusterip_api::{ObjectKey, not_in_document, not_in_objects, objects};
use clusterip_cluster::live_settings::{SettingsFile, is_settings_object};
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use clusterip_cluster::yaml::{self, YamlError};
use clusterip_core::settings::Settings;
use clusterip_core::workload::WorkloadKind;
use serde_json::{Map, Value, json};

use super::given_settings::{self, GivenSettings};
use super::terminal::{TerminalOptions, warn};
use crate::fence_policies::fence_policies;
use crate::report;

const HELP: &str = "\
Examples:
  Convert the document of a server to objects, and apply them:
    clusterip settings settings.yaml --to objects | kubectl apply -f -
  Print the objects of a cluster as a document:
    kubectl get servicepools,externalpools,nodeblockpools,clusterippolicies \\
      -o yaml | clusterip settings - --to document
  The same, if a pool has a serviceCIDRSelector:
    kubectl get clusterip-policy,servicecidrs -o yaml | clusterip settings - --to document
  Print a policy for Kubewarden, with a module in your own registry:
    clusterip settings settings.yaml --to policy \\
      --module registry://registry.example.com/clusterip-policy:v0.1.0
  Write the fences of the pools of a cluster into a file of its API server:
    kubectl get servicepools,externalpools,servicecidrs -o yaml |
      clusterip settings - --to static-admission --output-file fences.yaml

Settings have three forms: the settings document, objects of clusterip-policy.io in a cluster, and the \
ClusterAdmissionPolicy of Kubewarden. FILE may have any of them, or a ConfigMap with the document in its key \
settings.yaml. Objects may be several documents, or a List. Every setting must be valid.

A document has no spec.fence. Instead of spec.serviceCIDRSelector, it has the ranges of the selected ServiceCIDRs. \
Objects have no evidence.lookups and no unusableServiceCIDRs. A warning names each setting that is lost.

The forms static-admission and admission are for the API server alone: ValidatingAdmissionPolicies that have each pool \
with spec.fence Warn or Deny written into them. They need objects.

Exit status: 0; 2 if the settings can't be read or have mistakes, or the result can't be written.";

#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct SettingsArguments {
    /// The settings to convert, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The form to convert them to
    #[arg(long, value_enum, value_name = "FORM")]
    to: Form,
    /// The output format
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: Output,
    /// The URL of the policy module, for --to policy [default: that of the release]
    #[arg(long, value_name = "URL")]
    module: Option<String>,
    /// Write the result to this file, instead of to standard output
    #[arg(long, value_name = "FILE")]
    output_file: Option<PathBuf>,
    #[command(flatten)]
    terminal: TerminalOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// Objects of clusterip-policy.io, one for each pool
    Objects,
    /// The settings document
    Document,
    /// A ClusterAdmissionPolicy of Kubewarden
    Policy,
    /// The fences of the pools, as files for the API server (Kubernetes 1.37)
    StaticAdmission,
    /// The same fences, as policies for kubectl
    Admission,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// In YAML. Each object is a document of its own
    Yaml,
    /// In JSON. Objects are a List
    Json,
}

impl SettingsArguments {
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        self.terminal.apply();
        super::output_to(self.output_file.as_deref(), &self.converted()?)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The text of the settings in the other form. Prints a warning for each setting that the form does not have.
    fn converted(&self) -> anyhow::Result<String> {
        if self.module.is_some() && self.to != Form::Policy {
            bail!("--module needs --to policy");
        }
        let given = GivenSettings::read(Some(&self.file))?;
        let document = given.document(&ServiceRanges::default())?.document;
        let settings =
            Settings::from_value(&document).map_err(|invalid| given_settings::unusable(&given.name, invalid))?;
        let lost = match (&given.content, self.to) {
            (SettingsFile::Document(document), Form::Objects) => not_in_objects(document)
                .into_iter()
                .map(|path| format!("{path}: objects do not have it, because clusterip sets it itself"))
                .collect(),
            (SettingsFile::Objects(objects), Form::Document | Form::Policy) => not_in_document(objects),
            _ => Vec::new(),
        };
        for lost in lost {
            warn(&format!("{}: {lost}", given.name));
        }
        match self.to {
            Form::Document => self.text_of(&document),
            Form::Policy => {
                if !settings.nodes.pools.is_empty() {
                    warn(&format!(
                        "{}: nodes: this policy is for Services: Nodes need a second policy, such as \
                         deploy/kubewarden/nodes/policy.yaml",
                        given.name
                    ));
                }
                self.text_of(&policy(&document, &settings, self.module.as_deref())?)
            }
            Form::Objects => {
                let objects = match &given.content {
                    SettingsFile::Document(_) => objects(&document),
                    SettingsFile::Objects(own) => {
                        own.iter().filter(|object| is_settings_object(object)).map(as_written).collect()
                    }
                };
                self.text_of_objects(&objects)
            }
            Form::StaticAdmission | Form::Admission => {
                let SettingsFile::Objects(objects) = &given.content else {
                    bail!("{}: a document has no spec.fence: give pool objects", given.name);
                };
                let policies = fence_policies(objects, &settings, self.to == Form::StaticAdmission)?;
                if policies.is_empty() {
                    bail!("{}: no pool has spec.fence: Warn or Deny", given.name);
                }
                self.text_of_objects(&policies)
            }
        }
    }

    fn text_of_objects(&self, objects: &[Value]) -> anyhow::Result<String> {
        match self.output {
            Output::Yaml => {
                let texts: Result<Vec<String>, _> = objects.iter().map(serde_saphyr::to_string).collect();
                Ok(texts?.join("---\n"))
            }
            Output::Json => self.text_of(&json!({"apiVersion": "v1", "kind": "List", "items": objects})),
        }
    }

    fn text_of(&self, value: &Value) -> anyhow::Result<String> {
        Ok(match self.output {
            Output::Yaml => serde_saphyr::to_string(value)?,
            Output::Json => report::json(value)?,
        })
    }
}

/// An object with only the fields that users write: its type, name, labels, annotations and spec.
fn as_written(object: &Value) -> Value {
    const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let name = ObjectKey::of(object).map(|key| ("name".to_owned(), key.name.into()));
    let mut metadata: Map<String, Value> = name.into_iter().collect();
    for field in ["labels", "annotations"] {
        if let Some(Value::Object(values)) = object.pointer(&format!("/metadata/{field}")) {
            let mut values = values.clone();
            values.remove(LAST_APPLIED);
            if !values.is_empty() {
                metadata.insert(field.to_owned(), Value::Object(values));
            }
        }
    }
    json!({
        "apiVersion": object.get("apiVersion"),
        "kind": object.get("kind"),
        "metadata": metadata,
        "spec": object.get("spec").cloned().unwrap_or_else(|| json!({})),
    })
}

const DEPLOYED: &str = include_str!("../../../../deploy/kubewarden/policy/policy.yaml");

/// The deployed policy with this settings document, for the namespaces and the look-ups of the settings. `module`
/// replaces its module.
fn policy(document: &Value, settings: &Settings, module: Option<&str>) -> Result<Value, YamlError> {
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
    let resources = |kinds: &[WorkloadKind]| -> Vec<Value> {
        kinds.iter().map(|kind| resource(&kind.api_version, &kind.kind)).collect()
    };
    let (known, mut workloads) = (resources(&WorkloadKind::known()), resources(kinds));
    if workloads.contains(&resource("v1", "Pod")) {
        // A Pod names its Node.
        workloads.insert(0, resource("v1", "Node"));
    }
    let mut deployed = deployed.as_array().cloned().unwrap_or_default();
    let place = deployed.iter().position(|resource| known.contains(resource)).unwrap_or(deployed.len());
    deployed.retain(|resource| !known.contains(resource));
    deployed.splice(place..place, workloads);
    Value::Array(deployed)
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
