//! Mistakes in the reservations of a settings document.

use crate::support::{SettingsCase, check_mistakes, pool, pools, services};
use serde_json::{Value, json};

#[test]
fn reservation_keeps_an_address_of_the_pool_for_one_service() {
    let of =
        |address: &str, namespace: &str, name: &str| json!({"address": address, "namespace": namespace, "name": name});
    let reserve = |list: &[Value]| pool(json!({"cidrs": ["10.0.0.0/24", "fd00::/120"], "reservations": list}));
    let advice = "reserve an address for one Service, and one address of each family for a Service";
    let twice =
        format!("services.pools[0].reservations[1]: 10.0.0.7 is already reserved for Service shop/web: {advice}");
    let many = |count: u32| {
        let list: Vec<Value> = (1..=count)
            .map(|number| of(&format!("10.0.{}.{}", number / 250, number % 250 + 1), "shop", &format!("web-{number}")))
            .collect();
        pool(json!({"cidrs": ["10.0.0.0/16"], "reservations": list}))
    };
    check_mistakes(&[
        SettingsCase { name: "none", document: reserve(&[]), mistakes: &[] },
        SettingsCase { name: "null", document: pool(json!({"reservations": null})), mistakes: &[] },
        SettingsCase {
            name: "one of each family, and the same name in another namespace",
            document: reserve(&[
                of("10.0.0.7", "shop", "web"),
                of("FD00:0::7", "shop", "web"),
                of("10.0.0.8", "a", "web"),
            ]),
            mistakes: &[],
        },
        SettingsCase {
            name: "addresses that are excluded, or kept for addresses set by hand",
            document: pool(json!({"reserved": 50, "exclude": ["10.0.0.200/29"], "reservations": [
                of("10.0.0.7", "shop", "web"), of("10.0.0.203", "shop", "cart"),
            ]})),
            mistakes: &[],
        },
        SettingsCase {
            name: "all addresses of a range",
            document: pool(
                json!({"cidrs": ["10.0.0.0/30"], "exclude": ["10.0.0.1"], "reservations": [of("10.0.0.2", "shop", "web")]}),
            ),
            mistakes: &[],
        },
        SettingsCase {
            name: "for one Service in two pools",
            document: pools(json!([
                {"name": "a", "cidrs": ["10.0.0.0/24"], "match": {"os": "windows"}, "reservations": [of("10.0.0.7", "shop", "web")]},
                {"name": "b", "cidrs": ["10.0.1.0/24"], "reservations": [of("10.0.1.7", "shop", "web")]},
            ])),
            mistakes: &[],
        },
        SettingsCase {
            name: "an address of another pool",
            document: pools(json!([
                {"name": "a", "cidrs": ["10.0.0.0/24"], "match": {"os": "windows"}, "reservations": [of("10.0.0.7", "shop", "web")]},
                {"name": "b", "cidrs": ["10.0.1.0/24"], "reservations": [of("10.0.0.7", "shop", "web")]},
            ])),
            mistakes: &["services.pools[1].reservations[0]: 10.0.0.7 is in no range of the pool"],
        },
        SettingsCase {
            name: "an address for two Services",
            document: reserve(&[of("10.0.0.7", "shop", "web"), of("10.0.0.7", "shop", "cart")]),
            mistakes: &[&twice],
        },
        SettingsCase {
            name: "two addresses of one family for a Service",
            document: reserve(&[of("10.0.0.7", "shop", "web"), of("10.0.0.8", "shop", "web")]),
            mistakes: &[&twice],
        },
        SettingsCase {
            name: "the same reservation twice",
            document: reserve(&[of("10.0.0.7", "shop", "web"), of("10.0.0.7", "shop", "web")]),
            mistakes: &[&twice],
        },
        SettingsCase {
            name: "addresses that no Service can have, behind an invalid one",
            document: services(json!({"serviceCIDRs": ["10.0.0.0/16", "fd00::/108"], "pools": [{
                "name": "a",
                "cidrs": ["10.0.0.0/24", "fd00::/120"],
                "reservations": [
                    of("10.0.0", "shop", "a"), of("10.0.0.0", "shop", "b"), of("10.0.0.255", "shop", "c"), of("10.0.0.1", "shop", "d"),
                    of("fd00::", "shop", "e"), of("fd00::ff", "shop", "f"), of("10.0.1.7", "shop", "g"),
                ],
            }]})),
            mistakes: &[
                r#"services.pools[0].reservations[0].address: "10.0.0" is not an IP address"#,
                "services.pools[0].reservations[1]: 10.0.0.0 is the network or broadcast address of 10.0.0.0/24",
                "services.pools[0].reservations[2]: 10.0.0.255 is the network or broadcast address of 10.0.0.0/24",
                "services.pools[0].reservations[3]: 10.0.0.1 is the address of default/kubernetes",
                "services.pools[0].reservations[4]: fd00:: is the network or broadcast address of fd00::/120",
                "services.pools[0].reservations[6]: 10.0.1.7 is in no range of the pool",
            ],
        },
        SettingsCase {
            name: "names that no Service can have",
            document: reserve(&[of("10.0.0.7", "Shop", "web.example")]),
            mistakes: &[
                r#"services.pools[0].reservations[0].namespace: "Shop" is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end"#,
                r#"services.pools[0].reservations[0].name: "web.example" is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end"#,
            ],
        },
        SettingsCase {
            name: "missing and unknown fields",
            document: reserve(&[json!({"adress": "10.0.0.7", "namespace": "shop", "name": null})]),
            mistakes: &[
                r#"services.pools[0].reservations[0].adress: unknown key "adress": did you mean address?"#,
                "services.pools[0].reservations[0].address: missing: a reservation needs an address, a namespace and a name",
                "services.pools[0].reservations[0].name: missing: a reservation needs an address, a namespace and a name",
            ],
        },
        SettingsCase { name: "256 reservations", document: many(256), mistakes: &[] },
        SettingsCase {
            name: "257 reservations",
            document: many(257),
            mistakes: &["services.pools[0].reservations: 257 reservations: a pool has at most 256"],
        },
    ]);
}
