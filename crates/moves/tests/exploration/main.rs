//! Explores every interleaving of a seamless move with crashes, lost and late answers, other writers and a second
//! leader, up to the budgets below. The steps and requests are the code that the executor runs; `api_server` is a small
//! model of the API server, and `kube_proxy` one of the programs that answer for its addresses.
//!
//! # Promises
//! - The old address answers until the grace period ends, and the name never leads to an address that does not answer,
//!   unless a failure or another writer interrupts a swap.
//! - While the name has no address, a run that knows of it does nothing but give it one.
//! - The status is never restored with an IP that another Service has been given.
//! - In the end, the Service has one of both addresses, and nothing else of the move is left.

#![allow(clippy::unwrap_used, clippy::panic)]

mod api_server;
mod faults;
mod kube_proxy;
mod other_writers;
mod search;
mod world;

use faults::{FINDINGS, Finding};
use mimalloc::MiMalloc;
use search::{Budgets, explore};

/// The search creates and forgets hundreds of thousands of JSON objects.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

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
        "status",
        "cleanup",
        "begin grace",
        "delete old",
        "end",
    ];
    assert_eq!(search::undisturbed(), expected);
}

/// Each fault is found, because it breaks the promise that it should break.
#[test]
fn every_deliberate_fault_is_found() {
    for Finding { fault, broken, other_writers, leaders } in FINDINGS {
        let found = explore(Some(fault), Budgets { failures: 1, others: other_writers, leaders });
        // The steps that follow are only part of the message.
        assert!(found.as_ref().is_err_and(|found| found.starts_with(broken)), "{fault:?}: {found:?}");
    }
}
