//! deploy/kubewarden agrees with policy-metadata.yml, requests what its own settings need, and grants no more.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use clusterip_api::{InUse, Objects, Reason, compile};
use clusterip_cluster::policy::host_calls::{HostCall, HostCalls};
use clusterip_core::workload::{TemplateAt, WorkloadKind};
use kube::api::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::support::{self, MODULE, documents, strings};

const PERMISSIONS: &str = "deploy/kubewarden/permissions/policy-server-permissions.yaml";
const POLICY: &str = "deploy/kubewarden/policy/policy.yaml";
const TEAM: &str = "deploy/kubewarden/team/policy.yaml";
const NODES: &str = "deploy/kubewarden/nodes/policy.yaml";
const NODES_WEBHOOK: &str = "deploy/nodes/component/webhook.yaml";
const WEBHOOK: &str = "deploy/webhook/webhook-configuration.yaml";
const METADATA: &str = "policy-metadata.yml";

/// The only document of a file.
#[track_caller]
fn document(file: &str) -> Value {
    let [document] = <[Value; 1]>::try_from(documents(file)).expect("one document");
    document
}

/// API version and kind.
type Kind = (String, String);

fn kinds(resources: &Value) -> BTreeSet<Kind> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let resources = resources.as_array().expect("a list of resources");
    let kinds: BTreeSet<Kind> =
        resources.iter().map(|resource| (text(&resource["apiVersion"]), text(&resource["kind"]))).collect();
    assert_eq!(kinds.len(), resources.len(), "one is named twice: {resources:?}");
    kinds
}

/// Rules with sorted lists, because the order of `operations` has no meaning.
fn rules(object: &Value) -> Value {
    let mut rules = object["rules"].clone();
    for rule in rules.as_array_mut().expect("a list of rules") {
        for list in rule.as_object_mut().unwrap().values_mut().filter_map(Value::as_array_mut) {
            list.sort_by_key(ToString::to_string);
        }
    }
    rules
}

#[test]
fn policy_server_is_granted_exactly_what_the_metadata_requests() {
    let mut asked = BTreeSet::new();
    for (api_version, kind) in kinds(&document(METADATA)["contextAwareResources"]) {
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let resource = match kind.as_str() {
            // The only plural that is not regular in English.
            "IPAddress" => "ipaddresses".to_owned(),
            kind => ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)).plural,
        };
        for verb in ["get", "list", "watch"] {
            asked.insert(format!("{verb} {resource}.{group}"));
        }
    }
    let mut granted = Vec::new();
    for object in documents(PERMISSIONS) {
        for rule in object["rules"].as_array().into_iter().flatten() {
            let fields: BTreeSet<&str> = rule.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(fields, BTreeSet::from(["apiGroups", "resources", "verbs"]));
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    for verb in strings(&rule["verbs"]) {
                        granted.push(format!("{verb} {resource}.{group}"));
                    }
                }
            }
        }
    }
    granted.sort();
    assert_eq!(granted, asked.into_iter().collect::<Vec<_>>());
}

#[test]
fn role_is_bound_only_to_policy_server() {
    let [role, binding] = <[Value; 2]>::try_from(documents(PERMISSIONS)).unwrap();
    assert_eq!((&role["kind"], &binding["kind"]), (&json!("ClusterRole"), &json!("ClusterRoleBinding")));
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let policy_server = json!([{"kind": "ServiceAccount", "name": "policy-server", "namespace": "kubewarden"}]);
    assert_eq!(binding["subjects"], policy_server);
}

/// A host that records the kinds it is asked for. Every workload that it has is selected, and leads to every other
/// look-up.
pub struct Noted {
    asked: Mutex<BTreeSet<Kind>>,
    workloads: bool,
    taken: bool,
}

impl Noted {
    pub fn new(workloads: bool, taken: bool) -> Self {
        Self { asked: Mutex::default(), workloads, taken }
    }
}

impl HostCalls for Noted {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let (api_version, kind) = call.resource();
        self.asked.lock().unwrap().insert((api_version.to_owned(), kind.to_owned()));
        let metadata = json!({"name": "web", "namespace": "shop", "labels": {"app": "web"}});
        let mut pod_spec = json!({"runtimeClassName": "some"});
        // A policy that does not ask for the field does not get it.
        if let HostCall::ListAll { field_masks: Some(masks), .. } = call
            && masks.iter().any(|mask| mask.ends_with(".nodeName"))
        {
            pod_spec["nodeName"] = json!("some");
        }
        let known = WorkloadKind::known().into_iter().find(|known| known.kind == kind);
        let answer = match (call, known.map(|known| known.template)) {
            (HostCall::Get { name, .. }, _) if kind == "IPAddress" && !self.taken => {
                return Err(format!("Cannot find {api_version}/{kind} named '{name}' inside of namespace 'None'"));
            }
            (HostCall::Get { name, .. }, _) => json!({"metadata": {"name": name}}),
            (_, Some(template)) if self.workloads => {
                let pod = json!({"metadata": metadata, "spec": pod_spec});
                let spec = match template {
                    TemplateAt::Itself => pod_spec,
                    TemplateAt::Template => json!({"template": pod}),
                    TemplateAt::JobTemplate => json!({"jobTemplate": {"spec": {"template": pod}}}),
                };
                json!({"items": [{"metadata": metadata, "spec": spec}]})
            }
            _ => json!({"items": []}),
        };
        Ok(answer.to_string().into_bytes())
    }
}

/// The request that creates the Service `web`, or that changes it from `old_spec`.
fn request(namespace: &str, spec: Value, old_spec: Option<Value>) -> Value {
    let service = |spec| {
        let mut service = support::service();
        (service["metadata"]["namespace"], service["spec"]) = (namespace.into(), spec);
        service
    };
    let mut request = support::request(service(spec));
    request["namespace"] = namespace.into();
    if let Some(old_spec) = old_spec {
        (request["operation"], request["oldObject"]) = ("UPDATE".into(), service(old_spec));
    }
    request
}

/// Every kind that the module asks for with these settings, for any cluster.
fn needed(settings: &Value) -> BTreeSet<Kind> {
    let mut asked = BTreeSet::new();
    for (workloads, taken) in [(false, false), (true, false), (false, true)] {
        let host = Arc::new(Noted::new(workloads, taken));
        let create = support::request(support::service());
        let answer = MODULE.validate(&create, settings, Arc::<Noted>::clone(&host)).unwrap();
        // Each evaluation ran to its end.
        let message = answer.message.unwrap_or_default();
        assert!(answer.accepted != taken && (answer.accepted || message.contains("is full")), "{message}");
        asked.append(&mut host.asked.lock().unwrap());
    }
    asked
}

#[test]
fn policy_may_look_up_exactly_what_its_settings_need() {
    let (policy, metadata) = (document(POLICY), document(METADATA));
    let granted = kinds(&policy["spec"]["contextAwareResources"]);
    assert_eq!(granted, needed(&policy["spec"]["settings"]));
    let offered = kinds(&metadata["contextAwareResources"]);
    assert_eq!(granted.difference(&offered).collect::<Vec<_>>(), Vec::<&Kind>::new());
    // The metadata is for all settings; the default settings use all kinds of it.
    assert_eq!(offered, needed(&json!({})));
}

#[test]
fn policies_have_the_module_and_the_rules_of_the_metadata() {
    let metadata = document(METADATA);
    let annotation = |name: &str| metadata["annotations"][format!("io.kubewarden.policy.{name}")].as_str().unwrap();
    let module = format!("registry://{}:v{}", annotation("ociUrl"), annotation("version"));
    for file in [POLICY, TEAM, NODES] {
        let policy = document(file);
        assert_eq!(policy["spec"]["module"], json!(module), "{file}");
        if file != NODES {
            assert_eq!(rules(&policy["spec"]), rules(&metadata), "{file}");
            assert_eq!(policy["spec"]["mutating"], metadata["mutating"], "{file}");
        }
    }
}

#[test]
fn policies_skip_the_same_requests_as_the_webhooks_and_that_of_nodes_never_mutates() {
    let webhook_of_nodes = document(NODES_WEBHOOK)[0]["value"].clone();
    for (file, webhook) in [(POLICY, &document(WEBHOOK)["webhooks"][0]), (NODES, &webhook_of_nodes)] {
        let policy = &document(file)["spec"];
        for field in ["matchConditions", "failurePolicy", "timeoutSeconds"] {
            assert!(!policy[field].is_null(), "{file}: {field}");
            assert_eq!(policy[field], webhook[field], "{file}: {field}");
        }
        let mut expected = rules(webhook);
        expected[0].as_object_mut().unwrap().remove("scope");
        assert_eq!(rules(policy), expected, "{file}");
    }
    assert_eq!(document(NODES)["spec"]["mutating"], json!(false));
}

#[test]
fn node_policy_may_look_up_only_nodes() {
    let policy = document(NODES);
    let settings = &policy["spec"]["settings"];
    let request = |operation: &str, old: Value| {
        let node = |spec| json!({"metadata": {"name": "n", "labels": {"kubernetes.io/os": "linux"}}, "spec": spec});
        json!({
            "uid": "1",
            "kind": {"group": "", "version": "v1", "kind": "Node"},
            "name": "n",
            "operation": operation,
            "object": node(json!({"podCIDR": "172.20.7.0/24", "podCIDRs": ["172.20.7.0/24"]})),
            "oldObject": if old.is_null() { old } else { node(old) },
        })
    };
    for (operation, old) in [("CREATE", Value::Null), ("UPDATE", json!({}))] {
        let host = Arc::new(Noted::new(true, false));
        let answer = MODULE.validate(&request(operation, old), settings, Arc::<Noted>::clone(&host)).unwrap();
        let audit = answer.audit_annotations.unwrap();
        let found = (answer.accepted, answer.warnings, answer.mutated_object, audit.get("pool").map(String::as_str));
        assert_eq!(found, (true, None, None, Some("linux")), "{operation}");
        let asked = host.asked.lock().unwrap().clone();
        assert_eq!(asked, kinds(&policy["spec"]["contextAwareResources"]), "{operation}");
    }
}

#[test]
fn node_policy_has_the_settings_of_the_other_policy_and_the_pools_of_the_deployment_without_kubewarden() {
    let settings = compiled(&["deploy/webhook/pools.yaml", "deploy/nodes/pools.yaml"]);
    let policy = document(NODES);
    let of_policy = &policy["spec"]["settings"];
    // The controller follows the policy for Nodes, and moves Services with the settings of that policy.
    assert_eq!(of_policy["services"], document(POLICY)["spec"]["settings"]["services"]);
    assert_eq!(of_policy["nodes"]["pools"], settings["nodes"]["pools"]);
    assert_eq!(of_policy["services"]["pools"], settings["services"]["pools"]);
}

/// The settings document of the objects in these files.
fn compiled(files: &[&str]) -> Value {
    let objects = Objects { objects: files.iter().flat_map(|file| documents(file)).collect(), ..Objects::default() };
    let compilation = compile(&objects, &InUse::new());
    for (key, state) in compilation.states {
        assert_eq!(state.reason, Reason::InUse, "{key}: {}", state.message);
    }
    compilation.document
}

#[test]
fn module_accepts_the_settings() {
    for file in [POLICY, TEAM, NODES] {
        let answer = MODULE.validate_settings(&document(file)["spec"]["settings"]).unwrap();
        assert_eq!((answer.valid, answer.message, answer.warnings.len()), (true, None, 0), "{file}");
    }
}

/// The answer of policy-server to a policy without `contextAwareResources`.
struct NothingGranted;

impl HostCalls for NothingGranted {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let (api_version, kind) = call.resource();
        Err(format!(
            "Policy has not been granted access to Kubernetes {api_version}/{kind} resources. The violation has been \
             reported."
        ))
    }
}

#[test]
fn team_policy_makes_no_look_ups() {
    let policy = document(TEAM);
    let with = |address: &str| json!({"clusterIP": address, "clusterIPs": [address], "selector": {"app": "web"}});
    let external = json!({"type": "ExternalName", "externalName": "example.com"});
    let (in_another, in_none) = ("172.21.48.9 lies in pool \"data\"", "172.21.0.9 lies in no pool");
    for (name, spec, old_spec, refused) in [
        ("in its own range", with("172.21.32.9"), None, None),
        ("in another's", with("172.21.48.9"), None, Some(in_another)),
        ("in no pool", with("172.21.0.9"), None, Some(in_none)),
        ("headless", with("None"), None, None),
        ("in another's, from ExternalName", with("172.21.48.9"), Some(external), Some(in_another)),
        ("in another's, as before", with("172.21.48.9"), Some(with("172.21.48.9")), None),
    ] {
        let request = request(policy["metadata"]["namespace"].as_str().unwrap(), spec, old_spec);
        let answer = MODULE.validate(&request, &policy["spec"]["settings"], Arc::new(NothingGranted)).unwrap();
        let expected = refused.map(|refused| {
            let remedy = "omit clusterIP, or use an address of the Service's pool";
            format!("Service payments/web: {refused}, expected pool \"payments\": namespace payments; {remedy}")
        });
        assert_eq!(
            (answer.accepted, answer.message, answer.mutated_object, answer.warnings),
            (expected.is_none(), expected, None, None),
            "{name}"
        );
    }
}
