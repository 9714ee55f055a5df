//! What `clusterip plan` reads: manifests in every format, and a snapshot of the cluster.

use serde_json::{Value, json};

use crate::command::{Done, Folder, service_manifest};

/// A way to write the same manifests.
struct Format {
    name: &'static str,
    files: Vec<(&'static str, String)>,
}

/// A Service and its Deployment in every format.
fn formats() -> Vec<Format> {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"nodeSelector": {"kubernetes.io/os": "windows"}},
        }},
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}},
    });
    let typeless = |object: &Value| {
        let mut object = object.clone();
        object.as_object_mut().unwrap().retain(|key, _| key != "apiVersion" && key != "kind");
        object
    };
    let list = |items: &[&Value]| json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let typed = |api_version: &str, kind: &str, item: Value| {
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"resourceVersion": "7"}, "items": [item]})
            .to_string()
    };
    let block = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\nspec:\n  selector:\n    app: web\n";
    let one = |name, file, text| Format { name, files: vec![(file, text)] };
    let two = |name, files: [&'static str; 2], first: &str, second: String| Format {
        name,
        files: vec![(files[0], first.to_owned()), (files[1], second)],
    };
    let (services, deployments) =
        (typed("v1", "ServiceList", typeless(&service)), typed("apps/v1", "DeploymentList", typeless(&deployment)));
    let inner = [list(&[&service]), deployments.clone()].map(|list| serde_json::from_str::<Value>(&list).unwrap());
    let empty = json!({"apiVersion": "v1", "kind": "List"});
    vec![
        two("a file each", ["in/a.yaml", "in/b.json"], block, deployment.to_string()),
        one("several documents", "in/all.yml", format!("{block}---\n{deployment}\n---\n# nothing\n---\n")),
        one("JSON objects that follow each other", "in/all.json", format!("{service}\n{deployment:#}{empty}\n")),
        one("a List", "in/all.json", list(&[&service, &deployment])),
        two("typed lists, whose items have no type", ["in/a.json", "in/b.json"], &services, deployments),
        one("a list of lists", "in/all.json", list(&[&inner[0], &inner[1]])),
        two("folders in folders", ["in/x/y/a.yaml", "in/z/b.yaml"], block, deployment.to_string()),
        Format {
            name: "files beside them that are none",
            files: vec![
                ("in/a.yaml", format!("{block}---\n{deployment}\n")),
                ("in/README.md", "{{{".to_owned()),
                ("in/.hidden.yaml", "{{{".to_owned()),
                ("in/.git/config.yaml", "{{{".to_owned()),
            ],
        },
    ]
}

#[test]
fn manifests_are_read_in_every_format() {
    let expected = Done::ok(
        "\
NAMESPACE  SERVICE  BELONGS TO  CLUSTER-IP    EVIDENCE
default    web      windows     172.21.1.173  os=windows (Deployment default/web)

1 Service: 1 allocated, 0 unchanged, 0 denied; windows 1 of 205 used; linux 0 of 205 used
",
    );
    for Format { name, files } in formats() {
        let folder = Folder::new("forms");
        for (file, text) in &files {
            folder.write(file, text);
        }
        assert_eq!(folder.clusterip("plan in"), expected, "{name}: a folder");
        if name != "files beside them that are none" {
            let paths: Vec<&str> = files.iter().map(|(file, _)| *file).collect();
            assert_eq!(folder.clusterip(&format!("plan {}", paths.join(" "))), expected, "{name}: files");
        }
        if let [(_, text)] = &files[..] {
            assert_eq!(folder.piped("plan -", text), expected, "{name}: standard input");
        }
    }
}

#[test]
fn reason_is_not_written_into_manifests() {
    // Applied with its address, the Service would lose the annotation: the address counts as set by hand.
    let settings = "\
services:
  pools: [{name: all, cidrs: [10.0.0.0/30], reserved: 2}]
  annotateReason: true
";
    let manifest = |annotations: &str, spec: &str| {
        format!("apiVersion: v1\nkind: Service\nmetadata: {{name: web{annotations}}}\nspec: {spec}\n")
    };
    let forged = ", annotations: {clusterip-policy/reason: none}";
    let folder = Folder::new("reason");
    folder.write("settings.yaml", settings);
    let filled = r#"{"clusterIP": "10.0.0.2", ports: []}"#;
    let plan = |input: &str| folder.piped("plan - --settings settings.yaml -o yaml", input);
    for annotations in ["", forged] {
        let done = plan(&manifest(annotations, "{ports: []}"));
        assert_eq!(done, Done::ok(manifest(annotations, filled)), "{annotations}");
    }
    let by_hand = manifest(forged, "{clusterIP: 10.0.0.1}");
    assert_eq!(plan(&by_hand), Done::ok(by_hand));
}

#[test]
fn files_of_folders_without_kubernetes_objects_are_skipped_with_a_count() {
    let folder = Folder::new("skipped");
    folder
        .write("in/chart/values.yaml", "replicas: 2\n---\nimage: web\n")
        .write("in/kubeadm.yaml", "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nnetworking: {}\n")
        .write("in/package.json", "{\"name\": \"web\"}")
        .write("in/empty.yaml", "# nothing\n")
        .write("in/web.yaml", service_manifest("web", "{}"));
    let expected = folder.clusterip("plan in/web.yaml");
    let skipped = "skipped: 3 files without Kubernetes objects (-v lists them)\n";
    assert_eq!(folder.clusterip("plan in"), Done { stderr: skipped.to_owned(), ..expected.clone() });
    let skipped = "\
skipped: in/chart/values.yaml: no Kubernetes objects
skipped: in/kubeadm.yaml: no Kubernetes objects
skipped: in/package.json: no Kubernetes objects
";
    assert_eq!(folder.clusterip("plan in -v"), Done { stderr: skipped.to_owned(), ..expected });
    let named = folder.clusterip("plan in/package.json");
    let message = "in/package.json: document 1, line 1: no `kind`: not a Kubernetes object";
    assert_eq!(named, Done::refused(message), "a file that the command line names is not skipped");
}

#[test]
fn links_that_lead_out_of_a_folder_are_skipped() {
    let folder = Folder::new("links");
    folder
        .write("secret.yaml", "password: hunter2\n")
        .write("in/data/web.txt", service_manifest("web", "{}"))
        .write("alone/.hidden", "");
    let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, folder.path(name)).unwrap();
    link("../secret.yaml", "in/a.yaml");
    link("data/web.txt", "in/web.yaml");
    link("../secret.yaml", "alone/a.yaml");
    let done = folder.clusterip("plan in -o json");
    assert_eq!(done.stderr, "skipped: in/a.yaml: a link to a file outside of the folder\n");
    assert_eq!(done.json()["services"].as_array().map(Vec::len), Some(1), "a link inside of the folder is followed");
    let message = "alone: no manifests: no file there, or below, ends in .yaml, .yml or .json";
    assert_eq!(folder.clusterip("plan alone"), Done::refused(message));
}

#[test]
fn manifests_are_named_with_f_as_for_kubectl() {
    let folder = Folder::new("filename");
    folder.write("a/a.yaml", service_manifest("a", "{}")).write("b.yaml", service_manifest("b", "{}"));
    let input = service_manifest("c", "{}");
    let expected = folder.piped("plan a b.yaml -", &input);
    assert_eq!(expected.stdout.lines().count(), 6, "{expected:?}");
    for args in ["-f a -f b.yaml -f -", "--filename a --filename=b.yaml -f-", "a -f b.yaml -f -"] {
        assert_eq!(folder.piped(&format!("plan {args}"), &input), expected, "{args}");
    }
}

#[test]
fn service_of_the_snapshot_keeps_its_address() {
    let web = Folder::new("snapshot-alone").piped("plan - -o json", &service_manifest("web", "{}")).json();
    let first_choice = web["services"][0]["clusterIPs"][0].as_str().unwrap().to_owned();
    let snapshot = json!({"apiVersion": "v1", "kind": "List", "items": [
        // It has the address that web would get.
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "fixed-ip", "namespace": "other"},
         "spec": {"clusterIP": first_choice, "clusterIPs": [first_choice]}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db", "namespace": "default"},
         "spec": {"clusterIP": "172.21.0.7", "clusterIPs": ["172.21.0.7"], "selector": {"app": "old"}}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
         "spec": {"template": {"metadata": {"labels": {"app": "web"}},
                               "spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}}}},
    ]});
    let input =
        service_manifest("web", "{selector: {app: web}}") + "---\n" + &service_manifest("db", "{selector: {app: db}}");
    let folder = Folder::new("snapshot");
    folder.write("snapshot.json", snapshot.to_string()).write("in.yaml", &input);
    let done = folder.clusterip("plan in.yaml --snapshot snapshot.json -q");
    let expected = "\
NAMESPACE  SERVICE  BELONGS TO  CLUSTER-IP    EVIDENCE
default    web      linux       172.21.0.204  os=linux (Deployment default/web)
default    db       -           172.21.0.7    unchanged: no new address

2 Services: 1 allocated, 1 unchanged, 0 denied; windows 0 of 205 used; linux 2 of 205 used
";
    assert_eq!(done, Done::ok(expected));
    let filled = folder.clusterip("plan in.yaml --snapshot snapshot.json -q -o yaml");
    let wanted = service_manifest("web", r#"{"clusterIP": "172.21.0.204", selector: {app: web}}"#)
        + "---\n"
        + &service_manifest("db", "{selector: {app: db}}");
    assert_eq!(filled, Done::ok(wanted));
}

#[test]
fn service_in_two_files_is_created_once_and_then_updated() {
    let folder = Folder::new("duplicate");
    folder.write("a.yaml", service_manifest("web", "{ports: [{port: 80}]}"));
    folder.write("b.yaml", format!("# again\n---\n{}", service_manifest("web", "{ports: [{port: 443}]}")));
    let expected = "\
NAMESPACE  SERVICE  BELONGS TO  CLUSTER-IP    EVIDENCE
default    web      linux       172.21.0.173  os=linux (setting assumeOS)
default    web      -           172.21.0.173  unchanged: no new address
  warning: the same Service as in a.yaml: document 1, line 1

2 Services: 1 allocated, 1 unchanged, 0 denied; windows 0 of 205 used; linux 1 of 205 used
";
    assert_eq!(folder.clusterip("plan a.yaml b.yaml"), Done::ok(expected));
}

#[test]
fn services_with_generated_names_get_different_addresses() {
    let one = "apiVersion: v1\nkind: Service\nmetadata: {generateName: worker-}\nspec: {}\n";
    let folder = Folder::new("generated");
    let done = folder.piped("plan -", &format!("{one}---\n{one}"));
    let expected = "\
NAMESPACE  SERVICE   BELONGS TO  CLUSTER-IP    EVIDENCE
default    worker-…  linux       172.21.0.155  os=linux (setting assumeOS)
default    worker-…  linux       172.21.0.94   os=linux (setting assumeOS)

2 Services: 2 allocated, 0 unchanged, 0 denied; windows 0 of 205 used; linux 2 of 205 used
";
    assert_eq!(done, Done::ok(expected));
}
