//! Which addresses of a range are never handed out, and why.

use clusterip_core::address::{Blocks, Family, Withholding};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Reservation;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{cases, ip, settings};

#[test]
fn withheld_addresses_of_a_service_pool_have_a_reason() {
    struct Case {
        name: &'static str,
        pool: Value,
        /// `r` stands for kept for addresses set by hand, `x` for excluded, `s` for reserved for a Service.
        expected: &'static str,
    }
    let cases = [
        Case { name: "IPv4", pool: json!({"cidrs": ["10.0.0.0/29"]}), expected: "10.0.0.0 x, 10.0.0.7 x" },
        Case {
            name: "IPv6, whose last address is usable",
            pool: json!({"cidrs": ["fd00::/126"]}),
            expected: "fd00:: x",
        },
        Case {
            name: "the network address is excluded, even if it is reserved too",
            pool: json!({"cidrs": ["10.0.0.0/29"], "reserved": 3}),
            expected: "10.0.0.0 x, 10.0.0.1-10.0.0.2 r, 10.0.0.7 x",
        },
        Case {
            name: "excluded addresses among reserved ones",
            pool: json!({"cidrs": ["10.0.0.0/28"], "reserved": 6, "exclude": ["10.0.0.3"]}),
            expected: "10.0.0.0 x, 10.0.0.1-10.0.0.2 r, 10.0.0.3 x, 10.0.0.4-10.0.0.5 r, 10.0.0.15 x",
        },
        Case {
            name: "the address of default/kubernetes",
            pool: json!({"cidrs": ["172.30.0.0/29"]}),
            expected: "172.30.0.0-172.30.0.1 x, 172.30.0.7 x",
        },
        Case {
            name: "addresses reserved for Services, which may be excluded or kept for addresses set by hand, too",
            pool: json!({"cidrs": ["10.0.0.0/28", "10.9.0.0/28"], "reserved": 4, "exclude": ["10.0.0.8/30"], "reservations": [
                {"address": "10.0.0.2", "namespace": "shop", "name": "a"},
                {"address": "10.0.0.6", "namespace": "shop", "name": "b"},
                {"address": "10.0.0.5", "namespace": "shop", "name": "c"},
                {"address": "10.0.0.9", "namespace": "shop", "name": "d"},
                {"address": "10.9.0.7", "namespace": "shop", "name": "e"},
            ]}),
            expected: "10.0.0.0 x, 10.0.0.1 r, 10.0.0.2 s, 10.0.0.3 r, 10.0.0.5-10.0.0.6 s, 10.0.0.8 x, 10.0.0.9 s, \
                       10.0.0.10-10.0.0.11 x, 10.0.0.15 x",
        },
        Case {
            name: "a range that is unusable at the moment is not in the list",
            pool: json!({"cidrs": ["172.30.9.0/29"]}),
            expected: "172.30.9.0 x, 172.30.9.7 x",
        },
    ];
    for Case { name, mut pool, expected } in cases {
        pool["name"] = json!("p");
        let mut settings = settings(&json!({"services": {
            "pools": [pool],
            "unusableServiceCIDRs": {"172.30.9.0/24": "ServiceCIDR b is not ready"},
        }}));
        settings.service_cidrs = vec!["172.30.0.0/16".parse().unwrap()];
        let pool = &settings.pools[0];
        let spans = settings.withheld_spans(pool, pool.cidrs[0]);
        let words = spans.iter().map(|withheld| {
            let why = match withheld.why {
                Withholding::ByHand => "r",
                Withholding::Excluded => "x",
                Withholding::ForService => "s",
            };
            format!("{} {why}", withheld.span)
        });
        assert_eq!(words.collect::<Vec<_>>().join(", "), expected, "{name}");
    }
}

#[test]
fn withheld_addresses_of_an_external_pool_are_those_that_no_service_may_have() {
    struct Case {
        name: &'static str,
        range: &'static str,
        exclude: &'static [&'static str],
        expected: &'static str,
    }
    let cases = [
        Case { name: "a CIDR", range: "10.0.9.0/29", exclude: &[], expected: "10.0.9.0, 10.0.9.7" },
        Case { name: "a small CIDR", range: "10.0.9.0/31", exclude: &[], expected: "" },
        Case { name: "a range", range: "10.0.9.0-10.0.9.7", exclude: &[], expected: "" },
        Case { name: "IPv6", range: "fd00::/126", exclude: &[], expected: "fd00::" },
        Case {
            name: "excluded addresses beside the network address, and beyond the range",
            range: "10.0.9.0/28",
            exclude: &["10.0.9.1", "10.0.9.12-10.0.9.60", "fd00:77::/65"],
            expected: "10.0.9.0-10.0.9.1, 10.0.9.12-10.0.9.15",
        },
    ];
    for Case { name, range, exclude, expected } in cases {
        let pool = json!({"name": "p", "cidrs": [range, "10.0.77.1-10.0.77.9", "fd00:77::/64"], "exclude": exclude});
        let settings = settings(&json!({"external": {"pools": [pool]}}));
        let pool = &settings.external.pools[0];
        let spans = pool.withheld_spans(&pool.ranges[0]);
        assert_eq!(spans.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "), expected, "{name}");
        let withheld: u128 = spans.iter().map(|span| span.count()).sum();
        assert_eq!(pool.candidates_in(&pool.ranges[0]).count() + withheld, pool.ranges[0].count(), "{name}: the rest");
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn each_address_of_a_range_is_either_a_candidate_or_withheld(
        reserved in 0_u64..40,
        excluded in prop::collection::vec((0_u8..32, 28_u8..=32), 0..4),
        for_services in prop::collection::vec(0_u8..32, 0..4),
        bands: bool,
        is_v6: bool,
    ) {
        let exclude: Vec<String> = excluded
            .iter()
            .map(|(last, length)| {
                let last = u32::from(*last) & (u32::MAX << (32 - length));
                if is_v6 { format!("fd00::{last:x}/{}", length + 96) } else { format!("10.0.0.{last}/{length}") }
            })
            .collect();
        let cidr = if is_v6 { "fd00::/123" } else { "10.0.0.0/27" };
        let other = if is_v6 { "fd00:1::/123" } else { "10.1.0.0/27" };
        let pool = json!({"name": "p", "cidrs": [cidr, other]});
        let mut settings = settings(&json!({"services": {"pools": [pool]}}));
        settings.pools[0].reserved = reserved;
        settings.pools[0].exclude = exclude.iter().map(|range| range.parse().unwrap()).collect();
        settings.pools[0].bands = bands;
        let address = |last: &u8| ip(&if is_v6 { format!("fd00::{last:x}") } else { format!("10.0.0.{last}") });
        let service = || ServiceKey::new("shop", "web");
        settings.pools[0].reservations =
            for_services.iter().map(|last| Reservation { address: address(last), service: service() }).collect();
        let pool = &settings.pools[0];
        let candidates = settings.candidates(pool, if is_v6 { Family::V6 } else { Family::V4 });
        let spans = settings.withheld_spans(pool, pool.cidrs[0]);
        let addresses = Blocks::addresses(pool.cidrs[0]);
        for address in (0..=addresses.last_index()).filter_map(|index| addresses.address(index)) {
            let withheld = spans.iter().filter(|withheld| withheld.span.contains(address)).count();
            prop_assert_eq!(withheld, usize::from(!candidates.contains(address)), "{}", address);
        }
        let positions = candidates.bands.iter().flat_map(|band| (0..band.count()).map(|position| band.address(position)));
        prop_assert_eq!(positions.flatten().count() as u128, candidates.count());
    }
}
