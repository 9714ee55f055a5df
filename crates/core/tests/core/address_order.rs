//! The order in which positions are tried.

use std::collections::BTreeSet;

use clusterip_core::address::Order;
use proptest::prelude::*;

use crate::support::cases;

const LARGEST: u128 = u128::MAX;

#[track_caller]
fn is_a_permutation(key: &str, count: u128) {
    let positions: Vec<u128> = Order::Spread.walk(key, count).collect();
    let sorted: BTreeSet<u128> = positions.iter().copied().collect();
    assert_eq!(positions.len() as u128, count, "{key:?} {count}: as many positions as there are");
    assert!(sorted.into_iter().eq(0..count), "{key:?} {count}: each of them");
}

/// The contract that Services get the same addresses in every release.
///
/// The literals were computed without this crate: the hash by OpenSSL 3 as
/// `printf %s KEY | openssl mac -macopt hexkey:00000000000000000000000000000000 -macopt size:16 -in - SIPHASH`
/// (read as two little-endian numbers, for example shop/web: c7a848a9c56e25de and 724f6af6f1815907), the walk by
/// Python's integers.
#[test]
fn the_spread_walk_never_changes() {
    struct Case {
        key: &'static str,
        count: u128,
        expected: &'static [u128],
    }
    let rows = [
        Case { key: "shop/web", count: 1, expected: &[0] },
        Case { key: "shop/web", count: 2, expected: &[0, 1] },
        Case { key: "shop/web", count: 3, expected: &[1, 0, 2] },
        Case { key: "shop/web", count: 7, expected: &[2, 6, 3, 0, 4] },
        Case { key: "shop/web", count: 205, expected: &[9, 0, 196, 187, 178] },
        Case { key: "shop/web", count: 254, expected: &[110, 121, 132, 143, 154] },
        Case { key: "shop/web", count: 65_278, expected: &[60_816, 23_059, 50_580, 12_823, 40_344] },
        Case {
            key: "shop/web",
            count: 1 << 32,
            expected: &[3_312_330_206, 691_988_957, 2_366_615_004, 4_041_241_051, 1_420_899_802],
        },
        Case {
            key: "shop/web",
            count: 1 << 64,
            expected: &[
                14_386_828_903_634_052_574,
                4_177_004_682_254_712_551,
                12_413_924_534_584_924_144,
                2_204_100_313_205_584_121,
                10_441_020_165_535_795_714,
            ],
        },
        Case {
            key: "shop/web",
            count: LARGEST,
            expected: &[
                14_386_828_903_634_052_574,
                22_623_748_755_964_264_166,
                30_860_668_608_294_475_758,
                39_097_588_460_624_687_350,
                47_334_508_312_954_898_942,
            ],
        },
        Case { key: "default/web", count: 2, expected: &[1, 0] },
        Case { key: "default/web", count: 5, expected: &[3, 1, 4, 2, 0] },
        Case { key: "default/web", count: 205, expected: &[123, 154, 185, 11, 42] },
        Case { key: "default/web", count: 254, expected: &[193, 224, 1, 32, 63] },
        Case { key: "default/web", count: 65_278, expected: &[32_451, 40_978, 49_505, 58_032, 1281] },
        Case {
            key: "default/web",
            count: (1 << 64) + 13,
            expected: &[
                11_964_381_312_602_307_563,
                16_405_977_897_239_729_682,
                2_400_830_408_167_600_172,
                6_842_426_992_805_022_291,
                11_284_023_577_442_444_410,
            ],
        },
        Case { key: "shop/7f3c0e1a-uid", count: 205, expected: &[23, 155, 82, 9, 141] },
        Case { key: "shop/7f3c0e1a-uid", count: 254, expected: &[216, 49, 136, 223, 56] },
        Case { key: "shop/", count: 205, expected: &[11, 189, 162, 135, 108] },
        Case { key: "größe/ü", count: 205, expected: &[107, 44, 186, 123, 60] },
        Case { key: "größe/ü", count: 65_278, expected: &[45_032, 6639, 33_524, 60_409, 22_016] },
    ];
    for Case { key, count, expected } in rows {
        let positions: Vec<u128> = Order::Spread.walk(key, count).take(5).collect();
        assert_eq!(positions, expected, "{key:?}, {count} positions");
    }
}

#[test]
fn the_spread_walk_visits_each_position_once_for_every_small_count() {
    for count in 0..=300 {
        for key in ["shop/web", "default/kubernetes-dashboard", ""] {
            is_a_permutation(key, count);
        }
    }
}

#[test]
fn the_lowest_walk_ascends() {
    for count in [0, 1, 2, 205, 4096] {
        assert!(Order::Lowest.walk("shop/web", count).eq(0..count), "{count}");
    }
    let first: Vec<u128> = Order::Lowest.walk("shop/web", LARGEST).take(3).collect();
    assert_eq!(first, [0, 1, 2]);
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn the_spread_walk_visits_each_position_once_for_any_key(key in any::<String>(), count in 0_u128..2000) {
        is_a_permutation(&key, count);
    }

    #[test]
    fn the_spread_walk_stays_in_bounds_without_repeats_for_large_counts(
        key in any::<String>(),
        count in any::<u128>().prop_map(|count| count | 1 << 70),
    ) {
        let positions: Vec<u128> = Order::Spread.walk(&key, count).take(100).collect();
        prop_assert!(positions.iter().all(|position| *position < count));
        prop_assert_eq!(positions.iter().collect::<BTreeSet<_>>().len(), 100);
    }
}
