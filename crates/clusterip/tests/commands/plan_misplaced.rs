//! Which existing Services `clusterip plan` lists as misplaced.

use serde_json::{Value, json};

use crate::command::service_snapshot::{SETTINGS, by_hand, cluster, list, on, service};
use crate::command::{Done, Folder, service_manifest};

/// The remedy for a Service that nothing protects.
const MOVES: &str = "`clusterip move --seamless` moves it; `clusterip serve` moves it by itself if no ready endpoint can be reached at its address";

/// The objects of a snapshot besides its Services. With an APIService, a snapshot shows which Services the control plane
/// calls.
fn others() -> Vec<Value> {
    let own = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.apps"},
                     "spec": {}});
    vec![cluster(), own]
}

/// The Deployment `shop/web` on nodes with this os, whose Pods have the label `app=web`.
fn deployment(os: &str) -> Value {
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"nodeSelector": {"kubernetes.io/os": os}}});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": "web"},
           "spec": {"template": template}})
}

/// The Service `shop/web` without an address, as a manifest of its author, merged with `more`.
fn manifest(more: Value) -> Value {
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
                             "spec": {"ports": [{"port": 80}]}});
    json_patch::merge(&mut service, &more);
    service
}

/// The annotation for Windows, merged with `more`.
fn on_windows(more: Value) -> Value {
    let mut windows = on("windows");
    json_patch::merge(&mut windows, &more);
    windows
}

/// The Service `shop/web` as `kubectl get` prints it, with an address of the pool `linux`.
fn of_cluster(more: Value) -> Value {
    let mut service = service("web", "172.21.0.70", on("windows"));
    json_patch::merge(&mut service, &more);
    service
}

/// Each misplaced Service as its kind, its name, the pools that it lies in, its pool, whether it moves, and the remedy.
fn misplaced(done: &Done) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let line = |service: &Value| {
        let [kind, name, pool, remedy] = ["kind", "name", "pool", "remedy"].map(|key| text(&service[key]));
        let lies_in: Vec<String> = service["liesIn"].as_array().unwrap().iter().map(text).collect();
        format!("{kind} {name} {} -> {pool} {} | {remedy}", lies_in.join(","), service["moves"])
    };
    done.json()["misplaced"].as_array().into_iter().flatten().map(line).collect()
}

struct Case {
    name: &'static str,
    existing: Vec<Value>,
    manifests: Vec<Value>,
    args: &'static [&'static str],
    expected: Vec<String>,
}

#[track_caller]
fn check(test: &str, rows: Vec<Case>) {
    let folder = Folder::new(test);
    for Case { name, existing, manifests, args, expected } in rows {
        let new = manifest(json!({"metadata": {"name": "new"}}));
        folder.write("settings.yaml", SETTINGS).write("there.json", list([others(), existing].concat()));
        folder.write("in.json", list([vec![new], manifests].concat()));
        let base = ["plan", "in.json", "-s", "settings.yaml", "--snapshot", "there.json", "-o", "json"];
        let done = folder.run(&[&base[..], args].concat());
        assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{name}: {done:?}");
        assert_eq!(misplaced(&done), expected, "{name}");
        // A plan without misplaced Services looks as if there were no cluster.
        assert_eq!(done.json().get("misplaced").is_some(), !expected.is_empty(), "{name}");
    }
}

fn in_linux(remedy: &str, moves: bool) -> Vec<String> {
    vec![format!("misplaced web linux -> windows {moves} | {remedy}")]
}

#[test]
fn existing_services_outside_of_their_pool_are_listed() {
    let row = |name, existing: Value, expected| Case {
        name,
        existing: vec![existing],
        manifests: vec![],
        args: &[],
        expected,
    };
    let remedy =
        "nothing moves it: remove clusterIP from its manifest, or set an address of its pool, and create it again";
    let never = json!({"metadata": {"annotations": {"clusterip-policy/move": "never"}}});
    let exempt = json!({"metadata": {"namespace": "kube-system"}});
    check(
        "plan-misplaced",
        vec![
            row("where it belongs", service("web", "172.21.1.3", on("windows")), vec![]),
            row("in another pool", service("web", "172.21.0.70", on("windows")), in_linux(MOVES, true)),
            row(
                "in no pool",
                service("web", "172.21.9.9", on("windows")),
                vec![format!("no-pool web  -> windows true | {MOVES}")],
            ),
            row(
                "set by hand",
                service("web", "172.21.0.70", by_hand("windows")),
                vec![format!("by-hand web linux -> windows false | {remedy}")],
            ),
            row(
                "never moved",
                service("web", "172.21.0.70", on_windows(never)),
                in_linux("nothing moves it as long as its annotation clusterip-policy/move says never", false),
            ),
            row(
                "a load balancer",
                service("web", "172.21.0.70", on_windows(json!({"spec": {"type": "LoadBalancer"}}))),
                in_linux(
                    "`clusterip move --load-balancers` moves it; `clusterip serve --move-load-balancers` moves it by itself \
                     if no ready endpoint can be reached at its address",
                    true,
                ),
            ),
            row("exempt", service("web", "172.21.0.70", on_windows(exempt)), vec![]),
            row("headless", service("web", "None", on("windows")), vec![]),
            row("without a pool", service("web", "172.21.0.70", on("darwin")), vec![]),
        ],
    );
}

#[test]
fn manifests_of_existing_services_and_of_their_workloads_count() {
    let select = json!({"spec": {"selector": {"app": "web"}}});
    let from_cluster = json!({"metadata": {"uid": "00000000-0000-4000-8000-000000000001"}});
    let rows = vec![
        Case {
            name: "a workload of the manifests is evidence",
            existing: vec![service("web", "172.21.0.70", select.clone())],
            manifests: vec![deployment("windows")],
            args: &[],
            expected: in_linux(MOVES, true),
        },
        Case {
            name: "an update selects a workload",
            existing: vec![service("web", "172.21.0.70", json!({})), deployment("windows")],
            manifests: vec![manifest(select)],
            args: &[],
            expected: in_linux(MOVES, true),
        },
        Case {
            name: "an update changes the evidence",
            existing: vec![of_cluster(json!({}))],
            manifests: vec![manifest(on("linux"))],
            args: &[],
            expected: vec![],
        },
        Case {
            name: "a Service of a cluster among the manifests",
            existing: vec![service("other", "172.21.1.3", on("windows"))],
            manifests: vec![of_cluster(from_cluster)],
            args: &[],
            expected: in_linux(MOVES, true),
        },
        Case {
            name: "a new Service with an address",
            existing: vec![service("other", "172.21.1.3", on("windows"))],
            manifests: vec![manifest(on_windows(json!({"spec": {"clusterIP": "172.21.0.20"}})))],
            args: &[],
            expected: vec![],
        },
    ];
    check("plan-misplaced-manifests", rows);
}

#[test]
fn selector_selects_existing_services_too() {
    let labelled = |value: &str| on_windows(json!({"metadata": {"labels": {"app": value}}}));
    let existing = vec![service("a", "172.21.0.70", labelled("a")), service("b", "172.21.0.71", labelled("b"))];
    let new = manifest(json!({"metadata": {"name": "a-2", "labels": {"app": "a"}}}));
    check(
        "plan-misplaced-selector",
        vec![Case {
            name: "one of two",
            existing,
            manifests: vec![new],
            args: &["-l", "app=a"],
            expected: vec![format!("misplaced a linux -> windows true | {MOVES}")],
        }],
    );
}

#[test]
fn only_given_settings_list_misplaced_services() {
    let folder = Folder::new("plan-misplaced-settings");
    let existing = service("web", "172.21.9.9", on("windows"));
    let pool = "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: all}\n\
                spec: {cidrs: [172.21.3.0/24]}\n";
    let new = service_manifest("new", "{}");
    folder.write("there.json", list([others(), vec![existing]].concat())).write("in.yaml", &new);
    folder.write("settings.yaml", SETTINGS).write("pools.yaml", format!("{pool}---\n{new}"));
    struct Case {
        args: &'static [&'static str],
        is_listed: bool,
    }
    let rows = [
        Case { args: &["in.yaml"], is_listed: false },
        Case { args: &["in.yaml", "-s", "settings.yaml"], is_listed: true },
        Case { args: &["in.yaml", "-s", "settings.yaml", "-o", "json"], is_listed: true },
        Case { args: &["in.yaml", "-s", "settings.yaml", "-o", "yaml"], is_listed: false },
        Case { args: &["pools.yaml"], is_listed: true },
    ];
    for Case { args, is_listed } in rows {
        let done = folder.run(&[&["plan", "--snapshot", "there.json"][..], args].concat());
        assert_eq!(done.status, 0, "{args:?}: {done:?}");
        assert_eq!(done.stdout.contains("172.21.9.9"), is_listed, "{args:?}: {done:?}");
    }
}

#[test]
fn what_is_unknown_about_misplaced_services_is_a_notice() {
    let folder = Folder::new("plan-misplaced-notes");
    let unowned = json!({"metadata": {"annotations": {"clusterip-policy/os": "windows"}, "managedFields": null}});
    let existing = service("web", "172.21.0.70", unowned);
    folder.write("there.json", list(vec![cluster(), existing])).write("settings.yaml", SETTINGS);
    folder.write("in.yaml", service_manifest("new", "{}"));
    let base = ["plan", "in.yaml", "-s", "settings.yaml", "--snapshot", "there.json"];
    let notes = "\
note: 1 Service comes without metadata.managedFields: it is unknown whether an address was set by hand \
(`kubectl get --show-managed-fields` shows them)
note: it is unknown whether the control plane calls a misplaced Service, which then does not move: \
MutatingWebhookConfiguration was not listed; ValidatingWebhookConfiguration was not listed; APIService was not listed; \
CustomResourceDefinition was not listed
";
    let done = folder.run(&base);
    assert_eq!((done.status, done.stderr.as_str()), (0, notes), "{done:?}");
    let quiet = folder.run(&[&base[..], &["-q"][..]].concat());
    assert_eq!(quiet, Done::ok(done.stdout));
}
