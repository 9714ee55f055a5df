//! The settings of the last payload save time and change no answer.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use clusterip_core::lookups::EmptyCluster;
use clusterip_core::validate::{LastSettings, validate, validate_reusing};
use serde_json::{Value, json};

use crate::support::created;

#[test]
fn answer_does_not_depend_on_the_payloads_before() {
    let pool = |cidr: &str| json!({"services": {"pools": [{"name": "all", "cidrs": [cidr]}]}});
    let payload = |name: &str, settings: Value| {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"}});
        json!({"request": created(service), "settings": settings}).to_string()
    };
    let payloads = [
        payload("a", pool("10.0.0.0/24")),
        payload("b", pool("10.0.0.0/24")),
        payload("c", pool("10.0.1.0/24")),
        payload("d", pool("no CIDR")),
        payload("e", pool("no CIDR")),
        payload("f", pool("10.0.1.0/24")),
        "no JSON".to_owned(),
        payload("g", pool("10.0.1.0/24")),
        payload("h", Value::Null),
    ];
    let mut last = LastSettings::default();
    for payload in &payloads {
        let answer = validate_reusing(&mut last, payload.as_bytes(), &EmptyCluster);
        assert_eq!(answer, validate(payload.as_bytes(), &EmptyCluster), "{payload}");
    }
}
