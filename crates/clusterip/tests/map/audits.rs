//! Audits like those of real clusters, built without a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clusterip::audit::external_ranges;
use clusterip::audit::model::{
    Address, Audit, Block, BlockRange, Counts, External, ExternalAddress, ExternalPool, ExternalUse, Finding, Holder,
    Kept, Kind, NodePool, Nodes, Pool, Range, Span, State,
};
use clusterip::nodes::block_usage;
use clusterip_core::settings::Settings;
use ipnet::IpNet;

/// A text that a page must not interpret as markup.
pub const HOSTILE: &str = "os=linux (Deployment </script><img src=x onerror=\"document.title='broken'\"><!-- <script>)";

/// All audits, by name.
pub fn all() -> Vec<(&'static str, Audit)> {
    vec![
        ("small", small()),
        ("large", large()),
        ("huge", huge()),
        ("many", many()),
        ("nodes", nodes()),
        ("external", external()),
        ("empty", Audit::default()),
    ]
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

fn numbered(like: IpAddr, number: u128) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::from(u32::try_from(number).unwrap()).into(),
        IpAddr::V6(_) => Ipv6Addr::from(number).into(),
    }
}

fn span(first: &str, last: &str, why: Kept) -> Span {
    Span { first: ip(first), last: ip(last), why }
}

fn used(address: &str, state: State, service: &str, pool: Option<&str>, evidence: &str) -> Address {
    let (namespace, name) = service.split_once('/').unwrap();
    Address {
        address: ip(address),
        state,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        pool: pool.map(str::to_owned),
        evidence: (!evidence.is_empty()).then(|| evidence.to_owned()),
        by_hand: Some(state == State::Used && service.ends_with("-by-hand")),
    }
}

/// A range with its counted numbers.
fn range(cidr: &str, kept: Vec<Span>, addresses: Vec<Address>) -> Range {
    let cidr: IpNet = cidr.parse().unwrap();
    let bits = u32::from(cidr.max_prefix_len() - cidr.prefix_len());
    let size = |span: &Span| number(span.last) - number(span.first) + 1;
    let is_kept = |address: &&Address| {
        kept.iter().any(|span| (number(span.first)..=number(span.last)).contains(&number(address.address)))
    };
    let beside = addresses.iter().filter(is_kept).count() as u128;
    let claimed = addresses.iter().filter(|address| address.state == State::InFlight && !is_kept(address)).count();
    let usable = 2_u128.pow(bits) - kept.iter().map(size).sum::<u128>();
    let used = addresses.len() as u128 - beside - claimed as u128;
    let free = usable - used - claimed as u128;
    let reserved = kept.iter().filter(|span| span.why == Kept::Reserved).map(size).sum();
    Range { cidr, counts: Counts { usable, used, claimed: claimed as u128, free, reserved, beside }, kept, addresses }
}

fn finding(kind: Kind, service: Option<&str>, addresses: &[&str], pool: Option<&str>, message: &str) -> Finding {
    let service = service.map(|service| service.split_once('/').unwrap());
    let (message, way_out) = message.split_once("; ").unwrap_or((message, ""));
    Finding {
        kind,
        namespace: service.map(|(namespace, _)| namespace.to_owned()),
        name: service.map(|(_, name)| name.to_owned()),
        node: None,
        blocks: Vec::new(),
        addresses: addresses.iter().map(|address| ip(address)).collect(),
        pool: pool.map(str::to_owned),
        evidence: None,
        message: message.to_owned(),
        way_out: way_out.to_owned(),
    }
}

/// The pools of K2s with one Service of each kind, and evidence that contains markup.
pub fn small() -> Audit {
    let deployment = |name: &str, os: &str| format!("os={os} (Deployment {name})");
    let mut linux = vec![
        used("172.21.0.20", State::Used, "shop/sessions-by-hand", Some("linux"), &deployment("shop/sessions", "linux")),
        used("172.21.0.21", State::Misplaced, "shop/returns", Some("windows"), &deployment("shop/returns", "windows")),
        used("172.21.0.99", State::Used, "shop/storefront", Some("linux"), &deployment("shop/storefront", "linux")),
        used("172.21.0.100", State::Used, "shop/warehouse", Some("linux"), "os=linux (assumption)"),
        used("172.21.0.128", State::InFlight, "shop/checkout", Some("linux"), &deployment("shop/checkout", "linux")),
        used("172.21.0.200", State::Used, "shop/reindex", Some("linux"), HOSTILE),
        used("172.21.0.225", State::Misplaced, "tools/squatter", None, ""),
    ];
    for last in 50..90 {
        let (address, service) = (format!("172.21.0.{last}"), format!("team-{}/api-{last}", last % 7));
        let found = used(&address, State::Used, &service, Some("linux"), &deployment(&service, "linux"));
        linux.push(found);
    }
    linux.sort_by_key(|address| address.address);
    let linux_services = linux.len();
    let full = (49..64).map(|last| {
        let service = format!("edge/camera-{last}");
        used(&format!("172.21.2.{last}"), State::Used, &service, Some("edge"), &deployment(&service, "linux"))
    });
    let windows = vec![
        used("172.21.1.75", State::Used, "shop/orders", Some("windows"), "os=windows (StatefulSet shop/orders)"),
        used("172.21.1.112", State::Used, "shop/nightly", Some("windows"), "os=windows (CronJob shop/nightly)"),
    ];
    let kept = |third: u8, more: Vec<Span>| {
        let at = |last: u8| format!("172.21.{third}.{last}");
        let mut kept = vec![span(&at(0), &at(49), Kept::Reserved)];
        kept.extend(more);
        kept.push(span(&at(255), &at(255), Kept::Excluded));
        kept
    };
    Audit {
        pools: vec![
            Pool {
                name: "windows".to_owned(),
                ranges: vec![range(
                    "172.21.1.0/24",
                    kept(1, vec![span("172.21.1.200", "172.21.1.207", Kept::Excluded)]),
                    windows,
                )],
            },
            Pool { name: "linux".to_owned(), ranges: vec![range("172.21.0.0/24", kept(0, Vec::new()), linux)] },
            Pool {
                name: "edge".to_owned(),
                ranges: vec![range(
                    "172.21.2.48/28",
                    vec![span("172.21.2.48", "172.21.2.48", Kept::Excluded)],
                    full.collect(),
                )],
            },
        ],
        nodes: None,
        external: None,
        findings: vec![
            finding(
                Kind::Misplaced,
                Some("shop/returns"),
                &["172.21.0.21"],
                Some("windows"),
                "172.21.0.21 lies in pool \"linux\", expected pool \"windows\"; `clusterip move` moves it",
            ),
            finding(
                Kind::NoPool,
                Some("billing/invoices"),
                &["10.96.3.4"],
                Some("linux"),
                "10.96.3.4 lies in no pool, expected pool \"linux\"; `clusterip move` moves it",
            ),
            finding(
                Kind::Squatter,
                Some("tools/squatter"),
                &["172.21.0.225"],
                None,
                "no pool is for it, and 172.21.0.225 lies in pool \"linux\"",
            ),
            finding(Kind::Full, None, &[], Some("edge"), "172.21.2.48/28 has no free address; add a range to the pool"),
            finding(Kind::MixedNodes, Some("shop/mixed"), &[], Some("linux"), HOSTILE),
        ],
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
                format!("{address} lies in pool \"all\", expected pool \"windows\"; `clusterip move` moves it");
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
    let kept =
        vec![span("10.96.0.0", "10.96.0.255", Kept::Reserved), span("10.96.255.255", "10.96.255.255", Kept::Excluded)];
    let pools = vec![
        Pool { name: "all".to_owned(), ranges: vec![range("10.96.0.0/16", kept, addresses)] },
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
            used(&address.to_string(), State::Used, &format!("dual/web-{index}"), Some("dual"), "os=linux (assumption)")
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
                        vec![span("10.1.0.0", "10.1.0.9", Kept::Reserved)],
                        vec![used("10.1.9.3", State::Used, "dual/web-0", Some("dual"), "os=linux (assumption)")],
                    ),
                    range(
                        "fd00:1::/112",
                        vec![span("fd00:1::", "fd00:1::1ff", Kept::Reserved)],
                        many("fd00:1::", 300, 211),
                    ),
                ],
            },
            Pool {
                name: "few".to_owned(),
                ranges: vec![range(
                    "fd00:2::/64",
                    vec![span("fd00:2::", "fd00:2::", Kept::Excluded)],
                    many("fd00:2::", 12, step),
                )],
            },
            Pool {
                name: "scattered".to_owned(),
                ranges: vec![range(
                    "fd00:3::/64",
                    vec![span("fd00:3::", "fd00:3::ffff:ffff:ffff", Kept::Reserved)],
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

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A block that a Node of this pool has.
fn held(block: &str, node: &str, pool: Option<&str>, state: State) -> Block {
    let evidence = match pool {
        Some(os) => format!("kubernetes.io/os={os} (Node {node})"),
        None => "no pool of Nodes matches kubernetes.io/os=freebsd".to_owned(),
    };
    Block { block: net(block), state, node: node.to_owned(), pool: pool.map(str::to_owned), evidence: Some(evidence) }
}

/// A range of a pool of Nodes with its counted blocks: each Node has whole blocks, and none of them is withheld.
fn blocks(cidr: &str, length: u8, withheld: Vec<block_usage::Span>, blocks: Vec<Block>) -> BlockRange {
    let cidr = net(cidr);
    let size = 1_u128 << (cidr.max_prefix_len() - length);
    let count = |span: &block_usage::Span| (number(span.last.network()) - number(span.first.network())) / size + 1;
    let withheld_count: u128 = withheld.iter().map(count).sum();
    let usable = (1_u128 << (length - cidr.prefix_len())) - withheld_count;
    let indices = |block: &Block| number(block.block.network()) / size..=number(block.block.broadcast()) / size;
    let mut used: Vec<u128> = blocks.iter().flat_map(indices).collect();
    used.sort_unstable();
    used.dedup();
    let used = used.len() as u128;
    let counts = block_usage::Counts { usable, used, free: usable - used, withheld: withheld_count, beside: 0 };
    BlockRange { cidr, block_length: length, counts, withheld, blocks }
}

/// Linux and Windows Nodes, of which some are misplaced, a range too large to be shown at once, and one that is too
/// large to enumerate.
pub fn nodes() -> Audit {
    let withheld = |first: &str, last: &str, why| block_usage::Span { first: net(first), last: net(last), why };
    let mut linux: Vec<Block> = (0..12)
        .map(|third| held(&format!("172.20.{third}.0/24"), &format!("linux-{third}"), Some("linux"), State::Used))
        .collect();
    linux.push(held("172.20.20.0/24", "twin-a", Some("linux"), State::Misplaced));
    linux.push(held("172.20.20.0/24", "twin-b", Some("linux"), State::Misplaced));
    linux.push(held("172.20.22.0/23", "wide", Some("linux"), State::Used));
    linux.push(held("172.20.30.0/24", "windows-9", Some("windows"), State::Misplaced));
    linux.push(held("172.20.40.0/24", "lab", None, State::Misplaced));
    let large = (0..3_000_u32).map(|index| {
        // An order that looks random: 40,503 has no factor in common with 65,536.
        let place = (index * 40_503) % 65_536;
        let node = format!("node-{index:04}");
        held(&format!("10.{}.{}.0/24", place >> 8, place & 255), &node, Some("large"), State::Used)
    });
    let mut large: Vec<Block> = large.collect();
    large.sort_by_key(|block| block.block);
    let finding = |kind, node: Option<&str>, blocks: &[&str], pool: &str, message: &str| Finding {
        node: node.map(str::to_owned),
        blocks: blocks.iter().map(|block| net(block)).collect(),
        ..finding(kind, None, &[], Some(pool), message)
    };
    let service = used("172.21.0.99", State::Used, "shop/storefront", Some("linux"), "os=linux (assumption)");
    let kept = vec![span("172.21.0.0", "172.21.0.49", Kept::Reserved)];
    let pool = |name: &str, ranges: Vec<BlockRange>| NodePool { name: name.to_owned(), ranges };
    // The range is in a pool of Nodes, which withholds its blocks.
    let inside = range("172.20.62.0/24", Vec::new(), Vec::new());
    let ranges = vec![range("172.21.0.0/24", kept, vec![service]), inside];
    Audit {
        pools: vec![Pool { name: "linux".to_owned(), ranges }],
        nodes: Some(Nodes {
            pools: vec![
                pool(
                    "linux",
                    vec![
                        blocks(
                            "172.20.0.0/18",
                            24,
                            vec![
                                withheld("172.20.16.0/24", "172.20.19.0/24", block_usage::Why::ServiceRange),
                                withheld("172.20.62.0/24", "172.20.62.0/24", block_usage::Why::ServicePool),
                                withheld("172.20.63.0/24", "172.20.63.0/24", block_usage::Why::Excluded),
                            ],
                            linux,
                        ),
                        blocks(
                            "fd00::/40",
                            64,
                            Vec::new(),
                            vec![held("fd00:0:0:5::/64", "linux-5", Some("linux"), State::Used)],
                        ),
                    ],
                ),
                pool("large", vec![blocks("10.0.0.0/8", 24, Vec::new(), large)]),
            ],
            count: 3_017,
        }),
        external: None,
        findings: vec![
            finding(
                Kind::SharedBlock,
                Some("twin-a"),
                &["172.20.20.0/24"],
                "linux",
                "Node twin-a: 172.20.20.0/24 has addresses of 172.20.20.0/24 of Node twin-b; register it anew",
            ),
            finding(
                Kind::SharedBlock,
                Some("twin-b"),
                &["172.20.20.0/24"],
                "linux",
                "Node twin-b: 172.20.20.0/24 has addresses of 172.20.20.0/24 of Node twin-a; register it anew",
            ),
            finding(
                Kind::OutsideNodePool,
                Some("far"),
                &["192.168.7.0/24"],
                "linux",
                "Node far: 192.168.7.0/24 lies in no pool, and it belongs to pool linux",
            ),
            finding(
                Kind::NoBlock,
                Some("new"),
                &[],
                "linux",
                "Node new: it has no block, and it belongs to pool linux",
            ),
            finding(Kind::FullNodePool, None, &[], "tiny", "node pool tiny is full; add a range to the pool"),
        ],
        services: 1,
        notes: Vec::new(),
    }
}

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
    let pool = |pool: &clusterip_core::settings::ExternalPool| ExternalPool {
        name: pool.name.clone(),
        ranges: pool.ranges.iter().map(|range| external_ranges::range(pool, range, &used, Some(&held))).collect(),
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
