//! Audits of clusters with external addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use clusterip::audit::external;
use clusterip::audit::model::{Audit, External, ExternalAddress, ExternalUse, Finding, Holder, Kind, Pool, State};
use clusterip_core::settings::Settings;

use super::{finding, ip};

/// Two pools of external addresses: one whose ranges are in one block, with some misplaced addresses, and one too large
/// to be shown at once.
pub fn external() -> Audit {
    let document = serde_json::json!({"external": {"pools": [
        {"name": "lan", "cidrs": ["10.0.9.10-10.0.9.40", "10.0.9.45-10.0.9.47"], "exclude": ["10.0.9.20"]},
        {"name": "factory", "cidrs": ["fd00:10::1000-fd00:10::3fff:ffff"]},
    ]}});
    let settings = Settings::from_value(&document).unwrap().external;
    let one = |address: &str, state: State, services: &[(&str, &str)], holder: Option<(&str, bool)>| {
        let services = services.iter().map(|(service, by)| {
            let (namespace, name) = service.split_once('/').unwrap();
            ExternalUse { namespace: namespace.to_owned(), name: name.to_owned(), by: (*by).to_owned() }
        });
        let holder = holder.map(|(node, renewed)| Holder { node: node.to_owned(), renewed });
        ExternalAddress { address: ip(address), state, services: services.collect(), holder }
    };
    let used = [
        one("10.0.9.20", State::Misplaced, &[("shop/old", "spec.externalIPs")], None),
        one("10.0.9.25", State::Used, &[("shop/cart", "record")], Some(("edge-1", true))),
        one("10.0.9.26", State::Used, &[("shop/orders", "record")], Some(("edge-2", false))),
        one("10.0.9.27", State::Misplaced, &[("shop/twin-a", "record"), ("shop/twin-b", "record")], None),
        one("10.0.9.46", State::InFlight, &[("shop/soon", "record")], None),
        one("fd00:10::1234", State::Used, &[("factory/line-1", "record")], Some(("edge-1", true))),
    ];
    let used: BTreeMap<IpAddr, ExternalAddress> = used.into_iter().map(|one| (one.address, one)).collect();
    let held = BTreeSet::from(["10.0.9.25", "fd00:10::1234"].map(ip));
    let pool = |pool: &clusterip_core::settings::ExternalPool| Pool {
        name: pool.name.clone(),
        ranges: pool.ranges.iter().map(|range| external::range(pool, range, &used, Some(&held))).collect(),
    };
    let twin = |own: &str, other: &str| {
        let message = format!(
            "Service {own}: 10.0.9.27 is its own (record), and that of Service {other} (record); take one away"
        );
        finding(Kind::SharedExternal, Some(own), &["10.0.9.27"], Some("lan"), &message)
    };
    let idle = finding(
        Kind::IdleClaim,
        None,
        &["10.0.9.40"],
        Some("lan"),
        "Node edge-1: 10.0.9.40 is held by it, and given to no Service",
    );
    Audit {
        external: Some(External { pools: settings.pools.iter().map(pool).collect(), count: 5 }),
        findings: vec![
            twin("shop/twin-a", "shop/twin-b"),
            twin("shop/twin-b", "shop/twin-a"),
            finding(
                Kind::NotHeld,
                Some("shop/orders"),
                &["10.0.9.26"],
                Some("lan"),
                "Service shop/orders: 10.0.9.26 is held by node edge-2, and its agent has no heartbeat",
            ),
            Finding { node: Some("edge-1".to_owned()), ..idle },
        ],
        services: 6,
        ..Audit::default()
    }
}
