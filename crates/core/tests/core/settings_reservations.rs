//! Mistakes in the reservations of a settings document.

use crate::support::{check_mistakes, pool, pools, services};
use serde_json::{Value, json};

/// A reservation for the Service `shop/NAME`.
fn of(address: &str, name: &str) -> Value {
    json!({"address": address, "namespace": "shop", "name": name})
}

#[test]
fn reservation_keeps_an_address_of_the_pool_for_one_service() {
    let reserve = |list: Value| pool(json!({"cidrs": ["10.0.0.0/24", "fd00::/120"], "reservations": list}));
    let label = "is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end";
    let twice = "[1]: 10.0.0.7 is already reserved for Service shop/web: reserve an address for one Service, and one \
                 address of each family for a Service";
    let missing = "missing: a reservation needs an address, a namespace and a name";
    let of_other_namespace = json!({"address": "10.0.0.8", "namespace": "a", "name": "web"});
    let rows = [
        (json!([]), ""),
        (json!(null), ""),
        // One of each family, and the same name in another namespace.
        (json!([of("10.0.0.7", "web"), of("FD00:0::7", "web"), of_other_namespace]), ""),
        (json!([of("10.0.0.7", "web"), of("10.0.0.7", "cart")]), twice),
        (json!([of("10.0.0.7", "web"), of("10.0.0.8", "web")]), twice),
        (json!([of("10.0.0.7", "web"), of("10.0.0.7", "web")]), twice),
        (
            json!([{"address": "10.0.0.7", "namespace": "Shop", "name": "web.example"}]),
            &format!("[0].namespace: \"Shop\" {label}\n[0].name: \"web.example\" {label}"),
        ),
        (
            json!([{"adress": "10.0.0.7", "namespace": "shop", "name": null}]),
            &format!(
                "[0].adress: unknown key \"adress\": did you mean address?\n[0].address: {missing}\n[0].name: {missing}"
            ),
        ),
    ];
    check_mistakes("services.pools[0].reservations", reserve, &rows);
}

#[test]
fn reserved_address_is_one_of_the_pool_that_a_service_can_have() {
    let many = |count: u32| {
        let address = |number: u32| format!("10.0.{}.{}", number / 250, number % 250 + 1);
        let list: Vec<Value> = (1..=count).map(|number| of(&address(number), &format!("web-{number}"))).collect();
        json!({"cidrs": ["10.0.0.0/16"], "reservations": list})
    };
    let withheld = [of("10.0.0.7", "web"), of("10.0.0.203", "cart")];
    let rows = [
        // Excluded, or kept for addresses set by hand.
        (json!({"reserved": 50, "exclude": ["10.0.0.200/29"], "reservations": withheld}), ""),
        // All addresses of a range.
        (json!({"cidrs": ["10.0.0.0/30"], "exclude": ["10.0.0.1"], "reservations": [of("10.0.0.2", "web")]}), ""),
        (many(256), ""),
        (many(257), ": 257 reservations: a pool has at most 256"),
    ];
    check_mistakes("services.pools[0].reservations", pool, &rows);
    let two = |address: Value| {
        pools(json!([
            {"name": "a", "cidrs": ["10.0.0.0/24"], "match": {"os": "windows"}, "reservations": [of("10.0.0.7", "web")]},
            {"name": "b", "cidrs": ["10.0.1.0/24"], "reservations": [of(address.as_str().unwrap(), "web")]},
        ]))
    };
    let rows = [(json!("10.0.1.7"), ""), (json!("10.0.0.7"), "10.0.0.7 is in no range of the pool")];
    check_mistakes("services.pools[1].reservations[0]: ", two, &rows);
    let unusable = json!({"serviceCIDRs": ["10.0.0.0/16", "fd00::/108"], "pools": [{
        "name": "a",
        "cidrs": ["10.0.0.0/24", "fd00::/120"],
        "reservations": [
            of("10.0.0", "a"), of("10.0.0.0", "b"), of("10.0.0.255", "c"), of("10.0.0.1", "d"), of("fd00::", "e"),
            of("fd00::ff", "f"), of("10.0.1.7", "g"),
        ],
    }]});
    let mistakes = [
        r#"[0].address: "10.0.0" is not an IP address"#,
        "[1]: 10.0.0.0 is the network or broadcast address of 10.0.0.0/24",
        "[2]: 10.0.0.255 is the network or broadcast address of 10.0.0.0/24",
        "[3]: 10.0.0.1 is the address of default/kubernetes",
        "[4]: fd00:: is the network or broadcast address of fd00::/120",
        "[6]: 10.0.1.7 is in no range of the pool",
    ];
    check_mistakes("services.pools[0].reservations", services, &[(unusable, &mistakes.join("\n"))]);
}
