//! Which existing Services `clusterip plan` lists as misplaced. `audit_services.rs` tests why a Service is misplaced,
//! and what moves it.

use serde_json::{Value, json};

use crate::command::service_snapshot::{SETTINGS, cluster, deployment, list, on, service};
use crate::command::{Done, Folder, merged, service_manifest};

/// The Service `shop/web` without an address, as a manifest of its author, merged with `more`.
fn manifest(more: Value) -> Value {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
                         "spec": {"ports": [{"port": 80}]}});
    merged(service, more)
}

/// The annotation for Windows, merged with `more`.
fn on_windows(more: Value) -> Value {
    merged(on("windows"), more)
}

#[test]
fn manifests_of_existing_services_and_of_their_workloads_count() {
    struct Case {
        name: &'static str,
        existing: Vec<Value>,
        manifests: Vec<Value>,
        args: &'static str,
        /// Each misplaced Service as its name, and whether it moves.
        expected: &'static [(&'static str, bool)],
    }
    const WEB: &[(&str, bool)] = &[("web", true)];
    let case = |name, existing, manifests, expected| Case { name, existing, manifests, args: "", expected };
    let select = json!({"spec": {"selector": {"app": "web"}}});
    let right = service("other", "172.21.1.3", on("windows"));
    let annotated =
        |annotation: &str, value: &str| on_windows(json!({"metadata": {"annotations": {annotation: value}}}));
    let from_cluster = on_windows(json!({"metadata": {"uid": "00000000-0000-4000-8000-000000000001"}}));
    let labelled = |value: &str| on_windows(json!({"metadata": {"labels": {"app": value}}}));
    let hook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "hooks"},
        "webhooks": [{
            "name": "hook.example.org", "clientConfig": {"service": {"namespace": "shop", "name": "web"}},
            "rules": [{"apiGroups": [""], "operations": ["UPDATE"], "resources": ["services"]}],
        }],
    });
    let rows = [
        case("misplaced", vec![service("web", "172.21.0.70", on("windows"))], vec![], WEB),
        case(
            "never moved",
            vec![service("web", "172.21.0.70", annotated("clusterip-policy/move", "never"))],
            vec![],
            &[("web", false)],
        ),
        case(
            "of a webhook that blocks the move",
            vec![service("web", "172.21.0.70", on("windows")), hook],
            vec![],
            &[("web", false)],
        ),
        case(
            "where it belongs, and without a pool",
            vec![right.clone(), service("web", "172.21.0.70", on("darwin"))],
            vec![],
            &[],
        ),
        case(
            "a workload of the manifests is evidence",
            vec![service("web", "172.21.0.70", select.clone())],
            vec![deployment()],
            WEB,
        ),
        case(
            "an update selects a workload",
            vec![service("web", "172.21.0.70", json!({})), deployment()],
            vec![manifest(select)],
            WEB,
        ),
        case(
            "an update changes the evidence",
            vec![service("web", "172.21.0.70", on("windows"))],
            vec![manifest(on("linux"))],
            &[],
        ),
        case(
            "a Service of a cluster among the manifests",
            vec![right.clone()],
            vec![service("web", "172.21.0.70", from_cluster)],
            WEB,
        ),
        case(
            "a new Service with an address",
            vec![right],
            vec![manifest(on_windows(json!({"spec": {"clusterIP": "172.21.0.20"}})))],
            &[],
        ),
        Case {
            name: "a selector selects existing Services too",
            existing: vec![service("a", "172.21.0.70", labelled("a")), service("b", "172.21.0.71", labelled("b"))],
            manifests: vec![manifest(json!({"metadata": {"name": "a-2", "labels": {"app": "a"}}}))],
            args: " -l app=a",
            expected: &[("a", true)],
        },
    ];
    let folder = Folder::new("plan-misplaced");
    folder.write("settings.yaml", SETTINGS);
    // With an APIService, a snapshot shows which Services the control plane calls.
    let own = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.apps"},
                     "spec": {}});
    for Case { name, existing, manifests, args, expected } in rows {
        let new = manifest(json!({"metadata": {"name": "new"}}));
        folder.write("there.json", list([vec![cluster(), own.clone()], existing].concat()));
        folder.write("in.json", list([vec![new], manifests].concat()));
        let done = folder.clusterip(&format!("plan in.json -s settings.yaml --snapshot there.json -o json{args}"));
        assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{name}: {done:?}");
        let told = done.json();
        let found = told.get("misplaced").map(|misplaced| misplaced.as_array().unwrap().as_slice());
        let found = found
            .map(|all| all.iter().map(|one| (one["name"].as_str().unwrap(), one["moves"] == true)).collect::<Vec<_>>());
        // A plan without misplaced Services looks as if there were no cluster.
        assert_eq!(found, (!expected.is_empty()).then(|| expected.to_vec()), "{name}");
    }
}

#[test]
fn only_given_settings_list_misplaced_services() {
    let folder = Folder::new("plan-misplaced-settings");
    let existing = service("web", "172.21.9.9", on("windows"));
    let pool = "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: all}\n\
                spec: {cidrs: [172.21.3.0/24]}\n";
    let new = service_manifest("new", "{}");
    folder.write("there.json", list(vec![cluster(), existing])).write("in.yaml", &new);
    folder.write("settings.yaml", SETTINGS).write("pools.yaml", format!("{pool}---\n{new}"));
    let rows = [
        ("in.yaml", false),
        ("in.yaml -s settings.yaml", true),
        ("in.yaml -s settings.yaml -o json", true),
        ("in.yaml -s settings.yaml -o yaml", false),
        ("pools.yaml", true),
    ];
    for (args, is_listed) in rows {
        let done = folder.clusterip(&format!("plan --snapshot there.json {args}"));
        assert_eq!(done.status, 0, "{args}: {done:?}");
        assert_eq!(done.stdout.contains("172.21.9.9"), is_listed, "{args}: {done:?}");
    }
}

#[test]
fn what_is_unknown_about_misplaced_services_is_a_notice() {
    let folder = Folder::new("plan-misplaced-notes");
    let unowned = json!({"metadata": {"annotations": {"clusterip-policy/os": "windows"}, "managedFields": null}});
    let existing = service("web", "172.21.0.70", unowned);
    folder.write("there.json", list(vec![cluster(), existing])).write("settings.yaml", SETTINGS);
    folder.write("in.yaml", service_manifest("new", "{}"));
    let notes = "\
note: 1 Service comes without metadata.managedFields: it is unknown whether an address was set by hand \
(`kubectl get --show-managed-fields` shows them)
note: it is unknown whether the control plane calls a misplaced Service, which then does not move: \
MutatingWebhookConfiguration was not listed; ValidatingWebhookConfiguration was not listed; APIService was not listed; \
CustomResourceDefinition was not listed
";
    let done = folder.clusterip("plan in.yaml -s settings.yaml --snapshot there.json");
    assert_eq!((done.status, done.stderr.as_str()), (0, notes), "{done:?}");
    assert_eq!(folder.clusterip("plan in.yaml -s settings.yaml --snapshot there.json -q"), Done::ok(done.stdout));
}
