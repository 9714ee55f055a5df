//! Explores every interleaving of a seamless move with crashes, lost and late answers, other writers and a second
//! leader, up to the budgets below. The steps and requests are the code that the executor runs; `api_server` is a small
//! model of the API server.

#![allow(clippy::unwrap_used, clippy::panic)]

mod api_server;
mod faults;
mod other_writers;
mod search;
mod world;

use faults::Fault;
use search::{Budgets, explore};

/// Explores with these budgets, and expects at least so many states: with fewer, the search was cut off.
fn explore_all(budgets: &[Budgets], at_least: usize) {
    let mut states = 0;
    for budget in budgets {
        let explored = explore(None, *budget).unwrap_or_else(|violation| panic!("{budget:?}\n{violation}"));
        println!("{budget:?}: {explored} states");
        states += explored;
    }
    assert!(states >= at_least, "only {states} states");
}

#[test]
fn every_interleaving_with_a_second_leader_ends_moved_or_back() {
    explore_all(&[Budgets { failures: 1, others: 0, leaders: 1 }], 100_000);
}

#[test]
fn every_interleaving_with_a_second_leader_and_other_writers_ends_moved_or_back() {
    explore_all(&[Budgets { failures: 0, others: 1, leaders: 1 }], 100_000);
}

#[test]
fn every_interleaving_of_one_leader_ends_moved_or_back() {
    let budgets = [
        Budgets { failures: 1, others: 1, leaders: 0 },
        Budgets { failures: 2, others: 0, leaders: 0 },
        Budgets { failures: 0, others: 2, leaders: 0 },
    ];
    explore_all(&budgets, 100_000);
}

#[test]
fn undisturbed_move_writes_in_this_order() {
    let expected = [
        "create new",
        "create old",
        "release old",
        "try old",
        "create trigger",
        "release",
        "take old",
        "delete trigger",
        "delete new",
        "assign",
        "cleanup",
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
        let budgets = Budgets { failures: 1, others: fault.other_writers(), leaders: fault.leaders() };
        let found = explore(Some(fault), budgets);
        assert!(found_by_order || found.is_err(), "{fault:?} was not found in {found:?} states");
        let how = found.err().unwrap_or_else(|| "the order of the writes".to_owned());
        println!("{fault:?}: found by {}", how.lines().next().unwrap_or_default());
    }
}
