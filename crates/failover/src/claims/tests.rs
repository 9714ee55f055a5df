use super::*;
use crate::leases::Role;

fn replica_claim(address: &str, service: &str) -> ReplicaClaim {
    ReplicaClaim {
        address: address.parse().unwrap(),
        owner: Owner::new("shop", service, "uid-1"),
        holder: "pod_serve_1".into(),
        duration: Duration::from_secs(70),
    }
}

#[test]
fn claim_of_a_replica_is_read_as_it_was_written() {
    struct Case {
        address: &'static str,
        service: &'static str,
        name: &'static str,
    }
    let cases = [
        Case { address: "172.21.0.5", service: "web", name: "ip-172-21-0-5" },
        Case { address: "fd00::1", service: "web", name: "ip-fd00-0000-0000-0000-0000-0000-0000-0001" },
        Case { address: "172.21.0.6", service: "", name: "ip-172-21-0-6" },
    ];
    for Case { address, service, name } in cases {
        let claim = replica_claim(address, service);
        let mut lease = claim.lease("own", Timestamp::UNIX_EPOCH);
        assert_eq!(lease.metadata.name.as_deref(), Some(name));
        lease.metadata.uid = Some("uid-1".into());
        assert_eq!(ReplicaClaim::of(&lease), Some(claim), "{name} {service}");
    }
}

#[test]
fn claim_of_an_agent_is_read_as_it_was_written() {
    let me = Identity::with("node-1", Role::Agent, 1);
    for (address, expected) in [
        ("10.0.9.10", "clusterip-external-10-0-9-10"),
        ("fd00::1", "clusterip-external-fd00-0000-0000-0000-0000-0000-0000-0001"),
    ] {
        let address = address.parse().unwrap();
        for holder in [None, Some(&me)] {
            let lease = holder_lease(address, holder, None, Timestamp::UNIX_EPOCH);
            assert_eq!(lease.metadata.name.as_deref(), Some(expected));
            let claim = HolderClaim::of(&lease);
            assert_eq!(claim, Some(HolderClaim { address, holder: holder.cloned() }));
            assert_eq!(claim.unwrap().node(), holder.map(|_| "node-1"));
        }
    }
}

#[test]
fn leases_that_are_not_claims_are_ignored() {
    fn annotate(lease: &mut Lease, key: &str, value: &str) {
        lease.metadata.annotations.as_mut().unwrap().insert(key.into(), value.into());
    }
    type Spoil = fn(&mut Lease);
    let of_both: [(&str, Spoil); 3] = [
        ("no annotations", |lease| lease.metadata.annotations = None),
        ("another name", |lease| lease.metadata.name.as_mut().unwrap().push('0')),
        ("no address", |lease| annotate(lease, ADDRESS_ANNOTATION, "172.21.0")),
    ];
    let of_replicas: [(&str, Spoil); 3] = [
        ("no service", |lease| annotate(lease, SERVICE_ANNOTATION, "web")),
        ("no holder", |lease| lease.spec.as_mut().unwrap().holder_identity = None),
        ("no duration", |lease| lease.spec.as_mut().unwrap().lease_duration_seconds = Some(-1)),
    ];
    let claim = replica_claim("172.21.0.5", "web");
    for (name, spoil) in of_both.into_iter().chain(of_replicas) {
        let mut lease = claim.lease("own", Timestamp::UNIX_EPOCH);
        spoil(&mut lease);
        assert_eq!(ReplicaClaim::of(&lease), None, "{name}");
    }
    for (name, spoil) in of_both {
        let mut lease = holder_lease(claim.address, None, None, Timestamp::UNIX_EPOCH);
        spoil(&mut lease);
        assert_eq!(HolderClaim::of(&lease), None, "{name}");
    }
}

#[test]
fn claim_that_changes_hands_is_the_next_version_of_the_same_lease() {
    let (address, me) = (IpAddr::from([10, 0, 9, 10]), Identity::with("node-1", Role::Agent, 1));
    let mut before = holder_lease(address, Some(&me), None, Timestamp::UNIX_EPOCH);
    before.metadata.uid = Some("uid".into());
    before.metadata.resource_version = Some("7".into());
    let now = Timestamp::from_second(60).unwrap();
    let after = holder_lease(address, None, Some(&before), now);
    let found = (after.metadata.uid.as_deref(), after.metadata.resource_version.as_deref());
    assert_eq!(found, (Some("uid"), Some("7")));
    let expected = LeaseSpec {
        holder_identity: Some(String::new()),
        acquire_time: Some(MicroTime(now)),
        lease_transitions: Some(1),
        ..LeaseSpec::default()
    };
    assert_eq!(after.spec, Some(expected));
}
