//! Which namespace the manifests of `clusterip plan` are in, and which Services it plans.

use serde_json::{Value, json};

use crate::command::{Done, Folder, service_manifest, snapshot_of};

#[test]
fn objects_without_namespace_get_the_given_one() {
    let cases = [
        ("plan - -o json", "there", ["default", "there"]),
        ("plan - -n here -o json", "here", ["here", "here"]),
        ("plan --namespace=here - -o json", "here", ["here", "here"]),
    ];
    let of_cluster = "apiVersion: v1\nkind: Node\nmetadata: {name: worker}\n";
    let input = |named: &str| {
        let own = format!("apiVersion: v1\nkind: Service\nmetadata: {{name: own, namespace: {named}}}\nspec: {{}}\n");
        format!("{}---\n{own}---\n{of_cluster}", service_manifest("web", "{}"))
    };
    for (args, named, namespaces) in cases {
        let plan = Folder::new("namespaces").piped(args, &input(named)).json();
        assert_eq!(json!(namespaces), json!([plan["services"][0]["namespace"], plan["services"][1]["namespace"]]));
    }
    let input = input("here");
    let filled = Folder::new("namespaces").piped("plan - -n here -o yaml", &input);
    assert_eq!(filled.stdout.matches("namespace: here").count(), 1, "the manifests stay as they are: {filled:?}");
}

#[test]
fn objects_of_another_namespace_than_the_given_one_are_refused() {
    let service = "kind: Service\napiVersion: v1\nmetadata: {name: own, namespace: there}\nspec: {}\n";
    let job = |name| format!("- {{kind: Job, apiVersion: batch/v1, metadata: {{name: {name}, namespace: far}}}}\n");
    let list = format!("kind: List\napiVersion: v1\nitems:\n{}{}", job("run"), job("stop"));
    let input = format!("{}---\n{service}---\n{list}", service_manifest("web", "{}"));
    let expected = "\
-: document 2, line 7: Service own is in namespace there, but --namespace is here: remove one of the two
-: document 3, line 15: Job run is in namespace far, but --namespace is here: remove one of the two
-: document 3, line 16: Job stop is in namespace far, but --namespace is here: remove one of the two";
    let done = Folder::new("other-namespace").piped("plan - -n here", &input);
    assert_eq!(done, Done::refused(expected));
}

#[test]
fn namespace_that_is_neither_in_the_cluster_nor_in_the_manifests_is_refused() {
    struct Case {
        name: &'static str,
        snapshot: Vec<Value>,
        refused: bool,
    }
    let namespace = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let other_kind = json!({"apiVersion": "example.com/v1", "kind": "Namespace", "metadata": {"name": "here"}});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "here", "name": "old"},
        "spec": {"clusterIP": "None"}});
    let cases = [
        Case { name: "another kind of this name", snapshot: vec![namespace("there"), other_kind], refused: true },
        Case { name: "in the cluster", snapshot: vec![namespace("here")], refused: false },
        Case { name: "a Service of it is in the cluster", snapshot: vec![namespace("there"), service], refused: false },
        Case { name: "a snapshot without Namespaces", snapshot: vec![], refused: false },
    ];
    let folder = Folder::new("unknown-namespace");
    let plan = |input: &str| folder.piped("plan - --snapshot snapshot.json -q -n here", input);
    let manifest = service_manifest("web", "{}");
    for Case { name, snapshot, refused } in cases {
        folder.write("snapshot.json", snapshot_of(&snapshot));
        let done = plan(&manifest);
        if refused {
            assert_eq!(done, Done::refused("there is no namespace here: check --namespace"), "{name}");
        } else {
            assert_eq!(done.status, 0, "{name}: {done:?}");
        }
    }
    folder.write("snapshot.json", snapshot_of(&[namespace("there")]));
    let done = plan(&format!("{manifest}---\n{}\n", namespace("here")));
    assert_eq!(done.status, 0, "in the manifests: {done:?}");
}

#[test]
fn services_with_certain_labels_are_planned() {
    let service = |name: &str, labels: Value, spec: Value| {
        let metadata = json!({"name": name, "labels": labels});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}).to_string()
    };
    let input = |first_choice: &str| {
        let other = service("other", json!({"app": "db"}), json!({"clusterIP": first_choice}));
        [service("web", json!({"app": "web"}), json!({"ports": []})), other, service("bare", json!({}), json!({}))]
            .join("\n---\n")
    };
    let folder = Folder::new("plan-selector");
    let plan =
        |input: &str, args: &[&str]| folder.run_with(&[&["plan", "-", "-o", "json"][..], args].concat(), input, &[]);
    // `selectors.rs` tests the language of selectors.
    let text = input("172.21.0.20");
    let cases: [(&str, &[&str]); 3] =
        [("app", &["web", "other"]), ("app notin (web,db)", &["bare"]), ("app=none", &[])];
    for (selector, planned) in cases {
        let done = plan(&text, &["-l", selector]);
        let notice = "no Service has these labels\n";
        assert_eq!(done.stderr.contains(notice), planned.is_empty(), "{selector}: {done:?}");
        let services = done.json()["services"].clone();
        let names: Vec<&str> = services.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
        assert_eq!((done.status, names.as_slice()), (0, planned), "{selector}");
    }

    // The addresses of Services that are not planned are used.
    let address = |done: &Done| done.json()["services"][0]["clusterIPs"][0].as_str().unwrap().to_owned();
    let first_choice = address(&plan(&text, &["-l", "app=web"]));
    let second_choice = address(&plan(&input(&first_choice), &["-l", "app=web"]));
    assert_ne!(first_choice, second_choice);

    let filled = folder.piped("plan - -o yaml -l app=web", &text);
    let with_address = format!("{{\"clusterIP\": \"{first_choice}\", \"ports\":[]}}");
    assert_eq!(filled, Done::ok(text.replace("{\"ports\":[]}", &with_address)), "only this Service is filled in");
}
