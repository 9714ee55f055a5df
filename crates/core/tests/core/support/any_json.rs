//! JSON documents of any shape.

use proptest::prelude::*;
use serde_json::Value;

/// Any JSON, with names from the API and from the settings among its keys and values.
pub fn some_json() -> impl Strategy<Value = Value> {
    json_with(any::<f64>())
}

pub fn json_with(fractions: impl Strategy<Value = f64> + 'static) -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "",
        "None",
        "web",
        "shop",
        "CREATE",
        "UPDATE",
        "DELETE",
        "Service",
        "v1",
        "ExternalName",
        "10.0.0.7",
        "fd00::7",
        "10.0.0.0/24",
        "fd00::/120",
        "IPv4",
        "IPv6",
        "RequireDualStack",
        "windows",
        "linux",
        "spread",
        "In",
        "Exists",
        "Deployment",
        "Node",
        "a/v1/B",
        "10.0.7.0/24",
        "fd00::7/64",
        "::/0",
        "LoadBalancer",
        "clusterip-policy/external",
        "10.0.9.7-10.0.9.9",
        "10.0.9.7, fd00::9",
        "\u{0}ü\u{1F600}",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        fractions.prop_map(Value::from),
        words.prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    let keys = prop_oneof![known_key(), any::<String>()];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(keys.clone(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn known_key() -> impl Strategy<Value = String> + Clone {
    prop::sample::select(vec![
        "request",
        "settings",
        "uid",
        "kind",
        "group",
        "version",
        "operation",
        "subResource",
        "namespace",
        "name",
        "object",
        "oldObject",
        "metadata",
        "labels",
        "annotations",
        "spec",
        "type",
        "selector",
        "clusterIP",
        "clusterIPs",
        "ipFamilies",
        "ipFamilyPolicy",
        "services",
        "pools",
        "cidrs",
        "reserved",
        "exclude",
        "bands",
        "reservations",
        "match",
        "os",
        "nodeLabels",
        "namespaces",
        "namespaceSelector",
        "serviceSelector",
        "matchLabels",
        "matchExpressions",
        "key",
        "operator",
        "values",
        "evidence",
        "kinds",
        "lookups",
        "assumeOS",
        "order",
        "explicit",
        "whenFull",
        "unmatched",
        "annotateReason",
        "exemptNamespaces",
        "serviceCIDRs",
        "nodes",
        "blockSize",
        "ipv4",
        "ipv6",
        "nodeSelector",
        "podCIDR",
        "podCIDRs",
        "allocation",
        "held",
        "external",
        "loadBalancerClass",
        "default",
        "address",
        "by",
        "externalIPs",
        "loadBalancerIP",
        "clusterip-policy/external-address",
        "clusterip-policy/external-addresses",
        "metallb.io/loadBalancerIPs",
        "last",
        "clusterip-policy/os",
        "clusterip-policy/pool",
    ])
    .prop_map(str::to_owned)
}
