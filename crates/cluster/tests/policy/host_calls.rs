//! How the host calls of a module are read.

use clusterip_cluster::policy::host_calls::HostCall;

#[test]
fn invalid_host_calls_are_distinguished() {
    struct Case {
        name: &'static str,
        call: [&'static str; 3],
        payload: &'static [u8],
        expected: &'static str,
    }
    let good: &[u8] = br#"{"api_version":"v1","kind":"Node","name":"n1","disable_cache":false}"#;
    let rows = [
        Case {
            name: "another binding",
            call: ["other", "kubernetes", "get_resource"],
            payload: good,
            expected: "unknown binding: other",
        },
        Case {
            name: "another namespace",
            call: ["kubewarden", "oci", "v1/manifest_digest"],
            payload: good,
            expected: "unknown namespace: oci",
        },
        Case {
            name: "another operation",
            call: ["kubewarden", "kubernetes", "can_i"],
            payload: good,
            expected: "unknown operation: can_i",
        },
        Case {
            name: "no JSON",
            call: ["kubewarden", "kubernetes", "get_resource"],
            payload: b"hello",
            expected: "get_resource: expected value",
        },
        Case {
            name: "a field is missing",
            call: ["kubewarden", "kubernetes", "get_resource"],
            payload: br#"{"kind":"Node"}"#,
            expected: "get_resource: missing field",
        },
        Case {
            name: "a list",
            call: ["kubewarden", "kubernetes", "list_resources_all"],
            payload: br#"{"api_version":5,"kind":"Node"}"#,
            expected: "list_resources_all: invalid type",
        },
    ];
    for Case { name, call: [binding, namespace, operation], payload, expected } in rows {
        let error = HostCall::read(binding, namespace, operation, payload).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{name}: {error}");
    }
    assert_eq!(
        HostCall::read("kubewarden", "kubernetes", "get_resource", good),
        Ok(HostCall::Get {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: "n1".to_owned(),
            namespace: None,
            disable_cache: false,
            field_masks: None,
        })
    );
}
