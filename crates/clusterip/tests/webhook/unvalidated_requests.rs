//! Requests that the API server refuses, but only after its webhooks have answered: they reserve only addresses that
//! their Services may have. Dry runs reserve none.

use clusterip::webhook::admission::Reviewer as _;
use serde_json::{Value, json};

use crate::reviews::{Webhook, created};

/// The code and the message of a refusal, and the reservations after the review.
fn reviewed(explicit: &str, metadata: Value, spec: Value) -> (Option<(u16, String)>, Vec<String>) {
    let webhook = Webhook::new(explicit);
    (webhook.create("shop", metadata, spec), webhook.reserved())
}

#[tokio::test]
async fn only_addresses_that_a_service_may_have_are_reserved() {
    struct Case {
        name: &'static str,
        explicit: &'static str,
        spec: Value,
        /// The code of the refusal.
        refused: Option<u16>,
        reserved: &'static [&'static str],
    }
    let case = |name, explicit, spec, refused, reserved| Case { name, explicit, spec, refused, reserved };
    let external_name = |address: &str| json!({"type": "ExternalName", "externalName": "x.y", "clusterIP": address});
    let many: Vec<String> = (0..50_000).map(|nth| format!("10.0.1.{}", nth % 250)).collect();
    let own: &[&str] = &[r#"10.0.1.9 ("shop", "web")"#];
    let cases = [
        case("its own pool", "deny", json!({"clusterIP": "10.0.1.9"}), None, own),
        case("another pool", "deny", json!({"clusterIP": "10.0.2.8"}), Some(403), &[]),
        case("another pool, with a warning", "warn", json!({"clusterIP": "10.0.2.8"}), None, &[]),
        case("another pool, allowed", "allow", json!({"clusterIP": "10.0.2.8"}), None, &[]),
        case("reserved for another Service", "allow", json!({"clusterIP": "10.0.2.9"}), Some(403), &[]),
        case("ExternalName", "deny", external_name("10.0.2.9"), None, &[]),
        case("ExternalName, its own pool", "deny", external_name("10.0.1.9"), None, &[]),
        case("headless", "deny", json!({"clusterIPs": ["None", "10.0.2.9"]}), None, &[]),
        case("an external address", "allow", json!({"clusterIP": "10.9.0.5"}), None, &[]),
        case("thousands", "deny", json!({"clusterIP": "10.0.1.0", "clusterIPs": many}), None, &[]),
    ];
    for Case { name, explicit, spec, refused, reserved } in cases {
        let found = reviewed(explicit, json!({"name": "web", "namespace": "shop"}), spec);
        let expected = (refused, reserved.iter().map(|text| (*text).to_owned()).collect());
        assert_eq!((found.0.map(|(code, _)| code), found.1), expected, "{name}");
    }
}

#[tokio::test]
async fn dry_run_reserves_no_address() {
    let balancer = json!({"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external"});
    for spec in [json!({}), json!({"clusterIP": "10.0.1.9"}), balancer] {
        let webhook = Webhook::new("deny");
        let mut request = created("shop", json!({"name": "web", "namespace": "shop"}), spec);
        request["dryRun"] = true.into();
        assert_eq!(webhook.admission.review(&request).status, None, "{request}");
        assert!(webhook.reserved().is_empty(), "{request}");
    }
}

#[tokio::test]
async fn names_that_no_object_can_have_are_refused() {
    for (key, path) in [("name", "request.name"), ("generateName", "request.object.metadata.generateName")] {
        let long = |length| "n".repeat(length);
        let cut = format!("\"{}\"…", long(80));
        for (name, shown) in
            [(long(253), None), (long(254), Some(&*cut)), (long(400_000), Some(&*cut)), ("a b".into(), Some("\"a b\""))]
        {
            let metadata = json!({key: name, "namespace": "shop"});
            let (status, reserved) = reviewed("deny", metadata, json!({"clusterIP": "10.0.1.9"}));
            let refused = |shown| (422, format!("{path}: {shown} has more than 253 bytes, or a blank"));
            assert_eq!(status, shown.map(refused), "{key} of {}", name.len());
            assert_eq!(reserved.is_empty(), shown.is_some(), "{key} of {}", name.len());
        }
    }
}
