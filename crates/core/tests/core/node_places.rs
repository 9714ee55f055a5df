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
    struct Case {
        name: &'static str,
        block: &'static str,
        linux: &'static str,
        windows: &'static str,
        /// For a Node that no pool matches.
        none: &'static str,
    }
    let cases = [
        Case { name: "in a pool", block: "10.0.1.0/24", linux: "right", windows: "in linux", none: "in linux" },
        Case { name: "a larger block", block: "10.0.2.0/23", linux: "right", windows: "in linux", none: "in linux" },
        Case { name: "IPv6", block: "fd00:0:0:5::/64", linux: "right", windows: "in linux", none: "in linux" },
        Case { name: "in the other", block: "10.1.1.0/24", linux: "in windows", windows: "right", none: "in windows" },
        Case {
            name: "around both pools",
            block: "10.0.0.0/15",
            linux: "partly in windows",
            windows: "partly in linux",
            none: "partly in windows",
        },
        Case {
            name: "around a range of one pool",
            block: "fd00::/47",
            linux: "partly in its pool",
            windows: "partly in linux",
            none: "partly in linux",
        },
        Case { name: "in no pool", block: "10.2.1.0/24", linux: "no pool", windows: "no pool", none: "right" },
        Case {
            name: "in a Service range, and in a pool of Services",
            block: "10.0.9.0/24",
            linux: "Service range 10.0.8.0/22",
            windows: "in linux",
            none: "in linux",
        },
        Case {
            name: "around a Service range",
            block: "10.0.0.0/20",
            linux: "Service range 10.0.8.0/22",
            windows: "in linux",
            none: "in linux",
        },
        Case {
            name: "excluded",
            block: "10.0.255.0/24",
            linux: "excluded 10.0.255.0/24",
            windows: "in linux",
            none: "in linux",
        },
    ];
    let [windows, linux] = &settings.nodes.pools[..] else { panic!("two pools") };
    for Case { name, block, linux: expected, windows: of_windows, none } in cases {
        let place = |own| words(place_of(net(block), own, &settings));
        assert_eq!(place(Some(linux)), expected, "{name}: linux");
        assert_eq!(place(Some(windows)), of_windows, "{name}: windows");
        assert_eq!(place(None), none, "{name}: no pool matches the Node");
    }
}
