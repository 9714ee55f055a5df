//! Explores every interleaving of a seamless move with crashes, lost and late answers, other writers and a second
//! leader, up to the budgets below. The steps and requests are the code that the executor runs; `api_server` is a small
//! model of the API server.

#![allow(clippy::unwrap_used, clippy::panic)]

mod api_server;
mod faults;
mod search;
mod world;

use faults::Fault;
use search::{Budgets, explore};

#[test]
fn every_interleaving_ends_moved_or_back_and_leaves_nothing() {
    let budgets = [
        Budgets { failures: 2, others: 1, leaders: 1 },
        Budgets { failures: 1, others: 2, leaders: 1 },
        Budgets { failures: 1, others: 1, leaders: 2 },
    ];
    let mut states = 0;
    for budget in budgets {
        let explored = explore(None, budget).unwrap_or_else(|violation| panic!("{budget:?}\n{violation}"));
        println!("{budget:?}: {explored} states");
        states += explored;
    }
    println!("{states} states in all");
    assert!(states > 100_000, "the search was cut off: {states} states");
}

#[test]
fn undisturbed_move_writes_in_this_order() {
    let expected = [
        "create new",
        "create old",
        "park old",
        "try old",
        "create trigger",
        "release",
        "take old",
        "delete trigger",
        "delete new",
        "Assign",
        "Cleanup",
        "delete old",
        "end",
    ];
    assert_eq!(search::undisturbed(None), expected);
}

/// Each fault is found, by the search or by the order of the writes.
#[test]
fn every_deliberate_fault_is_found() {
    let order = search::undisturbed(None);
    for fault in Fault::ALL {
        let found_by_order = search::undisturbed(Some(fault)) != order;
        let budgets = Budgets { failures: 1, others: fault.other_writers(), leaders: 1 };
        let found = explore(Some(fault), budgets);
        assert!(found_by_order || found.is_err(), "{fault:?} was not found in {found:?} states");
        let how = found.err().unwrap_or_else(|| "the order of the writes".to_owned());
        println!("{fault:?}: found by {}", how.lines().next().unwrap_or_default());
    }
}
