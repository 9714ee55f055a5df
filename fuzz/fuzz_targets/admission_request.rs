//! Admission requests: each gets an answer, and nothing of an object changes but its addresses.

#![no_main]

use std::net::IpAddr;

use clusterip_core::cluster::{Cluster, IpAddressLookup, LookupError, NamespaceMeta};
use clusterip_core::label_selector::Labels;
use clusterip_core::settings::Lookups;
use clusterip_core::workload::{Workload, WorkloadKind};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// A cluster without anything in it.
struct Empty;

impl Cluster for Empty {
    fn workloads(
        &self,
        _: &WorkloadKind,
        _: &str,
        _: Lookups,
        _: &dyn Fn(&Labels) -> bool,
    ) -> Result<Vec<Workload>, LookupError> {
        Ok(Vec::new())
    }

    fn namespace(&self, _: &str) -> Result<Option<NamespaceMeta>, LookupError> {
        Ok(None)
    }

    fn node_labels(&self, _: &str) -> Result<Option<Labels>, LookupError> {
        Ok(None)
    }

    fn runtime_class_nodes(&self, _: &str) -> Result<Option<Labels>, LookupError> {
        Ok(None)
    }

    fn service_addresses(&self, _: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        Ok(())
    }

    fn ip_address(&self, _: IpAddr) -> Result<IpAddressLookup, LookupError> {
        Ok(IpAddressLookup::Free)
    }
}

fuzz_target!(|bytes: &[u8]| {
    let answer = clusterip_core::validate(bytes, &Empty);
    assert_eq!(answer, clusterip_core::validate(bytes, &Empty), "the same request, another answer");
    assert_eq!(answer.accepted, answer.message.is_none());
    assert!(answer.audit().is_some());
    let Some(mutated) = answer.mutated_object else { return };
    // What is in no field that the policy reads need not be UTF-8, but here everything is read.
    let Ok(payload) = serde_json::from_slice::<Value>(bytes) else {
        assert!(std::str::from_utf8(bytes).is_err(), "an object was changed, but there was none");
        return;
    };
    assert_eq!(without_addresses(payload["request"]["object"].clone()), without_addresses(mutated));
});

fn without_addresses(mut object: Value) -> Value {
    if object["spec"].is_null() {
        object["spec"] = Value::Object(serde_json::Map::new());
    }
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    object
}
