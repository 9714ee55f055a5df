//! A set of addresses in spans, compared with a set of single addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use clusterip_core::address::{AddressSet, Span};
use proptest::prelude::*;

use crate::support::{cases, ip};

fn address() -> impl Strategy<Value = IpAddr> {
    let beginnings =
        prop::sample::select(vec!["10.0.0.", "255.255.255.25", "fd00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff"]);
    (beginnings, 0_u8..6).prop_map(|(beginning, last)| ip(&format!("{beginning}{last}")))
}

/// As few spans of consecutive addresses as possible.
fn spans(addresses: &BTreeSet<IpAddr>) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for &address in addresses {
        let extended = spans.last().and_then(|last| Span::new(last.first(), address));
        match extended.filter(|longer| longer.count() == spans.last().unwrap().count() + 1) {
            Some(longer) => *spans.last_mut().unwrap() = longer,
            None => spans.push(address.into()),
        }
    }
    spans
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn spans_contain_the_addresses_that_were_added_and_not_removed(
        steps in prop::collection::vec((address(), prop::bool::weighted(0.7)), 0..40),
    ) {
        let (mut set, mut expected) = (AddressSet::default(), BTreeSet::new());
        for (address, adds) in steps {
            if adds {
                set.insert(address);
                expected.insert(address);
            } else {
                set.remove(address);
                expected.remove(&address);
            }
        }
        prop_assert_eq!(set.spans().collect::<Vec<_>>(), spans(&expected));
    }
}
