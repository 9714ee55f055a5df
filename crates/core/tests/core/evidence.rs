//! On which nodes the endpoints will run: the sources of evidence and their order, tested by whole answers to the
//! creation of a Service.

use clusterip_core::decision::Report;
use serde_json::{Value, json};

use crate::support::{
    Creation, FakeCluster, LINUX, WINDOWS, Why, allocated, annotated, answer, by_os, check_evidence, lowest, plain,
    selecting, service,
};

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
    fn from(source: &str) -> Why<'_> {
        by_os("windows", source, WINDOWS)
    }
    let template = |kind: &str| cluster().workload(kind, "shop/web", windows());
    let namespace = |annotations| cluster().namespace("shop", &[], annotations);
    let selector = "scheduler.alpha.kubernetes.io/node-selector";
    check_evidence(vec![
        Creation {
            name: "the Service's annotation",
            object: annotated(&[("clusterip-policy/os", "windows")]),
            why: from("annotation clusterip-policy/os"),
            ..plain()
        },
        Creation {
            name: "the annotation in another case",
            object: annotated(&[("clusterip-policy/os", "Windows")]),
            why: from("annotation clusterip-policy/os"),
            ..plain()
        },
        Creation {
            name: "the Namespace's annotation",
            cluster: namespace(&[("clusterip-policy/os", "Windows")]),
            why: from("Namespace shop"),
            ..plain()
        },
        Creation {
            name: "the Namespace's node selector",
            cluster: namespace(&[(selector, "kubernetes.io/os=windows")]),
            why: from("Namespace shop"),
            ..plain()
        },
        Creation {
            name: "the old label in the node selector of the Namespace",
            cluster: namespace(&[(selector, " a = b , beta.kubernetes.io/os == Windows ,")]),
            why: from("Namespace shop"),
            ..plain()
        },
        Creation {
            name: "the annotation before the node selector",
            cluster: namespace(&[("clusterip-policy/os", "windows"), (selector, "kubernetes.io/os=linux")]),
            why: from("Namespace shop"),
            ..plain()
        },
        Creation {
            name: "the Namespace of a Service without a selector",
            object: service(json!({})),
            cluster: namespace(&[("clusterip-policy/os", "windows")]),
            why: from("Namespace shop"),
            ..plain()
        },
        Creation { name: "no source", ..plain() },
        Creation { name: "an empty annotation", object: annotated(&[("clusterip-policy/os", "")]), ..plain() },
        Creation {
            name: "a workload without node requirements",
            cluster: cluster().workload("Deployment", "shop/web", json!({})),
            ..plain()
        },
        Creation {
            name: "a workload of another namespace",
            cluster: cluster().workload("Deployment", "other/web", windows()),
            ..plain()
        },
        Creation {
            name: "a workload that is not selected",
            cluster: cluster().workload_labelled("Deployment", "shop/db", &[("app", "db")], windows()),
            ..plain()
        },
        Creation {
            name: "a Service without a selector",
            object: service(json!({})),
            cluster: template("Deployment"),
            ..plain()
        },
    ]);
    for kind in
        ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job", "CronJob", "Pod"]
    {
        let source = format!("{kind} shop/web");
        check_evidence(vec![Creation { name: kind, cluster: template(kind), why: from(&source), ..plain() }]);
    }
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
        Creation {
            name: "the annotation before the workloads",
            object: annotated(&[("clusterip-policy/os", "linux")]),
            cluster: all(),
            why: by_os("linux", "annotation clusterip-policy/os", LINUX),
            ..plain()
        },
        Creation {
            name: "the first kind with a value before later kinds",
            cluster: all(),
            why: by_os("windows", "StatefulSet shop/b", WINDOWS),
            ..plain()
        },
        Creation {
            name: "the workloads before the Namespace",
            cluster: cluster().workload("Pod", "shop/c", linux()).namespace(
                "shop",
                &[],
                &[("clusterip-policy/os", "windows")],
            ),
            why: by_os("linux", "Pod shop/c", LINUX),
            ..plain()
        },
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
    let disagree = |first: &str, os: &str, second: &str, other: &str| {
        format!("{first} needs kubernetes.io/os={os}, {second} needs {other}: the first by name decides")
    };
    let more = mixed(windows(), windows()).workload("Deployment", "shop/d", linux());
    let more = more.workload("Deployment", "shop/c", linux());
    let other_kind = cluster().workload("Deployment", "shop/z", windows()).workload("StatefulSet", "shop/a", linux());
    check_evidence(vec![
        Creation {
            name: "Windows first",
            cluster: mixed(windows(), linux()),
            why: by_os("windows", "Deployment shop/a", WINDOWS),
            warnings: &[&disagree("Deployment shop/a", "windows", "Deployment shop/b", "linux")],
            ..plain()
        },
        Creation {
            name: "Linux first",
            cluster: mixed(linux(), windows()),
            why: by_os("linux", "Deployment shop/a", LINUX),
            warnings: &[&disagree("Deployment shop/a", "linux", "Deployment shop/b", "windows")],
            ..plain()
        },
        Creation {
            name: "the first has no node requirements",
            cluster: mixed(json!({}), windows()),
            why: by_os("windows", "Deployment shop/b", WINDOWS),
            ..plain()
        },
        Creation {
            name: "two agree, and the warning names the first one that differs",
            cluster: more,
            why: by_os("windows", "Deployment shop/a", WINDOWS),
            warnings: &[&disagree("Deployment shop/a", "windows", "Deployment shop/c", "linux")],
            ..plain()
        },
        Creation {
            name: "both agree",
            cluster: mixed(windows(), windows()),
            why: by_os("windows", "Deployment shop/a", WINDOWS),
            ..plain()
        },
        Creation {
            name: "another kind is not compared",
            cluster: other_kind,
            why: by_os("windows", "Deployment shop/z", WINDOWS),
            ..plain()
        },
    ]);
}

#[test]
fn unreadable_namespace_node_selector_is_named_in_a_warning() {
    let annotations = |text| cluster().namespace("shop", &[], &[("scheduler.alpha.kubernetes.io/node-selector", text)]);
    let warning = |part: &str| {
        format!("Namespace shop: scheduler.alpha.kubernetes.io/node-selector has {part:?}, which is not key=value")
    };
    check_evidence(vec![
        Creation { name: "a word", cluster: annotations("windows"), warnings: &[&warning("windows")], ..plain() },
        Creation {
            name: "a word beside a valid part",
            cluster: annotations("gpu,kubernetes.io/os=windows"),
            why: by_os("windows", "Namespace shop", WINDOWS),
            warnings: &[&warning("gpu")],
            ..plain()
        },
        Creation { name: "an empty value", cluster: annotations("kubernetes.io/os="), ..plain() },
        Creation { name: "only separators", cluster: annotations(" , ,"), ..plain() },
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
    let two_kinds = cluster().workload("Pod", "shop/p", arm());
    let two_kinds = two_kinds.workload("Deployment", "shop/d", json!({"nodeSelector": {"gpu": "yes"}}));
    let gpu = cluster().namespace("shop", &[], &[("scheduler.alpha.kubernetes.io/node-selector", "gpu=yes")]);
    // The value of another label than that of the operating system is case-sensitive.
    let upper = cluster().workload("Pod", "shop/p", json!({"nodeSelector": {"gpu": "Yes"}}));
    let (arm64, linux) = (("kubernetes.io/arch", "arm64"), ("kubernetes.io/os", "linux"));
    let on = |os: &str| annotated(&[("clusterip-policy/os", os)]);
    for (object, cluster, address, why) in [
        (
            on("linux"),
            cluster().workload("Job", "shop/web", arm()),
            "10.0.1.1",
            by_os("arm", "Job shop/web, annotation clusterip-policy/os", &[arm64, linux]),
        ),
        (
            selecting(),
            two_kinds,
            "10.0.1.1",
            by_os("arm", "Deployment shop/d, Pod shop/p, setting assumeOS", &[("gpu", "yes"), arm64, linux]),
        ),
        (
            on("windows"),
            gpu,
            "10.0.2.1",
            by_os(
                "gpu",
                "Namespace shop, annotation clusterip-policy/os",
                &[("gpu", "yes"), ("kubernetes.io/os", "windows")],
            ),
        ),
        (selecting(), upper, "10.0.3.1", by_os("linux", "Pod shop/p, setting assumeOS", &[("gpu", "Yes"), linux])),
    ] {
        assert_eq!(answer(&object, &settings, &cluster), allocated(&object, &[address], why, &[]), "{why:?}");
    }
}

#[test]
fn assumed_os_can_be_changed() {
    let object = selecting();
    let settings = json!({"services": {"order": "lowest", "assumeOS": "Windows"}});
    let why = by_os("windows", "setting assumeOS", WINDOWS);
    assert_eq!(answer(&object, &settings, &cluster()), allocated(&object, &["172.21.1.50"], why, &[]));
}

#[test]
fn report_tells_whether_a_label_is_assumed() {
    for (source, expected) in [
        ("setting assumeOS", true),
        ("Pod shop/p, setting assumeOS", true),
        ("Pod shop/p", false),
        ("Deployment shop/setting assumeOS", false),
        ("", false),
    ] {
        let report = Report { source: source.to_owned(), ..Report::default() };
        assert_eq!(report.has_assumed_os(), expected, "{source:?}");
    }
}
