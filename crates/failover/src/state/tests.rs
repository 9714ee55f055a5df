//! Tests of `state`.

use std::time::Duration;

use clusterip_core::annotations::LEASE_LABEL;

use super::*;
use crate::assignments::WEIGHED;
use crate::assignments::{Assignment, order};
use crate::claims::{EXTERNAL, holder_lease};
use crate::heartbeat_state::put_back;
use crate::leases::{Identity, Role};
use crate::peers::VISITED;
use crate::timing::{Failover, HEARTBEAT_RETENTION};

const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 9, 10));

fn identity(node: &str) -> Identity {
    Identity::with(node, Role::Agent, 1)
}

/// The Lease as the API server returns it.
fn stored(mut lease: Lease, version: u64) -> Lease {
    lease.metadata.uid.get_or_insert_with(|| format!("uid-{version}"));
    lease.metadata.resource_version = Some(version.to_string());
    lease
}

fn heartbeat(node: &str, version: u64) -> Lease {
    let mut lease = put_back(node, Timestamp::UNIX_EPOCH);
    if let Some(spec) = &mut lease.spec {
        spec.holder_identity = Some(identity(node).to_string());
    }
    stored(lease, version)
}

/// This agent and one other living agent. The test chooses which of the two is preferred for the address.
struct Test {
    state: AgentState,
    begin: Instant,
    version: u64,
    me: &'static str,
    other: &'static str,
}

impl Test {
    fn new(first: bool) -> Self {
        let order = order(ADDRESS, ["a", "b"]);
        let (one, two) = if order == ["a", "b"] { ("a", "b") } else { ("b", "a") };
        let (me, other) = if first { (one, two) } else { (two, one) };
        let begin = Instant::now();
        let mut state = AgentState::new(me, begin);
        state.replace_all(&[heartbeat(me, 1), heartbeat(other, 2)], begin);
        let mut test = Self { state, begin, version: 10, me, other };
        test.assign(&[me, other]);
        test.renew(0);
        test
    }

    fn at(&self, millis: u64) -> Instant {
        self.begin + Duration::from_millis(millis)
    }

    fn assign(&mut self, nodes: &[&str]) {
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        let assignment = Assignment { nodes: Arc::new(nodes), ..Assignment::default() };
        self.state.assignments = Arc::new([(ADDRESS, assignment)].into());
    }

    /// Both agents renew their heartbeats.
    fn renew(&mut self, at: u64) {
        self.version += 1;
        self.renew_own(at);
        self.state.apply(&stored(heartbeat(self.other, 2), self.version), self.at(at));
    }

    fn apply_claim(&mut self, holder: Option<&str>, at: u64) {
        self.version += 1;
        let holder = holder.map(identity);
        let mut lease = stored(holder_lease(ADDRESS, holder.as_ref(), None, Timestamp::UNIX_EPOCH), self.version);
        lease.metadata.uid = Some("uid".to_owned());
        self.state.apply(&lease, self.at(at));
    }

    /// The other node claims another address.
    fn apply_busy(&mut self, at: u64) {
        let address = IpAddr::from([10, 0, 9, 99]);
        let lease = holder_lease(address, Some(&identity(self.other)), None, Timestamp::UNIX_EPOCH);
        self.state.apply(&stored(lease, 50), self.at(at));
    }

    fn plan(&mut self, at: u64) -> Plan {
        self.state.plan(self.at(at), Timestamp::UNIX_EPOCH)
    }

    /// The kinds of the writes, and whether the address is held.
    fn planned(&mut self, at: u64) -> (Vec<WriteKind>, bool) {
        let plan = self.plan(at);
        (plan.writes.iter().map(|write| write.kind).collect(), plan.desired.held.contains_key(&ADDRESS))
    }

    /// Expects exactly one write, and carries it out.
    fn carried_out(&mut self, at: u64) -> WriteKind {
        let plan = self.plan(at);
        assert_eq!(plan.writes.len(), 1, "{:?}", plan.writes);
        let write = &plan.writes[0];
        self.version += 1;
        let written = Box::new(stored((*write.lease).clone(), self.version));
        self.state.written(write, WriteOutcome::Written(written), self.at(at));
        write.kind
    }

    fn network_did(&mut self, number: u64, addresses: &[IpAddr]) {
        let addresses = addresses.iter().copied().collect();
        self.state.observed = ObservedState { number, addresses, ..ObservedState::default() };
    }

    /// The network of this node can't hold the address.
    fn network_failed(&mut self, number: u64) {
        self.state.observed = ObservedState { number, addresses: [ADDRESS].into(), failing: [ADDRESS].into() };
    }

    /// This agent claims the address, can't hold it, and gives it back.
    fn claim_and_give_up(&mut self, at: u64) {
        self.renew(at);
        assert_eq!(self.carried_out(at), WriteKind::Claim);
        let number = self.plan(at).desired.number;
        self.network_failed(number);
        let plan = self.plan(at);
        assert_eq!((plan.given_up, plan.desired.held.len(), plan.writes), (vec![ADDRESS], 0, vec![]));
        self.network_did(plan.desired.number, &[]);
        assert_eq!(self.carried_out(at), WriteKind::GiveBack);
    }

    /// This agent alone renews its heartbeat.
    fn renew_own(&mut self, at: u64) {
        let until = self.at(at) + Failover::Within25s.heartbeat().deadline;
        self.state.set_term(Some(Term { identity: identity(self.me), until }));
    }
}

#[test]
fn agent_claims_an_address_when_it_is_free_and_its_turn() {
    struct Case {
        name: &'static str,
        is_first_choice: bool,
        setup: fn(&mut Test),
        /// When the agent claims the address, in milliseconds.
        claims_at: Option<u64>,
    }
    /// The agent is the first choice, and never claims the address.
    const NEVER: Case = Case { name: "", is_first_choice: true, setup: |_| {}, claims_at: None };
    /// The agent is the first choice, and claims the address when the settling time is over.
    const SETTLED: Case = Case { claims_at: Some(3000), ..NEVER };
    const SECOND: Case = Case { is_first_choice: false, ..NEVER };
    let cases = [
        Case { name: "the first choice, when the settling time is over", ..SETTLED },
        Case { name: "the second choice, one turn later", claims_at: Some(5000), ..SECOND },
        Case {
            name: "the second choice, one turn after the last claim of the first choice",
            setup: |test| test.apply_busy(4000),
            claims_at: Some(6000),
            ..SECOND
        },
        Case {
            name: "the second choice, although the first choice claims other addresses all the time",
            setup: |test| test.apply_busy(60_000),
            claims_at: Some(15_000),
            ..SECOND
        },
        Case { name: "a claim of another node", setup: |test| test.apply_claim(Some(test.other), 0), ..NEVER },
        Case { name: "a claim that was given back", setup: |test| test.apply_claim(None, 0), ..SETTLED },
        Case {
            name: "a claim of an earlier term of this node",
            setup: |test| {
                test.apply_claim(Some(test.me), 0);
                let until = test.at(0) + Failover::Within25s.heartbeat().deadline;
                test.state.set_term(Some(Term { identity: Identity::with(test.me, Role::Agent, 2), until }));
            },
            ..SETTLED
        },
        Case {
            name: "a claim of another program",
            setup: |test| {
                let lease = holder_lease(ADDRESS, Some(&Identity::of("another")), None, Timestamp::UNIX_EPOCH);
                test.state.apply(&stored(lease, 50), test.at(0));
            },
            ..SETTLED
        },
        Case {
            name: "its own claim whose answer was lost",
            setup: |test| test.apply_claim(Some(test.me), 0),
            claims_at: Some(0),
            ..SECOND
        },
        Case {
            name: "a claim that was deleted by hand",
            setup: |test| {
                test.apply_claim(Some(test.other), 0);
                let mut gone = stored(holder_lease(ADDRESS, None, None, Timestamp::UNIX_EPOCH), 99);
                gone.metadata.uid = Some("uid".to_owned());
                test.state.delete(&gone, test.at(0));
            },
            ..NEVER
        },
        Case { name: "an address that this node may not hold", setup: |test| test.assign(&[test.other]), ..NEVER },
        Case {
            name: "an agent whose term has just ended",
            setup: |test| {
                let until = test.at(3000);
                test.state.set_term(Some(Term { identity: identity(test.me), until }));
            },
            ..NEVER
        },
        Case { name: "an agent without a term", setup: |test| test.state.set_term(None), ..NEVER },
        Case { name: "an agent that stops", setup: |test| test.state.stopping = true, ..NEVER },
    ];
    for Case { name, is_first_choice, setup, claims_at } in cases {
        let mut test = Test::new(is_first_choice);
        setup(&mut test);
        let claims = (0..170).map(|step| step * 100).find(|at| test.planned(*at).0 == [WriteKind::Claim]);
        assert_eq!(claims, claims_at, "{name}");
    }
}

#[test]
fn address_is_held_only_after_its_claim_was_answered_in_its_term() {
    let mut test = Test::new(true);
    let plan = test.plan(3000);
    let write = plan.writes[0].clone();
    let labels = write.lease.metadata.labels.clone().unwrap();
    assert_eq!(labels, [(LEASE_LABEL.to_owned(), EXTERNAL.to_owned())].into());
    assert_eq!(test.planned(3100), (vec![], false), "not before there is an answer");
    let written = || WriteOutcome::Written(Box::new(stored((*write.lease).clone(), 100)));
    struct Case {
        name: &'static str,
        outcome: WriteOutcome,
        answered_at: u64,
        is_held: bool,
    }
    let cases = [
        Case { name: "written", outcome: written(), answered_at: 3200, is_held: true },
        Case { name: "written, but answered after the term", outcome: written(), answered_at: 17_000, is_held: false },
        Case {
            name: "another agent wrote the claim first",
            outcome: WriteOutcome::Changed,
            answered_at: 3200,
            is_held: false,
        },
        Case { name: "without an answer", outcome: WriteOutcome::Unclear, answered_at: 3200, is_held: false },
    ];
    for Case { name, outcome, answered_at, is_held } in cases {
        let mut test = Test::new(true);
        test.plan(3000);
        test.state.written(&write, outcome, test.at(answered_at));
        assert_eq!(test.planned(answered_at).1, is_held, "{name}");
        assert!(!test.planned(17_000).1, "{name}: the term is over");
    }
}

#[test]
fn address_is_given_back_only_when_it_is_off_the_network() {
    let mut test = Test::new(true);
    assert_eq!(test.carried_out(3000), WriteKind::Claim);
    let held = test.plan(3100).desired.number;
    test.network_did(held, &[ADDRESS]);
    test.assign(&[test.other]);
    let after = test.plan(3200).desired.number;
    assert_eq!(test.planned(3200), (vec![], false), "it may still come");
    test.network_did(held, &[]);
    assert_eq!(test.planned(3300), (vec![], false), "the network has not heard of it");
    test.network_did(after, &[ADDRESS]);
    assert_eq!(test.planned(3400), (vec![], false), "it is still there");
    test.network_did(after, &[]);
    assert_eq!(test.carried_out(3500), WriteKind::GiveBack);
    assert_eq!(test.planned(3600), (vec![], false), "it is the other's to take");
    // When no node is to hold the address, its claim is removed.
    test.state.assignments = Arc::default();
    assert_eq!(test.carried_out(3700), WriteKind::Remove);
    assert_eq!(test.planned(3800), (vec![], false));
}

#[test]
fn failing_address_is_left_to_other_nodes_for_longer_each_time() {
    let mut test = Test::new(true);
    let mut at = 3000;
    for away in [60_000, 120_000, 240_000, 480_000, 600_000, 600_000] {
        test.claim_and_give_up(at);
        test.renew(at + away - 1);
        assert_eq!(test.planned(at + away - 1), (vec![], false), "{away}");
        at += away;
    }
    // A long time later, earlier failures no longer count.
    at += 600_000;
    test.claim_and_give_up(at);
    test.renew(at + 60_000);
    assert_eq!(test.carried_out(at + 60_000), WriteKind::Claim);
}

#[test]
fn failing_address_is_retried_if_no_other_node_can_hold_it() {
    struct Case {
        name: &'static str,
        setup: fn(&mut Test),
        at: u64,
        given_up: usize,
    }
    let cases = [
        Case { name: "another node may hold it", setup: |_| {}, at: 3200, given_up: 1 },
        Case { name: "no other node may hold it", setup: |test| test.assign(&[test.me]), at: 3200, given_up: 0 },
        Case { name: "the other node is silent", setup: |test| test.renew_own(30_000), at: 30_000, given_up: 0 },
    ];
    for Case { name, setup, at, given_up } in cases {
        let mut test = Test::new(true);
        assert_eq!(test.carried_out(3000), WriteKind::Claim, "{name}");
        let number = test.plan(3100).desired.number;
        setup(&mut test);
        test.network_failed(number);
        let plan = test.plan(at);
        assert_eq!((plan.given_up.len(), plan.desired.held.len()), (given_up, 1 - given_up), "{name}");
    }
}

#[test]
fn address_that_no_node_takes_is_left_to_others_no_longer() {
    let mut test = Test::new(true);
    let free_since = 3000;
    test.renew(free_since);
    test.state.histories.entry(ADDRESS).or_default().left_to_others_until = Some(test.at(600_000));
    assert_eq!(test.planned(free_since), (vec![], false));
    let at = free_since + 300_000;
    test.renew(at);
    assert_eq!(test.planned(at - 1), (vec![], false));
    assert_eq!(test.carried_out(at), WriteKind::Claim);
    assert_eq!(test.planned(at), (vec![], true), "and is held");
}

#[test]
fn node_that_could_not_hold_an_address_takes_another_one_that_the_others_pass_over() {
    let mut test = Test::new(true);
    let failed = IpAddr::from([10, 0, 9, 99]);
    let mut assignments = (*test.state.assignments).clone();
    assignments.insert(failed, assignments[&ADDRESS].clone());
    test.state.assignments = Arc::new(assignments);
    test.state.histories.entry(failed).or_default().left_to_others_until = Some(test.at(600_000));
    assert_eq!(test.planned(3000), (vec![], false), "the other node may take it");
    assert_eq!(test.planned(7999), (vec![], false));
    assert_eq!(test.carried_out(8000), WriteKind::Claim);
}

#[test]
fn addresses_of_a_silent_agent_are_taken_after_its_heartbeat_was_ended() {
    let mut test = Test::new(true);
    test.apply_claim(Some(test.other), 0);
    for at in [5000, 10_000, 15_000] {
        test.renew_own(at);
        assert_eq!(test.planned(at), (vec![], false), "{at}");
    }
    assert_eq!(test.planned(19_999), (vec![], false));
    let plan = test.plan(20_000);
    assert_eq!((plan.writes[0].kind, plan.writes.len()), (WriteKind::End, 1));
    // The heartbeat was renewed meanwhile, and this agent does not know yet: nothing is taken.
    test.state.written(&plan.writes[0], WriteOutcome::Changed, test.at(20_000));
    assert_eq!(test.planned(20_500), (vec![], false));
    assert_eq!(test.carried_out(21_000), WriteKind::End);
    assert_eq!(test.carried_out(21_200), WriteKind::Claim);
    assert!(test.planned(21_300).1);
}

#[test]
fn held_address_is_released_if_its_claim_was_changed_by_others() {
    type Case = fn(&mut Test);
    let rows: [(&str, Case); 4] = [
        ("deleted, as a watch shows it", |test| {
            let claim = test.state.claims[&ADDRESS].lease().unwrap().clone();
            test.state.delete(&claim, test.at(3200));
        }),
        ("taken", |test| test.apply_claim(Some(test.other), 3200)),
        ("given back", |test| test.apply_claim(None, 3200)),
        ("deleted", |test| test.state.replace_all(&[], test.at(3200))),
    ];
    for (name, case) in rows {
        let mut test = Test::new(true);
        test.carried_out(3000);
        assert!(test.planned(3100).1, "{name}");
        test.version = 1000;
        case(&mut test);
        let plan = test.plan(3200);
        assert_eq!((plan.lost, plan.desired.held.len()), (vec![ADDRESS], 0), "{name}");
        assert_eq!(test.plan(3300).lost, Vec::<IpAddr>::new(), "{name}: reported once");
    }
}

#[test]
fn claims_and_the_heartbeats_that_they_wait_for_come_before_others() {
    let mut test = Test::new(true);
    let others = (0..MAX_WRITES).map(|number| number.to_string());
    for node in others.chain(["claiming".to_owned()]) {
        test.state.apply(&heartbeat(&node, 3), test.begin);
    }
    let claim = holder_lease(IpAddr::from([10, 0, 9, 11]), Some(&identity("claiming")), None, Timestamp::UNIX_EPOCH);
    test.state.apply(&stored(claim, 4), test.begin);
    test.renew(25_000);
    let writes = test.plan(25_000).writes;
    let first: Vec<_> = writes.iter().take(2).map(|write| (write.kind, write.subject.clone())).collect();
    let ended = (WriteKind::End, Subject::Node("claiming".to_owned()));
    assert_eq!((first, writes.len()), (vec![(WriteKind::Claim, Subject::Address(ADDRESS)), ended], MAX_WRITES));
}

/// With the token of an agent, an attacker creates thousands of claims that any agent may remove.
#[test]
fn work_of_a_plan_grows_little_with_the_agents_that_may_remove_left_claims() {
    let plan = |agents: u32| {
        let begin = Instant::now();
        let mut state = AgentState::new("a", begin);
        let heartbeats: Vec<Lease> = (0..agents).map(|number| heartbeat(&format!("node-{number}"), 1)).collect();
        state.replace_all(&heartbeats, begin);
        let until = begin + Failover::Within25s.heartbeat().deadline;
        state.set_term(Some(Term { identity: identity("a"), until }));
        for number in 0..2000 {
            let address = IpAddr::from(std::net::Ipv4Addr::from(0x0a10_0000 + number));
            let ended = Identity::with("b", Role::Agent, 2);
            state.apply(&stored(holder_lease(address, Some(&ended), None, Timestamp::UNIX_EPOCH), 2), begin);
        }
        state.apply(&heartbeat("b", 3), begin);
        let before = WEIGHED.get();
        assert!(state.plan(begin + Duration::from_secs(1), Timestamp::UNIX_EPOCH).writes.is_empty());
        WEIGHED.get() - before
    };
    let (few, many) = (plan(3), plan(200));
    assert!(many < 6 * few, "{few} nodes are weighed with 3 agents, and {many} with 200");
}

/// With the token of an agent, an attacker creates thousands of heartbeats of nodes that do not exist.
#[test]
fn work_of_a_plan_grows_little_with_the_heartbeats_that_are_not_alive() {
    for (name, are_silent, claims) in [("silent heartbeats", true, 0), ("ended ones, and left claims", false, 2000)] {
        let begin = Instant::now();
        let mut state = AgentState::new("a", begin);
        let until = begin + HEARTBEAT_RETENTION + Failover::Within25s.heartbeat().deadline;
        state.set_term(Some(Term { identity: identity("a"), until }));
        let heartbeats = (0..2000).map(|number| {
            let mut lease = put_back(&format!("node-{number}"), Timestamp::UNIX_EPOCH);
            lease.spec.as_mut().unwrap().holder_identity.take_if(|_| !are_silent);
            stored(lease, 1)
        });
        state.replace_all(&heartbeats.collect::<Vec<_>>(), begin);
        for number in 0..claims {
            let address = IpAddr::from(std::net::Ipv4Addr::from(0x0a10_0000 + number));
            let holder = identity(&format!("node-{number}"));
            state.apply(&stored(holder_lease(address, Some(&holder), None, Timestamp::UNIX_EPOCH), 2), begin);
        }
        assert!(state.plan(begin, Timestamp::UNIX_EPOCH).writes.is_empty(), "{name}");
        let later = begin + HEARTBEAT_RETENTION;
        for node in ["a", "b", "c"] {
            state.apply(&heartbeat(node, 1), later);
        }
        let before = VISITED.get();
        assert_eq!(state.plan(later, Timestamp::UNIX_EPOCH).writes.len(), MAX_WRITES, "{name}");
        let visited = VISITED.get() - before;
        assert!(visited < 10 * 2003, "{name}: a plan visits {visited} heartbeats");
    }
}
