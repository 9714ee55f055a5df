//! The blocks that Nodes get, for random pools and random blocks in use, compared with a plain list of all blocks.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clusterip_core::settings::Settings;
use ipnet::IpNet;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Sequence, blocks_given, cases, net};

/// The blocks of a range, in the order of their indices.
fn plainly(cidr: IpNet, length: u8) -> Vec<IpNet> {
    let bits = cidr.max_prefix_len();
    let count = 1_u128 << (length - cidr.prefix_len());
    let at = |index: u128| -> IpAddr {
        let offset = index << (bits - length);
        match cidr.network() {
            IpAddr::V4(first) => Ipv4Addr::from(u32::from(first) + u32::try_from(offset).unwrap()).into(),
            IpAddr::V6(first) => Ipv6Addr::from(u128::from(first) + offset).into(),
        }
    };
    (0..count).map(|index| IpNet::new(at(index), length).unwrap()).collect()
}

/// Whether two ranges overlap, by their first and last addresses.
fn share(a: IpNet, b: IpNet) -> bool {
    a.addr().is_ipv4() == b.addr().is_ipv4() && a.network() <= b.broadcast() && b.network() <= a.broadcast()
}

#[derive(Clone, Debug)]
struct Scene {
    cidrs: Vec<IpNet>,
    v4: u8,
    v6: u8,
    exclude: Vec<IpNet>,
    service_cidrs: Vec<IpNet>,
    held: Vec<IpNet>,
    last: Vec<IpNet>,
}

impl Scene {
    fn length(&self, cidr: IpNet) -> u8 {
        if cidr.addr().is_ipv4() { self.v4 } else { self.v6 }
    }

    fn settings(&self) -> Value {
        let texts = |ranges: &[IpNet]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>();
        let size = json!({"ipv4": self.v4, "ipv6": self.v6});
        let pool = json!({
            "name": "a", "cidrs": texts(&self.cidrs), "exclude": texts(&self.exclude), "blockSize": size,
        });
        json!({"services": {"serviceCIDRs": texts(&self.service_cidrs)}, "nodes": {"pools": [pool]}})
    }

    /// The block of a family, found in a list of all blocks; `None` if none is free.
    fn expected(&self, v4: bool) -> Option<IpNet> {
        self.cidrs.iter().filter(|cidr| cidr.addr().is_ipv4() == v4).find_map(|&cidr| {
            let blocks = plainly(cidr, self.length(cidr));
            let taken = [&self.exclude, &self.service_cidrs, &self.held];
            let is_free =
                |block: &&IpNet| !taken.iter().any(|ranges| ranges.iter().any(|range| share(*range, **block)));
            // The search starts behind the last block that overlaps an entry of `last`; the latest entry counts.
            let last = self.last.iter().rev().find_map(|last| blocks.iter().rposition(|block| share(*block, *last)));
            let (before, behind) = blocks.split_at(last.map_or(0, |last| last + 1));
            behind.iter().chain(before).find(is_free).copied()
        })
    }
}

fn scene() -> impl Strategy<Value = Scene> {
    let ranges = prop::sample::select(vec![
        vec!["10.0.0.0/24"],
        vec!["10.0.0.0/26", "10.0.1.0/25"],
        vec!["10.0.0.0/26", "fd00::/58"],
        vec!["fd00::/59", "10.0.0.64/27", "fd00:0:0:100::/60"],
        vec!["10.0.0.0/28", "fd00::/60", "10.0.0.32/28", "fd00:0:0:20::/61"],
    ]);
    // Blocks, parts of them, larger ranges, and ranges elsewhere.
    let range = || {
        (any::<bool>(), 0_u16..300, 22_u8..=32, 54_u8..=66).prop_map(|(v4, place, v4_len, v6_len)| {
            let [high, low] = place.to_be_bytes();
            match v4 {
                true => IpNet::new(Ipv4Addr::new(10, 0, high, low).into(), v4_len).unwrap().trunc(),
                false => IpNet::new(Ipv6Addr::new(0xfd00, 0, 0, place, 0, 0, 0, 0).into(), v6_len).unwrap().trunc(),
            }
        })
    };
    let small = move || range().prop_filter("small", |range| range.max_prefix_len() - range.prefix_len() <= 66);
    let some = |most| prop::collection::vec(small(), 0..most);
    (ranges, 28_u8..=30, 61_u8..=64, some(3), some(2), some(60), some(4)).prop_map(
        |(cidrs, v4, v6, exclude, service_cidrs, held, last)| {
            let cidrs: Vec<IpNet> = cidrs.into_iter().map(net).collect();
            let inside = |range: &IpNet| cidrs.iter().any(|cidr| share(*cidr, *range));
            Scene {
                v4,
                v6,
                exclude: exclude.into_iter().filter(inside).collect(),
                service_cidrs: service_cidrs
                    .into_iter()
                    .filter(|range| range.max_prefix_len() - range.prefix_len() >= 3)
                    .collect(),
                held,
                last,
                cidrs,
            }
        },
    )
}

proptest! {
    #![proptest_config(cases(1024))]

    #[test]
    fn block_is_the_first_free_one_and_full_means_none_is_free(scene in scene()) {
        // Settings that leave a range no block are refused, so the property does not apply.
        prop_assume!(Settings::from_value(&scene.settings()).is_ok());
        let mut families: Vec<bool> = Vec::new();
        for v4 in scene.cidrs.iter().map(|cidr| cidr.addr().is_ipv4()) {
            if !families.contains(&v4) {
                families.push(v4);
            }
        }
        let expected: Vec<Option<IpNet>> = families.iter().map(|v4| scene.expected(*v4)).collect();
        let texts = |blocks: &[IpNet]| blocks.iter().map(ToString::to_string).collect::<Vec<_>>();
        let allocation = json!({"held": texts(&scene.held), "last": texts(&scene.last)});
        match blocks_given(&scene.settings(), &allocation) {
            Ok(blocks) => {
                let blocks: Vec<Option<IpNet>> = blocks.iter().map(|block| Some(net(block))).collect();
                prop_assert_eq!(blocks, expected);
            }
            Err(message) => {
                let full = expected.iter().position(Option::is_none);
                prop_assert!(full.is_some(), "refused, though {:?} are free: {}", expected, message);
                let length = if families[full.unwrap()] { scene.v4 } else { scene.v6 };
                let words = format!(" is full: no block of /{length} is free; ");
                prop_assert!(message.contains(&words), "{}", message);
            }
        }
    }

    #[test]
    fn successive_nodes_never_share_an_address(scene in scene()) {
        prop_assume!(Settings::from_value(&scene.settings()).is_ok());
        let mut sequence = Sequence::new(scene.settings());
        sequence.held = scene.held.iter().map(ToString::to_string).collect();
        let mut given: BTreeSet<IpNet> = BTreeSet::new();
        while let Ok(blocks) = sequence.next() {
            for block in blocks.iter().map(|block| net(block)) {
                let all = given.iter().chain(&scene.held).chain(&scene.exclude).chain(&scene.service_cidrs);
                let shared: Vec<&IpNet> = all.filter(|other| share(**other, block)).collect();
                prop_assert!(shared.is_empty(), "{} shares with {:?}", block, shared);
                prop_assert!(scene.cidrs.iter().any(|cidr| cidr.contains(&block)), "{} lies outside", block);
                given.insert(block);
            }
            prop_assert!(given.len() < 1000);
        }
    }
}
