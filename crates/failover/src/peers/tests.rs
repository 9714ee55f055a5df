use std::time::Duration;

use crate::leases::Role;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::jiff::Timestamp;

use super::super::heartbeat_state::put_back;
use super::*;

fn identity(number: u64) -> Identity {
    Identity::with("a", Role::Agent, number)
}

const NO_HOLDER: u64 = 0;
const UNKNOWN: u64 = 99;

/// The heartbeat of node `a`.
fn lease(owner: u64, version: u64) -> Lease {
    let mut lease = put_back("a", Timestamp::UNIX_EPOCH);
    lease.metadata.uid = Some("uid".to_owned());
    lease.metadata.resource_version = Some(version.to_string());
    let holder = match owner {
        NO_HOLDER => String::new(),
        UNKNOWN => any_agent_of("a").to_string(),
        owner => identity(owner).to_string(),
    };
    let lease_duration_seconds = Some(i32::MAX);
    lease.spec = lease.spec.map(|spec| LeaseSpec { holder_identity: Some(holder), lease_duration_seconds, ..spec });
    lease
}

#[test]
fn term_is_alive_silent_or_over_by_its_heartbeat() {
    type Step = (u64, fn(&mut Peers, Instant));
    /// What the peers say about node `a` and its first term.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Seen {
        first_term: TermState,
        node_is_alive: bool,
        is_silent: bool,
        is_missing: bool,
    }
    struct Case {
        name: &'static str,
        steps: Vec<Step>,
        after_19_s: Seen,
        after_20_s: Seen,
    }
    const ALIVE: Seen = Seen { first_term: TermState::Alive, node_is_alive: true, is_silent: false, is_missing: false };
    const ALIVE_WITHOUT_NODE: Seen = Seen { node_is_alive: false, ..ALIVE };
    const UNKNOWN_NODE: Seen = Seen { first_term: TermState::Silent, ..ALIVE_WITHOUT_NODE };
    const SILENT: Seen = Seen { is_silent: true, ..UNKNOWN_NODE };
    const MISSING: Seen = Seen { is_missing: true, ..UNKNOWN_NODE };
    const OVER: Seen = Seen { first_term: TermState::Over, ..ALIVE_WITHOUT_NODE };
    const NEXT_TERM: Seen = Seen { node_is_alive: true, ..OVER };
    let first: Step = (0, |peers, now| peers.apply(&lease(1, 1), now));
    let gone: Step = (5, |peers, now| peers.delete(&lease(1, 1), now));
    let given_back: Step = (5, |peers, now| peers.apply(&lease(NO_HOLDER, 2), now));
    let steady = |name, steps, seen| Case { name, steps, after_19_s: seen, after_20_s: seen };
    let then_silent = |name, steps, seen| Case { name, steps, after_19_s: seen, after_20_s: SILENT };
    let cases = [
        steady("no heartbeat", vec![], UNKNOWN_NODE),
        then_silent("first seen", vec![first], ALIVE),
        steady("renewed", vec![first, (5, |peers, now| peers.apply(&lease(1, 2), now))], ALIVE),
        then_silent(
            "seen again unchanged",
            vec![first, (5, |peers, now| peers.replace_all(&[lease(1, 1)], now))],
            ALIVE,
        ),
        steady("given back", vec![first, given_back], OVER),
        steady(
            "an old version after a new one",
            vec![given_back, (5, |peers, now| peers.apply(&lease(1, 1), now))],
            OVER,
        ),
        steady("another term", vec![first, (5, |peers, now| peers.apply(&lease(2, 2), now))], NEXT_TERM),
        steady("deleted", vec![first, gone], MISSING),
        steady(
            "put back",
            vec![first, gone, (15, |peers, now| peers.apply(&lease(UNKNOWN, 3), now))],
            ALIVE_WITHOUT_NODE,
        ),
        then_silent(
            "put back, and silent",
            vec![first, (0, |peers, now| peers.apply(&lease(UNKNOWN, 3), now))],
            ALIVE_WITHOUT_NODE,
        ),
        steady("given back, and removed", vec![first, given_back, (6, |peers, now| peers.replace_all(&[], now))], OVER),
    ];
    for Case { name, steps, after_19_s, after_20_s } in cases {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut peers = Peers::default();
        for (seconds, step) in steps {
            step(&mut peers, at(seconds));
        }
        for (seconds, expected) in [(19, after_19_s), (20, after_20_s)] {
            let now = at(seconds);
            let found = Seen {
                first_term: peers.term_state("a", &identity(1), now),
                node_is_alive: peers.live(now).eq(["a"]),
                is_silent: peers.silent(now).count() == 1,
                is_missing: peers.missing(now).count() == 1,
            };
            assert_eq!(found, expected, "{name}, {seconds} s");
        }
    }
}

#[test]
fn node_without_heartbeat_is_missing_after_a_wait_until_it_is_forgotten() {
    let begin = Instant::now();
    let mut peers = Peers::default();
    peers.expect("a", begin);
    let missing = ("a", begin + MISSING_GRACE);
    assert_eq!(peers.missing(begin).collect::<Vec<_>>(), vec![]);
    assert_eq!(peers.next_change(begin), Some(begin + MISSING_GRACE));
    peers.expect("a", begin + MISSING_GRACE);
    assert_eq!(peers.missing(begin + MISSING_GRACE).collect::<Vec<_>>(), vec![missing]);
    peers.forget_missing(|_| false);
    assert_eq!(peers.missing(begin + MISSING_GRACE).collect::<Vec<_>>(), vec![]);
}

#[test]
fn heartbeat_without_holder_is_removed_when_it_is_old() {
    let begin = Instant::now();
    let mut peers = Peers::default();
    peers.apply(&lease(NO_HOLDER, 2), begin);
    assert_eq!(peers.next_change(begin), Some(begin + HEARTBEAT_RETENTION));
    assert_eq!(peers.forgotten(begin + HEARTBEAT_RETENTION - Duration::from_secs(1)).count(), 0);
    let lease = Box::new(lease(NO_HOLDER, 2));
    let expected = vec![StaleHeartbeat { node: "a".to_owned(), lease, since: begin + HEARTBEAT_RETENTION }];
    assert_eq!(peers.forgotten(begin + HEARTBEAT_RETENTION).collect::<Vec<_>>(), expected);
}

#[test]
fn heartbeat_becomes_silent_after_one_of_two_durations() {
    struct Case {
        name: &'static str,
        owner: u64,
        written: Option<i32>,
        expected: u64,
    }
    let of = |name, written, expected| Case { name, owner: 1, written, expected };
    let cases = [
        of("the short one", Some(4), 4),
        of("the long one", Some(20), 20),
        of("none", None, 20),
        of("a shorter one", Some(1), 20),
        of("68 years", Some(i32::MAX), 20),
        Case { owner: UNKNOWN, ..of("put back by another agent", Some(4), 20) },
    ];
    for Case { name, owner, written, expected } in cases {
        let begin = Instant::now();
        let mut peers = Peers::default();
        let mut lease = lease(owner, 1);
        lease.spec.as_mut().unwrap().lease_duration_seconds = written;
        peers.apply(&lease, begin);
        for (seconds, is_silent) in [(expected - 1, false), (expected, true)] {
            let now = begin + Duration::from_secs(seconds);
            assert_eq!(peers.silent(now).count() == 1, is_silent, "{name}, {seconds} s");
        }
    }
}
