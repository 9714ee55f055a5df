//! Where a block of a Node lies, compared with the pool of the Node.

use clusterip_core::nodes::{BlockPlace, place_of};
use clusterip_core::settings::Withheld;
use serde_json::json;

use crate::support::{net, settings};

/// The place in words.
fn words(place: BlockPlace<'_>) -> String {
    match place {
        BlockPlace::Right => "right".to_owned(),
        BlockPlace::OtherPool { pool, is_whole: true } => format!("in {}", pool.name),
        BlockPlace::OtherPool { pool, is_whole: false } => format!("partly in {}", pool.name),
        BlockPlace::Withheld { range, why: Withheld::ServiceRange } => format!("Service range {range}"),
        BlockPlace::Withheld { range, why: Withheld::ServicePool(name) } => format!("{range} of Services {name}"),
        BlockPlace::Withheld { range, why: Withheld::Excluded } => format!("excluded {range}"),
        BlockPlace::PartlyInPool => "partly in its pool".to_owned(),
        BlockPlace::NoPool => "no pool".to_owned(),
    }
}

#[test]
fn place_of_a_block_depends_on_the_pool_of_its_node_and_not_on_the_order_of_pools() {
    let settings = settings(&json!({
        "services": {"pools": [{"name": "services", "cidrs": ["10.0.9.0/26"]}], "serviceCIDRs": ["10.0.8.0/22"]},
        "nodes": {"pools": [
            {"name": "windows", "cidrs": ["10.1.0.0/16"], "match": {"os": "windows"}},
            {
                "name": "linux",
                "cidrs": ["10.0.0.0/16", "fd00::/48"],
                "exclude": ["10.0.9.0/26", "10.0.255.0/24"],
                "match": {"os": "linux"},
            },
        ]},
    }));
    let range = "Service range 10.0.8.0/22";
    let [windows, linux] = &settings.nodes.pools[..] else { panic!("two pools") };
    // A block, and its place for a Node of each pool, and for one that no pool matches.
    for (block, of_linux, of_windows, of_none) in [
        ("10.0.1.0/24", "right", "in linux", "in linux"),
        ("10.0.2.0/23", "right", "in linux", "in linux"),
        ("fd00:0:0:5::/64", "right", "in linux", "in linux"),
        ("10.1.1.0/24", "in windows", "right", "in windows"),
        // Around both pools, and around a range of one pool.
        ("10.0.0.0/15", "partly in windows", "partly in linux", "partly in windows"),
        ("fd00::/47", "partly in its pool", "partly in linux", "partly in linux"),
        ("10.2.1.0/24", "no pool", "no pool", "right"),
        // In a Service range and a pool of Services, and around them.
        ("10.0.9.0/24", range, "in linux", "in linux"),
        ("10.0.0.0/20", range, "in linux", "in linux"),
        ("10.0.255.0/24", "excluded 10.0.255.0/24", "in linux", "in linux"),
    ] {
        let place = |own| words(place_of(net(block), own, &settings));
        let places = [place(Some(linux)), place(Some(windows)), place(None)];
        assert_eq!(places, [of_linux, of_windows, of_none], "{block}");
    }
}
