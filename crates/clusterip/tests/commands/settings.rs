//! `clusterip settings`, and pool objects as the settings of other commands.

use clusterip_cluster::yaml;
use serde_json::{Value, json};

use crate::command::session_files::{WEB, copy_of};
use crate::command::{Done, Folder, headless, service_manifest, snapshot_of};

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
        args: &'static [&'static str],
        expected: Done,
    }
    let ok = |text: &str| Done::ok(text);
    let warned = |stdout: &str, stderr: &str| Done { stderr: stderr.to_owned(), ..Done::ok(stdout) };
    let config_map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"settings.yaml": DOCUMENT},
    });
    let cases = [
        Case {
            name: "a document to objects",
            input: DOCUMENT.to_owned(),
            args: &["--to", "objects"],
            expected: ok(OBJECTS),
        },
        Case {
            name: "objects to a document",
            input: OBJECTS.to_owned(),
            args: &["--to", "document"],
            expected: ok(DOCUMENT),
        },
        Case {
            name: "a ConfigMap to objects",
            input: config_map.to_string(),
            args: &["--to", "objects"],
            expected: ok(OBJECTS),
        },
        Case {
            name: "objects to objects",
            input: OBJECTS.to_owned(),
            args: &["--to", "objects"],
            expected: ok(OBJECTS),
        },
        Case {
            name: "a document to a document in JSON",
            input: "services: {order: lowest}".to_owned(),
            args: &["--to", "document", "-o", "json"],
            expected: ok("{\n  \"services\": {\n    \"order\": \"lowest\"\n  }\n}\n"),
        },
        Case {
            name: "settings that objects do not have",
            input: "services: {evidence: {lookups: namespace}, pools: [{name: all, cidrs: [10.96.1.0/24]}]}".to_owned(),
            args: &["--to", "objects"],
            expected: warned(
                "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata:\n  name: all\nspec:\n  \
                 cidrs:\n  - 10.96.1.0/24\n  priority: 10\n",
                "warning: -: services.evidence.lookups: objects do not have it, because clusterip sets it itself\n",
            ),
        },
        Case {
            name: "settings that a document does not have",
            input: FENCED.to_owned(),
            args: &["--to", "document"],
            expected: warned(
                "services:\n  pools:\n  - cidrs:\n    - 10.97.0.0/24\n    name: team\n",
                "warning: -: ServicePool team: spec.fence: only objects have it, because the API server reads it there\n\
                 warning: -: ServicePool team: spec.serviceCIDRSelector: the document has the ranges of the ServiceCIDR \
                 objects as they are now, in cidrs\n",
            ),
        },
        Case {
            name: "objects of a cluster to objects",
            input: FENCED.to_owned(),
            args: &["--to", "objects"],
            expected: ok("apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata:\n  labels:\n    \
                          team: a\n  name: team\nspec:\n  fence: Deny\n  serviceCIDRSelector:\n    matchLabels:\n      \
                          team: a\n"),
        },
        Case {
            name: "a document with mistakes",
            input: "services: {order: sideways}".to_owned(),
            args: &["--to", "objects"],
            expected: Done::refused(
                "settings: -: services.order: unknown value \"sideways\": known are spread, lowest",
            ),
        },
        Case {
            name: "objects with mistakes",
            input: OBJECTS.replace("10.96.2.0/24", "10.96.1.0/25"),
            args: &["--to", "document"],
            expected: Done::refused(
                "settings: -: ServicePool all: Overlaps: spec.cidrs[0]: 10.96.1.0/25 overlaps 10.96.1.0/24 of pool \
                 \"shop\"",
            ),
        },
        Case {
            name: "a module without a policy",
            input: DOCUMENT.to_owned(),
            args: &["--to", "objects", "--module", "registry://example.com/policy:v1"],
            expected: Done::refused("--module needs --to policy"),
        },
    ];
    let folder = Folder::new("settings-conversion");
    for Case { name, input, args, expected } in cases {
        let done = folder.run_with(&[&["settings", "-"], args].concat(), &input, &[]);
        assert_eq!(done, expected, "{name}");
    }
    folder.write("settings.yaml", DOCUMENT);
    let done = folder.run(&["settings", "settings.yaml", "--to", "objects", "--output-file", "pools.yaml"]);
    assert_eq!(done, Done::ok(""));
    assert_eq!(std::fs::read_to_string(folder.path("pools.yaml")).unwrap(), OBJECTS);
}

/// Every example, from its document to objects, to a policy, and back to the document.
#[test]
fn examples_are_the_same_after_a_round_trip() {
    let (folder, examples) = (Folder::new("settings-round-trip"), Folder::workspace().path("examples/settings"));
    let convert = |input: &str, to: &str, output: &str| {
        let done = folder.run_with(&["settings", "-", "-q", "--to", to, "-o", output], input, &[]);
        assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{input}");
        done.stdout
    };
    for file in std::fs::read_dir(examples).unwrap() {
        let file = file.unwrap().path();
        let text = std::fs::read_to_string(&file).unwrap();
        let written = yaml::single(&text).unwrap();
        for output in ["yaml", "json"] {
            let objects = convert(&text, "objects", output);
            let policy = convert(&objects, "policy", output);
            let document = convert(&policy, "document", output);
            assert_eq!(yaml::single(&document).unwrap(), written, "{} in {output}", file.display());
            assert_eq!(convert(&policy, "objects", output), objects, "{} in {output}", file.display());
        }
    }
}

#[test]
fn deployed_policy_is_the_same_after_a_conversion() {
    let workspace = Folder::workspace();
    let file = "deploy/kubewarden/policy/policy.yaml";
    let deployed = yaml::single(&std::fs::read_to_string(workspace.path(file)).unwrap()).unwrap();
    for output in ["yaml", "json"] {
        let done = workspace.run(&["settings", file, "--to", "policy", "-o", output]);
        assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{done:?}");
        assert_eq!(yaml::single(&done.stdout).unwrap(), deployed, "{output}");
    }
    let done = workspace.run(&["settings", "examples/settings/nodes.yaml", "--to", "policy"]);
    assert_eq!(
        done.stderr,
        "warning: examples/settings/nodes.yaml: nodes: this policy is for Services: Nodes need a second policy, such as \
         deploy/kubewarden/nodes/policy.yaml\n"
    );
}

#[test]
fn objects_are_settings_of_every_command() {
    let folder = copy_of("settings-of-objects", WEB);
    folder.write("in.yaml", service_manifest("web", "{}")).write("document.yaml", DOCUMENT);
    folder.write("objects.yaml", OBJECTS);
    let plan = |settings: &str| folder.run(&["plan", "in.yaml", "--settings", settings]);
    assert_eq!(plan("objects.yaml"), plan("document.yaml"));
    let evaluate = |settings: &str| {
        folder.run(&["evaluate", "--request", "request.json", "--settings", settings, "--output", "decoded"])
    };
    let (evaluated, expected) = (evaluate("objects.yaml"), evaluate("document.yaml"));
    assert!(evaluated.status == 0 && evaluated.stdout.contains("10.96.1."), "{evaluated:?}");
    assert_eq!(evaluated.stdout, expected.stdout);
    assert_eq!(folder.run(&["validate", "objects.yaml"]), Done::ok("objects.yaml: valid\n"));

    folder.write("bad.yaml", OBJECTS.replace("10.96.2.0/24", "10.96.1.0/25"));
    let mistake = "ServicePool all: Overlaps: spec.cidrs[0]: 10.96.1.0/25 overlaps 10.96.1.0/24 of pool \"shop\"";
    assert_eq!(plan("bad.yaml"), Done::refused(format!("settings: bad.yaml: {mistake}")));
    let invalid = Done { status: 1, ..Done::ok(format!("bad.yaml: error: {mistake}\n")) };
    assert_eq!(folder.run(&["validate", "bad.yaml"]), invalid);
}

#[test]
fn objects_among_the_manifests_are_the_settings_of_a_plan() {
    let folder = Folder::new("settings-among-manifests");
    let web = service_manifest("web", "{}");
    folder.write("web.yaml", &web).write("document.yaml", DOCUMENT).write("all.yaml", format!("{OBJECTS}---\n{web}"));
    let expected = folder.run(&["plan", "web.yaml", "--settings", "document.yaml"]);
    assert!(expected.stdout.contains("10.96.2."), "{expected:?}");
    assert_eq!(folder.run(&["plan", "all.yaml"]), expected);

    let done = folder.run(&["plan", "all.yaml", "--settings", "document.yaml"]);
    let both = "all.yaml: document 1, line 1: ClusterIPPolicy default is settings, but --settings names other ones \
                (document.yaml): omit --settings, or leave the object out";
    assert_eq!(done, Done::refused(both));

    folder.write("bad.yaml", format!("{}---\n{web}", OBJECTS.replace("10.96.2.0/24", "10.96.2.1/24")));
    let mistake = "settings: the objects of the manifests: ServicePool all: Invalid: spec.cidrs[0]: 10.96.2.1/24 has \
                   host bits set: did you mean 10.96.2.0/24?";
    assert_eq!(folder.run(&["plan", "bad.yaml"]), Done::refused(mistake));

    // The labels of ServiceCIDRs of the cluster count.
    let cidr = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
                      "metadata": {"name": "a", "labels": {"team": "a"}}, "spec": {"cidrs": ["10.97.0.0/24"]}});
    let selecting = pool("team", json!({"serviceCIDRSelector": {"matchLabels": {"team": "a"}}}));
    folder.write("cluster.json", snapshot_of(&[cidr])).write("team.json", selecting.to_string());
    let done = folder.run(&["plan", "team.json", "web.yaml", "--snapshot", "cluster.json"]);
    assert!(done.status == 0 && done.stdout.contains("10.97.0."), "{done:?}");
    let done = folder.run(&["plan", "team.json", "web.yaml"]);
    assert!(done.stderr.contains("ServicePool team: NoRanges: spec.serviceCIDRSelector: "), "{done:?}");
}

/// Pools of a file may select ServiceCIDRs of the snapshot, in every command that reads one.
#[test]
fn pools_of_a_file_select_service_cidrs_of_a_snapshot() {
    let folder = Folder::new("selected-in-a-snapshot");
    let cidr = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
                      "metadata": {"name": "a", "labels": {"team": "a"}}, "spec": {"cidrs": ["10.97.0.0/24"]}});
    let team = pool("team", json!({"serviceCIDRSelector": {"matchLabels": {"team": "a"}}}));
    let far = pool("far", json!({"cidrs": ["10.98.0.0/24"]}));
    folder.write("snapshot.json", snapshot_of(&[cidr, headless()])).write("team.json", team.to_string());
    folder.write("web.yaml", service_manifest("web", "{}")).write("far.json", far.to_string());
    let web = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
                     "spec": {"ports": [{"port": 80}]}});
    let request = json!({"uid": "1", "operation": "CREATE", "namespace": "default", "name": "web", "object": web,
                         "kind": {"group": "", "version": "v1", "kind": "Service"},
                         "resource": {"group": "", "version": "v1", "resource": "services"},
                         "userInfo": {"username": "alice"}});
    folder.write("request.json", request.to_string());
    struct Case {
        args: &'static [&'static str],
        stdout: &'static str,
    }
    let cases = [
        Case { args: &["plan", "web.yaml"], stdout: "10.97.0." },
        Case { args: &["audit"], stdout: "10.97.0.0/24" },
        Case { args: &["evaluate", "--request", "request.json", "-o", "decoded"], stdout: "10.97.0." },
    ];
    for Case { args, stdout } in cases {
        let done = folder.run(&[args, &["--snapshot", "snapshot.json", "--settings", "team.json"]].concat());
        assert!(done.status == 0 && done.stdout.contains(stdout), "{args:?}: {done:?}");
        // Kubewarden does not know pool objects, so no warning is about it.
        assert!(!done.stderr.contains("Kubewarden"), "{args:?}: {done:?}");
    }
    let done = folder.run(&["plan", "web.yaml", "--snapshot", "snapshot.json", "--settings", "far.json"]);
    let outside = "settings: far.json: ServicePool far: OutsideServiceCIDRs: spec.cidrs[0]: 10.98.0.0/24 lies outside \
                   of the Service ranges of the cluster (10.97.0.0/24): the API server would refuse its addresses";
    assert_eq!(done, Done::refused(outside));
}

#[test]
fn each_mistake_begins_with_the_name_of_the_settings() {
    let folder = Folder::new("mistakes-of-a-file");
    folder
        .write("bad.yaml", "services: {oder: lowest, whenFull: dney}")
        .write("web.yaml", service_manifest("web", "{}"));
    let mistakes = "settings: bad.yaml: services.oder: unknown key \"oder\": did you mean order?\n\
                    settings: bad.yaml: services.whenFull: unknown value \"dney\": did you mean deny?";
    assert_eq!(folder.run(&["plan", "web.yaml", "--settings", "bad.yaml"]), Done::refused(mistakes));
}

#[test]
fn objects_of_a_snapshot_are_its_settings() {
    let folder = Folder::new("settings-of-a-snapshot");
    let cidr = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
                      "metadata": {"name": "kubernetes", "labels": {"team": "a"}}, "spec": {"cidrs": ["10.97.0.0/16"]}});
    let objects = [
        pool("team", json!({"serviceCIDRSelector": {"matchLabels": {"team": "a"}}})),
        pool("outside", json!({"cidrs": ["10.98.0.0/24"]})),
        cidr,
        headless(),
    ];
    folder.write("snapshot.json", snapshot_of(&objects)).write("web.yaml", service_manifest("web", "{}"));
    let notice = "settings: the pools of the snapshot\nwarning: ServicePool outside: OutsideServiceCIDRs: ";
    for args in [&["audit", "--snapshot", "snapshot.json"][..], &["plan", "web.yaml", "--snapshot", "snapshot.json"]] {
        let done = folder.run(args);
        assert_eq!(done.status, 0, "{args:?}: {done:?}");
        assert!(done.stderr.starts_with(notice), "{args:?}: {done:?}");
        assert!(done.stdout.contains("team") && !done.stdout.contains("\noutside "), "{args:?}: {done:?}");
    }
    folder.write("settings.yaml", "services: {pools: [{name: given, cidrs: [10.97.1.0/24]}]}");
    let done = folder.run(&["audit", "--snapshot", "snapshot.json", "--settings", "settings.yaml"]);
    assert!(done.stdout.contains("given") && !done.stdout.contains("team"), "{done:?}");
}
