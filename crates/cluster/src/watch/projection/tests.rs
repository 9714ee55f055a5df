use serde_json::json;

use super::*;

/// An object with everything that is kept for some kind, and more.
fn object() -> Value {
    let expression = |operator: &str| json!({"key": "a", "operator": operator, "values": ["b"]});
    let term = json!({
        "matchExpressions": [expression("In"), expression("NotIn"), expression("Gt")],
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}, {"key": "metadata.name"}],
    });
    let pod = json!({
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}],
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
            },
            "podAffinity": {"b": 2},
        },
        "containers": [{"name": "web"}],
        "nodeName": "n",
        "nodeSelector": {"kubernetes.io/os": "windows"},
        "os": {"name": "windows"},
        "runtimeClassName": "r",
    });
    let template = json!({"metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}}, "spec": pod});
    let mut spec = json!({
        "type": "LoadBalancer",
        "externalName": "x",
        "clusterIP": "10.0.0.1",
        "clusterIPs": ["10.0.0.1"],
        "selector": {"app": "web"},
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "externalIPs": ["10.0.9.1"],
        "loadBalancerIP": "10.0.9.2",
        "loadBalancerClass": "a/b",
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        "cidrs": ["10.0.0.0/24"],
        "podCIDR": "10.1.0.0/24",
        "podCIDRs": ["10.1.0.0/24"],
        "providerID": "p",
        "template": template,
        "jobTemplate": {"spec": {"template": template}},
    });
    spec.as_object_mut().unwrap().extend(pod.as_object().unwrap().clone());
    json!({
        "metadata": {
            "name": "web",
            "namespace": "shop",
            "uid": "u",
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "web", "kubernetes.io/service-name": "web"},
            "annotations": {
                "clusterip-policy/os": "windows",
                "scheduler.alpha.kubernetes.io/node-selector": "a=b",
                "metallb.io/loadBalancerIPs": "10.0.9.3",
                "clusterip-policy/other": "x",
                "other": "x",
            },
            "managedFields": [{"manager": "author"}],
        },
        "spec": spec,
        "scheduling": {"nodeSelector": {"a": "b"}, "tolerations": []},
        "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": true, "serving": true}, "nodeName": "n", "zone": "z"}],
        "status": {
            "loadBalancer": {"ingress": [{"ip": "10.0.9.2", "ipMode": "VIP"}]},
            "conditions": [{"type": "Ready", "status": "True", "reason": "r"}],
        },
    })
}

#[test]
fn kept_fields_by_kind() {
    struct Case {
        api_version: &'static str,
        kind: &'static str,
        expected: Value,
    }
    let bare = json!({"name": "web", "namespace": "shop"});
    let mut labelled = bare.clone();
    labelled["labels"] = json!({"app": "web", "kubernetes.io/service-name": "web"});
    let mut ended = labelled.clone();
    ended["deletionTimestamp"] = json!(true);
    let mut namespace = labelled.clone();
    namespace["annotations"] =
        json!({"clusterip-policy/os": "windows", "scheduler.alpha.kubernetes.io/node-selector": "a=b"});
    let mut slice = bare.clone();
    slice["labels"] = json!({"kubernetes.io/service-name": "web"});
    let mut service = labelled.clone();
    service["uid"] = json!("u");
    service["annotations"] = json!({"clusterip-policy/os": "windows", "metallb.io/loadBalancerIPs": "10.0.9.3"});
    service["deletionTimestamp"] = json!(true);
    service["managedFields"] = json!([{}]);
    let pod = json!({
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{
            "matchExpressions": [
                {"key": "a", "operator": "In", "values": ["b"]},
                {"key": "a", "operator": "NotIn"},
            ],
            "matchFields": [{"key": "metadata.name"}],
        }]}}},
        "nodeName": "n",
        "nodeSelector": {"kubernetes.io/os": "windows"},
        "os": {"name": "windows"},
        "runtimeClassName": "r",
    });
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": pod});
    let cases = [
        Case {
            api_version: "v1",
            kind: "Service",
            expected: json!({"metadata": service, "spec": {
                "type": "LoadBalancer", "externalName": "x", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
                "selector": {"app": "web"}, "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "externalIPs": ["10.0.9.1"],
                "loadBalancerIP": "10.0.9.2", "loadBalancerClass": "a/b", "ports": [{"port": 80, "protocol": "TCP"}],
            }, "status": {"loadBalancer": {"ingress": [{"ip": "10.0.9.2", "ipMode": "VIP"}]}}}),
        },
        Case { api_version: "v1", kind: "Namespace", expected: json!({"metadata": namespace}) },
        Case {
            api_version: "v1",
            kind: "Node",
            expected: json!({
                "metadata": labelled, "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }),
        },
        Case { api_version: "v1", kind: "Pod", expected: json!({"metadata": labelled, "spec": pod}) },
        Case {
            api_version: "node.k8s.io/v1",
            kind: "RuntimeClass",
            expected: json!({"metadata": bare, "scheduling": {"nodeSelector": {"a": "b"}}}),
        },
        Case {
            api_version: "networking.k8s.io/v1",
            kind: "IPAddress",
            expected: json!({"metadata": {"name": "web", "namespace": "shop"}}),
        },
        Case {
            api_version: "networking.k8s.io/v1",
            kind: "ServiceCIDR",
            expected: json!({
                "metadata": ended, "spec": {"cidrs": ["10.0.0.0/24"]},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }),
        },
        Case {
            api_version: "discovery.k8s.io/v1",
            kind: "EndpointSlice",
            expected: json!({
                "metadata": slice, "endpoints": [{"conditions": {"ready": true, "serving": true}, "nodeName": "n"}],
            }),
        },
        Case {
            api_version: "apps/v1",
            kind: "Deployment",
            expected: json!({"metadata": bare, "spec": {"template": template}}),
        },
        Case {
            api_version: "batch/v1",
            kind: "CronJob",
            expected: json!({"metadata": bare, "spec": {"jobTemplate": {"spec": {"template": template}}}}),
        },
        Case {
            api_version: "mesh.example.org/v1",
            kind: "Service",
            expected: json!({"metadata": bare, "spec": {"template": template}}),
        },
    ];
    for Case { api_version, kind, mut expected } in cases {
        let found = serde_json::from_value(object()).unwrap();
        let found = Projection::new(&(api_version.to_owned(), kind.to_owned())).keep(found).unwrap();
        expected["apiVersion"] = json!(api_version);
        expected["kind"] = json!(kind);
        assert_eq!(found, expected, "{api_version}/{kind}");
    }
    let nameless = serde_json::from_value(json!({"metadata": {"namespace": "shop"}, "spec": {}})).unwrap();
    assert_eq!(Projection::new(&("v1".to_owned(), "Service".to_owned())).keep(nameless), None);
}

fn kept(api_version: &str, kind: &str, object: &Value) -> Value {
    let watched = serde_json::from_value(object.clone()).unwrap();
    Projection::new(&(api_version.to_owned(), kind.to_owned())).keep(watched).unwrap()
}

/// A thousand numbered texts of about a kilobyte each, a megabyte together.
fn a_thousand<T>(item: impl Fn(usize, String) -> T) -> Vec<T> {
    (0..1000).map(|number| item(number, format!("{number:01000}"))).collect()
}

/// A tenant can write any number of objects of a megabyte.
#[test]
fn object_of_a_megabyte_is_kept_in_a_few_kilobytes() {
    struct Case {
        api_version: &'static str,
        kind: &'static str,
        name: &'static str,
        most: usize,
        object: Value,
    }
    let names = |prefix: &str| -> Value {
        a_thousand(|number, text| (format!("{prefix}{number}"), text)).into_iter().collect()
    };
    let preferred = a_thousand(
        |_, text| json!({"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "In", "values": [text]}]}}),
    );
    let required = |values: &dyn Fn(String) -> Value| {
        let terms =
            a_thousand(|_, text| json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values(text)}]}));
        json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}})
    };
    let deployment = |annotations: Value, labels: Value, spec: Value| {
        json!({
            "metadata": {"name": "web", "namespace": "shop", "annotations": annotations, "labels": annotations},
            "spec": {"template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}},
        })
    };
    let pod = |affinity: Value| json!({"affinity": {"nodeAffinity": affinity}, "nodeSelector": {"kubernetes.io/os": "windows"}});
    let web = || json!({"app": "web"});
    let service = |metadata: Value, spec: Value| {
        let mut object = json!({"metadata": metadata, "spec": spec});
        object["metadata"]["name"] = "web".into();
        object["metadata"]["namespace"] = "shop".into();
        object
    };
    let long = |key: &str| service(json!({"annotations": {(key): "x".repeat(1 << 20)}}), json!({}));
    let owners = a_thousand(|_, text| json!({"manager": text, "fieldsV1": {"f:spec": {"f:clusterIP": {}}}}));
    let ports = a_thousand(|number, text| json!({"port": number, "name": text}));
    let moving: Vec<Value> = a_thousand(|_, _| json!("10.0.0.1"));
    let moving = json!({"from": moving, "spec": "x".repeat(1 << 20)}).to_string();
    let cases = [
        Case {
            api_version: "apps/v1",
            kind: "Deployment",
            name: "annotations of ours and of others",
            most: 2048,
            object: deployment(names("clusterip-policy/"), web(), pod(json!({}))),
        },
        Case {
            api_version: "apps/v1",
            kind: "Deployment",
            name: "preferred affinity",
            most: 2048,
            object: {
                let preferred = json!({"preferredDuringSchedulingIgnoredDuringExecution": preferred});
                deployment(json!({}), web(), pod(preferred))
            },
        },
        Case {
            api_version: "apps/v1",
            kind: "Deployment",
            name: "required affinity",
            most: 2048,
            object: deployment(json!({}), web(), pod(required(&|text| json!([text])))),
        },
        Case {
            api_version: "apps/v1",
            kind: "Deployment",
            name: "labels of Pods",
            most: 64 * 600,
            object: deployment(json!({}), names("a"), pod(json!({}))),
        },
        Case {
            api_version: "apps/v1",
            kind: "Deployment",
            name: "a node selector",
            most: 64 * 600,
            object: deployment(json!({}), web(), json!({"nodeSelector": names("a")})),
        },
        Case {
            api_version: "example.com/v1",
            kind: "Rollout",
            name: "affinity of the wrong shape",
            most: 2048,
            object: deployment(json!({}), web(), pod(required(&|text| json!({"values": text})))),
        },
        Case {
            api_version: "v1",
            kind: "Service",
            name: "a long name of a pool",
            most: 2048,
            object: long("clusterip-policy/pool"),
        },
        Case {
            api_version: "v1",
            kind: "Service",
            name: "a long record",
            most: 2048,
            object: long("clusterip-policy/external-addresses"),
        },
        Case {
            api_version: "v1",
            kind: "Service",
            name: "a long claim",
            most: 2048,
            object: long("metallb.io/loadBalancerIPs"),
        },
        Case {
            api_version: "v1",
            kind: "Service",
            name: "an annotation of no parser",
            most: 2048,
            object: long("clusterip-policy/other"),
        },
        Case {
            api_version: "v1",
            kind: "Service",
            name: "a forged move",
            most: 2048,
            object: service(json!({"annotations": {"clusterip-policy/moving": moving}}), json!({})),
        },
        Case {
            api_version: "v1",
            kind: "Service",
            name: "owners of its address",
            most: 2048,
            object: service(json!({"managedFields": owners}), json!({})),
        },
        Case {
            api_version: "v1",
            kind: "Service",
            name: "a load balancer IP",
            most: 2048,
            object: service(json!({}), json!({"loadBalancerIP": "x".repeat(1 << 20)})),
        },
        Case {
            api_version: "v1",
            kind: "Service",
            name: "ports",
            most: 2048,
            object: service(json!({}), json!({"type": "ClusterIP", "ports": ports})),
        },
    ];
    for Case { api_version, kind, name, most, object } in cases {
        assert!(object.to_string().len() > 500_000, "{name}: {}", object.to_string().len());
        let kept = kept(api_version, kind, &object).to_string();
        assert!(kept.len() < most, "{name}: {} bytes are kept", kept.len());
    }
}

/// The policy reads the same from the reduced object as from the complete one.
#[test]
fn reduced_object_requires_the_same_nodes() {
    use clusterip_core::json::Located;
    use clusterip_core::pod_spec::PodSpec;
    let among = |key: &str, operator: &str, values: usize| {
        let values: Vec<String> = (0..values).map(|number| format!("v{number}")).collect();
        json!({"key": key, "operator": operator, "values": values})
    };
    let term = |expressions: &[Value]| json!({ "matchExpressions": expressions });
    let field = json!({"matchFields": [among("metadata.name", "In", 1), among("metadata.name", "In", 2)]});
    let rows = [
        ("one value", json!([term(&[among("os", "In", 1)])])),
        (
            "among other operators",
            json!([term(&[among("a", "NotIn", 400), among("os", "In", 1), among("b", "Exists", 0)])]),
        ),
        ("another operator alone", json!([term(&[among("os", "NotIn", 1)]), term(&[among("os", "In", 1)])])),
        ("fields", json!([field, term(&[among("os", "In", 1)])])),
        ("an empty term", json!([{}, term(&[among("os", "In", 1)])])),
        ("as much as is read", json!(vec![term(&[among("os", "In", 1)]); 85])),
        ("more than is read", json!(vec![term(&[among("os", "In", 1)]); 86])),
        ("too many values", json!([term(&[among("os", "In", 1), among("b", "In", 300)])])),
    ];
    for (name, terms) in rows {
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        let spec = json!({"affinity": {"nodeAffinity": required}});
        let object = json!({"metadata": {"name": "web"}, "spec": {"template": {"spec": spec}}});
        let kept = kept("apps/v1", "Deployment", &object);
        let read = |object: &Value| PodSpec::read(&Located::new(&object["spec"]["template"]["spec"], "")).unwrap();
        for key in ["os", "a", "b"] {
            assert_eq!(read(&kept).requires(key), read(&object).requires(key), "{name}: {key}");
        }
    }
}
