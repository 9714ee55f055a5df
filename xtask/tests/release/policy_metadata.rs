//! The metadata of the policy, the Artifact Hub package, Cargo.toml and the README agree with each other and with the
//! module.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use clusterip_cluster::policy::host_calls::{HostCall, HostCalls};
use clusterip_cluster::policy::wasm_module::{Limits, WasmModule};
use serde_json::{Value, json};
use xtask::metadata::Resource;

use crate::files::{assert_fields, document, read, read_yaml};
use crate::support::metadata;

const NAME: &str = "clusterip-policy";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

#[test]
fn metadata_and_package_agree() {
    let (package, cargo) = (read_yaml("artifacthub-pkg.yml"), read("Cargo.toml"));
    let description = &package["description"];
    assert!(cargo.contains(&format!("[package]\nname = \"{NAME}\"\ndescription = {description}\n")), "{description}");
    assert_eq!(read("README.md").lines().next(), Some(format!("# {NAME}").as_str()));
    let rules = json!([
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["services"], "operations": ["CREATE", "UPDATE"]},
    ]);
    let image = format!("ghcr.io/{NAME}/{NAME}");
    let tagged = format!("{image}:v{VERSION}");
    let module = format!("{REPOSITORY}/releases/download/v{VERSION}/policy.wasm");
    let expected = json!({
        "name": NAME, "version": VERSION, "license": env!("CARGO_PKG_LICENSE"), "homeURL": REPOSITORY,
        // It is added at release.
        "digest": "",
        "containersImages": [{"name": "policy", "image": tagged, "whitelisted": true}],
        "links": [{"name": "policy", "url": module}, {"name": "source", "url": REPOSITORY}],
    });
    assert_fields("artifacthub-pkg.yml", &package, &expected);
    let annotations = json!({"kubewarden/mutation": "true", "kubewarden/resources": "Service, Node"});
    assert_fields("artifacthub-pkg.yml", &package["annotations"], &annotations);
    assert_eq!(document(package["annotations"]["kubewarden/rules"].as_str().unwrap()), rules);

    let policy = serde_json::to_value(metadata()).unwrap();
    let expected = json!({
        "rules": rules, "mutating": true, "backgroundAudit": true, "executionMode": "kubewarden-wapc",
        "policyType": "kubernetes",
        // The first version that prunes objects by field masks.
        "minimumKubewardenVersion": "1.33.0",
    });
    assert_fields("policy-metadata.yml", &policy, &expected);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let keywords: Vec<String> = package["keywords"].as_array().unwrap().iter().map(text).collect();
    let [name, email] = ["name", "email"].map(|field| text(&package["maintainers"][0][field]));
    let annotations = json!({
        "io.kubewarden.policy.title": NAME, "io.kubewarden.policy.version": VERSION,
        "io.kubewarden.policy.ociUrl": image, "io.kubewarden.policy.url": REPOSITORY,
        "io.kubewarden.policy.source": REPOSITORY, "io.kubewarden.policy.license": env!("CARGO_PKG_LICENSE"),
        "io.kubewarden.policy.description": description, "io.kubewarden.policy.author": format!("{name} <{email}>"),
        "io.artifacthub.displayName": package["displayName"], "io.artifacthub.resources": "Service, Node",
        "io.artifacthub.keywords": keywords.join(", "),
    });
    assert_fields("policy-metadata.yml", &policy["annotations"], &annotations);
}

#[test]
fn package_says_how_to_install_this_version_and_what_changed() {
    let package = read_yaml("artifacthub-pkg.yml");
    let install = package["install"].as_str().unwrap();
    let registry = format!("registry://ghcr.io/{NAME}/{NAME}:v{VERSION}\n");
    for command in ["pull", "scaffold manifest -t ClusterAdmissionPolicy --allow-context-aware"] {
        assert!(install.contains(&format!("kwctl {command} {registry}")), "{command}: {install}");
    }
    for (at, _) in install.match_indices("/v0.").chain(install.match_indices(":v0.")) {
        assert!(install[at + 2..].starts_with(VERSION), "another version: {}", &install[at..]);
    }
    let kinds: Vec<&str> = package["changes"].as_array().unwrap().iter().map(|c| c["kind"].as_str().unwrap()).collect();
    let known = ["added", "changed", "deprecated", "removed", "fixed", "security"];
    assert!(!kinds.is_empty() && kinds.iter().all(|kind| known.contains(kind)), "{kinds:?}");
}

#[test]
fn crates_of_the_workspace_have_the_version_of_the_release() {
    let cargo = read("Cargo.toml");
    let dependencies = cargo.split("[workspace.dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
    let own: Vec<&str> = dependencies.lines().filter(|line| line.contains("path = \"")).collect();
    assert!(!own.is_empty(), "Cargo.toml: no crates in workspace.dependencies");
    for line in own {
        assert!(
            line.contains(&format!("version = \"{VERSION}\"")),
            "Cargo.toml: another version than {VERSION}: {line}"
        );
    }
    let members = cargo.split("members = [\n").nth(1).unwrap().split(']').next().unwrap();
    for member in members.lines() {
        let file = format!("{}/Cargo.toml", member.trim().trim_matches(['"', ',']));
        assert!(read(&file).contains("\nversion.workspace = true\n"), "{file}: not the version of the workspace");
    }
}

/// A cluster in which every look-up leads to another look-up: no workload names an operating system, a Deployment has a
/// RuntimeClass and a Pod a Node, and every address is taken.
#[derive(Default)]
struct ClusterWithEveryLookup {
    asked: Mutex<BTreeSet<(String, Resource)>>,
}

impl HostCalls for ClusterWithEveryLookup {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let (operation, api_version, kind) = match call {
            HostCall::ListAll { api_version, kind, .. } => ("kubernetes/list_resources_all", api_version, kind),
            HostCall::ListNamespace { api_version, kind, .. } => {
                ("kubernetes/list_resources_by_namespace", api_version, kind)
            }
            HostCall::Get { api_version, kind, .. } => ("kubernetes/get_resource", api_version, kind),
        };
        let resource = Resource { api_version: api_version.clone(), kind: kind.clone() };
        self.asked.lock().unwrap().insert((operation.to_owned(), resource));
        let item = |spec: Value| {
            let metadata = json!({"name": "web", "namespace": "shop", "labels": {"app": "web"}});
            json!({"items": [{"metadata": metadata, "spec": spec}]})
        };
        let answer = match (call, kind.as_str()) {
            (HostCall::Get { .. }, "IPAddress") => json!({"metadata": {"name": "taken"}}),
            (HostCall::Get { name, .. }, _) => {
                return Err(format!("Cannot find {api_version}/{kind} named '{name}' inside of namespace 'None'"));
            }
            (_, "Deployment") => item(json!({"template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"runtimeClassName": "sandbox"},
            }})),
            (_, "Pod") => item(json!({"nodeName": "worker"})),
            _ => json!({"items": []}),
        };
        Ok(serde_json::to_vec(&answer).unwrap())
    }
}

/// The operations and kinds that the module looks up with the default kinds of evidence.
fn looked_up() -> BTreeSet<(String, Resource)> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy.wasm");
    let module =
        WasmModule::load(&file, Limits::default()).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let cluster = Arc::new(ClusterWithEveryLookup::default());
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    });
    let request = json!({
        "uid": "00000000-0000-4000-8000-000000000001", "operation": "CREATE", "namespace": "shop", "name": "web",
        "kind": {"group": "", "version": "v1", "kind": "Service"}, "userInfo": {"username": "alice"}, "object": service,
    });
    for lookups in ["cluster", "namespace"] {
        let settings = json!({"services": {"evidence": {"lookups": lookups}}});
        module.validate(&request, &settings, cluster.clone()).unwrap();
    }
    let asked = cluster.asked.lock().unwrap();
    asked.clone()
}

#[test]
fn metadata_requests_exactly_the_access_that_the_module_uses() {
    let (policy, package, looked_up) = (metadata(), read_yaml("artifacthub-pkg.yml"), looked_up());
    let kinds: BTreeSet<Resource> = looked_up.iter().map(|(_, resource)| resource.clone()).collect();
    let operations: BTreeSet<String> = looked_up.into_iter().map(|(operation, _)| operation).collect();
    assert_eq!(policy.context_aware_resources, kinds, "policy-metadata.yml: contextAwareResources");
    assert_eq!(policy.host_capabilities, operations, "policy-metadata.yml: hostCapabilities");
    let listed = package["annotations"]["kubewarden/contextAwareResources"].as_str().unwrap();
    let listed: Vec<Resource> = serde_json::from_value(document(listed)).unwrap();
    assert_eq!(listed, kinds.into_iter().collect::<Vec<_>>(), "artifacthub-pkg.yml: contextAwareResources");
    let written = read_yaml("policy-metadata.yml");
    let written = written["contextAwareResources"].as_array().unwrap().len();
    assert_eq!(written, policy.context_aware_resources.len(), "policy-metadata.yml: duplicate kind");
}
