use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::*;
use crate::claims::holder_lease as claim;
use crate::heartbeat_state::{given_back, put_back};
use crate::leases::{Identity, Role};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn heartbeat(identity: &Identity, second: i64) -> Lease {
    let mut lease = put_back("node-1", at(second));
    lease.spec.as_mut().unwrap().holder_identity = Some(identity.to_string());
    lease
}

#[test]
fn claim_is_renewed_missing_given_back_replaced_or_silent() {
    let (me, other) = (Identity::with("node-1", Role::Agent, 1), Identity::with("node-1", Role::Agent, 2));
    let address = IpAddr::from([10, 0, 9, 10]);
    struct Case {
        name: &'static str,
        heartbeat: Option<Lease>,
        /// The current time in seconds, if it is known.
        now: Option<i64>,
        expected: Renewal,
    }
    let own = |second| Some(heartbeat(&me, second));
    let back = || Some(put_back("node-1", at(100)));
    let case = |name, heartbeat, expected| Case { name, heartbeat, now: Some(110), expected };
    let cases = [
        case("renewed 10 s ago", own(100), Renewal::Renewed),
        Case { now: Some(120), ..case("renewed 20 s ago", own(100), Renewal::Renewed) },
        Case { now: Some(121), ..case("renewed 21 s ago", own(100), Renewal::Silent) },
        case("renewed in the future", own(200), Renewal::Renewed),
        case("no heartbeat", None, Renewal::Missing),
        case("given back", own(100).map(|lease| given_back("node-1", &lease, at(100))), Renewal::GivenBack),
        case("a heartbeat of another term", Some(heartbeat(&other, 100)), Renewal::Replaced),
        case("put back", back(), Renewal::Renewed),
        Case { now: Some(130), ..case("put back long ago", back(), Renewal::Silent) },
        Case { now: None, ..case("without a clock, as new as the newest Lease", own(100), Renewal::Renewed) },
        Case { now: None, ..case("without a clock, 30 s older than the newest Lease", own(70), Renewal::Silent) },
    ];
    for Case { name, heartbeat, now, expected } in cases {
        let mut holdings = HolderSnapshot::new(now.map(at));
        holdings.apply(&claim(address, Some(&me), None, at(50)));
        let mut of_another = claim(IpAddr::from([10, 0, 9, 11]), None, None, at(100));
        of_another.metadata.labels = Some(BTreeMap::new());
        of_another.spec.as_mut().unwrap().renew_time = Some(MicroTime(at(100)));
        holdings.apply(&of_another);
        heartbeat.iter().for_each(|lease| holdings.apply(lease));
        let found = holdings.holder(address);
        assert_eq!(found.as_ref().map(|holder| holder.renewal), Some(expected), "{name}");
        assert_eq!(holdings.all().collect::<Vec<_>>(), [(address, found.unwrap())], "{name}");
    }
    let mut holdings = HolderSnapshot::new(None);
    holdings.apply(&claim(address, None, None, at(50)));
    assert_eq!(holdings.holder(address), None, "given back");
    assert_eq!(holdings.all().count(), 0);
}

#[test]
fn claims_and_heartbeats_have_the_labels_that_are_watched() {
    let address = IpAddr::from([10, 0, 9, 10]);
    let label = |lease: Lease| lease.metadata.labels.unwrap()[LEASE_LABEL].clone();
    let (claim, heartbeat) = (label(claim(address, None, None, at(50))), label(put_back("node-1", at(50))));
    assert_eq!(Observer::labels(), format!("{LEASE_LABEL} in ({claim},{heartbeat})"));
}
