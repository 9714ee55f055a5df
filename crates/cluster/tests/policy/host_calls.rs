//! How the host calls of a module are read.

use clusterip_cluster::policy::host_calls::HostCall;

#[test]
fn invalid_host_calls_are_distinguished() {
    let good: &[u8] = br#"{"api_version":"v1","kind":"Node","name":"n1","disable_cache":false}"#;
    const GET: [&str; 3] = ["kubewarden", "kubernetes", "get_resource"];
    let rows: [([&str; 3], &[u8], &str); 6] = [
        (["other", "kubernetes", "get_resource"], good, "unknown binding: other"),
        (["kubewarden", "oci", "v1/manifest_digest"], good, "unknown namespace: oci"),
        (["kubewarden", "kubernetes", "can_i"], good, "unknown operation: can_i"),
        (GET, b"hello", "get_resource: expected value"),
        (GET, br#"{"kind":"Node"}"#, "get_resource: missing field"),
        (
            ["kubewarden", "kubernetes", "list_resources_all"],
            br#"{"api_version":5,"kind":"Node"}"#,
            "list_resources_all: invalid type",
        ),
    ];
    for ([binding, namespace, operation], payload, expected) in rows {
        let error = HostCall::read(binding, namespace, operation, payload).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{expected}: {error}");
    }
}
