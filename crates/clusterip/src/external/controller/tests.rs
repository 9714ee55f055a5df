//! Tests of `controller`.

use clusterip_cluster::live_settings::check_settings;
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use clusterip_core::annotations::{LEASE_LABEL, MOVING_ANNOTATION, RECORD_ANNOTATION};
use clusterip_failover::claims::{EXTERNAL, HolderClaim};
use clusterip_failover::heartbeat_state::put_back;
use clusterip_failover::leases::{Identity, Role};
use k8s_openapi::jiff::Timestamp;

use super::*;

const OURS: &str = "clusterip-policy/external";
const ADDRESS: &str = "10.0.9.10";

fn live(class: &str) -> Arc<LiveSettings> {
    let document =
        json!({"external": {"loadBalancerClass": class, "pools": [{"name": "lan", "cidrs": ["10.0.9.0/24"]}]}});
    Arc::new(check_settings(document, &ServiceRanges::default()).unwrap())
}

/// A Service of our class with a recorded address, which its status shows.
fn balancer() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": "web", "uid": "1", "annotations": {RECORD_ANNOTATION: ADDRESS}},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": OURS},
        "status": {"loadBalancer": {"ingress": [{"ip": ADDRESS, "ipMode": "VIP"}]}},
    })
}

fn changed(change: Value) -> Value {
    let mut service = balancer();
    json_patch::merge(&mut service, &change);
    service
}

fn look(service: &Value, class: &str, holders: &[(&str, &str)]) -> Look {
    let mut snapshot = Snapshot::default();
    snapshot.insert(service);
    let holders = holders.iter().map(|(address, node)| (address.parse().unwrap(), (*node).to_owned())).collect();
    look_at(snapshot, class, &holders)
}

fn look_at(snapshot: Snapshot, class: &str, holders: &BTreeMap<IpAddr, String>) -> Look {
    let live = live(class);
    Look::at(&Arc::new(RwLock::new(snapshot)), &live, holders, &ExternalPolicy::new(&live.settings.external))
}

/// The ingress in the status of the Service after the patch; `None` if the API server refuses it.
fn patched(mut service: Value, patch: &Value) -> Option<Value> {
    let operations: json_patch::Patch = serde_json::from_value(patch.clone()).unwrap();
    json_patch::patch(&mut service, &operations).ok()?;
    Some(service["status"]["loadBalancer"]["ingress"].clone())
}

#[test]
fn status_is_written_only_to_the_service_that_it_was_decided_from() {
    let unheld = changed(json!({"status": {"loadBalancer": {"ingress": null}}}));
    let (on, off) = (look(&unheld, OURS, &[(ADDRESS, "n1")]), look(&balancer(), OURS, &[]));
    let [on, off] = [on, off].map(|look| look.statuses.first().unwrap().patch());
    let held = json!([{"ip": ADDRESS, "ipMode": "VIP"}]);
    assert_eq!(patched(unheld.clone(), &on), Some(held.clone()));
    assert_eq!(patched(balancer(), &off), Some(json!([])));
    let rows = [
        ("another Service of this name", json!({"metadata": {"uid": "2"}})),
        ("another type", json!({"spec": {"type": "ClusterIP"}})),
        ("another class", json!({"spec": {"loadBalancerClass": "x/y"}})),
        ("without a record", json!({"metadata": {"annotations": null}})),
        ("another record", json!({"metadata": {"annotations": {RECORD_ANNOTATION: "10.0.9.11"}}})),
    ];
    for (name, change) in rows {
        for (service, patch) in [(&unheld, &on), (&balancer(), &off)] {
            let mut service = service.clone();
            json_patch::merge(&mut service, &change);
            assert_eq!(patched(service, patch), None, "{name}");
        }
    }
    let other = changed(json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.1.0.1"}]}}}));
    assert_eq!(patched(other, &off), None, "a status that another program has written");
}

/// The namespace has more objects than are kept.
#[test]
fn service_that_is_left_out_shows_only_addresses_of_pools() {
    let ingress = |addresses: &[&str]| addresses.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>();
    for (name, class, shown, left) in [
        ("in its pool", OURS, &[ADDRESS][..], None),
        ("out of the pool", OURS, &[ADDRESS, "10.0.8.10"], Some(&[ADDRESS][..])),
        ("not served any more", "x/y", &[ADDRESS, "10.0.8.10"], Some(&["10.0.8.10"])),
    ] {
        let service = changed(json!({"metadata": {"annotations": {"filling": "x".repeat(99)}},
            "status": {"loadBalancer": {"ingress": ingress(shown)}}}));
        let mut snapshot = Snapshot::limited_to(1);
        snapshot.insert(&service);
        let look = look_at(snapshot, class, &BTreeMap::new());
        let written = look.statuses.first().map(|status| patched(service, &status.patch()).unwrap());
        assert_eq!(written, left.map(|left| ingress(left).into()), "{name}");
        assert!(look.lacking.is_empty() && look.served.contains_key("1"), "{name}");
    }
}

#[test]
fn service_that_is_served_no_longer_loses_its_status_before_its_record() {
    let other = json!({"ip": "10.1.0.1", "ipMode": "Proxy"});
    let both = json!([{"ip": ADDRESS, "ipMode": "VIP"}, other]);
    struct Case {
        name: &'static str,
        change: Value,
        /// The class in the settings.
        class: &'static str,
        ingress: Option<Value>,
        lacks: bool,
    }
    let base = || Case { name: "served", change: json!({}), class: "x/y", ingress: None, lacks: false };
    let cases = [
        Case { class: OURS, ..base() },
        Case { name: "with another class", ingress: Some(json!([])), ..base() },
        Case {
            name: "beside the address of another program",
            change: json!({"status": {"loadBalancer": {"ingress": both}}}),
            ingress: Some(json!([other])),
            ..base()
        },
        Case { name: "without the status", change: json!({"status": null}), lacks: true, ..base() },
        Case { name: "without a record", change: json!({"metadata": {"annotations": null}}), ..base() },
    ];
    for Case { name, change, class, ingress, lacks } in cases {
        let service = changed(change);
        let Look { statuses, lacking, .. } = look(&service, class, &[(ADDRESS, "n1")]);
        let written = statuses.first().map(|status| patched(service, &status.patch()).unwrap());
        assert_eq!((written, lacking.len()), (ingress, usize::from(lacks)), "{name}");
    }
}

#[test]
fn status_of_a_service_is_emptied_when_there_are_no_pools() {
    let shows_it = json!([{"ip": ADDRESS, "ipMode": "VIP"}]);
    let without_record = json!({"metadata": {"annotations": null}});
    let classless = json!({"spec": {"loadBalancerClass": null}});
    let other_record = json!({"metadata": {"annotations": {RECORD_ANNOTATION: "10.0.9.11"}}});
    struct Case {
        name: &'static str,
        /// The Service when this process last looked; `None` if it has not.
        before: Option<Value>,
        change: Value,
        is_emptied: bool,
    }
    let before = || Some(balancer());
    let cases = [
        Case { name: "served before", before: before(), change: json!({}), is_emptied: true },
        Case { name: "its record was removed", before: before(), change: without_record.clone(), is_emptied: true },
        Case { name: "its record was replaced", before: before(), change: other_record, is_emptied: true },
        Case {
            name: "another Service, without a record",
            before: Some(changed(json!({"metadata": {"uid": "2"}}))),
            change: without_record.clone(),
            is_emptied: false,
        },
        Case {
            name: "another program has given it this address",
            before: Some(changed(
                json!({"metadata": {"annotations": {RECORD_ANNOTATION: "10.0.9.11"}}, "status": null}),
            )),
            change: without_record,
            is_emptied: false,
        },
        Case { name: "served by an earlier process", before: None, change: json!({}), is_emptied: true },
        Case { name: "perhaps taken over by another program", before: None, change: classless, is_emptied: false },
    ];
    for Case { name, before, change, is_emptied } in cases {
        let served = before.map(|before| look(&before, OURS, &[(ADDRESS, "n1")]).served).unwrap_or_default();
        let service = changed(change);
        let external = &live(OURS).settings.external;
        let left = left_status(&Arc::new(StoredService::read(&service)), external, &served);
        let written = left.map_or(shows_it.clone(), |left| patched(service, &left.patch()).unwrap());
        assert_eq!(written, if is_emptied { json!([]) } else { shows_it.clone() }, "{name}");
    }
}

#[test]
fn record_stays_during_a_move() {
    let marker = json!({MOVING_ANNOTATION: "{}"});
    let alias = json!({"spec": {"type": "ExternalName"}, "metadata": {"annotations": marker}, "status": null});
    let (marked, unmarked) = (changed(alias), changed(json!({"spec": {"type": "ExternalName"}, "status": null})));
    let begin = Instant::now();
    let (mut term, unknown, known) = (Term::new(begin), UnfinishedMoves::default(), UnfinishedMoves::default());
    known.add("1", &ServiceKey::new("shop", "web"), false);
    let mut lacks = |service: &Value, moves: &UnfinishedMoves, after: Duration| {
        let mut lacking = look(service, OURS, &[]).lacking;
        assert_eq!(lacking.len(), 1);
        let again = term.leave_moves(&mut lacking, moves, begin + after);
        assert_eq!(again.is_some(), lacking.is_empty(), "what is left alone is looked at again");
        !lacking.is_empty()
    };
    assert!(!lacks(&marked, &unknown, Duration::ZERO));
    assert!(!lacks(&marked, &unknown, MOVE_TIME - Duration::from_secs(1)));
    assert!(lacks(&marked, &unknown, MOVE_TIME), "a marker without a known move counts for a limited time");
    assert!(!lacks(&marked, &known, 10 * MOVE_TIME));
    assert!(!lacks(&unmarked, &known, Duration::ZERO), "a user may remove the marker");
    assert!(lacks(&unmarked, &unknown, Duration::ZERO));
}

fn heartbeat(agent: &Identity) -> Lease {
    let mut heartbeat = put_back("n1", Timestamp::UNIX_EPOCH);
    heartbeat.spec.as_mut().unwrap().holder_identity = Some(agent.to_string());
    heartbeat
}

fn claim(address: IpAddr, agent: &Identity) -> Lease {
    serde_json::from_value(json!({
        "metadata": {"name": HolderClaim::lease_name(address), "labels": {LEASE_LABEL: EXTERNAL},
                     "annotations": {"clusterip-policy/address": address.to_string()}},
        "spec": {"holderIdentity": agent.to_string()},
    }))
    .unwrap()
}

/// With the token of an agent, an attacker creates thousands of claims, and changes Leases all the time.
#[test]
fn events_that_arrive_together_are_compared_once() {
    let agent = Identity::with("n1", Role::Agent, 1);
    let now = Instant::now();
    let mut term = Term::new(now);
    let claims = (0..5000).map(|number| claim(std::net::Ipv4Addr::from(0x0a10_0000 + number).into(), &agent));
    let listed = claims.chain([heartbeat(&agent)]).map(|lease| Ok(Event::InitApply(lease)));
    term.handle_lease_events(listed.chain([Ok(Event::InitDone)]).collect(), now);
    term.observe_holders(now);
    let begin = Instant::now();
    assert_eq!(term.observer.holders(now).len(), 5000);
    let one_comparison = begin.elapsed();
    let events = (0..EVENTS).map(|_| Ok(Event::Apply(heartbeat(&agent)))).collect();
    let begin = Instant::now();
    assert!(!term.handle_lease_events(events, now), "no holder has changed");
    let took = begin.elapsed();
    assert!(took < 20 * one_comparison, "{EVENTS} events took {took:?}, a comparison takes {one_comparison:?}");
}

#[test]
fn silent_watch_takes_no_address_away() {
    let address: IpAddr = ADDRESS.parse().unwrap();
    let agent = Identity::with("n1", Role::Agent, 1);
    let (heartbeat, claim) = (heartbeat(&agent), claim(address, &agent));
    let begin = Instant::now();
    let after = |seconds| begin + Duration::from_secs(seconds);
    let mut term = Term::new(begin);
    let list = |term: &mut Term, now| {
        let listed = [&heartbeat, &claim].map(|lease| Ok(Event::InitApply(lease.clone())));
        term.handle_lease_events(
            [Ok(Event::Init)].into_iter().chain(listed).chain([Ok(Event::InitDone)]).collect(),
            now,
        )
    };
    assert!(list(&mut term, begin), "the first list");
    let holds = |term: &mut Term, now| {
        term.observe_holders(now);
        term.holders.contains_key(&address)
    };
    assert!(holds(&mut term, after(1)));
    assert!(holds(&mut term, after(100)), "the watch is silent");
    term.handle_lease_events(vec![Ok(Event::Init)], after(100));
    assert!(holds(&mut term, after(100)), "the new list has not been answered");
    term.handle_lease_events(vec![Ok(Event::InitApply(heartbeat.clone()))], after(100));
    assert!(holds(&mut term, after(100)), "the new list is not complete");
    assert!(list(&mut term, after(100)), "the agent is dead");
    assert!(!holds(&mut term, after(101)));
}

#[test]
fn change_matters_if_the_service_may_have_had_an_external_address() {
    let kind = |name: &str| ("v1".to_owned(), name.to_owned());
    let plain = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"}});
    let stored = |object: &Value| Stored::Service(Arc::new(StoredService::read(object)));
    let (plain, balancer) = (stored(&plain), stored(&balancer()));
    let rows = [
        ("Service", Some(&plain), Some(&balancer), true),
        ("Service", Some(&balancer), Some(&plain), true),
        ("Service", Some(&balancer), None, true),
        ("Service", Some(&plain), Some(&plain), false),
        ("Service", None, Some(&plain), false),
        ("Namespace", None, None, true),
    ];
    for (number, (name, before, after, expected)) in rows.into_iter().enumerate() {
        let change = Change { kind: &kind(name), namespace: "shop", name: "web", before, after };
        assert_eq!(matters(&change), expected, "row {number}");
    }
}
