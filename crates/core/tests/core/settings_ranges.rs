//! Mistakes in the ranges of a settings document: CIDRs, overlaps, places, pools that are never used.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::{check_mistakes, pool, pools, services};
use serde_json::{Value, json};

#[test]
fn ranges_are_cidrs_without_host_bits() {
    let cidr = |cidr: &str| pool(json!({ "cidrs": [cidr] }));
    check_mistakes(&[
        (
            "missing",
            pools(json!([{"name": "a"}])),
            &["services.pools[0].cidrs: missing: a pool needs at least one range"],
        ),
        ("empty", pool(json!({"cidrs": []})), &["services.pools[0].cidrs: no range: a pool needs at least one"]),
        (
            "no pool",
            pools(json!([])),
            &["services.pools: no pool: give at least one, or leave the key out for the pools of K2s"],
        ),
        ("too long", cidr("172.21.1.0/33"), &[r#"services.pools[0].cidrs[0]: "172.21.1.0/33" is not a CIDR"#]),
        (
            "an octet too large",
            cidr("10.0.256.0/24"),
            &[r#"services.pools[0].cidrs[0]: "10.0.256.0/24" is not a CIDR"#],
        ),
        ("an empty one", cidr(""), &[r#"services.pools[0].cidrs[0]: "" is not a CIDR"#]),
        ("surrounded by space", cidr(" 10.0.0.0/24"), &[r#"services.pools[0].cidrs[0]: " 10.0.0.0/24" is not a CIDR"#]),
        (
            "an address without a length",
            cidr("10.0.0.0"),
            &[r#"services.pools[0].cidrs[0]: "10.0.0.0" is not a CIDR: add a prefix length such as /24"#],
        ),
        (
            "host bits",
            cidr("10.0.0.7/24"),
            &["services.pools[0].cidrs[0]: 10.0.0.7/24 has host bits set: did you mean 10.0.0.0/24?"],
        ),
        (
            "host bits of IPv6",
            cidr("fd00::1/112"),
            &["services.pools[0].cidrs[0]: fd00::1/112 has host bits set: did you mean fd00::/112?"],
        ),
        (
            "the position of a bad one among good ones",
            pool(json!({"cidrs": ["10.0.0.0/24", "x", "10.0.1.0/24"]})),
            &[r#"services.pools[0].cidrs[1]: "x" is not a CIDR"#],
        ),
    ]);
}

#[test]
fn ranges_must_not_overlap_each_other_or_another_pool() {
    check_mistakes(&[
        (
            "same pool",
            pool(json!({"cidrs": ["10.0.0.0/24", "10.0.0.128/25"]})),
            &["services.pools[0].cidrs[1]: 10.0.0.128/25 overlaps 10.0.0.0/24 of the same pool"],
        ),
        (
            "around one of the same pool",
            pool(json!({"cidrs": ["10.0.0.128/25", "10.0.0.0/24"]})),
            &["services.pools[0].cidrs[1]: 10.0.0.0/24 overlaps 10.0.0.128/25 of the same pool"],
        ),
        (
            "another pool, behind a mistaken range",
            pools(json!([
                {"name": "a", "cidrs": ["x", "10.0.0.0/16"], "match": {"os": "windows"}},
                {"name": "b", "cidrs": ["y", "10.0.7.0/24"]},
            ])),
            &[
                r#"services.pools[0].cidrs[0]: "x" is not a CIDR"#,
                r#"services.pools[1].cidrs[0]: "y" is not a CIDR"#,
                r#"services.pools[1].cidrs[1]: 10.0.7.0/24 overlaps 10.0.0.0/16 of pool "a""#,
            ],
        ),
        ("neighbours", pool(json!({"cidrs": ["10.0.0.0/25", "10.0.0.128/25"]})), &[]),
        ("the same bits in the other family", pool(json!({"cidrs": ["0.0.0.0/24", "::/120"]})), &[]),
    ]);
}

#[test]
fn every_range_needs_a_usable_address() {
    let none = "has no usable address: all are network or broadcast address, reserved or excluded";
    let line = |cidr: &str| format!("services.pools[0].cidrs[0]: {cidr} {none}");
    check_mistakes(&[
        ("a /32", pool(json!({"cidrs": ["10.0.0.0/32"]})), &[&line("10.0.0.0/32")]),
        ("a /31", pool(json!({"cidrs": ["10.0.0.0/31"]})), &[&line("10.0.0.0/31")]),
        ("a /128", pool(json!({"cidrs": ["fd00::/128"]})), &[&line("fd00::/128")]),
        ("a /30", pool(json!({"cidrs": ["10.0.0.0/30"]})), &[]),
        ("reserved to the last", pool(json!({"reserved": 255})), &[&line("10.0.0.0/24")]),
        ("reserved but one", pool(json!({"reserved": 254})), &[]),
        ("reserved, far too many", pool(json!({"reserved": u64::MAX})), &[&line("10.0.0.0/24")]),
        ("excluded", pool(json!({"exclude": ["10.0.0.0/25", "10.0.0.128/25"]})), &[&line("10.0.0.0/24")]),
        (
            "all but the address of default/kubernetes",
            services(
                json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/30"], "exclude": ["10.0.0.2"]}], "serviceCIDRs": ["10.0.0.0/16"]}),
            ),
            &[&line("10.0.0.0/30")],
        ),
    ]);
}

#[test]
fn pools_must_be_inside_service_cidrs_of_sufficient_size() {
    let document =
        |cidrs: Value| services(json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/24"]}], "serviceCIDRs": cidrs}));
    check_mistakes(&[
        ("inside", document(json!(["172.16.0.0/16", "10.0.0.0/16"])), &[]),
        ("the whole", document(json!(["10.0.0.0/24"])), &[]),
        (
            "outside all",
            document(json!(["172.16.0.0/16", "fd00::/112"])),
            &[
                "services.pools[0].cidrs[0]: 10.0.0.0/24 lies outside serviceCIDRs (172.16.0.0/16, fd00::/112): the API server would refuse its addresses",
            ],
        ),
        (
            "larger than the cluster's",
            document(json!(["10.0.0.0/25"])),
            &[
                "services.pools[0].cidrs[0]: 10.0.0.0/24 lies outside serviceCIDRs (10.0.0.0/25): the API server would refuse its addresses",
            ],
        ),
        (
            "the default pools, too",
            services(json!({"serviceCIDRs": ["172.21.0.0/24"]})),
            &[
                "services.pools[0].cidrs[0]: 172.21.1.0/24 lies outside serviceCIDRs (172.21.0.0/24): the API server would refuse its addresses",
            ],
        ),
        (
            "eight addresses",
            services(json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/30"]}], "serviceCIDRs": ["10.0.0.0/29"]})),
            &[],
        ),
        (
            "four addresses",
            services(
                json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/30"]}], "serviceCIDRs": ["10.0.0.0/30", "fd00::/126"]}),
            ),
            &[
                "services.serviceCIDRs[0]: 10.0.0.0/30 has fewer than 8 addresses: too small for a Service range",
                "services.serviceCIDRs[1]: fd00::/126 has fewer than 8 addresses: too small for a Service range",
            ],
        ),
        (
            "no CIDR",
            document(json!(["10.0.0.0"])),
            &[r#"services.serviceCIDRs[0]: "10.0.0.0" is not a CIDR: add a prefix length such as /24"#],
        ),
    ]);
}

#[test]
fn exclude_must_be_an_address_or_range_of_the_pool() {
    check_mistakes(&[
        ("an address and a range", pool(json!({"exclude": ["10.0.0.7", "10.0.0.8/29"]})), &[]),
        ("around the range", pool(json!({"cidrs": ["10.0.0.0/24", "10.1.0.0/24"], "exclude": ["10.1.0.128/25"]})), &[]),
        (
            "elsewhere",
            pool(json!({"exclude": ["10.0.0.7", "10.0.1.7", "fd00::/64"]})),
            &[
                "services.pools[0].exclude[1]: 10.0.1.7/32 is in no range of the pool",
                "services.pools[0].exclude[2]: fd00::/64 is in no range of the pool",
            ],
        ),
        (
            "no address, and host bits",
            pool(json!({"exclude": ["10.0.0", "10.0.0.9/29"]})),
            &[
                r#"services.pools[0].exclude[0]: "10.0.0" is not a CIDR"#,
                "services.pools[0].exclude[1]: 10.0.0.9/29 has host bits set: did you mean 10.0.0.8/29?",
            ],
        ),
    ]);
}

#[test]
fn pool_that_is_never_used_is_a_mistake() {
    let two = |first: Value, second: Value| {
        pools(json!([
            {"name": "a", "cidrs": ["10.0.0.0/24"], "match": first},
            {"name": "b", "cidrs": ["10.0.1.0/24"], "match": second},
        ]))
    };
    let never_used =
        [r#"services.pools[1].match: never used: the earlier pool "a" matches everything that it matches"#];
    check_mistakes(&[
        ("behind one for everything", two(json!({}), json!({"os": "linux"})), &never_used),
        ("both for everything", two(Value::Null, Value::Null), &never_used),
        (
            "the same os in other words",
            two(json!({"os": "Linux"}), json!({"nodeLabels": {"kubernetes.io/os": "linux"}})),
            &never_used,
        ),
        (
            "more labels than before",
            two(json!({"os": "linux"}), json!({"os": "linux", "nodeLabels": {"a": "b"}})),
            &never_used,
        ),
        ("fewer namespaces", two(json!({"namespaces": ["x", "y"]}), json!({"namespaces": ["y"]})), &never_used),
        (
            "the same selector, and more",
            two(
                json!({"serviceSelector": {"matchLabels": {"a": "b"}}}),
                json!({"os": "linux", "serviceSelector": {"matchLabels": {"a": "b"}}}),
            ),
            &never_used,
        ),
        ("another os", two(json!({"os": "windows"}), json!({"os": "linux"})), &[]),
        (
            "fewer labels than before",
            two(json!({"os": "linux", "nodeLabels": {"a": "b"}}), json!({"os": "linux"})),
            &[],
        ),
        ("more namespaces", two(json!({"namespaces": ["x"]}), json!({"namespaces": ["x", "y"]})), &[]),
        ("any namespace", two(json!({"namespaces": ["x"]}), json!({})), &[]),
        (
            "another selector",
            two(
                json!({"namespaceSelector": {"matchLabels": {"a": "b"}}}),
                json!({"namespaceSelector": {"matchLabels": {"a": "c"}}}),
            ),
            &[],
        ),
        (
            "behind one whose match could not be read",
            two(json!({"oss": "windows"}), json!({"os": "linux"})),
            &[r#"services.pools[0].match.oss: unknown key "oss": did you mean os?"#],
        ),
    ]);
}
