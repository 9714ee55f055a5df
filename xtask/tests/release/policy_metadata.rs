//! The metadata of the policy, the Artifact Hub package, Cargo.toml and the README agree with each other and with the
//! module.

use std::collections::BTreeSet;

use clusterip_cluster::policy::host_calls::HostCall;
use clusterip_cluster::policy::recorded_session;
use serde_json::{Value, json};
use xtask::metadata::Resource;

use crate::files::{assert_fields, document, files_below, read, read_yaml, workspace};
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
    assert!(read("docs/operations.md").contains(&format!("\n| v{VERSION} | ")), "no upgrade note for v{VERSION}");
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

/// The operations and kinds of all look-ups in the recorded sessions, which are replayed with the module.
fn looked_up() -> (BTreeSet<String>, BTreeSet<Resource>) {
    let sessions = files_below(&workspace().join("e2e-tests/sessions"));
    let sessions = sessions.iter().filter(|file| file.ends_with("session.yml"));
    let calls = sessions.flat_map(|file| recorded_session::read(&read(file)).unwrap()).map(|exchange| exchange.call);
    let looked_up = |call: HostCall| {
        let operation = match call {
            HostCall::ListAll { .. } => "kubernetes/list_resources_all",
            HostCall::ListNamespace { .. } => "kubernetes/list_resources_by_namespace",
            HostCall::Get { .. } => "kubernetes/get_resource",
        };
        let (api_version, kind) = call.resource();
        (operation.to_owned(), Resource { api_version: api_version.to_owned(), kind: kind.to_owned() })
    };
    let (operations, mut kinds): (BTreeSet<String>, BTreeSet<Resource>) = calls.map(looked_up).unzip();
    // The settings of one session name this kind as evidence.
    kinds.retain(|resource| resource.api_version != "argoproj.io/v1alpha1");
    (operations, kinds)
}

#[test]
fn metadata_requests_exactly_the_access_that_the_module_uses() {
    let (policy, package, (operations, kinds)) = (metadata(), read_yaml("artifacthub-pkg.yml"), looked_up());
    assert_eq!(policy.context_aware_resources, kinds, "policy-metadata.yml: contextAwareResources");
    assert_eq!(policy.host_capabilities, operations, "policy-metadata.yml: hostCapabilities");
    let listed = package["annotations"]["kubewarden/contextAwareResources"].as_str().unwrap();
    let listed: Vec<Resource> = serde_json::from_value(document(listed)).unwrap();
    assert_eq!(listed, kinds.into_iter().collect::<Vec<_>>(), "artifacthub-pkg.yml: contextAwareResources");
    let written = read_yaml("policy-metadata.yml");
    let written = written["contextAwareResources"].as_array().unwrap().len();
    assert_eq!(written, policy.context_aware_resources.len(), "policy-metadata.yml: duplicate kind");
}
