//! Limits how many addresses of a pool one namespace may have in flight.
//!
//! A reservation lasts until its Service is seen, or for [`RESERVATION_TIME`](super::ledger::RESERVATION_TIME).
//! Requests whose Services are never created, because another webhook denies them or a client sends reviews directly,
//! must not use up a pool that other namespaces need.

use std::net::IpAddr;

use clusterip_core::address::Family;
use clusterip_core::settings::Settings;

use super::ledger::Share;

/// The divisor of a share: a namespace may reserve a quarter of the usable addresses of a pool and family.
const SHARE_DIVISOR: u128 = 4;
/// The smallest share of a pool that is large enough. In a smaller pool, the share is at most half of the usable
/// addresses.
const MIN_SHARE_OF_LARGE_POOL: u128 = 8;
/// The smallest share of all: of two requests for one Service, neither may lose its address.
const MIN_SHARE: u128 = 2;
/// The largest share: each reservation takes memory, and an IPv6 pool has practically unlimited addresses.
const MAX_SHARE: u128 = 1024;

/// The share of a namespace that `address` counts towards: that of its pool and family. All addresses outside of every
/// pool count towards one share.
pub fn of(settings: &Settings, address: IpAddr) -> Share<'_> {
    let family = Family::of(address);
    if let Some(pool) = settings.pool_of(address) {
        let usable = settings.candidates(pool, family).count();
        // No other namespace needs a pool that is for one namespace only.
        let (max, burst) = match pool.matches.scope.namespaces.len() {
            1 => (bounded(usable), bounded(usable)),
            _ => part(usable),
        };
        return Share {
            max,
            burst,
            counts: Box::new(move |other| Family::of(other) == family && pool.contains(other)),
        };
    }
    if let Some(pool) = settings.external.pool_of(address) {
        let (max, burst) = part(pool.candidates(family).count());
        return Share {
            max,
            burst,
            counts: Box::new(move |other| Family::of(other) == family && pool.contains(other)),
        };
    }
    let in_no_pool = |other: IpAddr| settings.pool_of(other).is_none() && settings.external.pool_of(other).is_none();
    let (max, burst) = part(u128::MAX);
    Share { max, burst, counts: Box::new(in_no_pool) }
}

/// The share, and the share for a short time: half of the usable addresses.
fn part(usable: u128) -> (usize, usize) {
    let half = usable.div_ceil(2);
    (bounded((usable / SHARE_DIVISOR).max(MIN_SHARE_OF_LARGE_POOL).min(half)), bounded(half))
}

fn bounded(max: u128) -> usize {
    usize::try_from(max.clamp(MIN_SHARE, MAX_SHARE)).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn share_is_a_quarter_of_the_usable_addresses_within_bounds() {
        struct Row {
            usable: u128,
            max: usize,
            burst: usize,
        }
        let row = |usable, max, burst| Row { usable, max, burst };
        let rows = [
            row(0, 2, 2),
            row(1, 2, 2),
            row(2, 2, 2),
            row(3, 2, 2),
            row(14, 7, 7),
            row(16, 8, 8),
            row(32, 8, 16),
            row(40, 10, 20),
            row(204, 51, 102),
            row(65_534, 1024, 1024),
            row(u128::MAX, 1024, 1024),
        ];
        for Row { usable, max, burst } in rows {
            assert_eq!(part(usable), (max, burst), "{usable} usable addresses");
        }
    }

    #[test]
    fn address_counts_towards_its_pool_and_family() {
        let document = json!({
            "services": {"pools": [
                {"name": "team", "cidrs": ["10.0.3.0/27"], "match": {"namespaces": ["shop"]}},
                {"name": "teams", "cidrs": ["10.0.4.0/27"], "match": {"namespaces": ["shop", "bank"]}},
                {"name": "other", "cidrs": ["10.0.1.0/24"], "match": {"os": "windows"}},
                {"name": "both", "cidrs": ["10.0.0.0/24", "10.0.2.0/24", "fd00::/120"], "reserved": 54},
            ]},
            "external": {"pools": [{"name": "edge", "cidrs": ["192.0.2.10-192.0.2.29"]}]},
        });
        let settings = Settings::from_value(&document).unwrap();
        struct Row {
            name: &'static str,
            address: &'static str,
            max: usize,
            counts: &'static [&'static str],
        }
        let row = |name, address, max, counts| Row { name, address, max, counts };
        let all = ["10.0.0.7", "10.0.2.7", "10.0.1.7", "fd00::7", "192.0.2.17", "192.0.2.40", "fd01::1"];
        let rows = [
            row("two ranges of one family", "10.0.0.9", 100, &["10.0.0.7", "10.0.2.7"]),
            row("the other family", "fd00::70", 50, &["fd00::7"]),
            row("another pool", "10.0.1.9", 63, &["10.0.1.7"]),
            row("a pool for one namespace", "10.0.3.9", 30, &[]),
            row("a pool for two namespaces", "10.0.4.9", 8, &[]),
            row("external addresses", "192.0.2.11", 8, &["192.0.2.17"]),
            row("no pool", "192.0.2.9", 1024, &["192.0.2.40", "fd01::1"]),
        ];
        for Row { name, address, max, counts } in rows {
            let share = of(&settings, address.parse().unwrap());
            let counted: Vec<&str> = all.into_iter().filter(|other| (share.counts)(other.parse().unwrap())).collect();
            assert_eq!((share.max, counted), (max, counts.to_vec()), "{name}");
        }
    }
}
