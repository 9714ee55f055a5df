//! The metadata of the policy, the Artifact Hub package, Cargo.toml and the README agree with each other and with the
//! module.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use clusterip_cluster::policy::host_calls::{HostCall, HostCalls};
use clusterip_cluster::policy::wasm_module::{Limits, WasmModule};
use clusterip_cluster::yaml;
use serde_json::{Value, json};
use xtask::metadata::Resource;

use crate::support::{Row, assert_rows, metadata, read, read_yaml};

const NAME: &str = "clusterip-policy";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

#[test]
fn names_versions_texts_and_urls_agree() {
    let (policy, package, cargo) = (metadata(), read_yaml("artifacthub-pkg.yml"), read("Cargo.toml"));
    let of = |key: &str| policy.annotations.get(key).map_or(Value::Null, |value| json!(value));
    let quoted = |key: &str| {
        let package = cargo.split("[package]\n").nth(1).unwrap();
        let line = package.lines().find_map(|line| line.strip_prefix(&format!("{key} = \"")));
        json!(line.map(|rest| rest.trim_end_matches('"')))
    };
    let image = format!("ghcr.io/{NAME}/{NAME}");
    let (tagged, release) =
        (format!("{image}:v{VERSION}"), format!("{REPOSITORY}/releases/download/v{VERSION}/policy.wasm"));
    let author = format!(
        "{} <{}>",
        package["maintainers"][0]["name"].as_str().unwrap(),
        package["maintainers"][0]["email"].as_str().unwrap()
    );
    let keywords: Vec<String> =
        package["keywords"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect();
    let links = json!([{"name": "policy", "url": release}, {"name": "source", "url": REPOSITORY}]);
    let image_of_package = json!([{"name": "policy", "image": tagged, "whitelisted": true}]);
    assert_rows(&[
        Row { name: "Cargo.toml: name", found: quoted("name"), expected: json!(NAME) },
        Row {
            name: "README.md: title",
            found: json!(read("README.md").lines().next()),
            expected: json!(format!("# {NAME}")),
        },
        Row { name: "metadata: title", found: of("io.kubewarden.policy.title"), expected: json!(NAME) },
        Row { name: "package: name", found: package["name"].clone(), expected: json!(NAME) },
        Row {
            name: "package: displayName",
            found: package["displayName"].clone(),
            expected: of("io.artifacthub.displayName"),
        },
        Row { name: "metadata: version", found: of("io.kubewarden.policy.version"), expected: json!(VERSION) },
        Row { name: "package: version", found: package["version"].clone(), expected: json!(VERSION) },
        Row { name: "metadata: ociUrl", found: of("io.kubewarden.policy.ociUrl"), expected: json!(image) },
        Row {
            name: "package: containersImages",
            found: package["containersImages"].clone(),
            expected: image_of_package,
        },
        Row { name: "package: links", found: package["links"].clone(), expected: links },
        Row {
            name: "metadata: description",
            found: of("io.kubewarden.policy.description"),
            expected: quoted("description"),
        },
        Row { name: "package: description", found: package["description"].clone(), expected: quoted("description") },
        Row {
            name: "metadata: license",
            found: of("io.kubewarden.policy.license"),
            expected: json!(env!("CARGO_PKG_LICENSE")),
        },
        Row { name: "package: license", found: package["license"].clone(), expected: json!(env!("CARGO_PKG_LICENSE")) },
        Row { name: "metadata: url", found: of("io.kubewarden.policy.url"), expected: json!(REPOSITORY) },
        Row { name: "metadata: source", found: of("io.kubewarden.policy.source"), expected: json!(REPOSITORY) },
        Row { name: "package: homeURL", found: package["homeURL"].clone(), expected: json!(REPOSITORY) },
        Row { name: "metadata: keywords", found: of("io.artifacthub.keywords"), expected: json!(keywords.join(", ")) },
        Row { name: "metadata: author", found: of("io.kubewarden.policy.author"), expected: json!(author) },
        Row {
            name: "metadata: usage is added from the README",
            found: of("io.kubewarden.policy.usage"),
            expected: Value::Null,
        },
        Row { name: "package: digest is added at release", found: package["digest"].clone(), expected: json!("") },
    ]);
    let install = package["install"].as_str().unwrap();
    let pull = format!("kwctl pull registry://{tagged}\n");
    let scaffold =
        format!("kwctl scaffold manifest -t ClusterAdmissionPolicy --allow-context-aware registry://{tagged}\n");
    assert!(install.contains(&pull) && install.contains(&scaffold), "{install}");
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

#[test]
fn rules_of_metadata_and_package_agree() {
    let (policy, package) = (metadata(), read_yaml("artifacthub-pkg.yml"));
    let annotation = |name: &str| package["annotations"][name].as_str().unwrap_or_default().to_owned();
    let rules = json!([{
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "resources": ["services"],
        "operations": ["CREATE", "UPDATE"],
    }]);
    assert_rows(&[
        Row { name: "metadata: rules", found: serde_json::to_value(&policy.rules).unwrap(), expected: rules.clone() },
        Row { name: "package: rules", found: yaml::single(&annotation("kubewarden/rules")).unwrap(), expected: rules },
        Row {
            name: "metadata: resources",
            found: json!(policy.annotations["io.artifacthub.resources"]),
            expected: json!("Service, Node"),
        },
        Row {
            name: "package: resources",
            found: json!(annotation("kubewarden/resources")),
            expected: json!("Service, Node"),
        },
        Row { name: "metadata: mutating", found: json!(policy.mutating), expected: json!(true) },
        Row { name: "package: mutation", found: json!(annotation("kubewarden/mutation")), expected: json!("true") },
        Row { name: "metadata: backgroundAudit", found: json!(policy.background_audit), expected: json!(true) },
        Row {
            name: "metadata: executionMode",
            found: json!(policy.execution_mode),
            expected: json!("kubewarden-wapc"),
        },
        Row { name: "metadata: policyType", found: json!(policy.policy_type), expected: json!("kubernetes") },
        // The first version that prunes objects by field masks.
        Row { name: "metadata: minimum", found: json!(policy.minimum_kubewarden_version), expected: json!("1.33.0") },
    ]);
    let says = |page: &str, phrase: &str| assert!(read(page).contains(phrase), "{page}: {phrase}");
    says("README.md", "gives each new Kubernetes Service a ClusterIP");
    says(
        "docs/decision.md",
        "An update that changes the type from `ExternalName`, or asks for a second family, is handled like a create.",
    );
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
    let listed: Vec<Resource> = serde_json::from_value(yaml::single(listed).unwrap()).unwrap();
    assert_eq!(listed, kinds.into_iter().collect::<Vec<_>>(), "artifacthub-pkg.yml: contextAwareResources");
    let written = read_yaml("policy-metadata.yml");
    let written = written["contextAwareResources"].as_array().unwrap().len();
    assert_eq!(written, policy.context_aware_resources.len(), "policy-metadata.yml: duplicate kind");
}
