//! Requests that the API server refuses, but only after its webhooks have answered: they reserve only addresses that
//! their Services may have.

use serde_json::{Value, json};

use crate::reviews::Webhook;

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
async fn names_that_are_too_long_are_refused() {
    for (key, path) in [("name", "request.name"), ("generateName", "request.object.metadata.generateName")] {
        for (length, is_refused) in [(253, false), (254, true), (400_000, true)] {
            let (status, reserved) = reviewed(
                "deny",
                json!({key: "n".repeat(length), "namespace": "shop"}),
                json!({"clusterIP": "10.0.1.9"}),
            );
            let expected = format!("{path}: \"{}\"… has more than 253 bytes", "n".repeat(80));
            assert_eq!(status, is_refused.then_some((422, expected)), "{key} of {length}");
            assert_eq!(reserved.is_empty(), is_refused, "{key} of {length}");
        }
    }
}
