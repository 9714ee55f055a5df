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
    let plain = || (0, json!({"name": "web"}), json!({}));
    let asking = |address: &str| json!({"name": "web", "annotations": {"clusterip-policy/external-address": address}});
    let balancer = || json!({"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external"});
    let mut given = balancer();
    given["clusterIP"] = "GIVEN".into();
    let mut gold = asking(EXTERNAL);
    gold["labels"] = json!({"tier": "gold"});
    let cases = [
        Case { name: "requested, with its address", creates: vec![plain(), (0, asking(EXTERNAL), given.clone())] },
        Case { name: "requested, with its address and for another pool", creates: vec![plain(), (0, gold, given)] },
        Case {
            name: "claimed, with its address",
            creates: vec![
                plain(),
                (0, json!({"name": "web"}), json!({"clusterIP": "GIVEN", "externalIPs": [EXTERNAL]})),
            ],
        },
        Case {
            name: "the external address as its address",
            creates: vec![
                (0, asking(EXTERNAL), balancer()),
                (0, json!({"name": "web"}), json!({"clusterIP": EXTERNAL})),
            ],
        },
        Case {
            name: "again just before the reservation ends",
            creates: vec![
                (0, asking(EXTERNAL), balancer()),
                (64, asking(EXTERNAL), balancer()),
                (66, json!({"name": "web"}), json!({})),
            ],
        },
        Case {
            name: "again, and then others",
            creates: vec![
                (0, asking(EXTERNAL), balancer()),
                (6, asking(EXTERNAL), balancer()),
                (6, asking("10.9.0.6"), balancer()),
                (6, asking("10.9.0.7"), balancer()),
            ],
        },
        Case {
            name: "others later",
            creates: vec![
                (0, asking(EXTERNAL), balancer()),
                (6, asking("10.9.0.6"), balancer()),
                (6, asking("10.9.0.7"), balancer()),
                (12, asking("10.9.0.8"), balancer()),
            ],
        },
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
