use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

#[test]
fn order_never_changes() {
    let nodes = ["node-1", "node-2", "node-3", "node-4"];
    let golden = [
        ("10.0.9.10", ["node-4", "node-3", "node-2", "node-1"]),
        ("10.0.9.11", ["node-2", "node-4", "node-3", "node-1"]),
        ("fd00::1", ["node-3", "node-1", "node-2", "node-4"]),
    ];
    for (address, expected) in golden {
        assert_eq!(order(address.parse().unwrap(), nodes), expected, "{address}");
    }
}

proptest! {
    #[test]
    fn node_that_leaves_does_not_change_the_order_of_the_others(
        address in any::<IpAddr>(),
        nodes in prop::collection::btree_set("[a-z]{1,8}", 1..8),
        leaving in any::<prop::sample::Index>(),
    ) {
        let all: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let whole = order(address, all.iter().copied());
        prop_assert_eq!(&order(address, all.iter().rev().copied()), &whole, "the order of the input matters");
        prop_assert_eq!(whole.iter().collect::<BTreeSet<_>>(), all.iter().collect::<BTreeSet<_>>());
        let gone = all[leaving.index(all.len())];
        let rest: Vec<&str> = whole.into_iter().filter(|node| *node != gone).collect();
        prop_assert_eq!(order(address, all.iter().copied().filter(|node| *node != gone)), rest);
    }
}

fn assignments(count: u32, nodes: &BTreeSet<String>) -> Assignments {
    let assignment = Assignment { nodes: Arc::new(nodes.clone()), ..Assignment::default() };
    let address = |number: u32| IpAddr::from(Ipv4Addr::from(0x0a00_0900 + number));
    (0..count).map(|number| (address(number), assignment.clone())).collect()
}

fn names(nodes: &BTreeSet<String>) -> BTreeSet<&str> {
    nodes.iter().map(String::as_str).collect()
}

/// The holders after every node took the addresses that it is the first choice for, in addition to `held`.
fn taken<'a>(
    all: &'a Assignments,
    live: &BTreeSet<&'a str>,
    held: &BTreeMap<IpAddr, &'a str>,
) -> BTreeMap<IpAddr, &'a str> {
    let free = all.keys().filter(|address| !held.contains_key(*address)).copied().collect();
    let preferences = preference_order(all, live, held, &free);
    let first = preferences.iter().filter_map(|(address, order)| Some((*address, *order.first()?)));
    held.clone().into_iter().chain(first).collect()
}

fn loads<'a>(held: &BTreeMap<IpAddr, &'a str>) -> BTreeMap<&'a str, usize> {
    held.values().fold(BTreeMap::new(), |mut loads, node| {
        *loads.entry(*node).or_default() += 1;
        loads
    })
}

proptest! {
    #[test]
    fn each_node_gets_its_share(nodes in prop::collection::btree_set("[a-z]{1,8}", 3), gone in 0..3_usize) {
        let all = assignments(200, &nodes);
        let mut live = names(&nodes);
        let held = taken(&all, &live, &BTreeMap::new());
        let even = |loads: &BTreeMap<&str, usize>, nodes: usize| {
            let share = 200.0 / nodes as f64;
            loads.len() == nodes && loads.values().all(|load| (*load as f64 - share).abs() <= 0.2 * share)
        };
        prop_assert!(even(&loads(&held), 3), "{:?}", loads(&held));

        // If one node dies, only its addresses move, and the others share them.
        let dead = *live.iter().nth(gone).unwrap();
        live.remove(dead);
        let left: BTreeMap<IpAddr, &str> = held.into_iter().filter(|(_, holder)| *holder != dead).collect();
        let after = taken(&all, &live, &left);
        prop_assert_eq!(after.len(), 200);
        prop_assert!(left.iter().all(|(address, holder)| after[address] == *holder));
        prop_assert!(even(&loads(&after), 2), "{:?}", loads(&after));
    }

    #[test]
    fn taking_some_addresses_does_not_change_the_choice_for_the_rest(
        nodes in prop::collection::btree_set("[a-z]{1,8}", 1..6),
        count in 1..60_u32,
        done in prop::collection::vec(any::<bool>(), 60),
    ) {
        let all = assignments(count, &nodes);
        let live = names(&nodes);
        let whole = taken(&all, &live, &BTreeMap::new());
        let some: BTreeMap<IpAddr, &str> =
            whole.clone().into_iter().zip(done).filter(|(_, done)| *done).map(|(held, _)| held).collect();
        prop_assert_eq!(taken(&all, &live, &some), whole);
    }
}

#[test]
fn first_choice_with_room_takes_an_address() {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let address = |text: &str| -> IpAddr { text.parse().unwrap() };
    let all: Assignments = [("10.0.9.0", &["a", "b"][..]), ("10.0.9.1", &["a", "b"]), ("10.0.9.2", &["c"])]
        .map(|(text, nodes)| (address(text), Assignment { nodes: Arc::new(set(nodes)), ..Assignment::default() }))
        .into();
    let first = order(address("10.0.9.1"), ["a", "b"])[0];
    let second = if first == "a" { "b" } else { "a" };
    struct Case<'a> {
        name: &'a str,
        live: &'a [&'a str],
        /// The addresses that are held, each with its holder.
        held: &'a [(&'a str, &'a str)],
        /// The free addresses, each with its order of preference.
        expected: &'a [(&'a str, &'a [&'a str])],
    }
    let cases: [Case<'_>; 5] = [
        Case { name: "no agent is alive", live: &[], held: &[], expected: &[] },
        Case {
            name: "only one group of nodes has a live agent",
            live: &["c"],
            held: &[],
            expected: &[("10.0.9.2", &["c"])],
        },
        Case {
            name: "the first choice has room",
            live: &["a", "b"],
            held: &[("10.0.9.0", second)],
            expected: &[("10.0.9.1", &[first, second])],
        },
        Case {
            name: "the first choice has its share",
            live: &["a", "b"],
            held: &[("10.0.9.0", first)],
            expected: &[("10.0.9.1", &[second, first])],
        },
        Case {
            name: "the only live agent of a group takes all addresses",
            live: &["b"],
            held: &[("10.0.9.0", "b")],
            expected: &[("10.0.9.1", &["b"])],
        },
    ];
    for Case { name, live, held, expected } in cases {
        let live = live.iter().copied().collect();
        let held: BTreeMap<IpAddr, &str> = held.iter().map(|(text, node)| (address(text), *node)).collect();
        let free = all.keys().filter(|address| !held.contains_key(*address)).copied().collect();
        let expected: BTreeMap<IpAddr, Vec<&str>> =
            expected.iter().map(|(text, nodes)| (address(text), nodes.to_vec())).collect();
        assert_eq!(preference_order(&all, &live, &held, &free), expected, "{name}");
    }
}
