//! For every record of a move and every Service, which its owner may have edited: the next step is found, each step can
//! be written, and the last step removes the record.

#![no_main]

use clusterip_cluster::snapshot::addresses;
use clusterip_core::annotations::{is_moving, looks_half_moved};
use clusterip_core::service::is_set_by_hand;
use clusterip_moves::journal::Journal;
use clusterip_moves::step::{Without, self};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

// The input is the journal up to the first zero byte, then the Service.
fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let journal = serde_json::from_slice::<Journal>(parts.next().unwrap_or_default());
    let service = parts.next().and_then(|rest| serde_json::from_slice(rest).ok()).filter(Value::is_object);
    let mut service = service.unwrap_or_else(|| json!({"spec": {"type": "ExternalName"}}));
    service["apiVersion"] = "v1".into();
    service["kind"] = "Service".into();
    service["metadata"] = json!({"namespace": "shop", "name": "web", "uid": "7"});
    looks_half_moved(&service);
    step::unmovable(&service, &[], false);
    is_set_by_hand(&service);
    let journal = journal.unwrap_or_else(|_| step::beginning(&service, &addresses(&service), "why"));
    check(&service, &journal);
});

fn check(service: &Value, journal: &Journal) {
    step::next(service, journal);
    let text = serde_json::to_string(journal).unwrap();
    assert_eq!(serde_json::from_str::<Journal>(&text).unwrap(), *journal);
    let released = step::released(service, journal);
    assert!(is_moving(&released));
    let assigned = step::assigned(&released, journal, &journal.to, &Without::default());
    step::ending(&assigned, journal, &journal.to, &[]);
    step::with_status(&assigned, journal);
    assert!(!is_moving(&step::cleaned_up(&assigned, journal, false)));
}
