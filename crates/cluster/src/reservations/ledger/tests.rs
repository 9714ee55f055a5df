use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;

use serde_json::json;

use super::*;
use crate::watch::partial_object::PartialObject;

/// A ledger whose clock is set by hand, in seconds.
fn ledger() -> (Ledger, Arc<AtomicU64>) {
    let (begin, seconds) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let clock = Arc::clone(&seconds);
    (Ledger::with_clock(move || begin + Duration::from_secs(clock.load(Ordering::Relaxed))), seconds)
}

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// A share without a limit.
fn any(_: IpAddr) -> NamespaceShare<'static> {
    share_of(usize::MAX, |_| true)
}

fn share_of(max: usize, counts: impl Fn(IpAddr) -> bool + 'static) -> NamespaceShare<'static> {
    NamespaceShare { max, burst: max.saturating_mul(2), counts: Box::new(counts) }
}

/// A share of four for the even addresses of 10.0.0.0/24, and one of four for the odd addresses: two pools.
fn four(address: IpAddr) -> NamespaceShare<'static> {
    let is_even = |address: IpAddr| matches!(address, IpAddr::V4(address) if address.octets()[3] % 2 == 0);
    share_of(4, move |other| is_even(other) == is_even(address))
}

/// Reserves an external address for an evaluation, while no Service shows any.
fn reserve_external(ledger: &Ledger, address: IpAddr, owner: &Owner, shares: Shares<'_>) -> Result<bool, String> {
    ledger.reserve_external(address, owner, &shares(address), |_| false)
}

/// Reserves an address for an evaluation, and commits it.
fn reserve_and_commit(ledger: &Ledger, address: IpAddr, owner: &Owner, shares: Shares<'_>) -> Vec<IpAddr> {
    assert!(ledger.reserve(address, owner, || false));
    ledger.commit(owner, &[address], &[address], shares)
}

fn web() -> Owner {
    Owner::new("shop", "web", "uid-1")
}

fn shown(ledger: &Ledger) -> Vec<String> {
    let show = |(address, owner): (IpAddr, Owner)| format!("{address} {}", owner.service);
    ledger.reservations().into_iter().map(show).collect()
}

/// Another thread that holds the lock of the snapshot may ask the ledger while an evaluation waits for that lock.
#[test]
fn ledger_answers_while_the_cluster_is_asked() {
    type Ask = fn(&Ledger, &dyn Fn() -> bool) -> bool;
    let cases: [(&str, Ask); 2] = [
        ("reserve", |ledger, is_used| ledger.reserve(ip(1), &web(), is_used)),
        ("is_free", |ledger, is_used| ledger.is_free(ip(1), is_used)),
    ];
    for (name, ask) in cases {
        let (ledger, _) = ledger();
        let is_used = || {
            let (answered, answer) = mpsc::channel();
            let other = ledger.clone();
            thread::spawn(move || answered.send(other.reservations().len()));
            answer.recv_timeout(Duration::from_secs(10)).is_err()
        };
        assert!(ask(&ledger, &is_used), "{name}: the ledger was locked");
    }
}

#[test]
fn evaluation_keeps_used_addresses_and_releases_others() {
    let (ledger, _) = ledger();
    for last in [1, 2, 3] {
        assert!(ledger.reserve(ip(last), &web(), || false));
    }
    assert!(!ledger.reserve(ip(4), &web(), || true), "used in the cluster");
    assert!(!ledger.reserve(ip(2), &Owner::new("shop", "db", "uid-2"), || false), "reserved for another Service");
    assert!(!ledger.reserve(ip(2), &web(), || false), "reserved for another request with the same name");
    ledger.commit(&web(), &[ip(1), ip(2), ip(3)], &[ip(2)], &any);
    assert_eq!(shown(&ledger), ["10.0.0.2 shop/web"]);
    assert!(ledger.reserve(ip(1), &Owner::new("shop", "db", "uid-2"), || false), "released");
}

#[test]
fn dry_look_up_reserves_nothing() {
    let (ledger, _) = ledger();
    assert!(ledger.is_free(ip(1), || false));
    assert!(!ledger.is_free(ip(1), || true));
    assert!(ledger.reservations().is_empty());
    assert!(ledger.reserve(ip(1), &web(), || false));
    assert!(!ledger.is_free(ip(1), || false), "a reserved address is not free");
}

#[test]
fn reservation_ends_when_address_is_seen_or_after_timeout() {
    let (ledger, seconds) = ledger();
    for last in [1, 2] {
        assert!(ledger.reserve(ip(last), &web(), || false));
    }
    let seen = json!({
        "metadata": {"namespace": "shop", "name": "web"}, "spec": {"clusterIP": ip(1), "clusterIPs": [ip(1)]},
    });
    ledger.mark_seen(&seen);
    assert_eq!(ledger.reservations().len(), 2, "while an evaluation runs, the seen object is not its Service");
    ledger.commit(&web(), &[ip(1), ip(2)], &[ip(1), ip(2)], &any);
    ledger.mark_seen(&seen);
    assert_eq!(shown(&ledger), ["10.0.0.2 shop/web"]);
    seconds.store(64, Ordering::Relaxed);
    assert!(!ledger.reserve(ip(2), &web(), || false));
    seconds.store(65, Ordering::Relaxed);
    assert!(!ledger.is_given_to(ip(2), &web().service));
    assert!(ledger.reserve(ip(2), &Owner::new("shop", "db", "uid-2"), || false));
}

#[test]
fn only_the_service_of_a_reservation_ends_it_and_only_that_of_a_cluster_ip() {
    struct Case {
        name: &'static str,
        /// The namespace and the name; the name is empty if it is not generated yet.
        owner: (&'static str, &'static str),
        external: bool,
        seen: (&'static str, &'static str),
        spec: Value,
        annotations: Value,
        ends: bool,
    }
    let none = || json!({});
    let has = || json!({"clusterIP": ip(1), "clusterIPs": [ip(1)]});
    let names = || json!({"externalIPs": [ip(1)]});
    let asks = || json!({"metallb.io/loadBalancerIPs": ip(1)});
    let (web, db, other) = (("shop", "web"), ("shop", "db"), ("mallory", "web"));
    let case = |name, owner, external, seen, spec, annotations, ends| Case {
        name,
        owner,
        external,
        seen,
        spec,
        annotations,
        ends,
    };
    let cases = [
        case("its Service has the ClusterIP", web, false, web, has(), none(), true),
        case("its Service has a generated name", ("shop", ""), false, web, has(), none(), true),
        case("a generated name of another namespace", ("shop", ""), false, other, has(), none(), false),
        case("another Service has the ClusterIP", web, false, db, has(), none(), false),
        case("another namespace has the ClusterIP", web, false, other, has(), none(), false),
        case("another namespace names it in externalIPs", web, false, other, names(), none(), false),
        case("another namespace names it in an annotation", web, false, other, none(), asks(), false),
        case("its Service names it as an external address", web, false, web, names(), asks(), false),
        case("its Service shows the external address", web, true, web, names(), none(), false),
        case("its Service asks for the external address", web, true, web, none(), asks(), false),
        case("a Service with a generated name shows it", ("shop", ""), true, web, names(), none(), false),
        case("another Service asks for the external address", web, true, other, names(), asks(), false),
        case("its Service has the external address as ClusterIP", web, true, web, has(), none(), false),
    ];
    for Case { name, owner, external, seen, spec, annotations, ends } in cases {
        let (ledger, _) = ledger();
        let owner = Owner::new(owner.0, owner.1, "uid-1");
        match external {
            true => assert_eq!(reserve_external(&ledger, ip(1), &owner, &any), Ok(true)),
            false => assert!(ledger.reserve(ip(1), &owner, || false)),
        }
        ledger.commit(&owner, &[ip(1)], &[ip(1)], &any);
        let metadata = json!({"namespace": seen.0, "name": seen.1, "annotations": annotations});
        ledger.mark_seen(&json!({"metadata": metadata, "spec": spec}));
        assert_eq!(ledger.reservations().is_empty(), ends, "{name}");
    }
}

#[test]
fn ip_address_ends_the_reservation_of_its_cluster_ip_for_the_service_that_it_names() {
    struct Case {
        name: &'static str,
        owner: &'static str,
        /// The namespace and the name of the Service that the `IPAddress` names.
        parent: (&'static str, &'static str),
        ends: bool,
    }
    let cases = [
        Case { name: "its Service", owner: "web", parent: ("shop", "web"), ends: true },
        Case { name: "its Service has a generated name", owner: "", parent: ("shop", "web-x7k2p"), ends: true },
        Case {
            name: "a Service of a tenant with the same address",
            owner: "web",
            parent: ("mallory", "web"),
            ends: false,
        },
        Case {
            name: "the temporary Service of its move",
            owner: "web",
            parent: ("shop", "clusterip-new-0123456789"),
            ends: false,
        },
    ];
    for Case { name, owner, parent, ends } in cases {
        let (ledger, _) = ledger();
        let owner = Owner::new("shop", owner, "uid-1");
        assert!(ledger.reserve(ip(1), &owner, || false));
        assert_eq!(reserve_external(&ledger, ip(2), &owner, &any), Ok(true));
        ledger.commit(&owner, &[ip(1), ip(2)], &[ip(1), ip(2)], &any);
        for last in [1, 2] {
            let kind = ("networking.k8s.io/v1".to_owned(), "IPAddress".to_owned());
            let parent = json!({"group": "", "resource": "services", "namespace": parent.0, "name": parent.1});
            let address = json!({"metadata": {"name": ip(last)}, "spec": {"parentRef": parent}});
            // As the watch reads it.
            let read: PartialObject = serde_json::from_value(address).unwrap();
            ledger.mark_seen(&read.value(&kind).unwrap());
        }
        let left = ledger.reservations().into_iter().map(|(address, _)| address).collect::<Vec<_>>();
        let expected = if ends { vec![ip(2)] } else { vec![ip(1), ip(2)] };
        assert_eq!(left, expected, "{name}: the API server does not allocate external addresses");
    }
}

#[test]
fn each_new_reservation_removes_those_that_have_ended() {
    let (ledger, seconds) = ledger();
    let add: [fn(&Ledger, IpAddr); 4] = [
        |ledger, address| drop(reserve_and_commit(ledger, address, &web(), &any)),
        |ledger, address| {
            assert_eq!(reserve_external(ledger, address, &web(), &any), Ok(true));
            ledger.commit(&web(), &[address], &[address], &any);
        },
        |ledger, address| ledger.reserve_claimed(address, &web(), RESERVATION_TIME),
        |ledger, address| drop(ledger.reserve_chosen_by_hand(address, &web(), &any)),
    ];
    for (last, add) in (1..).zip(add) {
        add(&ledger, ip(last));
        assert_eq!(ledger.reservations.lock().len(), 1, "{last}");
        seconds.fetch_add(65, Ordering::Relaxed);
    }
}

#[test]
fn external_address_stays_reserved_for_a_create_in_progress_after_another_create_of_the_service() {
    let (ledger, seconds) = ledger();
    let (web, db) = (Owner::new("shop", "web", ""), Owner::new("bank", "db", ""));
    assert_eq!(reserve_external(&ledger, ip(1), &web, &any), Ok(true));
    ledger.commit(&web, &[ip(1)], &[ip(1)], &any);
    seconds.store(10, Ordering::Relaxed);
    assert!(ledger.renew_external(ip(1), &web, false), "a second create");
    let metadata = json!({"namespace": "shop", "name": "web"});
    ledger.mark_seen(&json!({"metadata": metadata, "spec": {"externalIPs": [ip(1)]}}));
    // The Service is deleted. The second create is still in progress.
    seconds.store(74, Ordering::Relaxed);
    assert!(!ledger.renew_external(ip(1), &db, false));
    assert_eq!(reserve_external(&ledger, ip(1), &db, &any), Ok(false));
    assert!(ledger.is_reserved_here(ip(1)));
    seconds.store(75, Ordering::Relaxed);
    assert!(!ledger.renew_external(ip(1), &web, false), "ended");
    assert_eq!(reserve_external(&ledger, ip(1), &db, &any), Ok(true));
}

#[test]
fn reservation_of_the_controller_ends_when_its_service_is_seen_unless_an_answer_renewed_it() {
    for (name, renewed) in [("only the controller", false), ("also an answer", true)] {
        let (ledger, _) = ledger();
        assert_eq!(reserve_external(&ledger, ip(1), &web(), &any), Ok(true));
        ledger.written_by_controller(&[ip(1)]);
        ledger.commit(&web(), &[ip(1)], &[ip(1)], &any);
        assert_eq!(reserve_external(&ledger, ip(1), &Owner::new("bank", "db", ""), &any), Ok(false), "{name}");
        assert!(!renewed || ledger.renew_external(ip(1), &web(), false), "{name}");
        ledger.written_by_controller(&[ip(1)]);
        let metadata = json!({"namespace": "shop", "name": "web"});
        ledger.mark_seen(&json!({"metadata": metadata, "spec": {"externalIPs": [ip(1)]}}));
        assert_eq!(ledger.reservations().is_empty(), !renewed, "{name}");
    }
}

#[test]
fn external_address_stays_reserved_for_a_service_whose_name_was_generated() {
    let (ledger, _) = ledger();
    let unnamed = Owner::new("shop", "", "uid-7");
    assert_eq!(reserve_external(&ledger, ip(1), &unnamed, &any), Ok(true));
    let seen = json!({"metadata": {"namespace": "shop", "name": "web-x7k2p"}, "spec": {"externalIPs": [ip(1)]}});
    ledger.mark_seen(&seen);
    assert_eq!(shown(&ledger), ["10.0.0.1 shop/"], "while an evaluation runs, the seen object is not its Service");
    ledger.commit(&unnamed, &[ip(1)], &[ip(1)], &any);
    // The API server asks again about the record that the answer wrote.
    let asked_again = Owner::new("shop", "", "uid-8");
    for (owner, is_recorded, expected) in
        [(&asked_again, true, true), (&asked_again, false, false), (&Owner::new("bank", "", "uid-9"), true, false)]
    {
        assert_eq!(ledger.renew_external(ip(1), owner, is_recorded), expected, "{owner:?} {is_recorded}");
    }
    ledger.mark_seen(&seen);
    assert_eq!(shown(&ledger), ["10.0.0.1 shop/web-x7k2p"]);
    assert!(ledger.renew_external(ip(1), &Owner::new("shop", "web-x7k2p", ""), false), "an update may give it back");
}

#[test]
fn one_service_reserves_two_cluster_ips_per_family() {
    let (ledger, seconds) = ledger();
    let second_family: IpAddr = "fd00::1".parse().unwrap();
    for (second, address) in [(0, ip(9)), (1, second_family), (2, ip(3)), (3, ip(5))] {
        seconds.store(second, Ordering::Relaxed);
        assert!(ledger.reserve(address, &web(), || false));
        ledger.commit(&web(), &[address], &[address], &any);
    }
    // No reservation of an external address is released for another one.
    for last in [12, 11, 10, 13] {
        seconds.fetch_add(5, Ordering::Relaxed);
        assert_eq!(reserve_external(&ledger, ip(last), &web(), &any), Ok(true));
        assert_eq!(reserve_external(&ledger, ip(last), &web(), &any), Ok(false), "reserved");
        assert_eq!(ledger.commit(&web(), &[ip(last)], &[ip(last)], &any), Vec::<IpAddr>::new());
    }
    let latest = ["10.0.0.3", "10.0.0.5", "10.0.0.10", "10.0.0.11", "10.0.0.12", "10.0.0.13", "fd00::1"];
    let latest = latest.map(|address| format!("{address} shop/web"));
    assert_eq!(shown(&ledger), latest);
    // Requests without a name are for as many Services as there are requests.
    for last in 20..30 {
        let unnamed = Owner::new("shop", "", &format!("uid-{last}"));
        assert!(ledger.reserve(ip(last), &unnamed, || false));
        ledger.commit(&unnamed, &[ip(last)], &[ip(last)], &any);
    }
    assert_eq!(ledger.reservations().len(), latest.len() + 10);
}

#[test]
fn namespace_loses_oldest_reservations_beyond_its_share() {
    let service = |namespace: &str, name: &str| Owner::new(namespace, name, "");
    let unnamed = |uid: &str| Owner::new("shop", "", uid);
    struct Row {
        name: &'static str,
        owner: Owner,
        address: u8,
        released: &'static [u8],
    }
    let row = |name, owner, address, released| Row { name, owner, address, released };
    let (ledger, seconds) = ledger();
    let rows = [
        row("the first", service("shop", "a"), 10, &[]),
        row("a generated name", unnamed("uid-1"), 12, &[]),
        row("another generated name", unnamed("uid-2"), 14, &[]),
        row("the last of its share", service("shop", "b"), 16, &[]),
        row("another pool", service("shop", "c"), 11, &[]),
        row("another namespace", service("bank", "a"), 18, &[]),
        row("one more than the share", service("shop", "d"), 20, &[10]),
        row("and one more, without a name", unnamed("uid-3"), 22, &[12]),
        row("the freed address again", service("shop", "e"), 10, &[14]),
        row("another namespace is not touched", service("bank", "b"), 14, &[]),
    ];
    for (number, Row { name, owner, address, released }) in (0..).zip(rows) {
        seconds.store(5 * number, Ordering::Relaxed);
        let expected: Vec<IpAddr> = released.iter().map(|last| ip(*last)).collect();
        assert_eq!(reserve_and_commit(&ledger, ip(address), &owner, &four), expected, "{name}");
    }
    let expected = [10, 11, 14, 16, 18, 20, 22].map(ip);
    assert_eq!(ledger.reservations().into_iter().map(|(address, _)| address).collect::<Vec<_>>(), expected);
}

#[test]
fn address_chosen_by_hand_counts_towards_the_share() {
    let (ledger, seconds) = ledger();
    let mut released = Vec::new();
    for last in [2, 4, 6, 8, 10, 12] {
        seconds.fetch_add(5, Ordering::Relaxed);
        let owner = Owner::new("shop", &format!("web-{last}"), "");
        released.extend(ledger.reserve_chosen_by_hand(ip(last), &owner, &four));
    }
    assert_eq!((released, ledger.reservations().len()), ([2, 4].map(ip).to_vec(), 4));
}

#[test]
fn reservations_of_running_evaluations_and_other_replicas_count_but_stay() {
    let (ledger, seconds) = ledger();
    reserve_and_commit(&ledger, ip(2), &Owner::new("shop", "old", ""), &four);
    seconds.store(5, Ordering::Relaxed);
    assert!(ledger.reserve(ip(4), &Owner::new("shop", "open", ""), || false));
    ledger.reserve_claimed(ip(6), &Owner::new("shop", "elsewhere", ""), Duration::from_secs(70));
    ledger.reserve_claimed(ip(8), &Owner::new("shop", "elsewhere-too", ""), Duration::from_secs(70));
    assert_eq!(reserve_and_commit(&ledger, ip(10), &web(), &four), [ip(2)]);
    // Nothing is left that may be released; the address that was just given stays reserved all the same.
    seconds.store(10, Ordering::Relaxed);
    assert_eq!(reserve_and_commit(&ledger, ip(12), &Owner::new("shop", "db", ""), &four), [ip(10)]);
    assert_eq!(ledger.reservations().len(), 4);
    assert!(ledger.is_reserved_here(ip(12)) && ledger.is_reserved_here(ip(4)));
}

#[test]
fn young_reservations_are_released_only_beyond_the_burst() {
    let (ledger, seconds) = ledger();
    let owner = |last: u8| Owner::new("shop", &format!("web-{last}"), "");
    for last in [2, 4, 6, 8, 10, 12, 14, 16] {
        assert_eq!(
            reserve_and_commit(&ledger, ip(last), &owner(last), &four),
            Vec::<IpAddr>::new(),
            "{last}: twice the share for a moment"
        );
    }
    assert_eq!(reserve_and_commit(&ledger, ip(18), &owner(18), &four).len(), 1, "and no more");
    seconds.store(5, Ordering::Relaxed);
    assert_eq!(reserve_and_commit(&ledger, ip(20), &owner(20), &four).len(), 5, "then the share alone");
    assert_eq!(ledger.reservations().len(), 4);
}

#[test]
fn external_reservations_are_never_released_and_those_without_a_service_are_limited() {
    let (ledger, seconds) = ledger();
    let owner = |last: u8| Owner::new("shop", &format!("web-{last}"), "");
    let reserve = |last: u8, shown: &[u8]| {
        let is_shown = |address| shown.iter().any(|last| ip(*last) == address);
        let reserved = ledger.reserve_external(ip(last), &owner(last), &four(ip(last)), is_shown)?;
        let released = ledger.commit(&owner(last), &[ip(last)], &[ip(last)], &four);
        Ok::<_, String>((reserved, released.len()))
    };
    for last in [2, 4, 6, 8, 10, 12, 14, 16] {
        assert_eq!(reserve(last, &[]), Ok((true, 0)), "{last}");
    }
    let exceeded = Err("namespace shop has 8 external addresses of this pool in flight, of at most 8; an address \
                        without a Service is in flight for 65 s after its last request: try again then"
        .to_owned());
    assert_eq!(reserve(18, &[]), exceeded);
    assert_eq!(reserve_external(&ledger, ip(18), &Owner::new("bank", "web", ""), &four), Ok(true));
    seconds.store(64, Ordering::Relaxed);
    assert_eq!(reserve(20, &[]), exceeded);
    assert_eq!(reserve(20, &[2, 4]), Ok((true, 0)), "its Services show two of the addresses");
    assert_eq!(reserve(22, &[2]), exceeded, "one of these Services is deleted");
    seconds.store(65, Ordering::Relaxed);
    assert_eq!(reserve(22, &[]), Ok((true, 0)));
}

#[test]
fn both_addresses_of_one_answer_stay_reserved() {
    let (ledger, _) = ledger();
    let none = |_: IpAddr| share_of(0, |_| true);
    for address in [ip(2), ip(4)] {
        assert!(ledger.reserve(address, &web(), || false));
    }
    assert_eq!(ledger.commit(&web(), &[ip(2), ip(4)], &[ip(2), ip(4)], &none), Vec::<IpAddr>::new());
    assert_eq!(ledger.reservations().len(), 2);
}

proptest::proptest! {
    #[test]
    fn no_namespace_reserves_more_than_its_share(
        steps in proptest::collection::vec((0_u8..3, 0_u8..=255, 0_u8..3, 0_u64..20), 1..200),
    ) {
        let (ledger, seconds) = ledger();
        for (number, (namespace, last, kind, pause)) in steps.into_iter().enumerate() {
            seconds.fetch_add(pause, Ordering::Relaxed);
            let name = if kind == 0 { String::new() } else { format!("web-{number}") };
            let owner = Owner::new(&format!("ns-{namespace}"), &name, &format!("uid-{number}"));
            let others = |ledger: &Ledger| -> Vec<(IpAddr, Owner)> {
                let is_other = |(_, other): &(IpAddr, Owner)| other.service.namespace != owner.service.namespace;
                ledger.reservations().into_iter().filter(is_other).collect()
            };
            let before = others(&ledger);
            if kind == 1 {
                ledger.reserve_chosen_by_hand(ip(last), &owner, &four);
            } else if ledger.reserve(ip(last), &owner, || false) {
                ledger.commit(&owner, &[ip(last)], &[ip(last)], &four);
            }
            proptest::prop_assert_eq!(others(&ledger), before, "others lose nothing");
            for parity in [0, 1] {
                let reservations = ledger.reservations();
                let counts = four(ip(parity)).counts;
                let counted = reservations.iter().filter(|(address, other)| {
                    other.service.namespace == owner.service.namespace && counts(*address)
                });
                proptest::prop_assert!(counted.count() <= 8);
            }
        }
    }
}

#[test]
fn own_address_is_recognized_by_namespace_name_and_address() {
    let (ledger, _) = ledger();
    let unnamed = Owner::new("shop", "", "uid-7");
    for (address, owner) in [(ip(1), web()), (ip(2), unnamed)] {
        assert!(ledger.reserve(address, &owner, || false));
        ledger.commit(&owner, &[address], &[address], &any);
    }
    ledger.reserve_chosen_by_hand(ip(3), &web(), &any);
    for (name, last, namespace, service, expected) in [
        ("ours", 1, "shop", "web", true),
        ("another namespace", 1, "bank", "web", false),
        ("another name", 1, "shop", "db", false),
        ("another address", 9, "shop", "web", false),
        ("chosen by hand", 3, "shop", "web", false),
        ("without a name", 2, "shop", "", true),
        ("without a name, elsewhere", 2, "bank", "", false),
    ] {
        assert_eq!(ledger.is_given_to(ip(last), &ServiceKey::new(namespace, service)), expected, "{name}");
    }
    assert!(!ledger.reserve(ip(3), &Owner::new("shop", "db", ""), || false), "chosen by hand, and reserved");
    ledger.reserve_chosen_by_hand(ip(1), &Owner::new("shop", "db", ""), &any);
    assert!(ledger.is_given_to(ip(1), &web().service), "the first owner keeps the reservation");
    ledger.release(&[ip(1)], &Owner::new("shop", "db", ""));
    assert!(ledger.is_given_to(ip(1), &web().service), "only its owner releases it");
    ledger.release(&[ip(1)], &web());
    assert!(!ledger.is_given_to(ip(1), &web().service));
}

#[test]
fn address_claimed_by_other_replica_is_reserved_until_the_claim_is_gone() {
    let (ledger, seconds) = ledger();
    let duration = Duration::from_secs(70);
    ledger.reserve_claimed(ip(1), &web(), duration);
    assert!(!ledger.reserve(ip(1), &Owner::new("shop", "db", ""), || false), "claimed by another replica");
    assert!(!ledger.is_reserved_here(ip(1)), "reserved by another replica");
    assert!(ledger.is_given_to(ip(1), &web().service), "whichever replica asks");
    assert!(!ledger.renew_external(ip(1), &web(), false), "of another replica");
    assert_eq!(shown(&ledger), ["10.0.0.1 shop/web"]);
    ledger.release_claimed(ip(1));
    assert!(ledger.reserve(ip(1), &web(), || false), "its claim is gone");
    assert!(ledger.is_reserved_here(ip(1)));
    ledger.reserve_claimed(ip(1), &Owner::new("shop", "db", ""), duration);
    ledger.release_claimed(ip(1));
    assert!(ledger.is_reserved_here(ip(1)), "a reservation of this process stays");
    ledger.reserve_claimed(ip(2), &web(), duration);
    seconds.store(69, Ordering::Relaxed);
    assert!(!ledger.reserve(ip(2), &web(), || false), "as long as it is claimed");
    seconds.store(70, Ordering::Relaxed);
    assert!(ledger.reserve(ip(2), &web(), || false), "too old");
}

#[test]
fn parallel_threads_never_get_the_same_address() {
    let ledger = Ledger::default();
    let barrier = Barrier::new(8);
    let got: Vec<IpAddr> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let (ledger, barrier) = (ledger.clone(), &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let owner = |try_: u8| Owner::new("shop", &format!("web-{thread}-{try_}"), "");
                    (0..=255)
                        .filter(|last| ledger.reserve(ip(*last), &owner(*last), || false))
                        .map(ip)
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut unique = got.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!((got.len(), unique.len()), (256, 256));
}

#[test]
fn share_is_a_quarter_of_the_usable_addresses_within_bounds() {
    for (usable, max, burst) in [
        (0, 2, 2),
        (3, 2, 2),
        (14, 7, 7),
        (16, 8, 8),
        (32, 8, 16),
        (40, 10, 20),
        (204, 51, 102),
        (65_534, 1024, 1024),
        (u128::MAX, 1024, 1024),
    ] {
        assert_eq!(part(usable), (max, burst), "{usable} usable addresses");
    }
}

#[test]
fn address_counts_towards_its_pool_and_family() {
    let document = json!({
        "services": {"serviceCIDRs": ["10.0.0.0/21", "fd00::/112"], "pools": [
            {"name": "team", "cidrs": ["10.0.3.0/27"], "match": {"namespaces": ["shop"]}},
            {"name": "teams", "cidrs": ["10.0.4.0/27"], "match": {"namespaces": ["shop", "bank"]}},
            {"name": "other", "cidrs": ["10.0.1.0/24"], "match": {"os": "windows"}},
            {"name": "both", "cidrs": ["10.0.0.0/24", "10.0.2.0/24", "fd00::/120"], "reserved": 54},
        ]},
        "external": {"pools": [{"name": "edge", "cidrs": ["192.0.2.10-192.0.2.29"]}]},
    });
    let settings = Settings::from_value(&document).unwrap();
    struct Row {
        name: &'static str,
        namespace: &'static str,
        address: &'static str,
        max: usize,
        counts: &'static [&'static str],
    }
    let row = |name, address, max, counts| Row { name, namespace: "shop", address, max, counts };
    let all = ["10.0.0.7", "10.0.2.7", "10.0.1.7", "fd00::7", "192.0.2.17", "192.0.2.40", "fd01::1"];
    let rows = [
        row("two ranges of one family", "10.0.0.9", 100, &["10.0.0.7", "10.0.2.7"]),
        row("the other family", "fd00::70", 50, &["fd00::7"]),
        row("another pool", "10.0.1.9", 63, &["10.0.1.7"]),
        row("a pool for one namespace", "10.0.3.9", 30, &[]),
        Row { namespace: "mallory", ..row("the same pool, for another namespace", "10.0.3.9", 8, &[]) },
        row("a pool for two namespaces", "10.0.4.9", 8, &[]),
        row("external addresses", "192.0.2.11", 8, &["192.0.2.17"]),
        row("the addresses outside of all pools", "10.0.5.9", 303, &["192.0.2.40"]),
        row("those of the other family", "fd00::999", 1024, &["fd01::1"]),
    ];
    for Row { name, namespace, address, max, counts } in rows {
        let share = NamespaceShare::of(&settings, address.parse().unwrap(), namespace);
        let counted: Vec<&str> = all.into_iter().filter(|other| (share.counts)(other.parse().unwrap())).collect();
        assert_eq!((share.max, counted), (max, counts.to_vec()), "{name}");
    }
}
