//! The request gets an answer for every answer of the host to a look-up.

#![no_main]

use clusterip_policy::kubewarden_cluster::KubewardenCluster;
use libfuzzer_sys::fuzz_target;

const PAYLOAD: &str = r#"{"settings":{"services":{"order":"lowest"}},"request":{"uid":"u","operation":"CREATE",
"kind":{"group":"","version":"v1","kind":"Service"},"namespace":"shop","name":"web",
"object":{"metadata":{"name":"web"},"spec":{"selector":{"app":"web"}}}}}"#;

// The bits of the first byte say which look-ups fail; the other bytes are the host's answer.
fuzz_target!(|bytes: &[u8]| {
    let Some((fails, said)) = bytes.split_first() else { return };
    let calls = std::cell::Cell::new(0_u32);
    let cluster = KubewardenCluster::new(|_: &str, _: &[u8]| {
        calls.set(calls.get() + 1);
        if fails >> (calls.get() % 8) & 1 == 1 {
            Err(String::from_utf8_lossy(said).into_owned())
        } else {
            Ok(said.to_vec())
        }
    });
    let answer = clusterip_core::validate(PAYLOAD.as_bytes(), &cluster);
    assert_eq!(answer.accepted, answer.message.is_none());
});
