use std::time::Duration;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn identity(number: u64) -> Identity {
    Identity::with("node-1", Role::Agent, number)
}

/// Returns `identity(1)`, `identity(2)` and so on.
fn identities() -> impl FnMut() -> Identity + Send + 'static {
    let mut number = 0;
    move || {
        number += 1;
        identity(number)
    }
}

/// The Lease as the API server returns it.
fn stored(mut lease: Lease, version: u64) -> Lease {
    lease.metadata.uid = Some("uid".to_owned());
    lease.metadata.resource_version = Some(version.to_string());
    lease
}

fn kept_by(holder: &str, version: u64) -> Lease {
    let spec = LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(i32::MAX),
        ..LeaseSpec::default()
    };
    stored(lease("node-1", None, spec), version)
}

struct Test {
    heartbeat_state: HeartbeatState,
    begin: Instant,
    version: u64,
}

impl Test {
    fn starting() -> Self {
        Self {
            heartbeat_state: HeartbeatState::new("node-1", Failover::Within25s, identities()),
            begin: Instant::now(),
            version: 9,
        }
    }

    /// A test with a term that began with a write sent at 0 s.
    fn running() -> Self {
        let mut test = Self { version: 0, ..Self::starting() };
        assert_eq!(test.next(0), NextAction::Read);
        test.read(None, 0);
        test.write(0, 0);
        assert_eq!(test.term(0), Some((identity(1), 17)));
        test
    }

    fn at(&self, seconds: u32) -> Instant {
        self.begin + seconds * SECOND
    }

    fn next(&mut self, seconds: u32) -> NextAction {
        self.heartbeat_state.next(self.at(seconds), Timestamp::UNIX_EPOCH)
    }

    fn read(&mut self, lease: Option<Lease>, seconds: u32) {
        self.heartbeat_state.read(lease, self.at(seconds));
    }

    fn read_kept_by(&mut self, holder: &str, seconds: u32) {
        self.read(Some(kept_by(holder, 9)), seconds);
    }

    /// Sends the write that is due, with an answer at `answered`.
    fn write(&mut self, sent: u32, answered: u32) {
        let NextAction::Write(lease) = self.next(sent) else { panic!("nothing to write") };
        self.version += 1;
        self.heartbeat_state.forget();
        self.heartbeat_state.wrote(stored(*lease, self.version), self.at(sent), self.at(answered));
    }

    fn term(&self, seconds: u32) -> Option<(Identity, u64)> {
        let term = self.heartbeat_state.term(self.at(seconds))?;
        Some((term.identity, term.until.duration_since(self.begin).as_secs()))
    }
}

#[test]
fn term_lasts_from_when_its_last_renewal_was_sent() {
    let mut test = Test::running();
    test.write(5, 8);
    assert_eq!(test.term(21), Some((identity(1), 22)));
    assert_eq!(test.term(22), None);
}

#[test]
fn term_ends_by_time_by_others_or_when_given_back() {
    struct Case {
        name: &'static str,
        at: u32,
        event: fn(&mut Test),
    }
    let cases = [
        Case { name: "an answer that comes too late", at: 18, event: |test| test.write(16, 18) },
        Case { name: "another agent ended the heartbeat", at: 5, event: |test| test.read_kept_by("", 5) },
        Case { name: "another agent took the heartbeat", at: 5, event: |test| test.read_kept_by("node-1_agent_2", 5) },
        Case { name: "the term is over", at: 17, event: |test| test.heartbeat_state.lapse_if_over(test.at(17)) },
        Case { name: "the agent gives the heartbeat back", at: 5, event: |test| test.heartbeat_state.lapse() },
    ];
    for Case { name, at, event } in cases {
        let mut test = Test::running();
        event(&mut test);
        assert_eq!(test.term(at), None, "{name}");
        // A heartbeat that this process recognizes as its own can be written again, under a new identity: at once, or
        // when the kernel has certainly removed the addresses of a term whose time was over.
        let at = if name == "the term is over" {
            assert_eq!(test.next(at), NextAction::Wait, "{name}");
            at + 1
        } else {
            at
        };
        let waits = test.next(at) == NextAction::Wait;
        assert_eq!(waits, name == "another agent took the heartbeat", "{name}");
        if !waits {
            if test.next(at) == NextAction::Read {
                test.read_kept_by(identity(1).as_str(), at);
            }
            test.write(at, at);
            let (next, until) = test.term(at).unwrap();
            assert_ne!(next, identity(1), "{name}");
            assert_eq!(until, u64::from(at) + 17, "{name}");
        }
    }
}

#[test]
fn losing_the_lease_or_an_answer_does_not_end_a_term() {
    type Case = fn(&mut Test);
    let rows: [(&str, Case); 4] = [
        ("it was put back by others", |test| test.read(Some(stored(put_back("node-1", Timestamp::UNIX_EPOCH), 9)), 5)),
        ("a write without an answer", |test| test.heartbeat_state.forget()),
        ("it was deleted", |test| test.read(None, 5)),
        ("it was put back", |test| test.read_kept_by(identity(1).as_str(), 5)),
    ];
    for (name, case) in rows {
        let mut test = Test::running();
        case(&mut test);
        assert_eq!(test.term(16), Some((identity(1), 17)), "{name}");
        if test.next(6) == NextAction::Read {
            test.read_kept_by(identity(1).as_str(), 6);
        }
        let NextAction::Write(lease) = test.next(6) else { panic!("{name}: nothing to write") };
        assert_eq!(lease.metadata.resource_version.is_none(), name == "it was deleted", "{name}");
        test.write(6, 6);
        assert_eq!(test.term(16), Some((identity(1), 23)), "{name}");
    }
}

#[test]
fn another_process_of_this_node_is_waited_for_until_it_is_silent() {
    let mut test = Test::starting();
    for (seconds, expected) in [(0, true), (19, true), (20, false)] {
        test.heartbeat_state.forget();
        assert_eq!(test.next(seconds), NextAction::Read);
        test.read_kept_by("node-1_agent_2", seconds);
        assert_eq!(test.next(seconds) == NextAction::Wait, expected, "{seconds} s");
    }
    test.write(20, 20);
    assert_eq!(test.term(20), Some((identity(1), 37)));
}

#[test]
fn earlier_agent_of_this_node_is_waited_for_as_long_as_it_relies_on_its_heartbeat() {
    for (own, written, expected) in [
        (Failover::Within5s, 20, 20),
        (Failover::Within5s, 4, 4),
        (Failover::Within25s, 4, 4),
        (Failover::Within25s, 20, 20),
        (Failover::Within25s, i32::MAX, 20),
    ] {
        let mut earlier = stored(put_back("node-1", Timestamp::UNIX_EPOCH), 9);
        let spec = earlier.spec.as_mut().unwrap();
        (spec.holder_identity, spec.lease_duration_seconds) = (Some("node-1_agent_2".to_owned()), Some(written));
        let (begin, mut state) = (Instant::now(), HeartbeatState::new("node-1", own, identities()));
        let mut waits = |seconds: &u64| {
            let now = begin + Duration::from_secs(*seconds);
            state.forget();
            state.read(Some(earlier.clone()), now);
            state.next(now, Timestamp::UNIX_EPOCH) == NextAction::Wait
        };
        let waited = (0..=20).take_while(&mut waits).count();
        assert_eq!(waited, expected, "{own:?} after one of {written} s");
    }
}

/// With the token of another agent, an attacker can end such a heartbeat and put it back every few seconds.
#[test]
fn starting_agent_does_not_wait_for_a_heartbeat_that_is_put_back_again_and_again() {
    let mut test = Test::starting();
    for (seconds, expected) in [(0, true), (10, true), (19, true), (20, false)] {
        test.heartbeat_state.forget();
        assert_eq!(test.next(seconds), NextAction::Read);
        let put_back = put_back("node-1", Timestamp::from_second(seconds.into()).unwrap());
        test.read(Some(stored(put_back, 9 + u64::from(seconds))), seconds);
        assert_eq!(test.next(seconds) == NextAction::Wait, expected, "{seconds} s");
    }
}

#[test]
fn only_an_own_heartbeat_is_given_back() {
    let mut test = Test::running();
    let given = test.heartbeat_state.give_back(Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(holder(&given), None);
    assert_eq!(given.metadata.resource_version.as_deref(), Some("1"));
    test.read_kept_by("node-1_agent_2", 1);
    assert_eq!(test.heartbeat_state.give_back(Timestamp::UNIX_EPOCH), None);
    test.read(None, 1);
    assert_eq!(test.heartbeat_state.give_back(Timestamp::UNIX_EPOCH), None);
}

#[test]
fn only_the_writes_of_its_own_agent_have_the_label_of_a_heartbeat() {
    let mut test = Test::running();
    let NextAction::Write(renewal) = test.next(5) else { panic!("the heartbeat is renewed") };
    let is_labelled = |lease: &Lease| lease.metadata.labels.as_ref().unwrap().contains_key(HEARTBEAT_LABEL);
    let clock = Timestamp::UNIX_EPOCH;
    let others = [given_back("node-1", &renewal, clock), put_back("node-1", clock)];
    assert!(is_labelled(&renewal) && !others.iter().any(is_labelled));
}
