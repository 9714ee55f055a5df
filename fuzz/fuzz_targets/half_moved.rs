//! Services with an annotation of a move, written by anybody: the next step is found, and nothing breaks.

#![no_main]

use clusterip::cluster::snapshot::{Snapshot, addresses};
use clusterip::controller::journal::Journal;
use clusterip::controller::{ownership, step};
use clusterip_core::service::MOVING_ANNOTATION;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

// The annotation, up to the first zero; after it, the Service.
fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let annotation = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let service = parts.next().and_then(|rest| serde_json::from_slice(rest).ok()).filter(Value::is_object);
    let mut service = service.unwrap_or_else(|| json!({"spec": {"type": "ExternalName"}}));
    service["apiVersion"] = "v1".into();
    service["kind"] = "Service".into();
    service["metadata"] = json!({
        "namespace": "shop", "name": "web", "uid": "7", "annotations": {MOVING_ANNOTATION: annotation},
    });
    check(&service);
});

fn check(service: &Value) {
    step::next(service);
    addresses(service);
    step::unmovable(service, &[], false);
    ownership::set_by_hand(service);
    let mut snapshot = Snapshot::default();
    snapshot.insert(service.clone());
    match Journal::of(service) {
        Ok(Some(journal)) => {
            // What was read is written the same, and read again.
            let text = journal.text().unwrap();
            let mut again = service.clone();
            again["metadata"]["annotations"][MOVING_ANNOTATION] = text.clone().into();
            assert_eq!(Journal::of(&again).unwrap().unwrap().text().unwrap(), text);
            for address in journal.from.iter().chain(&journal.to) {
                assert!(snapshot.addresses().any(|used| used == *address), "{address} does not count as used");
            }
            let _ = step::released(service, &journal);
            step::ending(service, &journal);
            step::with_status(service, &journal);
            let left = step::forgotten(service, Some(&journal));
            assert!(left.pointer("/metadata/annotations").and_then(|all| all.get(MOVING_ANNOTATION)).is_none());
        }
        Ok(None) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
