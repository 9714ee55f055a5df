//! Creates of Services whose reserved addresses the policy of `deploy/reservations` has written before the webhook is
//! called: they are decided as if the policy had done nothing.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip::webhook::admission::{OnError, Reviewer as _};
use serde_json::{Value, json};

use crate::reviews::{Webhook, created};

const RESERVED: &str = "10.0.1.7";

/// The Service `shop/web` with this address, as the API server sends it if this manager owns these fields of `spec`.
fn web(address: &str, owned: Value) -> (Value, Value) {
    let owner = json!({"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": owned}});
    let metadata = json!({"name": "web", "namespace": "shop", "managedFields": [owner]});
    (metadata, json!({"clusterIP": address, "clusterIPs": [address]}))
}

/// The object of a request after the answer of the webhook, and the reason in the answer.
fn answered(webhook: &Webhook, request: &Value) -> (Value, Option<String>) {
    let response = webhook.admission.review(request);
    assert!(response.allowed, "{:?}", response.status);
    let mut object = request["object"].clone();
    if let Some(patch) = response.patch {
        let patch: json_patch::Patch = serde_json::from_slice(&STANDARD.decode(patch).unwrap()).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
    }
    (object, response.audit_annotations.unwrap().remove("reason"))
}

#[tokio::test]
async fn service_with_a_reserved_address_of_the_policy_is_decided_as_without_it() {
    struct Case {
        name: &'static str,
        /// The pools before `all`, which is for every Service and reserves the address.
        pools: Value,
        exempt: Value,
        owned: Value,
        address: &'static str,
        /// The address that the Service has then, or the range in which it lies.
        expected: &'static str,
        reason: Option<&'static str>,
        /// Whether the address is in flight then.
        reserves: bool,
    }
    let none = || json!([]);
    let first = || json!([{"name": "first", "cidrs": ["10.0.2.0/30"], "match": {"namespaces": ["shop"]}}]);
    let gold = json!({"serviceSelector": {"matchLabels": {"tier": "gold"}}});
    let gold = || json!([{"name": "gold", "cidrs": ["10.0.3.0/30"], "match": gold}]);
    let case = |name, pools, address, expected, reason| Case {
        name,
        pools,
        exempt: json!([]),
        owned: json!({"f:ports": {}}),
        address,
        expected,
        reason,
        reserves: true,
    };
    let by_hand = json!({"f:clusterIP": {}});
    let cases = [
        case("its own pool", none(), RESERVED, RESERVED, None),
        case("another pool comes first", first(), RESERVED, "10.0.2.", None),
        case("another pool is for other Services", gold(), RESERVED, RESERVED, None),
        case("an address without a reservation", none(), "10.0.1.9", "10.0.1.9", Some("set by hand")),
        Case { owned: by_hand.clone(), ..case("by hand", none(), RESERVED, RESERVED, Some("set by hand")) },
        Case {
            owned: by_hand,
            reserves: false,
            ..case("by hand, not in its pool", first(), RESERVED, RESERVED, Some("set by hand"))
        },
        Case {
            exempt: json!(["shop"]),
            reserves: false,
            ..case("an exempt namespace", first(), RESERVED, RESERVED, Some("namespace shop is exempt"))
        },
    ];
    for Case { name, mut pools, exempt, owned, address, expected, reason, reserves } in cases {
        let all = json!({"name": "all", "cidrs": ["10.0.1.0/24"],
            "reservations": [{"address": RESERVED, "namespace": "shop", "name": "web"}]});
        pools.as_array_mut().unwrap().push(all);
        let settings = json!({"services": {"pools": pools, "exemptNamespaces": exempt}});
        let webhook = Webhook::with_settings(settings, OnError::Deny, false);
        let (metadata, spec) = web(address, owned);
        let (object, why) = answered(&webhook, &created("shop", metadata, spec));
        assert_eq!(why.as_deref(), reason, "{name}");
        let found = object["spec"]["clusterIP"].as_str().unwrap();
        assert!(found.starts_with(expected), "{name}: {found}");
        assert_eq!(object["spec"]["clusterIPs"], json!([found]), "{name}");
        let reserved = format!(r#"{found} ("shop", "web")"#);
        assert_eq!(webhook.reserved().contains(&reserved), reserves, "{name}: {:?}", webhook.reserved());
    }
}

/// Without a pool for the Service, the address is taken back: the API server picks one, as without the policy.
#[tokio::test]
async fn reserved_address_of_a_pool_that_the_service_does_not_belong_to_is_taken_back() {
    let gold = json!({"name": "gold", "cidrs": ["10.0.1.0/24"],
        "match": {"serviceSelector": {"matchLabels": {"tier": "gold"}}},
        "reservations": [{"address": RESERVED, "namespace": "shop", "name": "web"}]});
    let webhook = Webhook::with_settings(json!({"services": {"pools": [gold]}}), OnError::Deny, false);
    let (metadata, spec) = web(RESERVED, json!({"f:ports": {}}));
    let (object, _) = answered(&webhook, &created("shop", metadata, spec));
    assert_eq!(object["spec"], json!({}));
    assert_eq!(webhook.reserved(), Vec::<String>::new());
}

/// An update of a Service that has a reserved address changes nothing, and a Service that leaves `type: ExternalName`
/// is decided like a new one.
#[tokio::test]
async fn only_an_update_that_allocates_is_decided_again() {
    let first = json!({"name": "first", "cidrs": ["10.0.2.0/30"], "match": {"namespaces": ["shop"]}});
    let all = json!({"name": "all", "cidrs": ["10.0.1.0/24"],
        "reservations": [{"address": RESERVED, "namespace": "shop", "name": "web"}]});
    for (name, old, expected) in [
        ("has the address", json!({"clusterIP": RESERVED, "clusterIPs": [RESERVED]}), RESERVED),
        ("leaves ExternalName", json!({"type": "ExternalName", "externalName": "example.com"}), "10.0.2."),
    ] {
        let settings = json!({"services": {"pools": [first, all]}});
        let webhook = Webhook::with_settings(settings, OnError::Deny, false);
        let (metadata, spec) = web(RESERVED, json!({"f:ports": {}}));
        let mut request = created("shop", metadata.clone(), spec);
        request["operation"] = "UPDATE".into();
        request["oldObject"] = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": old});
        let (object, _) = answered(&webhook, &request);
        let found = object["spec"]["clusterIP"].as_str().unwrap();
        assert!(found.starts_with(expected), "{name}: {found}");
        assert_eq!(object["spec"]["clusterIPs"], json!([found]), "{name}");
    }
}
