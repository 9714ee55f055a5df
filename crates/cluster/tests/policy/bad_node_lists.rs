//! The answer of the module if the host answers the look-up of all Nodes.

use std::sync::Arc;

use clusterip_cluster::policy::host_calls::{HostCall, HostCalls};
use clusterip_core::Response;
use serde_json::json;

use crate::bad_host_answers::report;
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

/// The answer of the host to the look-up of all Nodes, and the message of the policy.
struct Case {
    name: &'static str,
    list: &'static [u8],
    message: Option<String>,
}

#[track_caller]
fn check(rows: Vec<Case>) {
    let mut problems = Vec::new();
    for Case { name, list, message } in rows {
        let found = answer_with_nodes(list).message;
        if found != message {
            problems.push(format!("{name}: found {found:?}, expected {message:?}"));
        }
    }
    report(problems);
}

/// The message about a list that can't be read.
fn unread(detail: &str) -> Option<String> {
    Some(format!(
        "Node w1: unknown whether another Node has 10.0.0.0/24: the host's answer about v1/Node can't be read: {detail}; \
         report it with the host's version"
    ))
}

#[test]
fn only_names_and_blocks_of_a_node_list_are_read() {
    let taken = |block: &str, name: &str| {
        let remedy = "omit podCIDR and podCIDRs, or use a free block of the Node's pool";
        Some(format!("Node w1: 10.0.0.0/24 overlaps {block} of Node {name}; {remedy}"))
    };
    check(vec![
        Case { name: "no items", list: b"{}", message: None },
        Case { name: "items: null", list: br#"{"items":null}"#, message: None },
        Case { name: "an empty Node", list: br#"{"items":[{}]}"#, message: None },
        Case {
            name: "nothing in it",
            list: br#"{"items":[{"metadata":null,"spec":{"podCIDR":null,"podCIDRs":null}}]}"#,
            message: None,
        },
        Case {
            name: "itself",
            list: br#"{"items":[{"metadata":{"name":"w1"},"spec":{"podCIDRs":["10.0.0.0/24"]}}]}"#,
            message: None,
        },
        Case {
            name: "another block",
            list: br#"{"items":[{"metadata":{"name":"w2"},"spec":{"podCIDRs":["10.0.1.0/24","fd00::/64"]}}]}"#,
            message: None,
        },
        Case {
            name: "no block",
            list: br#"{"items":[{"metadata":{"name":"w2"},"spec":{"podCIDR":"","podCIDRs":["x","10.0.0.0"]}}]}"#,
            message: None,
        },
        Case {
            name: "the one field",
            list: br#"{"items":[{"metadata":{"name":"w2"},"spec":{"podCIDR":"10.0.0.0/24"}}]}"#,
            message: taken("10.0.0.0/24", "w2"),
        },
        Case {
            name: "the other, second",
            list: br#"{"items":[{"spec":{"podCIDRs":["fd00::/64","10.0.0.0/24"]},"metadata":{"name":"w2"}}]}"#,
            message: taken("10.0.0.0/24", "w2"),
        },
        Case {
            name: "host bits",
            list: br#"{"items":[{"metadata":{"name":"w2"},"spec":{"podCIDR":"10.0.0.7/20"}}]}"#,
            message: taken("10.0.0.0/20", "w2"),
        },
        Case {
            name: "escapes",
            list: br#"{"items":[{"metadata":{"n\u0061me":"w\u0032"},"spec":{"podCIDR":"10.0.0.0\/24"}}]}"#,
            message: taken("10.0.0.0/24", "w2"),
        },
        Case {
            name: "fields of the same names elsewhere",
            list: br#"{"items":[{"metadata":{"name":"w2","spec":{"podCIDR":5}},"status":{"podCIDR":5},"podCIDR":5,"spec":{"x":{"podCIDRs":5}}}]}"#,
            message: None,
        },
    ]);
}

#[test]
fn invalid_name_or_block_of_a_node_list_is_denied_with_its_place() {
    check(vec![
        Case { name: "nothing", list: b"", message: unread("expected a Kubernetes list before the last 0 bytes") },
        Case { name: "a list", list: b"[]", message: unread("expected a Kubernetes list before the last 2 bytes") },
        Case {
            name: "a key that is a number",
            list: b"{5:1}",
            message: unread("key: expected a string, found the number 5"),
        },
        Case {
            name: "no white space of JSON",
            list: b"{\x0c}",
            message: unread("expected value at line 1 column 1 of the last 2 bytes"),
        },
        Case {
            name: "a comma at the end",
            list: br#"{"items":[],}"#,
            message: unread("expected value at line 1 column 1 of the last 1 bytes"),
        },
        Case { name: "more behind the end", list: b"{} {}", message: unread("the last 2 bytes follow the list") },
        Case {
            name: "a Node that is null",
            list: br#"{"items":[null]}"#,
            message: unread("items[0]: expected an object, found null"),
        },
        Case {
            name: "a name that is a number",
            list: br#"{"items":[{"metadata":{"name":5}}]}"#,
            message: unread("items[0].metadata.name: expected a string, found the number 5"),
        },
        Case {
            name: "podCIDR that is a number",
            list: br#"{"items":[{"spec":{"podCIDR":5}}]}"#,
            message: unread("items[0].spec.podCIDR: expected a string, found the number 5"),
        },
        Case {
            name: "podCIDRs that is a string",
            list: br#"{"items":[{"spec":{"podCIDRs":"10.0.0.0/24"}}]}"#,
            message: unread("items[0].spec.podCIDRs: expected a list, found the string \"10.0.0.0/24\""),
        },
        Case {
            name: "one that is null",
            list: br#"{"items":[{"spec":{"podCIDRs":[null]}}]}"#,
            message: unread("items[0].spec.podCIDRs[0]: expected a string, found null"),
        },
        Case {
            name: "no UTF-8",
            list: b"{\"items\":[{\"spec\":{\"podCIDR\":\"\xff\"}}]}",
            message: unread("invalid unicode code point at line 1 column 21 of the last 26 bytes"),
        },
        Case {
            name: "cut off",
            list: br#"{"items":[{"spec":{"podCIDR":"10.0"#,
            message: unread("EOF while parsing a string at line 1 column 24 of the last 24 bytes"),
        },
    ]);
}
