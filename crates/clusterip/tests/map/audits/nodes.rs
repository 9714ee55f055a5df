//! Audits of clusters whose Nodes get their blocks from pools.

use clusterip::audit::model::{Audit, Block, BlockRange, BlockSpan, Finding, Kind, Nodes, Pool, State, WithheldBlock};
use clusterip::usage::Usage;
use clusterip_core::address::Withholding;

use super::{finding, net, number, range, span, used};

/// A block that a Node of this pool has.
fn held(block: &str, node: &str, pool: Option<&str>, state: State) -> Block {
    let evidence = match pool {
        Some(os) => format!("kubernetes.io/os={os} (Node {node})"),
        None => "no pool of Nodes matches kubernetes.io/os=freebsd".to_owned(),
    };
    Block { block: net(block), state, node: node.to_owned(), pool: pool.map(str::to_owned), evidence: Some(evidence) }
}

/// A range of a pool of Nodes with its counted blocks: each Node has whole blocks, and none of them is withheld.
fn blocks(cidr: &str, length: u8, withheld: Vec<BlockSpan>, blocks: Vec<Block>) -> BlockRange {
    let cidr = net(cidr);
    let size = 1_u128 << (cidr.max_prefix_len() - length);
    let count = |span: &BlockSpan| (number(span.last.network()) - number(span.first.network())) / size + 1;
    let withheld_count: u128 = withheld.iter().map(count).sum();
    let usable = (1_u128 << (length - cidr.prefix_len())) - withheld_count;
    let indices = |block: &Block| number(block.block.network()) / size..=number(block.block.broadcast()) / size;
    let mut used: Vec<u128> = blocks.iter().flat_map(indices).collect();
    used.sort_unstable();
    used.dedup();
    let used = used.len() as u128;
    let counts = Usage { usable, used, free: usable - used, withheld: withheld_count, ..Usage::default() };
    BlockRange { cidr, block_length: length, counts, withheld, blocks }
}

/// The blocks of Linux Nodes, of which some are misplaced.
fn linux_blocks() -> Vec<Block> {
    let mut linux: Vec<Block> = (0..12)
        .map(|third| held(&format!("172.20.{third}.0/24"), &format!("linux-{third}"), Some("linux"), State::Used))
        .collect();
    linux.push(held("172.20.20.0/24", "twin-a", Some("linux"), State::Misplaced));
    linux.push(held("172.20.20.0/24", "twin-b", Some("linux"), State::Misplaced));
    linux.push(held("172.20.22.0/23", "wide", Some("linux"), State::Used));
    linux.push(held("172.20.30.0/24", "windows-9", Some("windows"), State::Misplaced));
    linux.push(held("172.20.40.0/24", "lab", None, State::Misplaced));
    linux
}

/// The blocks of 3,000 Nodes.
fn large_blocks() -> Vec<Block> {
    let large = (0..3_000_u32).map(|index| {
        // An order that looks random: 40,503 has no factor in common with 65,536.
        let place = (index * 40_503) % 65_536;
        let node = format!("node-{index:04}");
        held(&format!("10.{}.{}.0/24", place >> 8, place & 255), &node, Some("large"), State::Used)
    });
    let mut large: Vec<Block> = large.collect();
    large.sort_by_key(|block| block.block);
    large
}

fn node_findings() -> Vec<Finding> {
    let finding = |kind, node: Option<&str>, blocks: &[&str], pool: &str, message: &str| Finding {
        node: node.map(str::to_owned),
        blocks: blocks.iter().map(|block| net(block)).collect(),
        ..finding(kind, None, &[], Some(pool), message)
    };
    vec![
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
        finding(Kind::NoBlock, Some("new"), &[], "linux", "Node new: it has no block, and it belongs to pool linux"),
        finding(Kind::FullNodePool, None, &[], "tiny", "node pool tiny is full; add a range to the pool"),
    ]
}

/// Linux and Windows Nodes, of which some are misplaced, a range too large to be shown at once, and one that is too
/// large to enumerate.
pub fn nodes() -> Audit {
    let withheld = |first: &str, last: &str, why| BlockSpan { first: net(first), last: net(last), why };
    let service = used("172.21.0.99", State::Used, "shop/storefront", Some("linux"), "os=linux (setting assumeOS)");
    let reserved = vec![span("172.21.0.0", "172.21.0.49", Withholding::ByHand)];
    let pool = |name: &str, ranges: Vec<BlockRange>| Pool { name: name.to_owned(), ranges };
    // The range is in a pool of Nodes, which withholds its blocks.
    let inside = range("172.20.62.0/24", Vec::new(), Vec::new());
    let ranges = vec![range("172.21.0.0/24", reserved, vec![service]), inside];
    Audit {
        pools: vec![Pool { name: "linux".to_owned(), ranges }],
        reservations: Vec::new(),
        nodes: Some(Nodes {
            pools: vec![
                pool(
                    "linux",
                    vec![
                        blocks(
                            "172.20.0.0/18",
                            24,
                            vec![
                                withheld("172.20.16.0/24", "172.20.19.0/24", WithheldBlock::ServiceRange),
                                withheld("172.20.62.0/24", "172.20.62.0/24", WithheldBlock::ServicePool),
                                withheld("172.20.63.0/24", "172.20.63.0/24", WithheldBlock::Excluded),
                            ],
                            linux_blocks(),
                        ),
                        blocks(
                            "fd00::/40",
                            64,
                            Vec::new(),
                            vec![held("fd00:0:0:5::/64", "linux-5", Some("linux"), State::Used)],
                        ),
                    ],
                ),
                pool("large", vec![blocks("10.0.0.0/8", 24, Vec::new(), large_blocks())]),
            ],
            count: 3_018,
            with_blocks: 3_017,
        }),
        external: None,
        findings: node_findings(),
        services: 1,
        notes: Vec::new(),
    }
}
