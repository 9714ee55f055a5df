//! Everything that is published about the policy agrees with the policy itself: the metadata, the Artifact Hub package,
//! Rancher's form, Cargo.toml, the README and the pages of `docs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use clusterip::cluster::yaml;
use clusterip::policy::host_calls::{HostCall, HostCalls};
use clusterip::policy::module::{EMBEDDED, Module};
use clusterip::policy::service_request::ServiceRequest;
use clusterip_core::settings::Settings;
use clusterip_core::workload::WorkloadKind;
use serde_json::{Value, json};
use xtask::metadata::Resource;

use crate::support::{metadata, read, read_yaml};

const NAME: &str = "clusterip-policy";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

/// A value that was found, and the value that it must equal.
struct Row<'a> {
    name: &'a str,
    found: Value,
    expected: Value,
}

/// Compares all rows, and reports those that differ.
#[track_caller]
fn assert_rows(rows: &[Row<'_>]) {
    let wrong: Vec<String> = rows
        .iter()
        .filter(|row| row.found != row.expected)
        .map(|row| format!("{}: found {}, expected {}", row.name, row.found, row.expected))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

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
    let module = Module::new(EMBEDDED).unwrap();
    let cluster = Arc::new(ClusterWithEveryLookup::default());
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    });
    let uid = "00000000-0000-4000-8000-000000000001";
    let request = ServiceRequest { uid, username: "alice", object: &service, old: None, dry_run: false }.to_value();
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

#[test]
fn documentation_of_decisions_lists_the_kinds_of_evidence_in_their_order() {
    let kinds: Vec<&str> = WorkloadKind::known_names().collect();
    let (last, first) = kinds.split_last().unwrap();
    let words: Vec<String> = read("docs/decision.md").split_whitespace().map(str::to_owned).collect();
    let list = format!("{}, then {last}s.", first.join(", "));
    assert!(words.join(" ").contains(&list), "{list}");
}

/// The names that the policy itself lists when it finds an unknown one.
fn known(settings: Value) -> Vec<String> {
    let invalid = Settings::from_value(&settings).unwrap_err().to_string();
    let (_, list) = invalid.split_once("known are ").unwrap_or_else(|| panic!("{invalid}"));
    list.lines().next().unwrap().split(", ").map(str::to_owned).collect()
}

const NONSENSE: &str = "xxxxxxxxxxxxxxxxxxxxxxxx";

/// The settings below `services`, `nodes` or `external`, as the tables of docs/settings.md name them.
fn settings(section: &str) -> Vec<String> {
    let mut settings = Vec::new();
    for key in known(json!({ section: {NONSENSE: 1} })) {
        match key.as_str() {
            "pools" => {
                let keys = known(json!({ section: {"pools": [{NONSENSE: 1}]} }));
                settings.extend(keys.iter().map(|key| format!("pools[].{key}")));
            }
            "evidence" => {
                let keys = known(json!({ section: {"evidence": {NONSENSE: 1}} }));
                settings.extend(keys.iter().map(|key| format!("evidence.{key}")));
            }
            _ => settings.push(key),
        }
    }
    settings
}

/// The rows of a table of docs/settings.md: name, default in words, meaning.
fn table(section: &str) -> Vec<(String, String, String)> {
    let page = read("docs/settings.md");
    let (_, table) = page.split_once(&format!("| `{section}.` | default | |\n")).expect("no table of settings");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').splitn(3, '|').map(|cell| cell.trim().to_owned());
        let name = cells.next().unwrap().trim_matches('`').to_owned();
        (name, cells.next().unwrap(), cells.next().unwrap())
    })
    .collect()
}

#[test]
fn documentation_of_settings_lists_every_setting() {
    for section in ["services", "nodes", "external"] {
        let named: BTreeSet<String> = table(section).into_iter().map(|(name, ..)| name).collect();
        assert_eq!(named, settings(section).into_iter().collect(), "{section}");
    }
}

#[test]
fn documentation_of_settings_has_the_defaults_of_nodes() {
    let rows: BTreeMap<String, (String, String)> =
        table("nodes").into_iter().map(|(name, default, meaning)| (name, (default, meaning))).collect();
    let with = |key: &str, value: Value| {
        let mut document = json!({"nodes": {"pools": [{"name": "a", "cidrs": ["10.0.0.0/16", "fd00::/48"]}]}});
        let place = if key == "explicit" { "/nodes" } else { "/nodes/pools/0" };
        document.pointer_mut(place).unwrap()[key] = value;
        Settings::from_value(&document).map_err(|invalid| invalid.to_string())
    };
    for key in ["blockSize", "exclude", "explicit"] {
        let name = if key == "explicit" { key.to_owned() } else { format!("pools[].{key}") };
        let written = yaml::single(rows[&name].0.trim_matches('`')).unwrap();
        assert_eq!(with(key, written), with(key, Value::Null), "{name}");
    }
    for key in known(json!({"nodes": {"pools": [{"match": {NONSENSE: 1}}]}})) {
        assert!(rows["pools[].match"].1.contains(&format!("`{key}`")), "match.{key}");
    }
    for value in known(json!({"nodes": {"explicit": NONSENSE}})) {
        let (default, meaning) = &rows["explicit"];
        assert!([default, meaning].iter().any(|text| text.contains(&format!("`{value}`"))), "explicit: {value}");
    }
}

#[test]
fn documentation_of_settings_has_the_defaults_of_external_addresses() {
    let rows: BTreeMap<String, (String, String)> =
        table("external").into_iter().map(|(name, default, meaning)| (name, (default, meaning))).collect();
    let with = |key: &str, value: Option<Value>| {
        let mut document = json!({"external": {"pools": [{"name": "a", "cidrs": ["10.0.9.10-10.0.9.40"]}]}});
        let (place, key) = match key.strip_prefix("pools[].") {
            Some(key) => ("/external/pools/0", key),
            None => ("/external", key),
        };
        if let Some(value) = value {
            document.pointer_mut(place).unwrap()[key] = value;
        }
        Settings::from_value(&document).map_err(|invalid| invalid.to_string())
    };
    for key in ["pools[].exclude", "loadBalancerClass", "default"] {
        let written = yaml::single(rows[key].0.trim_matches('`')).unwrap();
        assert_eq!(with(key, Some(written)), with(key, None), "{key}");
    }
    for key in known(json!({"external": {"pools": [{"match": {NONSENSE: 1}}]}})) {
        assert!(rows["pools[].match"].1.contains(&format!("`{key}`")), "match.{key}");
    }
    // The page about external addresses has an example of every setting.
    let page = read("docs/external.md");
    let example =
        page.split("```yaml\n").find(|block| block.contains("loadBalancerClass: clusterip-policy/external  "));
    let example = yaml::single(example.unwrap().split("```").next().unwrap()).unwrap();
    Settings::from_value(&example).unwrap();
    for setting in settings("external") {
        let shown = match setting.strip_prefix("pools[].") {
            Some(key) => example["external"]["pools"][0].get(key),
            None => example["external"].get(&setting),
        };
        assert!(shown.is_some() || setting == "pools", "docs/external.md: no {setting}");
    }
}

/// The questions of Rancher's form, by the variable that each sets.
fn questions() -> BTreeMap<String, Value> {
    let form = read_yaml("questions-ui.yml");
    let mut questions = form["questions"].as_array().unwrap().clone();
    let below: Vec<Value> =
        questions.iter().filter_map(|question| question["subquestions"].as_array()).flatten().cloned().collect();
    questions.extend(below);
    let count = questions.len();
    let questions: BTreeMap<String, Value> = questions
        .into_iter()
        .map(|question| (question["variable"].as_str().expect("a question without a variable").to_owned(), question))
        .collect();
    assert_eq!(questions.len(), count, "two questions set the same variable");
    questions
}

/// Settings that the form can't hold; its text names them instead.
const NOT_IN_THE_FORM: [&str; 4] = ["pools", "evidence.kinds", "serviceCIDRs", "unusableServiceCIDRs"];

#[test]
fn form_has_every_setting_that_it_can_hold() {
    let mut questions = questions();
    let parent = questions.remove("services").expect("no question for services");
    let asked: BTreeSet<String> = questions.into_keys().collect();
    let kept_out = |setting: &String| NOT_IN_THE_FORM.iter().any(|name| setting.split("[]").next() == Some(name));
    let expected: BTreeSet<String> =
        settings("services").into_iter().filter(|s| !kept_out(s)).map(|s| format!("services.{s}")).collect();
    assert_eq!(asked, expected);
    let text = parent["description"].as_str().unwrap();
    for name in NOT_IN_THE_FORM.into_iter().chain(["nodes beside services"]) {
        assert!(text.contains(name), "the form does not mention {name}, which it leaves out");
    }
}

#[test]
fn form_offers_valid_values_and_the_defaults() {
    let table: BTreeMap<String, (String, String)> =
        table("services").into_iter().map(|(name, default, meaning)| (name, (default, meaning))).collect();
    let mut rows = Vec::new();
    for (variable, question) in questions() {
        let Some(name) = variable.strip_prefix("services.") else { continue };
        let document = |value: &Value| {
            let value = name.rsplit('.').fold(value.clone(), |value, key| json!({key: value}));
            json!({"services": value})
        };
        let default = &question["default"];
        let settings = Settings::from_value(&document(default)).map_err(|invalid| invalid.to_string());
        rows.push((format!("{name}: default of the policy"), json!(settings == Ok(Settings::default())), json!(true)));
        // The default must have an effect: another value gives other settings.
        let other = match default {
            Value::Array(_) => json!(["other"]),
            _ if question["type"] == "enum" => {
                question["options"].as_array().unwrap().iter().find(|option| *option != default).unwrap().clone()
            }
            _ => json!("windows"),
        };
        let settings = Settings::from_value(&document(&other)).map_err(|invalid| invalid.to_string());
        rows.push((format!("{name}: {other} is accepted"), json!(settings.is_ok()), json!(true)));
        rows.push((format!("{name}: {other} has an effect"), json!(settings != Ok(Settings::default())), json!(true)));
        if question["type"] == "enum" {
            let options = known(document(&json!(NONSENSE)));
            rows.push((format!("{name}: options"), set(&question["options"]), set(&json!(options))));
        }
        let (written, meaning) = &table[name];
        let shown = match default {
            Value::Array(items) => {
                format!("[{}]", items.iter().map(|item| item.as_str().unwrap()).collect::<Vec<_>>().join(", "))
            }
            value => value.as_str().unwrap().to_owned(),
        };
        rows.push((format!("{name}: default in docs/settings.md"), json!(written), json!(format!("`{shown}`"))));
        for option in question["options"].as_array().into_iter().flatten().filter(|option| *option != default) {
            let named = meaning.contains(&format!("`{}`", option.as_str().unwrap()));
            rows.push((format!("{name}: docs/settings.md names {option}"), json!(named), json!(true)));
        }
    }
    let rows: Vec<Row<'_>> = rows
        .iter()
        .map(|(name, found, expected)| Row { name, found: found.clone(), expected: expected.clone() })
        .collect();
    assert_rows(&rows);
}

fn set(list: &Value) -> Value {
    json!(list.as_array().unwrap().iter().map(|item| item.as_str().unwrap()).collect::<BTreeSet<_>>())
}
