//! Settings in JSON and YAML are read, or refused with the paths of their mistakes. Settings that are read can be used.

#![no_main]

use clusterip_cluster::yaml;
use clusterip_core::address::Family;
use clusterip_core::settings::Settings;
use ipnet::IpNet;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let answer = clusterip_core::validate_settings(bytes);
    assert_eq!(answer.valid, answer.message.is_none());
    let text = String::from_utf8_lossy(bytes);
    for document in [serde_json::from_slice(bytes).ok(), yaml::single(&text).ok()].into_iter().flatten() {
        check(&document);
    }
});

fn check(document: &Value) {
    match Settings::from_value(document) {
        Err(invalid) => assert!(!invalid.mistakes.is_empty()),
        Ok(settings) => {
            settings.warnings();
            for pool in &settings.nodes.pools {
                for cidr in &pool.cidrs {
                    let (blocks, withheld) =
                        settings.withheld_blocks(pool, *cidr).expect("a range that can be divided into blocks");
                    let free = blocks.next_free(&withheld, 0).expect("a free block");
                    let block = blocks.block(free).expect("a block of the range");
                    assert!(cidr.contains(&block));
                    let meets = |range: &IpNet| range.contains(&block) || block.contains(range);
                    assert!(!settings.withheld_from(pool).any(|(range, _)| meets(&range)), "{block} of {pool:?}");
                }
            }
            for pool in &settings.pools {
                let families = [Family::V4, Family::V6];
                let candidates = families.map(|family| settings.candidates(pool, family));
                assert!(candidates.iter().any(|candidates| candidates.count() > 0), "{pool:?}");
                for (family, candidates) in families.into_iter().zip(candidates) {
                    for band in &candidates.bands {
                        for position in [0, band.count() / 2, band.count().saturating_sub(1)] {
                            let Some(address) = band.address(position) else { continue };
                            assert_eq!(Family::of(address), family);
                            assert!(candidates.contains(address));
                            assert!(pool.cidrs.iter().any(|cidr| cidr.contains(&address)));
                            assert!(!pool.exclude.iter().any(|excluded| excluded.contains(&address)));
                            assert!(pool.reservation(address).is_none());
                        }
                    }
                }
            }
        }
    }
}
