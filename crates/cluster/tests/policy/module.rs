//! The policy module: its size, and what it does not answer. Its imports are those of waPC, and it speaks version 1 of
//! the protocol of Kubewarden, otherwise it can't be loaded.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::support::{NoCluster, call};

#[test]
fn module_is_at_most_530_kb() {
    // Every replica of a policy-server pulls and compiles it.
    const MAX_BYTES: u64 = 530_000;
    let bytes = fs::metadata(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policy.wasm")).unwrap().len();
    assert!(bytes <= MAX_BYTES, "{bytes} bytes");
}

#[test]
fn unknown_operation_is_an_error() {
    let error = call("mutate", b"{}", Arc::new(NoCluster)).unwrap_err();
    assert!(error.contains("mutate"), "{error}");
}
