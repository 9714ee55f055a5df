//! Audits of clusters whose Services get their addresses from pools.

use std::net::IpAddr;

use clusterip::audit::model::{Address, Audit, Finding, Kind, Pool, Span, State};
use clusterip_core::address::Withholding;

use super::{HOSTILE, finding, ip, number, numbered, range, span, used};

/// The evidence of a Deployment.
fn deployment(name: &str, os: &str) -> String {
    format!("os={os} (Deployment {name})")
}

fn linux_addresses() -> Vec<Address> {
    let mut linux = vec![
        used("172.21.0.20", State::Used, "shop/sessions-by-hand", Some("linux"), &deployment("shop/sessions", "linux")),
        used("172.21.0.21", State::Misplaced, "shop/returns", Some("windows"), &deployment("shop/returns", "windows")),
        used("172.21.0.99", State::Used, "shop/storefront", Some("linux"), &deployment("shop/storefront", "linux")),
        used("172.21.0.100", State::Used, "shop/warehouse", Some("linux"), "os=linux (setting assumeOS)"),
        used("172.21.0.128", State::InFlight, "shop/checkout", Some("linux"), &deployment("shop/checkout", "linux")),
        used("172.21.0.200", State::Used, "shop/reindex", Some("linux"), HOSTILE),
        used("172.21.0.225", State::Misplaced, "tools/unmatched", None, ""),
    ];
    for last in 50..90 {
        let (address, service) = (format!("172.21.0.{last}"), format!("team-{}/api-{last}", last % 7));
        let found = used(&address, State::Used, &service, Some("linux"), &deployment(&service, "linux"));
        linux.push(found);
    }
    linux.sort_by_key(|address| address.address);
    linux
}

fn small_findings() -> Vec<Finding> {
    vec![
        finding(
            Kind::Misplaced,
            Some("shop/returns"),
            &["172.21.0.21"],
            Some("windows"),
            "172.21.0.21 lies in pool \"linux\", expected pool \"windows\"; `clusterip move --seamless` moves it; `clusterip serve` moves it by itself if no ready endpoint can be reached at its address",
        ),
        finding(
            Kind::NoPool,
            Some("billing/invoices"),
            &["10.96.3.4"],
            Some("linux"),
            "10.96.3.4 lies in no pool, expected pool \"linux\"; `clusterip move --seamless` moves it; `clusterip serve` moves it by itself if no ready endpoint can be reached at its address",
        ),
        finding(
            Kind::Unmatched,
            Some("tools/unmatched"),
            &["172.21.0.225"],
            None,
            "no pool matches it, and 172.21.0.225 lies in pool \"linux\"",
        ),
        finding(Kind::Full, None, &[], Some("edge"), "172.21.2.48/28 has no free address; add a range to the pool"),
        finding(Kind::MixedNodes, Some("shop/mixed"), &[], Some("linux"), HOSTILE),
    ]
}

/// The pools of K2s with one Service of each kind, and evidence that contains markup.
pub fn small() -> Audit {
    let linux = linux_addresses();
    let linux_services = linux.len();
    let full = (49..64).map(|last| {
        let service = format!("edge/camera-{last}");
        used(&format!("172.21.2.{last}"), State::Used, &service, Some("edge"), &deployment(&service, "linux"))
    });
    let windows = vec![
        used("172.21.1.75", State::Used, "shop/orders", Some("windows"), "os=windows (StatefulSet shop/orders)"),
        used("172.21.1.112", State::Used, "shop/nightly", Some("windows"), "os=windows (CronJob shop/nightly)"),
    ];
    let withheld = |third: u8, more: Vec<Span>| {
        let at = |last: u8| format!("172.21.{third}.{last}");
        let mut withheld = vec![span(&at(0), &at(49), Withholding::ByHand)];
        withheld.extend(more);
        withheld.push(span(&at(255), &at(255), Withholding::Excluded));
        withheld
    };
    Audit {
        pools: vec![
            Pool {
                name: "windows".to_owned(),
                ranges: vec![range(
                    "172.21.1.0/24",
                    withheld(1, vec![span("172.21.1.200", "172.21.1.207", Withholding::Excluded)]),
                    windows,
                )],
            },
            Pool { name: "linux".to_owned(), ranges: vec![range("172.21.0.0/24", withheld(0, Vec::new()), linux)] },
            Pool {
                name: "edge".to_owned(),
                ranges: vec![range(
                    "172.21.2.48/28",
                    vec![span("172.21.2.48", "172.21.2.48", Withholding::Excluded)],
                    full.collect(),
                )],
            },
        ],
        reservations: Vec::new(),
        nodes: None,
        external: None,
        findings: small_findings(),
        services: linux_services + 17,
        notes: vec!["who chose the addresses is not known: the snapshot has no managedFields".to_owned()],
    }
}

/// A /16 with 20,000 Services, of which some are misplaced.
pub fn large() -> Audit {
    let base = number(ip("10.96.0.0"));
    let mut findings = Vec::new();
    // Every address once, in an order that looks random: 40,503 has no factor in common with 65,536.
    let mut places: Vec<u128> = (0..20_000).map(|index| 256 + (index * 40_503) % 65_024).collect();
    places.sort_unstable();
    places.dedup();
    let addresses = places.iter().enumerate().map(|(index, place)| {
        let address = numbered(ip("10.96.0.0"), base + place);
        let (namespace, name) = (format!("team-{:03}", index % 400), format!("service-{index:05}"));
        let state = match index % 100 {
            7 => State::Misplaced,
            50 if index % 500 == 50 => State::InFlight,
            _ => State::Used,
        };
        if state == State::Misplaced {
            let service = format!("{namespace}/{name}");
            let message =
                format!("{address} lies in pool \"all\", expected pool \"windows\"; `clusterip move --seamless` moves it; `clusterip serve` moves it by itself if no ready endpoint can be reached at its address");
            let about = [address.to_string()];
            findings.push(finding(Kind::Misplaced, Some(&service), &[&about[0]], Some("windows"), &message));
        }
        Address {
            address,
            state,
            evidence: Some(format!("os=linux (Deployment {namespace}/{name})")),
            namespace,
            name,
            pool: Some(if state == State::Misplaced { "windows" } else { "all" }.to_owned()),
            by_hand: None,
        }
    });
    let addresses = addresses.collect();
    let withheld = vec![
        span("10.96.0.0", "10.96.0.255", Withholding::ByHand),
        span("10.96.255.255", "10.96.255.255", Withholding::Excluded),
    ];
    let pools = vec![
        Pool { name: "all".to_owned(), ranges: vec![range("10.96.0.0/16", withheld, addresses)] },
        Pool { name: "windows".to_owned(), ranges: vec![range("10.97.0.0/24", Vec::new(), Vec::new())] },
    ];
    Audit { pools, findings, ..Audit::default() }
}

/// Dual stack, with ranges that are too large to enumerate: a /112 with some Services, a /64 with few, and one with
/// many.
pub fn huge() -> Audit {
    let many = |network: &str, count: u128, step: u128| -> Vec<Address> {
        let base = number(ip(network));
        let mut places: Vec<u128> = (1..=count).map(|index| (index * step) % (1 << 64)).collect();
        places.sort_unstable();
        let address = |place: &u128| numbered(ip(network), base + place);
        let named = |(index, place)| {
            let address: IpAddr = address(place);
            used(
                &address.to_string(),
                State::Used,
                &format!("dual/web-{index}"),
                Some("dual"),
                "os=linux (setting assumeOS)",
            )
        };
        places.iter().enumerate().map(named).collect()
    };
    let step = 0x9e37_79b9_7f4a_7c15;
    Audit {
        pools: vec![
            Pool {
                name: "dual".to_owned(),
                ranges: vec![
                    range(
                        "10.1.0.0/20",
                        vec![span("10.1.0.0", "10.1.0.9", Withholding::ByHand)],
                        vec![used("10.1.9.3", State::Used, "dual/web-0", Some("dual"), "os=linux (setting assumeOS)")],
                    ),
                    range(
                        "fd00:1::/112",
                        vec![span("fd00:1::", "fd00:1::1ff", Withholding::ByHand)],
                        many("fd00:1::", 300, 211),
                    ),
                ],
            },
            Pool {
                name: "few".to_owned(),
                ranges: vec![range(
                    "fd00:2::/64",
                    vec![span("fd00:2::", "fd00:2::", Withholding::Excluded)],
                    many("fd00:2::", 12, step),
                )],
            },
            Pool {
                name: "scattered".to_owned(),
                ranges: vec![range(
                    "fd00:3::/64",
                    vec![span("fd00:3::", "fd00:3::ffff:ffff:ffff", Withholding::ByHand)],
                    many("fd00:3::", 5_000, step),
                )],
            },
        ],
        ..Audit::default()
    }
}

/// Two hundred pools, each a /24.
pub fn many() -> Audit {
    let pool = |third: u8| {
        let address = format!("10.200.{third}.{}", 10 + third % 200);
        let name = format!("team-{third:03}");
        let own = used(&address, State::Used, &format!("{name}/web"), Some(&name), "");
        Pool { name, ranges: vec![range(&format!("10.200.{third}.0/24"), Vec::new(), vec![own])] }
    };
    Audit { pools: (0..200).map(pool).collect(), ..Audit::default() }
}
