//! The holders of external addresses, as the host knows them, and the ClusterIP that a Service gets together with its
//! external address.

use std::cell::RefCell;
use std::net::IpAddr;

use clusterip_core::external::{Holder, Sharer};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_core::{InUse, decide_value};
use serde_json::{Value, json};

use crate::support;
use crate::support::claim_cases::{DEPRECATED, settings};
use crate::support::{
    FakeCluster, REMEDY, allocated, answer_in_use, balancer_of, created, denied, external_answer, updated, with_record,
    with_spec,
};

#[test]
fn first_of_several_holders_counts() {
    let record = balancer_of(json!({"ipFamilies": ["IPv4"]}), &[("clusterip-policy/external-addresses", "10.0.9.20")]);
    let request = updated(record.clone(), record);
    let answer = |held| external_answer(&request, &settings(), Some(held), &FakeCluster::default());
    let kept = answer(&[("10.0.9.20", "shop/web"), ("10.0.9.20", "other/db")]);
    assert_eq!(kept["audit_annotations"]["external"], "unchanged");
    let lost = answer(&[("10.0.9.20", "other/db"), ("10.0.9.20", "shop/web")]);
    assert_eq!(lost["audit_annotations"]["external-addresses"], "10.0.9.15");
}

#[test]
fn host_is_asked_only_about_the_addresses_that_are_tried() {
    let asked = RefCell::new(Vec::new());
    let holder_of = |address: IpAddr, _: &Sharer<'_>| {
        asked.borrow_mut().push(address.to_string());
        (asked.borrow().len() < 3).then(|| Holder { service: ServiceKey::new("other", "db"), in_flight: None })
    };
    let in_use = InUse { blocks: None, external: Some(&holder_of) };
    let request = created(balancer_of(json!({"ipFamilies": ["IPv4"]}), &[]));
    let settings = Settings::from_value(&settings()).unwrap();
    let decision = decide_value(&request, &settings, in_use, &FakeCluster::default());
    let given: Vec<String> = decision.external.unwrap().addresses.iter().map(ToString::to_string).collect();
    assert_eq!((asked.borrow().len(), &asked.borrow()[2..]), (3, &given[..]));
}

/// The answer to the creation of `object` if the host says that 10.0.9.20 is held. Services may be listed.
fn external_answer_listing(object: &Value, settings: &Value, cluster: &FakeCluster) -> Value {
    let external = json!({"held": [{"address": "10.0.9.20", "by": "other/db"}]});
    let payload = json!({"request": created(object.clone()), "settings": settings, "external": external});
    serde_json::to_value(answer_in_use(&payload, cluster)).unwrap()
}

#[test]
fn cluster_ip_and_external_address_are_set_together_or_not_at_all() {
    let mut settings = settings();
    settings["services"] =
        json!({"order": "lowest", "pools": [{"name": "all", "cidrs": ["10.96.0.0/24"], "reserved": 1}]});
    let why = support::by("all", "default");
    let answer_to = |object: &Value, cluster: &FakeCluster| external_answer_listing(object, &settings, cluster);
    let object = balancer_of(json!({"clusterIP": "", "ipFamilies": ["IPv4"]}), &[]);

    let mut expected = allocated(&with_record(object.clone(), "10.0.9.15"), &["10.96.0.1"], why, &[]);
    let audit = &mut expected["audit_annotations"];
    audit["external"] = "recorded".into();
    audit["external-pool"] = "edge".into();
    audit["external-addresses"] = "10.0.9.15".into();
    assert_eq!(answer_to(&object, &FakeCluster::default()), expected);

    let claiming = with_spec(object.clone(), json!({"externalIPs": ["10.0.9.20"]}));
    let held = format!("Service shop/web: spec.externalIPs: 10.0.9.20 of pool \"edge\" is held by other/db; {REMEDY}");
    let mut expected = denied(403, &held, why, &[DEPRECATED]);
    expected["audit_annotations"]["external"] = "denied".into();
    assert_eq!(answer_to(&claiming, &FakeCluster::default()), expected);

    // The family follows from the new ClusterIP.
    let unsaid = balancer_of(json!({"clusterIP": ""}), &[]);
    settings["services"]["pools"][0]["cidrs"] = json!(["fd00:96::/120"]);
    let answer = external_answer_listing(&unsaid, &settings, &FakeCluster::default());
    assert_eq!(answer["mutated_object"]["spec"]["clusterIP"], "fd00:96::1");
    assert_eq!(answer["audit_annotations"]["external-addresses"], "fd00::9:9b");

    settings["services"]["pools"][0]["cidrs"] = json!(["10.96.0.0/30"]);
    let full = FakeCluster::default().service("a/a", "10.96.0.1").service("a/b", "10.96.0.2");
    let answer = external_answer_listing(&claiming, &settings, &full);
    assert!(answer["message"].as_str().unwrap().contains("pool \"all\" (10.96.0.0/30) is full"), "{answer}");
    assert_eq!((&answer["audit_annotations"]["external"], &answer["warnings"]), (&Value::Null, &Value::Null));
}
