//! Counts how full the pools of external addresses are.

use std::collections::BTreeMap;
use std::net::IpAddr;

use clusterip_core::address::Family;
use clusterip_core::settings::ExternalSettings;

use crate::external::external_metrics::ExternalFill;

/// How full each pool is, for each of its families, in the order of the settings. `assigned` are the addresses of
/// Services, each with whether it is held.
pub(super) fn of(settings: &ExternalSettings, assigned: &BTreeMap<IpAddr, bool>) -> Vec<ExternalFill> {
    let mut fills = Vec::new();
    for pool in &settings.pools {
        for family in [Family::V4, Family::V6].into_iter().filter(|family| pool.has(*family)) {
            let inside = || {
                let of_family = assigned.iter().filter(|(address, _)| Family::of(**address) == family);
                of_family.filter(|(address, _)| pool.contains(**address))
            };
            fills.push(ExternalFill {
                pool: pool.name.clone(),
                family,
                usable: pool.candidates(family).count(),
                assigned: inside().count() as u64,
                held: inside().filter(|(_, held)| **held).count() as u64,
            });
        }
    }
    fills
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_core::settings::Settings;
    use serde_json::json;

    use super::*;

    #[test]
    fn pools_are_counted_by_family() {
        let document = json!({"external": {"pools": [
            {"name": "edge", "cidrs": ["10.0.9.10-10.0.9.19", "fd00:9::/126"], "exclude": ["10.0.9.12"]},
            {"name": "idle", "cidrs": ["10.0.10.0/29"]},
        ]}});
        let settings = Settings::from_value(&document).unwrap().external;
        let assigned: BTreeMap<IpAddr, bool> =
            [("10.0.9.10", true), ("10.0.9.11", false), ("fd00:9::1", true), ("10.0.77.1", true)]
                .map(|(address, held)| (address.parse().unwrap(), held))
                .into();
        let found: Vec<_> = of(&settings, &assigned)
            .into_iter()
            .map(|fill| (fill.pool, fill.family, fill.usable, fill.assigned, fill.held))
            .collect();
        let usable_of_v6 = settings.pools[0].candidates(Family::V6).count();
        let expected = [
            ("edge".to_owned(), Family::V4, 9, 2, 1),
            ("edge".to_owned(), Family::V6, usable_of_v6, 1, 1),
            ("idle".to_owned(), Family::V4, 6, 0, 0),
        ];
        assert_eq!(found, expected);
    }
}
