//! The embedded policy module: what it imports, its size and its protocol.

use std::collections::BTreeSet;
use std::sync::Arc;

use clusterip_host::policy::module::WASM_SIZE;
use serde_json::json;

use crate::support::{MODULE, NoCluster, call, payload, request, request_with, service};

#[test]
fn module_imports_only_wapc() {
    const WAPC: [&str; 9] = [
        "__console_log",
        "__guest_error",
        "__guest_request",
        "__guest_response",
        "__host_call",
        "__host_error",
        "__host_error_len",
        "__host_response",
        "__host_response_len",
    ];
    let imports: BTreeSet<(&str, &str)> =
        MODULE.imports().iter().map(|(module, name)| (module.as_str(), name.as_str())).collect();
    let known: BTreeSet<(&str, &str)> = WAPC.iter().map(|name| ("wapc", *name)).collect();
    assert!(imports.contains(&("wapc", "__host_call")), "{imports:?}");
    assert_eq!(imports.difference(&known).collect::<Vec<_>>(), Vec::<&(&str, &str)>::new());
}

#[test]
fn module_is_at_most_530_kb() {
    // Every replica of a policy-server pulls and compiles it.
    const MAX_BYTES: u64 = 530_000;
    let bytes = WASM_SIZE.parse::<u64>().unwrap();
    assert!(bytes <= MAX_BYTES, "{bytes} bytes");
}

#[test]
fn module_speaks_version_1_of_the_kubewarden_protocol() {
    assert_eq!(call("protocol_version", b"", Arc::new(NoCluster)), Ok(br#""v1""#.to_vec()));
}

#[test]
fn unknown_operation_is_an_error() {
    let error = call("mutate", b"{}", Arc::new(NoCluster)).unwrap_err();
    assert!(error.contains("mutate"), "{error}");
}

#[test]
fn same_request_gives_the_same_bytes() {
    let requests = [request(service()), request_with("/object/spec", json!({"clusterIP": "172.21.1.77"})), json!({})];
    for request in requests {
        let payload = payload(request);
        let first = call("validate", &payload, Arc::new(NoCluster)).unwrap();
        for _ in 0..3 {
            assert_eq!(call("validate", &payload, Arc::new(NoCluster)).unwrap(), first);
        }
    }
}
