//! `clusterip settings`, and pool objects as the settings of other commands.

use clusterip_cluster::yaml;
use serde_json::{Value, json};

use crate::command::session_files::{WEB, copy_of};
use crate::command::{Done, Folder, headless, service_cidr, service_manifest, snapshot_of};

const DOCUMENT: &str = "\
services:
  explicit: deny
  pools:
  - cidrs:
    - 10.96.1.0/24
    match:
      namespaces:
      - shop
    name: shop
  - cidrs:
    - 10.96.2.0/24
    name: all
    reserved: 50
";

const OBJECTS: &str = "\
apiVersion: clusterip-policy.io/v1alpha1
kind: ClusterIPPolicy
metadata:
  name: default
spec:
  explicit: Deny
---
apiVersion: clusterip-policy.io/v1alpha1
kind: ServicePool
metadata:
  name: shop
spec:
  cidrs:
  - 10.96.1.0/24
  match:
    namespaces:
    - shop
  priority: 20
---
apiVersion: clusterip-policy.io/v1alpha1
kind: ServicePool
metadata:
  name: all
spec:
  cidrs:
  - 10.96.2.0/24
  priority: 10
  reserved: 50
";

const FENCED: &str = "\
apiVersion: clusterip-policy.io/v1alpha1
kind: ServicePool
metadata:
  name: team
  uid: 00000000-0000-4000-8000-000000000001
  labels: {team: a}
  annotations: {kubectl.kubernetes.io/last-applied-configuration: '{}'}
spec:
  fence: Deny
  serviceCIDRSelector: {matchLabels: {team: a}}
status:
  ranges: [10.97.0.0/24]
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: team-a, labels: {team: a}}
spec: {cidrs: [10.97.0.0/24]}
";

/// The mistake of [`OBJECTS`] if the range of the pool `all` is 10.96.1.0/25.
const OVERLAP: &str = "ServicePool all: Overlaps: spec.cidrs[0]: 10.96.1.0/25 overlaps 10.96.1.0/24 of pool \"shop\"";

fn pool(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": name}, "spec": spec,
    })
}

#[test]
fn settings_are_converted_between_a_document_and_objects() {
    struct Case {
        name: &'static str,
        input: String,
        args: &'static str,
        expected: Done,
    }
    let warned = |stdout: &str, stderr: &str| Done { stderr: stderr.to_owned(), ..Done::ok(stdout) };
    let case = |name, input: &str, args, expected| Case { name, input: input.to_owned(), args, expected };
    let config_map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"settings.yaml": DOCUMENT},
    });
    let cases = [
        case("a document to objects", DOCUMENT, "--to objects", Done::ok(OBJECTS)),
        case("objects to a document", OBJECTS, "--to document", Done::ok(DOCUMENT)),
        case("a ConfigMap to objects", &config_map.to_string(), "--to objects", Done::ok(OBJECTS)),
        case(
            "a document to a document in JSON",
            "services: {order: lowest}",
            "--to document -o json",
            Done::ok("{\n  \"services\": {\n    \"order\": \"lowest\"\n  }\n}\n"),
        ),
        case(
            "settings that objects do not have",
            "services: {evidence: {lookups: namespace}, pools: [{name: all, cidrs: [10.96.1.0/24]}]}",
            "--to objects",
            warned(
                "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata:\n  name: all\nspec:\n  \
                 cidrs:\n  - 10.96.1.0/24\n  priority: 10\n",
                "warning: -: services.evidence.lookups: objects do not have it, because clusterip sets it itself\n",
            ),
        ),
        case(
            "settings that a document does not have",
            FENCED,
            "--to document",
            warned(
                "services:\n  pools:\n  - cidrs:\n    - 10.97.0.0/24\n    name: team\n",
                "warning: -: ServicePool team: spec.fence: only objects have it, because the API server reads it there\n\
                 warning: -: ServicePool team: spec.serviceCIDRSelector: the document has the ranges of the ServiceCIDR \
                 objects as they are now, in cidrs\n",
            ),
        ),
        case(
            "objects of a cluster to objects",
            FENCED,
            "--to objects",
            Done::ok(
                "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata:\n  labels:\n    team: a\n  \
                 name: team\nspec:\n  fence: Deny\n  serviceCIDRSelector:\n    matchLabels:\n      team: a\n",
            ),
        ),
        case(
            "a document with mistakes",
            "services: {order: sideways}",
            "--to objects",
            Done::refused("settings: -: services.order: unknown value \"sideways\": known are spread, lowest"),
        ),
        case(
            "objects with mistakes",
            &OBJECTS.replace("10.96.2.0/24", "10.96.1.0/25"),
            "--to document",
            Done::refused(format!("settings: -: {OVERLAP}")),
        ),
        case(
            "a module without a policy",
            DOCUMENT,
            "--to objects --module registry://example.com/policy:v1",
            Done::refused("--module needs --to policy"),
        ),
        case(
            "a document to policies of the API server",
            DOCUMENT,
            "--to static-admission",
            Done::refused("-: a document has no spec.fence: give pool objects"),
        ),
        case(
            "pools without a fence to policies of the API server",
            OBJECTS,
            "--to admission",
            Done::refused("-: no pool has spec.fence: Warn or Deny"),
        ),
    ];
    let folder = Folder::new("settings-conversion");
    for Case { name, input, args, expected } in cases {
        assert_eq!(folder.piped(&format!("settings - {args}"), &input), expected, "{name}");
    }
    assert_eq!(folder.piped("settings - --to objects --output-file pools.yaml", DOCUMENT), Done::ok(""));
    assert_eq!(std::fs::read_to_string(folder.path("pools.yaml")).unwrap(), OBJECTS);
}

/// `fence_policies.rs` has tests of the expressions.
#[test]
fn policies_have_the_ranges_of_selected_service_cidrs() {
    let folder = Folder::new("settings-fences");
    for (form, end) in [("static-admission", "static.k8s.io"), ("admission", "io")] {
        let done = folder.piped(&format!("settings - --to {form} -o json"), FENCED);
        assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{done:?}");
        let list: Value = serde_json::from_str(&done.stdout).unwrap();
        let names: Vec<_> = list["items"].as_array().unwrap().iter().map(|it| it["metadata"]["name"].clone()).collect();
        let name = format!("team.service-fence.clusterip-policy.{end}");
        assert_eq!(names, [json!(name), json!(name)]);
        let pool = r#"{"kind": dyn("ServicePool"), "metadata": dyn({"name": dyn("team")}), "spec": dyn({"cidrs": dyn(["10.97.0.0/24"]), "fence": dyn("Deny"), "match": dyn({})})}"#;
        assert_eq!(list["items"][0]["spec"]["variables"][0]["expression"], pool);
    }
}

#[test]
fn deployed_policy_is_the_same_after_a_conversion() {
    let workspace = Folder::workspace();
    let file = "deploy/kubewarden/policy/policy.yaml";
    let deployed = yaml::single(&std::fs::read_to_string(workspace.path(file)).unwrap()).unwrap();
    for output in ["yaml", "json"] {
        let done = workspace.clusterip(&format!("settings {file} --to policy -o {output}"));
        assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{done:?}");
        assert_eq!(yaml::single(&done.stdout).unwrap(), deployed, "{output}");
        let convert = |input: &str, to: &str| {
            let converted = workspace.piped(&format!("settings - --to {to} -o {output}"), input);
            assert_eq!((converted.status, converted.stderr.as_str()), (0, ""), "{to}: {converted:?}");
            converted.stdout
        };
        let objects = convert(&done.stdout, "objects");
        let document = yaml::single(&convert(&objects, "document")).unwrap();
        assert_eq!(document, deployed["spec"]["settings"], "{output}: {objects}");
    }
    let done = workspace.clusterip("settings examples/settings/nodes.yaml --to policy");
    assert_eq!(
        done.stderr,
        "warning: examples/settings/nodes.yaml: nodes: this policy is for Services: Nodes need a second policy, such as \
         deploy/kubewarden/nodes/policy.yaml\n"
    );
}

#[test]
fn objects_are_settings_of_every_command() {
    let folder = copy_of("settings-of-objects", WEB);
    let web = service_manifest("web", "{}");
    folder.write("in.yaml", &web).write("document.yaml", DOCUMENT).write("objects.yaml", OBJECTS);
    let plan = |settings: &str| folder.clusterip(&format!("plan in.yaml --settings {settings}"));
    let expected = plan("document.yaml");
    assert!(expected.stdout.contains("10.96.2."), "{expected:?}");
    assert_eq!(plan("objects.yaml"), expected);
    assert_eq!(folder.piped("plan in.yaml --settings -", OBJECTS), expected, "standard input");
    let evaluate =
        |settings: &str| folder.clusterip(&format!("evaluate --request request.json --settings {settings} -o decoded"));
    let (evaluated, from_document) = (evaluate("objects.yaml"), evaluate("document.yaml"));
    assert!(evaluated.status == 0 && evaluated.stdout.contains("10.96.1."), "{evaluated:?}");
    assert_eq!(evaluated.stdout, from_document.stdout);
    assert_eq!(folder.clusterip("validate objects.yaml"), Done::ok("objects.yaml: valid\n"));

    folder.write("bad.yaml", OBJECTS.replace("10.96.2.0/24", "10.96.1.0/25"));
    assert_eq!(plan("bad.yaml"), Done::refused(format!("settings: bad.yaml: {OVERLAP}")));
    let invalid = Done { status: 1, ..Done::ok(format!("bad.yaml: error: {OVERLAP}\n")) };
    assert_eq!(folder.clusterip("validate bad.yaml"), invalid);

    // Objects among the manifests are the settings of a plan.
    folder.write("all.yaml", format!("{OBJECTS}---\n{web}"));
    assert_eq!(folder.clusterip("plan all.yaml"), expected);
    let both = "all.yaml: document 1, line 1: ClusterIPPolicy default is settings, but --settings names other ones \
                (document.yaml): omit --settings, or leave the object out";
    assert_eq!(folder.clusterip("plan all.yaml --settings document.yaml"), Done::refused(both));
    let mistake = format!("settings: the objects of the manifests: {OVERLAP}");
    assert_eq!(folder.clusterip("plan bad.yaml in.yaml"), Done::refused(mistake));
}

/// Pools of a file may select ServiceCIDRs of the snapshot, in every command that reads one.
#[test]
fn pools_of_a_file_select_service_cidrs_of_a_snapshot() {
    let folder = copy_of("selected-in-a-snapshot", WEB);
    let cidr = service_cidr("a", "10.97.0.0/24", json!({"metadata": {"labels": {"team": "a"}}}));
    let team = pool("team", json!({"serviceCIDRSelector": {"matchLabels": {"team": "a"}}}));
    folder.write("snapshot.json", snapshot_of(&[cidr, headless()])).write("team.json", team.to_string());
    folder.write("web.yaml", service_manifest("web", "{}"));
    let cases = [
        ("plan web.yaml --settings team.json", "10.97.0."),
        ("plan web.yaml team.json", "10.97.0."),
        ("audit --settings team.json", "10.97.0.0/24"),
        ("evaluate --request request.json -o decoded --settings team.json", "10.97.0."),
    ];
    for (args, stdout) in cases {
        let done = folder.clusterip(&format!("{args} --snapshot snapshot.json"));
        assert!(done.status == 0 && done.stdout.contains(stdout), "{args}: {done:?}");
        // Kubewarden does not know pool objects, so no warning is about it.
        assert!(!done.stderr.contains("Kubewarden"), "{args}: {done:?}");
    }
}

#[test]
fn objects_of_a_snapshot_are_its_settings() {
    let folder = Folder::new("settings-of-a-snapshot");
    let cidr = service_cidr("kubernetes", "10.97.0.0/16", json!({"metadata": {"labels": {"team": "a"}}}));
    let objects = [
        pool("team", json!({"serviceCIDRSelector": {"matchLabels": {"team": "a"}}})),
        pool("outside", json!({"cidrs": ["10.98.0.0/24"]})),
        cidr,
        headless(),
    ];
    folder.write("snapshot.json", snapshot_of(&objects)).write("web.yaml", service_manifest("web", "{}"));
    let notice = "settings: the pools of the snapshot\nwarning: ServicePool outside: OutsideServiceCIDRs: ";
    for args in ["audit --snapshot snapshot.json", "plan web.yaml --snapshot snapshot.json"] {
        let done = folder.clusterip(args);
        assert_eq!(done.status, 0, "{args:?}: {done:?}");
        assert!(done.stderr.starts_with(notice), "{args:?}: {done:?}");
        assert!(done.stdout.contains("team") && !done.stdout.contains("\noutside "), "{args:?}: {done:?}");
    }
    folder.write("settings.yaml", "services: {pools: [{name: given, cidrs: [10.97.1.0/24]}]}");
    let done = folder.clusterip("audit --snapshot snapshot.json --settings settings.yaml");
    assert!(done.stdout.contains("given") && !done.stdout.contains("team"), "{done:?}");
}
