//! How the addresses of a range of external addresses are used.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use clusterip_core::address::Span;
use clusterip_core::settings::ExternalPool;
use ipnet::IpNet;

use crate::audit::address_usage::Usage;
use crate::audit::model::{self, ExternalAddress, ExternalCounts, ExternalRange, WithheldReason};

/// The usage of one range of a pool, given the addresses that are `used` in the cluster. `held` are the addresses
/// that a living node holds; `None` if unknown.
pub fn range(
    pool: &ExternalPool,
    range: &Span,
    used: &BTreeMap<IpAddr, ExternalAddress>,
    held: Option<&BTreeSet<IpAddr>>,
) -> ExternalRange {
    let (candidates, withheld) = (pool.candidates_in(range), pool.withheld_spans(range));
    let inside = range.first()..=range.last();
    let held = held.map(|held| held.range(inside.clone()).count() as u128);
    let addresses: Vec<ExternalAddress> = used.range(inside).map(|(_, address)| address.clone()).collect();
    let usage = Usage::of(&candidates, addresses.iter().map(|address| (address.address, address.state)));
    let Usage { usable, used, in_flight, free, used_anyway } = usage;
    let excluded = withheld.iter().fold(0_u128, |sum, span| sum.saturating_add(span.count()));
    let counts = ExternalCounts { usable, used, in_flight, free, excluded, used_anyway, held };
    let in_model = |span: Span| model::Span { first: span.first(), last: span.last(), why: WithheldReason::Excluded };
    ExternalRange {
        range: range.to_string(),
        first: range.first(),
        last: range.last(),
        around: around(range),
        counts,
        withheld: withheld.into_iter().map(in_model).collect(),
        addresses,
    }
}

/// The smallest CIDR that contains a range.
fn around(range: &Span) -> IpNet {
    let (first, last) = range.numbers().into_inner();
    let differ = first ^ last;
    let bits = range.family().bits();
    let length = u32::from(bits) - (u128::BITS - differ.leading_zeros());
    let length = u8::try_from(length).unwrap_or_default();
    IpNet::new(range.first(), length).map_or_else(|_| range.first().into(), |net| net.trunc())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_core::settings::Settings;
    use serde_json::json;

    use super::*;
    use crate::audit::model::State;

    #[test]
    fn addresses_of_a_range_are_counted_by_state() {
        struct Case<'r> {
            name: &'r str,
            cidr: &'r str,
            exclude: &'r [&'r str],
            used: &'r [&'r str],
            in_flight: &'r [&'r str],
            held: &'r [&'r str],
            expected_kept: &'r str,
            /// The smallest CIDR that contains the range.
            expected_around: &'r str,
            /// Without the held addresses.
            expected_counts: ExternalCounts,
        }
        let cases: [Case<'_>; 6] = [
            Case {
                name: "a CIDR",
                cidr: "10.0.9.0/29",
                exclude: &[],
                used: &[],
                in_flight: &[],
                held: &[],
                expected_kept: "10.0.9.0-10.0.9.0, 10.0.9.7-10.0.9.7",
                expected_around: "10.0.9.0/29",
                expected_counts: ExternalCounts {
                    usable: 6,
                    used: 0,
                    in_flight: 0,
                    free: 6,
                    excluded: 2,
                    used_anyway: 0,
                    held: None,
                },
            },
            Case {
                name: "a range with exclusions, one of which reaches beyond it",
                cidr: "10.0.9.10-10.0.9.40",
                exclude: &["10.0.9.20", "10.0.9.36-10.0.9.60"],
                used: &["10.0.9.10", "10.0.9.20"],
                in_flight: &["10.0.9.11"],
                held: &["10.0.9.10"],
                expected_kept: "10.0.9.20-10.0.9.20, 10.0.9.36-10.0.9.40",
                expected_around: "10.0.9.0/26",
                expected_counts: ExternalCounts {
                    usable: 25,
                    used: 1,
                    in_flight: 1,
                    free: 23,
                    excluded: 6,
                    used_anyway: 1,
                    held: None,
                },
            },
            Case {
                name: "one address",
                cidr: "10.0.9.10-10.0.9.10",
                exclude: &[],
                used: &["10.0.9.10", "10.0.9.9"],
                in_flight: &[],
                held: &["10.0.9.9"],
                expected_kept: "",
                expected_around: "10.0.9.10/32",
                expected_counts: ExternalCounts {
                    usable: 1,
                    used: 1,
                    in_flight: 0,
                    free: 0,
                    excluded: 0,
                    used_anyway: 0,
                    held: None,
                },
            },
            Case {
                name: "a range across the boundary of a /24",
                cidr: "10.0.9.250-10.0.10.5",
                exclude: &[],
                used: &[],
                in_flight: &[],
                held: &[],
                expected_kept: "",
                expected_around: "10.0.8.0/22",
                expected_counts: ExternalCounts {
                    usable: 12,
                    used: 0,
                    in_flight: 0,
                    free: 12,
                    excluded: 0,
                    used_anyway: 0,
                    held: None,
                },
            },
            Case {
                name: "IPv6",
                cidr: "fd00::/126",
                exclude: &[],
                used: &[],
                in_flight: &[],
                held: &[],
                expected_kept: "fd00::-fd00::",
                expected_around: "fd00::/126",
                expected_counts: ExternalCounts {
                    usable: 3,
                    used: 0,
                    in_flight: 0,
                    free: 3,
                    excluded: 1,
                    used_anyway: 0,
                    held: None,
                },
            },
            Case {
                name: "a large range without its first half",
                cidr: "fd00::/8",
                exclude: &["fd00::/9"],
                used: &[],
                in_flight: &[],
                held: &[],
                expected_kept: "fd00::-fd7f:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
                expected_around: "fd00::/8",
                expected_counts: ExternalCounts {
                    usable: 1 << 119,
                    used: 0,
                    in_flight: 0,
                    free: 1 << 119,
                    excluded: 1 << 119,
                    used_anyway: 0,
                    held: None,
                },
            },
        ];
        for case in cases {
            let Case { name, cidr, exclude, used, in_flight, held, expected_kept, expected_around, expected_counts } =
                case;
            let pool = json!({"name": "p", "cidrs": [cidr], "exclude": exclude});
            let settings = Settings::from_value(&json!({"external": {"pools": [pool]}})).unwrap();
            let pool = &settings.external.pools[0];
            let address = |text: &&str, state| {
                let address: IpAddr = text.parse().unwrap();
                (address, ExternalAddress { address, state, services: Vec::new(), holder: None })
            };
            let used = used.iter().map(|text| address(text, State::Used));
            let used = used.chain(in_flight.iter().map(|text| address(text, State::InFlight))).collect();
            let held: BTreeSet<IpAddr> = held.iter().map(|text| text.parse().unwrap()).collect();
            let inside = held.iter().filter(|address| pool.contains(**address)).count() as u128;
            let found = range(pool, &pool.ranges[0], &used, Some(&held));
            let spans: Vec<String> =
                found.withheld.iter().map(|span| format!("{}-{}", span.first, span.last)).collect();
            assert_eq!(spans.join(", "), expected_kept, "{name}");
            assert_eq!(found.around.to_string(), expected_around, "{name}");
            assert_eq!(found.counts, ExternalCounts { held: Some(inside), ..expected_counts }, "{name}");
        }
    }
}
