//! On which nodes the endpoints will run: the sources of evidence and their order, tested by whole answers to the
//! creation of a Service.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::{
    ASSUMED, FakeCluster, LINUX, WINDOWS, Why, allocated, annotated, answer, by_os, check_evidence, lowest, selecting,
    service,
};
use serde_json::{Value, json};

fn windows() -> Value {
    json!({"nodeSelector": {"kubernetes.io/os": "windows"}})
}

fn linux() -> Value {
    json!({"os": {"name": "linux"}})
}

fn cluster() -> FakeCluster {
    FakeCluster::default()
}

#[test]
fn each_source_names_the_os() {
    let from = |source| by_os("windows", source, WINDOWS);
    let template = |kind: &str| cluster().workload(kind, "shop/web", windows());
    let namespace = |annotations| cluster().namespace("shop", &[], annotations);
    let selector = "scheduler.alpha.kubernetes.io/node-selector";
    check_evidence(vec![
        (
            "the Service's annotation",
            annotated(&[("clusterip-policy/os", "windows")]),
            cluster(),
            from("annotation clusterip-policy/os"),
            &[],
        ),
        (
            "the annotation in another case",
            annotated(&[("clusterip-policy/os", "Windows")]),
            cluster(),
            from("annotation clusterip-policy/os"),
            &[],
        ),
        ("a Deployment", selecting(), template("Deployment"), from("Deployment shop/web"), &[]),
        ("a StatefulSet", selecting(), template("StatefulSet"), from("StatefulSet shop/web"), &[]),
        ("a DaemonSet", selecting(), template("DaemonSet"), from("DaemonSet shop/web"), &[]),
        ("a ReplicaSet", selecting(), template("ReplicaSet"), from("ReplicaSet shop/web"), &[]),
        (
            "a ReplicationController",
            selecting(),
            template("ReplicationController"),
            from("ReplicationController shop/web"),
            &[],
        ),
        ("a Job", selecting(), template("Job"), from("Job shop/web"), &[]),
        ("a CronJob", selecting(), template("CronJob"), from("CronJob shop/web"), &[]),
        ("a Pod", selecting(), template("Pod"), from("Pod shop/web"), &[]),
        (
            "the Namespace's annotation",
            selecting(),
            namespace(&[("clusterip-policy/os", "Windows")]),
            from("Namespace shop"),
            &[],
        ),
        (
            "the Namespace's node selector",
            selecting(),
            namespace(&[(selector, "kubernetes.io/os=windows")]),
            from("Namespace shop"),
            &[],
        ),
        (
            "its old label, among others",
            selecting(),
            namespace(&[(selector, " a = b , beta.kubernetes.io/os == Windows ,")]),
            from("Namespace shop"),
            &[],
        ),
        (
            "the annotation before the node selector",
            selecting(),
            namespace(&[("clusterip-policy/os", "windows"), (selector, "kubernetes.io/os=linux")]),
            from("Namespace shop"),
            &[],
        ),
        (
            "the Namespace of a Service without a selector",
            service(json!({})),
            namespace(&[("clusterip-policy/os", "windows")]),
            from("Namespace shop"),
            &[],
        ),
        ("nothing", selecting(), cluster(), ASSUMED, &[]),
        ("an empty annotation", annotated(&[("clusterip-policy/os", "")]), cluster(), ASSUMED, &[]),
        (
            "a workload that says nothing",
            selecting(),
            cluster().workload("Deployment", "shop/web", json!({})),
            ASSUMED,
            &[],
        ),
        (
            "a workload of another namespace",
            selecting(),
            cluster().workload("Deployment", "other/web", windows()),
            ASSUMED,
            &[],
        ),
        (
            "a workload that is not selected",
            selecting(),
            cluster().workload_labelled("Deployment", "shop/db", &[("app", "db")], windows()),
            ASSUMED,
            &[],
        ),
        ("no selector", service(json!({})), template("Deployment"), ASSUMED, &[]),
    ]);
}

#[test]
fn first_source_with_a_value_decides() {
    let all = || {
        cluster()
            .workload("Deployment", "shop/a", json!({}))
            .workload("StatefulSet", "shop/b", windows())
            .workload("Pod", "shop/c", linux())
            .namespace("shop", &[], &[("clusterip-policy/os", "linux")])
    };
    check_evidence(vec![
        (
            "the annotation before the workloads",
            annotated(&[("clusterip-policy/os", "linux")]),
            all(),
            by_os("linux", "annotation clusterip-policy/os", LINUX),
            &[],
        ),
        (
            "a kind that says something before later ones",
            selecting(),
            all(),
            by_os("windows", "StatefulSet shop/b", WINDOWS),
            &[],
        ),
        (
            "the workloads before the Namespace",
            selecting(),
            cluster().workload("Pod", "shop/c", linux()).namespace("shop", &[], &[("clusterip-policy/os", "windows")]),
            by_os("linux", "Pod shop/c", LINUX),
            &[],
        ),
    ]);
    let questions = |object: &Value| {
        let cluster = all();
        answer(object, &lowest(), &cluster);
        cluster.questions()
    };
    let address = ["list Service", "get IPAddress 172.21.1.50"];
    assert_eq!(
        questions(&selecting()),
        [&["list Deployment", "list StatefulSet"][..], &address].concat(),
        "no further than needed"
    );
    assert_eq!(questions(&annotated(&[("clusterip-policy/os", "windows")])), address);
}

#[test]
fn first_workload_by_name_decides_and_disagreement_is_named() {
    let mixed = |first: Value, second: Value| {
        // Listed in reverse order.
        cluster().workload("Deployment", "shop/b", second).workload("Deployment", "shop/a", first)
    };
    let os = "kubernetes.io/os";
    check_evidence(vec![
        (
            "Windows first",
            selecting(),
            mixed(windows(), linux()),
            by_os("windows", "Deployment shop/a", WINDOWS),
            &[&format!(
                "Deployment shop/a needs {os}=windows, Deployment shop/b needs linux: the first by name decides"
            )],
        ),
        (
            "Linux first",
            selecting(),
            mixed(linux(), windows()),
            by_os("linux", "Deployment shop/a", LINUX),
            &[&format!(
                "Deployment shop/a needs {os}=linux, Deployment shop/b needs windows: the first by name decides"
            )],
        ),
        ("they agree", selecting(), mixed(windows(), windows()), by_os("windows", "Deployment shop/a", WINDOWS), &[]),
        (
            "the first says nothing",
            selecting(),
            mixed(json!({}), windows()),
            by_os("windows", "Deployment shop/b", WINDOWS),
            &[],
        ),
        (
            "of three, the first that differs is named",
            selecting(),
            mixed(windows(), windows()).workload("Deployment", "shop/d", linux()).workload(
                "Deployment",
                "shop/c",
                linux(),
            ),
            by_os("windows", "Deployment shop/a", WINDOWS),
            &[&format!(
                "Deployment shop/a needs {os}=windows, Deployment shop/c needs linux: the first by name decides"
            )],
        ),
        (
            "kinds do not disagree: the first decides alone",
            selecting(),
            cluster().workload("Deployment", "shop/z", windows()).workload("StatefulSet", "shop/a", linux()),
            by_os("windows", "Deployment shop/z", WINDOWS),
            &[],
        ),
    ]);
}

#[test]
fn unreadable_namespace_node_selector_is_named_in_a_warning() {
    let annotations = |text| cluster().namespace("shop", &[], &[("scheduler.alpha.kubernetes.io/node-selector", text)]);
    let warning = |part: &str| {
        format!("Namespace shop: scheduler.alpha.kubernetes.io/node-selector has {part:?}, which is not key=value")
    };
    check_evidence(vec![
        ("a word", selecting(), annotations("windows"), ASSUMED, &[&warning("windows")]),
        (
            "a word beside what can be read",
            selecting(),
            annotations("gpu,kubernetes.io/os=windows"),
            by_os("windows", "Namespace shop", WINDOWS),
            &[&warning("gpu")],
        ),
        ("an empty value", selecting(), annotations("kubernetes.io/os="), ASSUMED, &[]),
        ("empty", selecting(), annotations(" , ,"), ASSUMED, &[]),
    ]);
}

#[test]
fn each_label_can_come_from_another_source() {
    let settings = json!({"services": {
        "order": "lowest",
        "pools": [
            {"name": "arm", "cidrs": ["10.0.1.0/24"], "match": {"os": "linux", "nodeLabels": {"kubernetes.io/arch": "arm64"}}},
            {"name": "gpu", "cidrs": ["10.0.2.0/24"], "match": {"nodeLabels": {"gpu": "yes"}}},
            {"name": "linux", "cidrs": ["10.0.3.0/24"], "match": {"os": "linux"}},
        ],
    }});
    let arm = || json!({"nodeSelector": {"kubernetes.io/arch": "arm64"}});
    let gpu = || json!({"nodeSelector": {"gpu": "yes"}});
    let rows: Vec<(&str, Value, FakeCluster, Option<&str>, Why<'_>)> = vec![
        (
            "arch from a workload, os from the annotation",
            annotated(&[("clusterip-policy/os", "linux")]),
            cluster().workload("Job", "shop/web", arm()),
            Some("10.0.1.1"),
            (
                Some("arm"),
                Some((
                    "Job shop/web, annotation clusterip-policy/os",
                    &[("kubernetes.io/arch", "arm64"), ("kubernetes.io/os", "linux")],
                )),
            ),
        ),
        (
            "each from another kind, os assumed",
            selecting(),
            cluster().workload("Pod", "shop/p", arm()).workload("Deployment", "shop/d", gpu()),
            Some("10.0.1.1"),
            (
                Some("arm"),
                Some((
                    "Deployment shop/d, Pod shop/p, assumption",
                    &[("gpu", "yes"), ("kubernetes.io/arch", "arm64"), ("kubernetes.io/os", "linux")],
                )),
            ),
        ),
        (
            "from the Namespace, whatever the os",
            annotated(&[("clusterip-policy/os", "windows")]),
            cluster().namespace("shop", &[], &[("scheduler.alpha.kubernetes.io/node-selector", "gpu=yes")]),
            Some("10.0.2.1"),
            (
                Some("gpu"),
                Some((
                    "Namespace shop, annotation clusterip-policy/os",
                    &[("gpu", "yes"), ("kubernetes.io/os", "windows")],
                )),
            ),
        ),
        (
            "another value in another case",
            selecting(),
            cluster().workload("Pod", "shop/p", json!({"nodeSelector": {"gpu": "Yes"}})),
            Some("10.0.3.1"),
            (Some("linux"), Some(("Pod shop/p, assumption", &[("gpu", "Yes"), ("kubernetes.io/os", "linux")]))),
        ),
    ];
    for (name, object, cluster, address, why) in rows {
        assert_eq!(answer(&object, &settings, &cluster), allocated(&object, &[address.unwrap()], why, &[]), "{name}");
    }
}

#[test]
fn assumed_os_can_be_changed() {
    let object = selecting();
    let settings = json!({"services": {"order": "lowest", "assumeOS": "Windows"}});
    let why = by_os("windows", "assumption", WINDOWS);
    assert_eq!(answer(&object, &settings, &cluster()), allocated(&object, &["172.21.1.50"], why, &[]));
}
