use super::*;

#[test]
fn identities_tell_role_and_host() {
    let rows = [
        (Identity::with("node-1", Role::Serve, 0xab), Some((Role::Serve, "node-1"))),
        (Identity::with("my_own_host", Role::Move, 0), Some((Role::Move, "my_own_host"))),
        (Identity::with("", Role::Move, 0), Some((Role::Move, ""))),
        (Identity::with("node-1.example", Role::Agent, 1), Some((Role::Agent, "node-1.example"))),
        (Identity::with("a_agent_b", Role::Agent, 1), Some((Role::Agent, "a_agent_b"))),
        (Identity::of("serve"), None),
        (Identity::of("serve_1"), None),
        (Identity::of("node-1_3f2c"), None),
    ];
    for (identity, told) in rows {
        assert_eq!(identity.role(), told.map(|(role, _)| role), "{identity}");
        assert_eq!(identity.host(), told.map(|(_, host)| host), "{identity}");
        let node = told.filter(|(role, host)| *role == Role::Agent && *host == "node-1.example");
        assert_eq!(identity.agent_node(), node.map(|(_, host)| host), "{identity}");
    }
    assert_ne!(Identity::new(Role::Serve), Identity::new(Role::Serve));
}

#[test]
fn identity_of_another_process_is_bounded() {
    let long = "é".repeat(300);
    assert_eq!(Identity::of(&long).as_str().chars().count(), 276);
    let longest = Identity::with(&"n".repeat(253), Role::Agent, 1);
    assert_eq!(Identity::of(longest.as_str()), longest);
}

const SECOND: Duration = Duration::from_secs(1);

fn at(text: &str) -> Timestamp {
    text.parse().expect(text)
}

fn lease(holder: &str, seconds: Option<i32>, acquired: &str, renewed: &str, transitions: i32) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: seconds,
        acquire_time: Some(MicroTime(at(acquired))),
        renew_time: Some(MicroTime(at(renewed))),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    }
}

#[test]
fn a_lease_is_written_only_if_free_own_or_expired() {
    struct Case {
        name: &'static str,
        spec: Option<LeaseSpec>,
        seconds: u32,
        expected: Step,
    }
    const ME: &str = "me_serve_0000000000000001";
    const THEN: &str = "2026-01-01T00:00:00Z";
    const NOW: &str = "2026-01-01T00:01:00Z";
    let me = Identity::with("me", Role::Serve, 1);
    let begin = Instant::now();
    let other = |seconds| Some(lease("other", seconds, THEN, THEN, 4));
    let mine = |transitions| Step::Write(lease(ME, Some(15), NOW, NOW, transitions));
    let case = |name, spec, seconds, expected| Case { name, spec, seconds, expected };
    let cases = [
        case("a missing Lease", None, 0, mine(0)),
        case("a Lease without a spec", Some(LeaseSpec::default()), 0, mine(1)),
        case("a Lease that was given back", Some(lease("", Some(1), THEN, THEN, 7)), 0, mine(8)),
        case(
            "its own Lease",
            Some(lease(ME, Some(15), THEN, THEN, 7)),
            60,
            Step::Write(lease(ME, Some(15), THEN, NOW, 7)),
        ),
        case(
            "its own Lease with another duration",
            Some(lease(ME, Some(60), THEN, THEN, 7)),
            60,
            Step::Write(lease(ME, Some(15), THEN, NOW, 7)),
        ),
        case("another's when first seen, although its times are old", other(Some(15)), 0, Step::Wait),
        case("another's of 15 s, after 14 s", other(Some(15)), 14, Step::Wait),
        case("another's of 15 s, after 15 s", other(Some(15)), 15, mine(5)),
        case("another's of 60 s, after 59 s", other(Some(60)), 59, Step::Wait),
        case("another's of 60 s, after 60 s", other(Some(60)), 60, mine(5)),
        case("another's without a duration, after 14 s", other(None), 14, Step::Wait),
        case("another's without a duration, after 15 s", other(None), 15, mine(5)),
    ];
    for Case { name, spec, seconds, expected } in cases {
        let seen = spec.map(|spec| Observed::first(spec, begin));
        let done = step(seen.as_ref(), &me, Timing::default(), begin + seconds * SECOND, at(NOW));
        assert_eq!(done, expected, "{name}");
    }
}

#[test]
fn the_age_of_a_lease_counts_from_when_it_was_seen_first() {
    let begin = Instant::now();
    let first = lease("other", Some(15), "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", 0);
    let renewed = lease("other", Some(15), "2026-01-01T00:00:00Z", "2026-01-01T00:00:02Z", 0);
    let seen = Observed::first(first.clone(), begin);
    assert_eq!(seen, Observed { value: first.clone(), since: begin, changed: false }, "the first look proves nothing");
    let seen = Observed::next(Some(seen), first.clone(), begin + SECOND);
    assert_eq!(seen, Observed { value: first, since: begin, changed: false }, "unchanged");
    let seen = Observed::next(Some(seen), renewed.clone(), begin + 2 * SECOND);
    assert_eq!(seen, Observed { value: renewed, since: begin + 2 * SECOND, changed: true }, "its holder lives");
}

#[test]
fn two_processes_can_never_hold_a_lease_at_once() {
    for (name, timing) in [("leader", Timing::default()), ("heartbeat", crate::timing::Failover::Within25s.heartbeat())]
    {
        let Timing { lease, deadline, retry } = timing;
        assert!(lease > deadline && deadline > retry && !retry.is_zero(), "{name}: {timing:?}");
    }
}

/// The policy for agents compares the times of all entries of `managedFields`.
#[test]
fn written_lease_has_one_old_entry_of_managed_fields() {
    let entries = metadata("a".to_owned(), "external", []).managed_fields.expect("entries");
    let times: Vec<_> = entries.into_iter().map(|entry| (entry.operation, entry.time)).collect();
    assert_eq!(times, [(Some("Update".to_owned()), Some(Time(Timestamp::UNIX_EPOCH)))]);
}
