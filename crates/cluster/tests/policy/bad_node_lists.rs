//! The answer of the module if the host answers the look-up of all Nodes.

use std::sync::Arc;

use clusterip_cluster::policy::host_calls::{HostCall, HostCalls};
use clusterip_core::Response;
use serde_json::json;

use crate::support::{MODULE, request};

/// Answers a request that sets the block 10.0.0.0/24, with this list of Nodes.
fn answer_with_nodes(list: &[u8]) -> Response {
    struct Nodes(Vec<u8>);
    impl HostCalls for Nodes {
        fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
            assert!(matches!(call, HostCall::ListAll { kind, .. } if kind == "Node"), "{call:?}");
            Ok(self.0.clone())
        }
    }
    let mut request = request(json!({"metadata": {"name": "w1"}, "spec": {"podCIDRs": ["10.0.0.0/24"]}}));
    request["kind"]["kind"] = "Node".into();
    let settings = json!({"nodes": {"pools": [{"name": "all", "cidrs": ["10.0.0.0/16"]}], "explicit": "deny"}});
    MODULE.validate(&request, &settings, Arc::new(Nodes(list.to_vec()))).unwrap()
}

#[test]
fn only_names_and_blocks_of_a_node_list_are_read() {
    let taken = "Node w1: 10.0.0.0/24 overlaps 10.0.0.0/24 of Node w2; omit podCIDR and podCIDRs, or use a free block of \
                 the Node's pool";
    for (name, list, message) in [
        ("nothing in it", r#"{"items":[{"metadata":null,"spec":{"podCIDR":null,"podCIDRs":null}}]}"#, None),
        (
            "the field after others, second in its list",
            r#"{"items":[{"spec":{"podCIDRs":["fd00::/64","10.0.0.0/24"]},"metadata":{"name":"w2"}}]}"#,
            Some(taken),
        ),
        (
            "escapes",
            r#"{"items":[{"metadata":{"n\u0061me":"w\u0032"},"spec":{"podCIDR":"10.0.0.0\/24"}}]}"#,
            Some(taken),
        ),
        (
            "fields of the same names elsewhere",
            r#"{"items":[{"metadata":{"name":"w2","spec":{"podCIDR":5}},"status":{"podCIDR":5},"podCIDR":5,"spec":{"x":{"podCIDRs":5}}}]}"#,
            None,
        ),
    ] {
        assert_eq!(answer_with_nodes(list.as_bytes()).message.as_deref(), message, "{name}");
    }
}

#[test]
fn invalid_name_or_block_of_a_node_list_is_denied_with_its_place() {
    let rows: [(&[u8], &str); 13] = [
        (b"", "expected a Kubernetes list before the last 0 bytes"),
        (b"[]", "expected a Kubernetes list before the last 2 bytes"),
        (b"{5:1}", "key: expected a string, found the number 5"),
        // No white space of JSON.
        (b"{\x0c}", "expected value at line 1 column 1 of the last 2 bytes"),
        (br#"{"items":[],}"#, "expected value at line 1 column 1 of the last 1 bytes"),
        (b"{} {}", "the last 2 bytes follow the list"),
        (br#"{"items":[null]}"#, "items[0]: expected an object, found null"),
        (br#"{"items":[{"metadata":{"name":5}}]}"#, "items[0].metadata.name: expected a string, found the number 5"),
        (br#"{"items":[{"spec":{"podCIDR":5}}]}"#, "items[0].spec.podCIDR: expected a string, found the number 5"),
        (
            br#"{"items":[{"spec":{"podCIDRs":"10.0.0.0/24"}}]}"#,
            "items[0].spec.podCIDRs: expected a list, found the string \"10.0.0.0/24\"",
        ),
        (br#"{"items":[{"spec":{"podCIDRs":[null]}}]}"#, "items[0].spec.podCIDRs[0]: expected a string, found null"),
        (
            b"{\"items\":[{\"spec\":{\"podCIDR\":\"\xff\"}}]}",
            "invalid unicode code point at line 1 column 21 of the last 26 bytes",
        ),
        (
            br#"{"items":[{"spec":{"podCIDR":"10.0"#,
            "EOF while parsing a string at line 1 column 24 of the last 24 bytes",
        ),
    ];
    for (list, detail) in rows {
        let expected = format!(
            "Node w1: unknown whether another Node has 10.0.0.0/24: the host's answer about v1/Node can't be read: \
             {detail}; report it with the host's version"
        );
        let found = answer_with_nodes(list).message;
        assert_eq!(found, Some(expected), "{}", String::from_utf8_lossy(list));
    }
}
