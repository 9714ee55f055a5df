use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

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
fn any(_: IpAddr) -> Share<'static> {
    share_of(usize::MAX, |_| true)
}

fn share_of(most: usize, counts: impl Fn(IpAddr) -> bool + 'static) -> Share<'static> {
    Share { most, burst: most.saturating_mul(2), counts: Box::new(counts) }
}

/// A share of four for the even addresses of 10.0.0.0/24, and one of four for the odd addresses: two pools.
fn four(address: IpAddr) -> Share<'static> {
    let is_even = |address: IpAddr| matches!(address, IpAddr::V4(address) if address.octets()[3] % 2 == 0);
    share_of(4, move |other| is_even(other) == is_even(address))
}

/// Reserves an address for an evaluation, and settles it.
fn give(ledger: &Ledger, address: IpAddr, owner: &Owner, shares: Shares<'_>) -> Vec<IpAddr> {
    assert!(ledger.hold(address, owner, || false));
    ledger.settle(owner, &[address], &[address], shares)
}

fn web() -> Owner {
    Owner::new("shop", "web", "uid-1")
}

fn shown(ledger: &Ledger) -> Vec<String> {
    let show = |(address, owner): (IpAddr, Owner)| format!("{address} {}/{}", owner.id().0, owner.id().1);
    ledger.held().into_iter().map(show).collect()
}

#[test]
fn evaluation_keeps_used_addresses_and_releases_others() {
    let (ledger, _) = ledger();
    for last in [1, 2, 3] {
        assert!(ledger.hold(ip(last), &web(), || false));
    }
    assert!(!ledger.hold(ip(4), &web(), || true), "used in the cluster");
    assert!(!ledger.hold(ip(2), &Owner::new("shop", "db", "uid-2"), || false), "held for another");
    assert!(!ledger.hold(ip(2), &web(), || false), "held for another request of the same name");
    ledger.settle(&web(), &[ip(1), ip(2), ip(3)], &[ip(2)], &any);
    assert_eq!(shown(&ledger), ["10.0.0.2 shop/web"]);
    assert!(ledger.hold(ip(1), &Owner::new("shop", "db", "uid-2"), || false), "let go");
}

#[test]
fn dry_look_up_reserves_nothing() {
    let (ledger, _) = ledger();
    assert!(ledger.is_free(ip(1), || false));
    assert!(!ledger.is_free(ip(1), || true));
    assert!(ledger.is_empty());
    assert!(ledger.hold(ip(1), &web(), || false));
    assert!(!ledger.is_free(ip(1), || false), "a reserved address is not free");
}

#[test]
fn reservation_ends_when_address_is_seen_or_after_timeout() {
    let (ledger, seconds) = ledger();
    for last in [1, 2] {
        assert!(ledger.hold(ip(last), &web(), || false));
    }
    ledger.seen(ip(1));
    assert_eq!(ledger.len(), 2, "an evaluation is at work: what is seen is not its Service");
    ledger.settle(&web(), &[ip(1), ip(2)], &[ip(1), ip(2)], &any);
    ledger.seen(ip(1));
    assert_eq!(shown(&ledger), ["10.0.0.2 shop/web"]);
    seconds.store(64, Ordering::Relaxed);
    assert!(!ledger.hold(ip(2), &web(), || false));
    seconds.store(65, Ordering::Relaxed);
    assert!(!ledger.is_ours(ip(2), "shop", "web"));
    assert!(ledger.hold(ip(2), &Owner::new("shop", "db", "uid-2"), || false));
}

#[test]
fn one_service_reserves_two_addresses_per_family_and_two_external() {
    struct Case {
        last: u8,
        seconds_later: u64,
        expected: usize,
    }
    let (ledger, seconds) = ledger();
    let second_family: IpAddr = "fd00::1".parse().unwrap();
    for (second, address) in [(0, ip(9)), (1, second_family), (2, ip(3)), (3, ip(5))] {
        seconds.store(second, Ordering::Relaxed);
        assert!(ledger.hold(address, &web(), || false));
        ledger.settle(&web(), &[address], &[address], &any);
    }
    // A young reservation of an external address stays, as a third one.
    let cases = [
        Case { last: 12, seconds_later: 1, expected: 1 },
        Case { last: 11, seconds_later: 1, expected: 2 },
        Case { last: 10, seconds_later: 1, expected: 3 },
        Case { last: 13, seconds_later: 5, expected: 2 },
    ];
    for Case { last, seconds_later, expected } in cases {
        seconds.fetch_add(seconds_later, Ordering::Relaxed);
        assert_eq!(ledger.hold_external(ip(last), &web(), &any), Ok(true));
        assert_eq!(ledger.hold_external(ip(last), &web(), &any), Ok(false), "held");
        ledger.settle(&web(), &[ip(last)], &[ip(last)], &any);
        let external = shown(&ledger).iter().filter(|held| held.starts_with("10.0.0.1")).count();
        assert_eq!(external, expected, "{last}");
    }
    let latest = ["10.0.0.3", "10.0.0.5", "10.0.0.10", "10.0.0.13", "fd00::1"];
    let latest = latest.map(|address| format!("{address} shop/web"));
    assert_eq!(shown(&ledger), latest);
    // Requests without a name are for as many Services as there are requests.
    for last in 20..30 {
        let unnamed = Owner::new("shop", "", &format!("uid-{last}"));
        assert!(ledger.hold(ip(last), &unnamed, || false));
        ledger.settle(&unnamed, &[ip(last)], &[ip(last)], &any);
    }
    assert_eq!(ledger.len(), latest.len() + 10);
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
        assert_eq!(give(&ledger, ip(address), &owner, &four), expected, "{name}");
    }
    let expected = [10, 11, 14, 16, 18, 20, 22].map(ip);
    assert_eq!(ledger.held().into_iter().map(|(address, _)| address).collect::<Vec<_>>(), expected);
}

#[test]
fn address_chosen_by_hand_counts_towards_the_share() {
    let (ledger, seconds) = ledger();
    let mut released = Vec::new();
    for last in [2, 4, 6, 8, 10, 12] {
        seconds.fetch_add(5, Ordering::Relaxed);
        let owner = Owner::new("shop", &format!("web-{last}"), "");
        released.extend(ledger.note_chosen_by_hand(ip(last), &owner, &four));
    }
    assert_eq!((released, ledger.len()), ([2, 4].map(ip).to_vec(), 4));
}

#[test]
fn reservations_of_running_evaluations_and_other_replicas_count_but_stay() {
    let (ledger, seconds) = ledger();
    give(&ledger, ip(2), &Owner::new("shop", "old", ""), &four);
    seconds.store(5, Ordering::Relaxed);
    assert!(ledger.hold(ip(4), &Owner::new("shop", "open", ""), || false));
    ledger.note_claimed(ip(6), &Owner::new("shop", "elsewhere", ""), Duration::from_secs(70));
    ledger.note_claimed(ip(8), &Owner::new("shop", "elsewhere-too", ""), Duration::from_secs(70));
    assert_eq!(give(&ledger, ip(10), &web(), &four), [ip(2)]);
    // Nothing is left that may be released; the address that was just given stays reserved all the same.
    seconds.store(10, Ordering::Relaxed);
    assert_eq!(give(&ledger, ip(12), &Owner::new("shop", "db", ""), &four), [ip(10)]);
    assert_eq!(ledger.held().len(), 4);
    assert!(ledger.holds(ip(12)) && ledger.holds(ip(4)));
}

#[test]
fn young_reservations_are_released_only_beyond_the_burst() {
    let (ledger, seconds) = ledger();
    let owner = |last: u8| Owner::new("shop", &format!("web-{last}"), "");
    for last in [2, 4, 6, 8, 10, 12, 14, 16] {
        assert_eq!(
            give(&ledger, ip(last), &owner(last), &four),
            Vec::<IpAddr>::new(),
            "{last}: twice the share for a moment"
        );
    }
    assert_eq!(give(&ledger, ip(18), &owner(18), &four).len(), 1, "and no more");
    seconds.store(5, Ordering::Relaxed);
    assert_eq!(give(&ledger, ip(20), &owner(20), &four).len(), 5, "then the share alone");
    assert_eq!(ledger.len(), 4);
}

#[test]
fn young_external_reservations_are_never_released() {
    let (ledger, seconds) = ledger();
    let owner = |last: u8| Owner::new("shop", &format!("web-{last}"), "");
    let hold = |last: u8| {
        let held = ledger.hold_external(ip(last), &owner(last), &four)?;
        let released = ledger.settle(&owner(last), &[ip(last)], &[ip(last)], &four);
        Ok::<_, ShareExceeded>((held, released.len()))
    };
    for last in [2, 4, 6, 8, 10, 12, 14, 16] {
        assert_eq!(hold(last), Ok((true, 0)), "{last}");
    }
    let exceeded = ShareExceeded { namespace: "shop".to_owned(), held: 8, most: 8 };
    assert_eq!(hold(18), Err(exceeded.clone()));
    assert_eq!(ledger.hold_external(ip(18), &Owner::new("bank", "web", ""), &four), Ok(true));
    seconds.store(4, Ordering::Relaxed);
    assert_eq!(hold(20), Err(exceeded));
    seconds.store(5, Ordering::Relaxed);
    assert_eq!(hold(20), Ok((true, 5)));
}

#[test]
fn both_addresses_of_one_answer_stay_reserved() {
    let (ledger, _) = ledger();
    let none = |_: IpAddr| share_of(0, |_| true);
    for address in [ip(2), ip(4)] {
        assert!(ledger.hold(address, &web(), || false));
    }
    assert_eq!(ledger.settle(&web(), &[ip(2), ip(4)], &[ip(2), ip(4)], &none), Vec::<IpAddr>::new());
    assert_eq!(ledger.len(), 2);
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
                let is_other = |(_, holder): &(IpAddr, Owner)| holder.namespace() != owner.namespace();
                ledger.held().into_iter().filter(is_other).collect()
            };
            let before = others(&ledger);
            if kind == 1 {
                ledger.note_chosen_by_hand(ip(last), &owner, &four);
            } else if ledger.hold(ip(last), &owner, || false) {
                ledger.settle(&owner, &[ip(last)], &[ip(last)], &four);
            }
            proptest::prop_assert_eq!(others(&ledger), before, "others lose nothing");
            for parity in [0, 1] {
                let held = ledger.held();
                let counts = four(ip(parity)).counts;
                let its = held.iter().filter(|(address, holder)| {
                    holder.namespace() == owner.namespace() && counts(*address)
                });
                proptest::prop_assert!(its.count() <= 8);
            }
        }
    }
}

#[test]
fn own_address_is_recognized_by_namespace_name_and_address() {
    struct Case {
        name: &'static str,
        address: IpAddr,
        namespace: &'static str,
        service: &'static str,
        expected: bool,
    }
    let (ledger, _) = ledger();
    let unnamed = Owner::new("shop", "", "uid-7");
    for (address, owner) in [(ip(1), web()), (ip(2), unnamed)] {
        assert!(ledger.hold(address, &owner, || false));
        ledger.settle(&owner, &[address], &[address], &any);
    }
    ledger.note_chosen_by_hand(ip(3), &web(), &any);
    let cases = [
        Case { name: "ours", address: ip(1), namespace: "shop", service: "web", expected: true },
        Case { name: "another namespace", address: ip(1), namespace: "bank", service: "web", expected: false },
        Case { name: "another name", address: ip(1), namespace: "shop", service: "db", expected: false },
        Case { name: "another address", address: ip(9), namespace: "shop", service: "web", expected: false },
        Case { name: "chosen by hand", address: ip(3), namespace: "shop", service: "web", expected: false },
        Case { name: "without a name", address: ip(2), namespace: "shop", service: "", expected: true },
        Case { name: "without a name, elsewhere", address: ip(2), namespace: "bank", service: "", expected: false },
    ];
    for Case { name, address, namespace, service, expected } in cases {
        assert_eq!(ledger.is_ours(address, namespace, service), expected, "{name}");
    }
    assert!(!ledger.hold(ip(3), &Owner::new("shop", "db", ""), || false), "chosen by hand, and held");
    ledger.note_chosen_by_hand(ip(1), &Owner::new("shop", "db", ""), &any);
    assert!(ledger.is_ours(ip(1), "shop", "web"), "the first owner keeps the reservation");
    ledger.release(&[ip(1)]);
    assert!(!ledger.is_ours(ip(1), "shop", "web"));
}

#[test]
fn address_claimed_by_other_replica_is_reserved_until_the_claim_is_gone() {
    let (ledger, seconds) = ledger();
    let lasts = Duration::from_secs(70);
    ledger.note_claimed(ip(1), &web(), lasts);
    assert!(!ledger.hold(ip(1), &Owner::new("shop", "db", ""), || false), "claimed elsewhere");
    assert!(!ledger.holds(ip(1)), "not given away here");
    assert!(ledger.is_ours(ip(1), "shop", "web"), "whichever replica asks");
    assert_eq!(shown(&ledger), ["10.0.0.1 shop/web"]);
    ledger.drop_claimed(ip(1));
    assert!(ledger.hold(ip(1), &web(), || false), "its claim is gone");
    assert!(ledger.holds(ip(1)));
    ledger.note_claimed(ip(1), &Owner::new("shop", "db", ""), lasts);
    ledger.drop_claimed(ip(1));
    assert!(ledger.holds(ip(1)), "what is given away here stays held");
    ledger.note_claimed(ip(2), &web(), lasts);
    seconds.store(69, Ordering::Relaxed);
    assert!(!ledger.hold(ip(2), &web(), || false), "as long as it is claimed");
    seconds.store(70, Ordering::Relaxed);
    assert!(ledger.hold(ip(2), &web(), || false), "too old");
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
                    (0..=255).filter(|last| ledger.hold(ip(*last), &owner(*last), || false)).map(ip).collect::<Vec<_>>()
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
