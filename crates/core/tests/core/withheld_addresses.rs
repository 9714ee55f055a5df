//! Which addresses of a range are never handed out, and why.

use clusterip_core::address::{Blocks, Family, Withholding};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Reservation;
use proptest::prelude::*;
use serde_json::json;

use crate::support::{cases, ip, settings};

#[test]
fn withheld_addresses_of_a_service_pool_have_a_reason() {
    let of = |address: &str, name: &str| json!({"address": address, "namespace": "shop", "name": name});
    // `r` stands for kept for addresses set by hand, `x` for excluded, `s` for reserved for a Service.
    for (mut pool, expected) in [
        (json!({"cidrs": ["10.0.0.0/29"]}), "10.0.0.0 x, 10.0.0.7 x"),
        // The last address of IPv6 is usable.
        (json!({"cidrs": ["fd00::/126"]}), "fd00:: x"),
        (json!({"cidrs": ["10.0.0.0/29"], "reserved": 3}), "10.0.0.0 x, 10.0.0.1-10.0.0.2 r, 10.0.0.7 x"),
        (
            json!({"cidrs": ["10.0.0.0/28"], "reserved": 6, "exclude": ["10.0.0.3"]}),
            "10.0.0.0 x, 10.0.0.1-10.0.0.2 r, 10.0.0.3 x, 10.0.0.4-10.0.0.5 r, 10.0.0.15 x",
        ),
        // The address of default/kubernetes.
        (json!({"cidrs": ["172.30.0.0/29"]}), "172.30.0.0-172.30.0.1 x, 172.30.0.7 x"),
        (
            json!({"cidrs": ["10.0.0.0/28", "10.9.0.0/28"], "reserved": 4, "exclude": ["10.0.0.8/30"], "reservations": [
                of("10.0.0.2", "a"), of("10.0.0.6", "b"), of("10.0.0.5", "c"), of("10.0.0.9", "d"), of("10.9.0.7", "e"),
            ]}),
            "10.0.0.0 x, 10.0.0.1 r, 10.0.0.2 s, 10.0.0.3 r, 10.0.0.5-10.0.0.6 s, 10.0.0.8 x, 10.0.0.9 s, \
             10.0.0.10-10.0.0.11 x, 10.0.0.15 x",
        ),
        // A range that is unusable at the moment is not in the list.
        (json!({"cidrs": ["172.30.9.0/29"]}), "172.30.9.0 x, 172.30.9.7 x"),
    ] {
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
        assert_eq!(words.collect::<Vec<_>>().join(", "), expected);
    }
}

#[test]
fn withheld_addresses_of_an_external_pool_are_those_that_no_service_may_have() {
    // Beside the network address, and beyond the range.
    let excluded = &["10.0.9.1", "10.0.9.12-10.0.9.60", "fd00:77::/65"][..];
    for (range, exclude, expected) in [
        ("10.0.9.0/29", &[][..], "10.0.9.0, 10.0.9.7"),
        ("10.0.9.0/31", &[], ""),
        ("10.0.9.0-10.0.9.7", &[], ""),
        ("fd00::/126", &[], "fd00::"),
        ("10.0.9.0/28", excluded, "10.0.9.0-10.0.9.1, 10.0.9.12-10.0.9.15"),
    ] {
        let pool = json!({"name": "p", "cidrs": [range, "10.0.77.1-10.0.77.9", "fd00:77::/64"], "exclude": exclude});
        let settings = settings(&json!({"external": {"pools": [pool]}}));
        let pool = &settings.external.pools[0];
        let spans = pool.withheld_spans(&pool.ranges[0]);
        assert_eq!(spans.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "), expected, "{range}");
        let withheld: u128 = spans.iter().map(|span| span.count()).sum();
        assert_eq!(pool.candidates_in(&pool.ranges[0]).count() + withheld, pool.ranges[0].count(), "{range}: the rest");
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
