use super::*;

const ME: &str = "clusterip-replica-me";

/// The Lease of a replica with this name, this version, and this hash of its settings.
fn lease(name: &str, version: &str, hash: &str) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(format!("clusterip-replica-{name}")),
            uid: Some(format!("uid-{name}")),
            resource_version: Some(version.to_owned()),
            annotations: Some(BTreeMap::from([(SETTINGS_HASH_ANNOTATION.to_owned(), hash.to_owned())])),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(name.to_owned()),
            lease_duration_seconds: Some(20),
            ..LeaseSpec::default()
        }),
    }
}

fn agreement(same: usize, others: &[&str]) -> Agreement {
    Agreement { hash: "new".to_owned(), same, others: others.iter().map(|name| (*name).to_owned()).collect() }
}

#[test]
fn replicas_agree_when_all_live_ones_have_the_same_settings() {
    struct Case {
        name: &'static str,
        seconds: u64,
        /// The name, version and hash of each Lease that exists now; `None` if no event has come.
        leases: Option<&'static [[&'static str; 3]]>,
        expected: Agreement,
    }
    let begin = Instant::now();
    let mut others = Others::default();
    assert!(!others.agreement("new", begin).is_on("new"), "not listed yet");
    let case = |name, seconds, leases, expected| Case { name, seconds, leases, expected };
    let cases = [
        case("listed", 0, Some(&[["me", "1", "new"], ["b", "1", "old"], ["a", "1", "old"]]), agreement(1, &["a", "b"])),
        case(
            "one replica uses the new settings",
            1,
            Some(&[["me", "1", "new"], ["b", "2", "new"], ["a", "1", "old"]]),
            agreement(2, &["a"]),
        ),
        case("the other replica may still be alive", 19, None, agreement(2, &["a"])),
        case(
            "another list does not renew the other replica",
            20,
            Some(&[["b", "2", "new"], ["a", "1", "old"]]),
            agreement(2, &[]),
        ),
        case("no other replica is alive", 21, None, agreement(1, &[])),
        case("the replica comes back", 30, Some(&[["b", "2", "new"], ["a", "2", "old"]]), agreement(1, &["a"])),
        case("the replica is removed", 31, Some(&[["b", "2", "new"]]), agreement(1, &[])),
        case("its own Lease is ignored", 32, Some(&[["b", "2", "new"], ["me", "2", "old"]]), agreement(1, &[])),
    ];
    for Case { name, seconds, leases, expected } in cases {
        let now = begin + Duration::from_secs(seconds);
        if let Some(leases) = leases {
            let leases = leases.iter().map(|[name, version, hash]| Arc::new(lease(name, version, hash)));
            others.update(&leases.collect::<Vec<_>>(), ME, now);
        }
        let found = others.agreement("new", now);
        assert_eq!(found, expected, "{name}");
        assert_eq!(found.is_on("new"), expected.others.is_empty(), "{name}");
        assert!(!found.is_on("another"), "{name}");
    }
}

#[test]
fn leases_left_behind_are_removed_in_the_version_that_was_seen() {
    struct Case {
        name: &'static str,
        seconds: u64,
        expected: Vec<(String, Version)>,
    }
    let begin = Instant::now();
    let mut others = Others::default();
    others.update(&[Arc::new(lease("a", "7", "old"))], ME, begin);
    let at = |seconds| begin + Duration::from_secs(seconds);
    let version = Version { uid: "uid-a".to_owned(), resource_version: "7".to_owned() };
    let removed = vec![("clusterip-replica-a".to_owned(), version)];
    let cases = [
        Case { name: "silent for 59 s", seconds: 59, expected: vec![] },
        Case { name: "silent for 60 s", seconds: 60, expected: removed.clone() },
        Case { name: "not removed again at once", seconds: 61, expected: vec![] },
        Case { name: "removed again later", seconds: 100, expected: removed },
    ];
    for Case { name, seconds, expected } in cases {
        assert_eq!(others.left_behind(at(seconds)), expected, "{name}");
        assert!(!others.by_name.values().any(|other| is_alive(other, at(seconds))), "{name}");
    }
}
