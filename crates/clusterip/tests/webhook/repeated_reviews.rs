//! Several creates of one Service, which all fail after their review: no other Service gets the external address of the
//! last ones.

use serde_json::{Value, json};

use crate::reviews::Webhook;

const EXTERNAL: &str = "10.9.0.5";

#[tokio::test]
async fn external_address_of_a_repeated_create_is_reserved() {
    struct Case {
        name: &'static str,
        /// When a create comes, its metadata, and its `spec`, in which `GIVEN` is the address of the first create.
        creates: Vec<(u64, Value, Value)>,
    }
    let plain = |seconds| (seconds, json!({"name": "web"}), json!({}));
    let asking = |address: &str| json!({"name": "web", "annotations": {"clusterip-policy/external-address": address}});
    let balancer = || json!({"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external"});
    let mut given = balancer();
    given["clusterIP"] = "GIVEN".into();
    let mut gold = asking(EXTERNAL);
    gold["labels"] = json!({"tier": "gold"});
    let case = |name, creates: &[_]| Case { name, creates: creates.to_vec() };
    let asks = |seconds, address| (seconds, asking(address), balancer());
    let claims = (0, json!({"name": "web"}), json!({"clusterIP": "GIVEN", "externalIPs": [EXTERNAL]}));
    let names = (0, json!({"name": "web"}), json!({"clusterIP": EXTERNAL}));
    let cases = [
        case("requested, with its address", &[plain(0), (0, asking(EXTERNAL), given.clone())]),
        case("requested, with its address and for another pool", &[plain(0), (0, gold, given)]),
        case("claimed, with its address", &[plain(0), claims]),
        case("the external address as its address", &[asks(0, EXTERNAL), names]),
        case("again just before the reservation ends", &[asks(0, EXTERNAL), asks(64, EXTERNAL), plain(66)]),
        case(
            "again, and then others",
            &[asks(0, EXTERNAL), asks(6, EXTERNAL), asks(6, "10.9.0.6"), asks(6, "10.9.0.7")],
        ),
        case("others later", &[asks(0, EXTERNAL), asks(6, "10.9.0.6"), asks(6, "10.9.0.7"), asks(12, "10.9.0.8")]),
    ];
    for Case { name, creates } in cases {
        let webhook = Webhook::new("deny");
        for (seconds, metadata, mut spec) in creates {
            webhook.wait_until(seconds);
            if spec["clusterIP"] == "GIVEN" {
                spec["clusterIP"] = webhook.reserved()[0].split_once(' ').unwrap().0.into();
            }
            webhook.create("shop", metadata, spec);
        }
        let reserved = webhook.reserved();
        assert!(reserved.contains(&format!(r#"{EXTERNAL} ("shop", "web")"#)), "{name}: {reserved:?}");
        let other = webhook.create("bank", asking(EXTERNAL), balancer());
        let (_, message) = other.unwrap();
        assert!(
            message.contains("is held by shop/web (its request may still be in progress, for up to 65 s)"),
            "{name}: {message}"
        );
    }
}

/// The API server may refuse an address that it takes for allocated although it is free, as Kubernetes up to 1.33 does:
/// the next create of the Service gets another one.
#[tokio::test]
async fn repeated_create_gets_another_address_and_is_counted() {
    let named = || json!({"name": "web"});
    struct Case {
        name: &'static str,
        /// When the second create comes, in seconds, and its metadata.
        second: (u64, Value),
        is_other: bool,
        counted: u64,
    }
    let cases = [
        Case { name: "at once", second: (0, named()), is_other: true, counted: 1 },
        Case { name: "while the address is reserved", second: (64, named()), is_other: true, counted: 1 },
        Case { name: "when it is not reserved any more", second: (66, named()), is_other: false, counted: 0 },
        Case { name: "of another Service", second: (0, json!({"name": "shop"})), is_other: true, counted: 0 },
    ];
    for Case { name, second: (seconds, metadata), is_other, counted } in cases {
        let webhook = Webhook::new("deny");
        webhook.create("shop", named(), json!({}));
        let first = webhook.reserved();
        webhook.wait_until(seconds);
        webhook.create("shop", metadata, json!({}));
        let both = webhook.reserved();
        assert_eq!((both.len(), both.contains(&first[0])), (1 + usize::from(is_other), true), "{name}: {both:?}");
        let text = webhook.metrics.encode();
        let line = format!("\nclusterip_repeated_creates_total {counted}\n");
        assert!(text.contains(&line), "{name}: {text}");
    }
}

/// As after another webhook has changed the pool of the Service. But a Service that exists may be moving to the address.
#[tokio::test]
async fn address_of_another_pool_is_released_unless_the_service_exists() {
    for exists in [false, true] {
        let webhook = Webhook::new("deny");
        webhook.create("shop", json!({"name": "web"}), json!({}));
        let before = webhook.reserved();
        let given = before[0].split_once(' ').unwrap().0;
        if exists {
            webhook.add_service("shop", "web");
        }
        let gold = json!({"name": "web", "labels": {"tier": "gold"}});
        assert_eq!(webhook.create("shop", gold, json!({"clusterIP": given})), None);
        let after = webhook.reserved();
        assert_eq!((after.len(), after.contains(&before[0])), (1 + usize::from(exists), exists), "{after:?}");
    }
}
