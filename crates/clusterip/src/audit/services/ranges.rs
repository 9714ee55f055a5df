//! How the addresses of a range are used.

use std::collections::BTreeMap;
use std::net::IpAddr;

use clusterip_core::address::{Family, WithheldSpan, Withholding};
use clusterip_core::settings::{Pool, Settings};
use ipnet::IpNet;

use crate::audit::address_usage::Usage;
use crate::audit::model::{Address, Counts, Range, Span, WithheldReason};

/// The usage of one range of a pool, given the addresses that are `used` in the cluster.
pub fn range(settings: &Settings, pool: &Pool, cidr: IpNet, used: &BTreeMap<IpAddr, Address>) -> Range {
    let alone = Pool { cidrs: vec![cidr], ..pool.clone() };
    let candidates = settings.candidates(&alone, Family::of(cidr.addr()));
    let withheld = settings.withheld_spans(pool, cidr);
    let addresses: Vec<Address> =
        used.range(cidr.network()..=cidr.broadcast()).map(|(_, address)| address.clone()).collect();
    let usage = Usage::of(&candidates, addresses.iter().map(|address| (address.address, address.state)));
    let Usage { usable, used, in_flight, free, used_anyway } = usage;
    let is_reserved = |withheld: &&WithheldSpan| withheld.why != Withholding::Excluded;
    let reserved = withheld.iter().filter(is_reserved).map(|withheld| withheld.span.count()).sum();
    let counts = Counts { usable, used, in_flight, free, reserved, used_anyway };
    Range { cidr, counts, withheld: withheld.into_iter().map(span).collect(), addresses }
}

/// The spans of a range that are not assigned to every Service, in order.
pub fn withheld(settings: &Settings, pool: &Pool, cidr: IpNet) -> Vec<Span> {
    settings.withheld_spans(pool, cidr).into_iter().map(span).collect()
}

fn span(WithheldSpan { span, why }: WithheldSpan) -> Span {
    let why = match why {
        Withholding::ByHand => WithheldReason::Reserved,
        Withholding::Excluded => WithheldReason::Excluded,
        Withholding::ForService => WithheldReason::ForService,
    };
    Span { first: span.first(), last: span.last(), why }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::audit::model::State;

    #[test]
    fn addresses_of_a_range_are_counted_by_state() {
        struct Case {
            name: &'static str,
            pool: serde_json::Value,
            used: &'static [&'static str],
            in_flight: &'static [&'static str],
            expected_kept: &'static str,
            expected_counts: Counts,
        }
        let cases = [
            Case {
                name: "an empty range",
                pool: json!({"cidrs": ["10.0.0.0/29"]}),
                used: &[],
                in_flight: &[],
                expected_kept: "10.0.0.0-10.0.0.0 x, 10.0.0.7-10.0.0.7 x",
                expected_counts: Counts { usable: 6, used: 0, in_flight: 0, free: 6, reserved: 0, used_anyway: 0 },
            },
            Case {
                name: "the network address counts as one of the reserved addresses",
                pool: json!({"cidrs": ["10.0.0.0/29"], "reserved": 3}),
                used: &["10.0.0.2", "10.0.0.4"],
                in_flight: &["10.0.0.5"],
                expected_kept: "10.0.0.0-10.0.0.0 x, 10.0.0.1-10.0.0.2 r, 10.0.0.7-10.0.0.7 x",
                expected_counts: Counts { usable: 4, used: 1, in_flight: 1, free: 2, reserved: 2, used_anyway: 1 },
            },
            Case {
                name: "an excluded address in the reserved part counts as excluded",
                pool: json!({"cidrs": ["10.0.0.0/28"], "reserved": 6, "exclude": ["10.0.0.4/30"]}),
                used: &["10.0.0.5"],
                in_flight: &["10.0.0.4"],
                expected_kept: "10.0.0.0-10.0.0.0 x, 10.0.0.1-10.0.0.3 r, 10.0.0.4-10.0.0.7 x, 10.0.0.15-10.0.0.15 x",
                expected_counts: Counts { usable: 7, used: 0, in_flight: 0, free: 7, reserved: 3, used_anyway: 2 },
            },
            Case {
                name: "addresses reserved for Services",
                pool: json!({"cidrs": ["10.0.0.0/29"], "reserved": 2, "exclude": ["10.0.0.5"], "reservations": [
                    {"address": "10.0.0.1", "namespace": "shop", "name": "a"},
                    {"address": "10.0.0.4", "namespace": "shop", "name": "b"},
                    {"address": "10.0.0.5", "namespace": "shop", "name": "c"},
                ]}),
                used: &["10.0.0.3", "10.0.0.4"],
                in_flight: &["10.0.0.5"],
                expected_kept: "10.0.0.0-10.0.0.0 x, 10.0.0.1-10.0.0.1 s, 10.0.0.4-10.0.0.5 s, 10.0.0.7-10.0.0.7 x",
                expected_counts: Counts { usable: 3, used: 1, in_flight: 0, free: 2, reserved: 3, used_anyway: 2 },
            },
            Case {
                name: "the address of default/kubernetes",
                pool: json!({"cidrs": ["172.30.0.0/29"]}),
                used: &["172.30.0.1"],
                in_flight: &[],
                expected_kept: "172.30.0.0-172.30.0.1 x, 172.30.0.7-172.30.0.7 x",
                expected_counts: Counts { usable: 5, used: 0, in_flight: 0, free: 5, reserved: 0, used_anyway: 1 },
            },
            Case {
                name: "the last address of an IPv6 range is usable",
                pool: json!({"cidrs": ["fd00::/126"]}),
                used: &["fd00::3", "10.0.0.1"],
                in_flight: &[],
                expected_kept: "fd00::-fd00:: x",
                expected_counts: Counts { usable: 3, used: 1, in_flight: 0, free: 2, reserved: 0, used_anyway: 0 },
            },
            Case {
                name: "a range that is full",
                pool: json!({"cidrs": ["10.0.0.0/30"]}),
                used: &["10.0.0.1"],
                in_flight: &["10.0.0.2"],
                expected_kept: "10.0.0.0-10.0.0.0 x, 10.0.0.3-10.0.0.3 x",
                expected_counts: Counts { usable: 2, used: 1, in_flight: 1, free: 0, reserved: 0, used_anyway: 0 },
            },
            Case {
                name: "a large range",
                pool: json!({"cidrs": ["fd00::/64"]}),
                used: &[],
                in_flight: &[],
                expected_kept: "fd00::-fd00:: x",
                expected_counts: Counts {
                    usable: (1 << 64) - 1,
                    used: 0,
                    in_flight: 0,
                    free: (1 << 64) - 1,
                    reserved: 0,
                    used_anyway: 0,
                },
            },
        ];
        for Case { name, mut pool, used, in_flight, expected_kept, expected_counts } in cases {
            pool["name"] = json!("p");
            let mut settings = Settings::from_value(&json!({"services": {"pools": [pool]}})).unwrap();
            settings.service_cidrs = vec!["172.30.0.0/16".parse().unwrap()];
            let address = |text: &&str, state| {
                let address: IpAddr = text.parse().unwrap();
                let (pool, evidence, by_hand) = (None, None, None);
                (
                    address,
                    Address { address, state, namespace: String::new(), name: String::new(), pool, evidence, by_hand },
                )
            };
            let used = used.iter().map(|text| address(text, State::Used));
            let used = used.chain(in_flight.iter().map(|text| address(text, State::InFlight))).collect();
            let pool = &settings.pools[0];
            let found = range(&settings, pool, pool.cidrs[0], &used);
            let why = |span: &Span| match span.why {
                WithheldReason::Reserved => "r",
                WithheldReason::Excluded => "x",
                WithheldReason::ForService => "s",
            };
            let spans: Vec<String> =
                found.withheld.iter().map(|span| format!("{}-{} {}", span.first, span.last, why(span))).collect();
            assert_eq!(spans.join(", "), expected_kept, "{name}");
            assert_eq!(found.counts, expected_counts, "{name}");
        }
    }
}
