//! Which look-ups evidence needs (kinds, RuntimeClasses and Nodes), and what happens if one fails.

use clusterip_core::lookups::LookupError;
use serde_json::{Value, json};

use crate::support;
use crate::support::{
    ASSUMED, Creation, FakeCluster, LINUX, WINDOWS, allocated, answer, by_os, check_evidence, denied, lowest, plain,
    selecting,
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
fn runtime_class_and_node_complete_the_pod_spec() {
    const CLASS_GONE: &str = "RuntimeClass gone does not exist: its node labels are unknown";
    const NODE_GONE: &str = "Node gone does not exist: its node labels are unknown";
    let class = |name: &str| json!({ "runtimeClassName": name });
    let bound = |name: &str| json!({ "nodeName": name });
    let known = || {
        cluster()
            .runtime_class("win", &[("kubernetes.io/os", "Windows")])
            .runtime_class("plain", &[])
            .node("n1", &[("kubernetes.io/os", "windows")])
            .node("old", &[("beta.kubernetes.io/os", "windows")])
            .node("n2", &[("kubernetes.io/os", "linux")])
    };
    let one = |kind: &str, spec: Value| known().workload(kind, "shop/web", spec);
    check_evidence(vec![
        Creation {
            name: "a RuntimeClass",
            cluster: one("Deployment", class("win")),
            why: by_os("windows", "Deployment shop/web with RuntimeClass win", WINDOWS),
            ..plain()
        },
        Creation {
            name: "the Pod spec before its RuntimeClass",
            cluster: one("Deployment", json!({"runtimeClassName": "win", "os": {"name": "linux"}})),
            why: by_os("linux", "Deployment shop/web", LINUX),
            ..plain()
        },
        Creation {
            name: "a RuntimeClass without a node selector",
            cluster: one("Deployment", class("plain")),
            ..plain()
        },
        Creation {
            name: "a RuntimeClass that does not exist",
            cluster: one("Deployment", class("gone")),
            warnings: &[CLASS_GONE],
            ..plain()
        },
        Creation {
            name: "a RuntimeClass that does not exist, after one that does",
            cluster: known().workload("Deployment", "shop/a", class("plain")).workload(
                "Deployment",
                "shop/b",
                class("gone"),
            ),
            warnings: &[CLASS_GONE],
            ..plain()
        },
        Creation {
            name: "the Node of a bound Pod",
            cluster: one("Pod", bound("n1")),
            why: by_os("windows", "Pod shop/web on Node n1", WINDOWS),
            ..plain()
        },
        Creation {
            name: "a Node with the old label",
            cluster: one("Pod", bound("old")),
            why: by_os("windows", "Pod shop/web on Node old", WINDOWS),
            ..plain()
        },
        Creation {
            name: "a Node that does not exist",
            cluster: one("Pod", bound("gone")),
            warnings: &[NODE_GONE],
            ..plain()
        },
        Creation {
            name: "the warning names one of several Nodes that do not exist",
            cluster: known().workload("Pod", "shop/a", bound("gone")).workload("Pod", "shop/b", bound("gone-too")),
            warnings: &[NODE_GONE],
            ..plain()
        },
        Creation {
            name: "the RuntimeClass before the Node",
            cluster: one("Pod", json!({"runtimeClassName": "win", "nodeName": "n2"})),
            why: by_os("windows", "Pod shop/web with RuntimeClass win", WINDOWS),
            ..plain()
        },
        Creation {
            name: "the Node after a RuntimeClass without a node selector",
            cluster: one("Pod", json!({"runtimeClassName": "plain", "nodeName": "n1"})),
            why: by_os("windows", "Pod shop/web on Node n1", WINDOWS),
            ..plain()
        },
        Creation {
            name: "Pods on Nodes that disagree",
            cluster: known().workload("Pod", "shop/a", bound("n1")).workload("Pod", "shop/b", bound("n2")),
            why: by_os("windows", "Pod shop/a on Node n1", WINDOWS),
            warnings: &[
                "Pod shop/a on Node n1 needs kubernetes.io/os=windows, Pod shop/b on Node n2 needs linux: the first by name decides",
            ],
            ..plain()
        },
    ]);
}

#[test]
fn workloads_that_the_host_did_not_read_are_a_warning() {
    const CUT: &str = "namespace shop has more workloads with these labels than one decision reads: some of kind \
         StatefulSet or of a later kind were not examined";
    check_evidence(vec![
        Creation {
            name: "no value was found before: the assumption, and a warning",
            cluster: cluster().cutting("StatefulSet"),
            why: ASSUMED,
            warnings: &[CUT],
            ..plain()
        },
        Creation {
            name: "a value of an earlier kind: the later kinds are not asked",
            cluster: cluster().workload("Deployment", "shop/web", windows()).cutting("StatefulSet"),
            why: by_os("windows", "Deployment shop/web", WINDOWS),
            ..plain()
        },
        Creation {
            name: "the host does not keep all: the assumption, and one warning",
            cluster: cluster().leaving_out("StatefulSet"),
            why: ASSUMED,
            warnings: &[
                "namespace shop has more objects than clusterip keeps: some of kind StatefulSet are left out and \
                         were not examined",
            ],
            ..plain()
        },
        Creation {
            name: "a value among those that were read",
            cluster: cluster().workload("StatefulSet", "shop/web", windows()).cutting("StatefulSet"),
            why: by_os("windows", "StatefulSet shop/web", WINDOWS),
            warnings: &[CUT],
            ..plain()
        },
    ]);
}

#[test]
fn each_node_is_looked_up_once_and_only_a_few_are_compared() {
    let mut busy = cluster();
    for index in 10..40 {
        let (pod, node) = (format!("shop/p{index}"), format!("n{index}"));
        busy = busy.workload("Pod", &pod, json!({ "nodeName": node })).node(&node, &[("kubernetes.io/os", "windows")]);
        busy = busy.workload("Pod", &format!("{pod}-twin"), json!({ "nodeName": node }));
    }
    let object = selecting();
    let expected = allocated(&object, &["172.21.1.50"], by_os("windows", "Pod shop/p10 on Node n10", WINDOWS), &[]);
    assert_eq!(answer(&object, &lowest(), &busy), expected);
    let nodes: Vec<String> = busy.questions().into_iter().filter(|question| question.starts_with("get Node")).collect();
    let first_eight: Vec<String> = (10..18).map(|index| format!("get Node n{index}")).collect();
    assert_eq!(nodes, first_eight);
}

#[test]
fn settings_select_the_kinds_and_the_scope_of_look_ups() {
    let object = selecting();
    let ask = |evidence: Value| {
        let cluster = cluster().workload("Deployment", "shop/web", windows()).workload("Rollout", "shop/web", linux());
        let answer = answer(&object, &json!({"services": {"order": "lowest", "evidence": evidence}}), &cluster);
        (answer, cluster.questions())
    };
    let questions = |lists: &[&str], address| {
        [lists, &["list Service", address]].concat().iter().map(ToString::to_string).collect::<Vec<_>>()
    };

    let assumed = (
        allocated(&object, &["172.21.0.50"], ASSUMED, &[]),
        questions(&["list Pod", "get Namespace shop"], "get IPAddress 172.21.0.50"),
    );
    assert_eq!(ask(json!({"kinds": ["Pod"]})), assumed, "fewer");
    let rollout = allocated(&object, &["172.21.0.50"], by_os("linux", "Rollout shop/web", LINUX), &[]);
    assert_eq!(
        ask(json!({"kinds": ["argoproj.io/v1alpha1/Rollout", "Deployment"]})),
        (rollout, questions(&["list Rollout"], "get IPAddress 172.21.0.50")),
        "a custom resource, first"
    );
    let deployment = allocated(&object, &["172.21.1.50"], by_os("windows", "Deployment shop/web", WINDOWS), &[]);
    assert_eq!(
        ask(json!({"lookups": "namespace"})),
        (deployment.clone(), questions(&["list Deployment of shop"], "get IPAddress 172.21.1.50")),
        "by namespace"
    );
    assert_eq!(
        ask(json!({"lookups": "cluster"})),
        (deployment, questions(&["list Deployment"], "get IPAddress 172.21.1.50")),
        "by cluster"
    );
}

#[test]
fn failed_look_up_of_evidence_is_denied() {
    use LookupError::{Failed, Malformed, NoSuchApi, NotGranted};
    let (resource, detail) = (|| "X".to_owned(), || "oh".to_owned());
    let not_granted = || NotGranted { resource: resource(), detail: detail() };
    let malformed = || Malformed { resource: resource(), detail: detail() };
    let no_permission = "no permission to read X: oh; grant the policy and its host read access";
    let unreadable = "the host's answer about X can't be read: oh; report it with the host's version";
    let no_such_api = NoSuchApi { resource: resource(), detail: detail() };
    let failed = Failed { resource: resource(), detail: detail() };
    for (question, error, reason) in [
        ("list Deployment", not_granted(), no_permission),
        ("list CronJob", no_such_api, "the cluster has no X: oh; install the API"),
        ("list Pod", malformed(), unreadable),
        ("get Namespace", failed, "looking up X failed: oh; try again; if it still fails, see the log of the host"),
        ("get RuntimeClass", not_granted(), no_permission),
        ("get Node", malformed(), unreadable),
    ] {
        let spec = json!({"runtimeClassName": "c", "nodeName": "n"});
        let cluster = cluster().runtime_class("c", &[]).node("n", &[]);
        let cluster = cluster.workload("Pod", "shop/web", spec).failing(question, error);
        let expected = denied(500, &format!("Service shop/web: {reason}"), support::UNASKED, &[]);
        assert_eq!(answer(&selecting(), &lowest(), &cluster), expected, "{question}");
    }
}
