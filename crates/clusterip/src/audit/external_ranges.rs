//! How the addresses of a range of external addresses are used.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use clusterip_core::address::{Candidates, Family, Occupancy, Span};
use clusterip_core::settings::ExternalPool;
use ipnet::IpNet;

use super::model::{self, ExternalAddress, ExternalCounts, ExternalRange, Kept, State};

/// The usage of one range of a pool, given the addresses that are `used` in the cluster. `held` are the addresses
/// that a living node holds; `None` if unknown.
pub fn range(
    pool: &ExternalPool,
    range: &Span,
    used: &BTreeMap<IpAddr, ExternalAddress>,
    held: Option<&BTreeSet<IpAddr>>,
) -> ExternalRange {
    let candidates = Candidates::of_spans(&[*range], &pool.exclude, range.family());
    let kept = kept(pool, range, &candidates);
    let inside = range.first()..=range.last();
    let mut counts = ExternalCounts { usable: candidates.count(), ..ExternalCounts::default() };
    counts.excluded = kept.iter().fold(0_u128, |sum, span| sum.saturating_add(size(span.first, span.last)));
    counts.held = held.map(|held| held.range(inside.clone()).count() as u128);
    let addresses: Vec<ExternalAddress> = used.range(inside).map(|(_, address)| address.clone()).collect();
    for address in &addresses {
        match (candidates.contains(address.address), address.state) {
            (true, State::InFlight) => counts.claimed += 1,
            (true, _) => counts.used += 1,
            (false, _) => counts.beside += 1,
        }
    }
    counts.free = counts.usable.saturating_sub(counts.used).saturating_sub(counts.claimed);
    ExternalRange {
        range: range.to_string(),
        first: range.first(),
        last: range.last(),
        around: around(range),
        counts,
        kept,
        addresses,
    }
}

/// The spans of a range that are never assigned, in order.
fn kept(pool: &ExternalPool, range: &Span, candidates: &Candidates) -> Vec<model::Span> {
    let (first, last) = (number(range.first()), number(range.last()));
    let mut kept = Occupancy::default();
    for end in [range.first(), range.last()].into_iter().filter(|end| !candidates.contains(*end)) {
        kept.insert(number(end)..=number(end));
    }
    for excluded in pool.exclude.iter().filter(|excluded| excluded.meets(range)) {
        kept.insert(number(excluded.first()).max(first)..=number(excluded.last()).min(last));
    }
    let address = |number: u128| match range.family() {
        Family::V4 => IpAddr::V4(u32::try_from(number).unwrap_or_default().into()),
        Family::V6 => IpAddr::V6(number.into()),
    };
    let span = |range: std::ops::RangeInclusive<u128>| model::Span {
        first: address(*range.start()),
        last: address(*range.end()),
        why: Kept::Excluded,
    };
    kept.ranges().map(span).collect()
}

/// The smallest CIDR that contains a range.
fn around(range: &Span) -> IpNet {
    let differ = number(range.first()) ^ number(range.last());
    let bits = range.family().bits();
    let length = u32::from(bits) - (u128::BITS - differ.leading_zeros());
    let length = u8::try_from(length).unwrap_or_default();
    IpNet::new(range.first(), length).map_or_else(|_| range.first().into(), |net| net.trunc())
}

fn size(first: IpAddr, last: IpAddr) -> u128 {
    (number(last) - number(first)).saturating_add(1)
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_core::settings::Settings;
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_of_a_range_are_counted_by_state() {
        // Name; range; `exclude`; addresses used, in flight and held; expected `kept` spans; expected smallest
        // CIDR; expected counts (usable, used, claimed, free, excluded, beside).
        type Row<'r> = (&'r str, &'r str, &'r [&'r str], [&'r [&'r str]; 3], &'r str, &'r str, [u128; 6]);
        let rows: [Row<'_>; 6] = [
            (
                "a CIDR",
                "10.0.9.0/29",
                &[],
                [&[]; 3],
                "10.0.9.0-10.0.9.0, 10.0.9.7-10.0.9.7",
                "10.0.9.0/29",
                [6, 0, 0, 6, 2, 0],
            ),
            (
                "a range, and what is excluded of it, and reaches beyond it",
                "10.0.9.10-10.0.9.40",
                &["10.0.9.20", "10.0.9.36-10.0.9.60"],
                [&["10.0.9.10", "10.0.9.20"], &["10.0.9.11"], &["10.0.9.10"]],
                "10.0.9.20-10.0.9.20, 10.0.9.36-10.0.9.40",
                "10.0.9.0/26",
                [25, 1, 1, 23, 6, 1],
            ),
            (
                "one address",
                "10.0.9.10-10.0.9.10",
                &[],
                [&["10.0.9.10", "10.0.9.9"], &[], &["10.0.9.9"]],
                "",
                "10.0.9.10/32",
                [1, 1, 0, 0, 0, 0],
            ),
            ("over a boundary", "10.0.9.250-10.0.10.5", &[], [&[]; 3], "", "10.0.8.0/22", [12, 0, 0, 12, 0, 0]),
            ("IPv6", "fd00::/126", &[], [&[]; 3], "fd00::-fd00::", "fd00::/126", [3, 0, 0, 3, 1, 0]),
            (
                "all of a family but the first half",
                "fd00::/8",
                &["fd00::/9"],
                [&[]; 3],
                "fd00::-fd7f:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
                "fd00::/8",
                [1 << 119, 0, 0, 1 << 119, 1 << 119, 0],
            ),
        ];
        for (name, cidr, exclude, [used, claimed, held], kept, around, expected) in rows {
            let pool = json!({"name": "p", "cidrs": [cidr], "exclude": exclude});
            let settings = Settings::from_value(&json!({"external": {"pools": [pool]}})).unwrap();
            let pool = &settings.external.pools[0];
            let address = |text: &&str, state| {
                let address: IpAddr = text.parse().unwrap();
                (address, ExternalAddress { address, state, services: Vec::new(), holder: None })
            };
            let used = used.iter().map(|text| address(text, State::Used));
            let used = used.chain(claimed.iter().map(|text| address(text, State::InFlight))).collect();
            let held: BTreeSet<IpAddr> = held.iter().map(|text| text.parse().unwrap()).collect();
            let inside = held.iter().filter(|address| pool.contains(**address)).count() as u128;
            let found = range(pool, &pool.ranges[0], &used, Some(&held));
            let spans: Vec<String> = found.kept.iter().map(|span| format!("{}-{}", span.first, span.last)).collect();
            assert_eq!(spans.join(", "), kept, "{name}");
            assert_eq!(found.around.to_string(), around, "{name}");
            let ExternalCounts { usable, used, claimed, free, excluded, beside, held } = found.counts;
            assert_eq!([usable, used, claimed, free, excluded, beside], expected, "{name}");
            assert_eq!(held, Some(inside), "{name}");
        }
    }
}
