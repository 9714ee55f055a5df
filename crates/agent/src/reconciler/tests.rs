use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use clusterip_cluster::metrics::Exposition;
use clusterip_failover::assignments::{Port, Protocol};

use super::*;

/// A network that records the calls, and fails those that the test lists.
#[derive(Default)]
struct FakeNetwork {
    asked: Mutex<Vec<String>>,
    failures: Mutex<VecDeque<&'static str>>,
    there: Mutex<bool>,
    /// How long a release takes.
    release: Duration,
}

impl FakeNetwork {
    fn is_next(&self, what: &'static str) -> bool {
        let mut failures = self.failures.lock().unwrap();
        let next = failures.front() == Some(&what);
        if next {
            failures.pop_front();
        }
        next
    }

    async fn note(&self, what: &'static str, more: String) -> anyhow::Result<()> {
        self.asked.lock().unwrap().push(format!("{what}{more}"));
        anyhow::ensure!(!self.is_next(what), "injected failure");
        Ok(())
    }
}

impl Network for FakeNetwork {
    async fn hold(&self, _: IpAddr, ports: &Arc<[Port]>, _: Instant) -> anyhow::Result<bool> {
        self.note("hold", format!(" {:?}", ports.iter().map(|(_, port)| *port).collect::<Vec<_>>())).await?;
        let lost = self.is_next("lost");
        let before = std::mem::replace(&mut *self.there.lock().unwrap(), true);
        Ok(!before || lost)
    }

    async fn release(&self, _: IpAddr) -> anyhow::Result<()> {
        tokio::time::sleep(self.release).await;
        self.note("release", String::new()).await?;
        *self.there.lock().unwrap() = false;
        Ok(())
    }

    async fn announce(&self, _: IpAddr) -> anyhow::Result<()> {
        self.note("announce", String::new()).await
    }
}

const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 9, 10));
/// A pause that does not end during a test.
const LATER: Duration = Duration::from_secs(3600);
const SHORTLY: Duration = Duration::from_millis(10);

/// A desired state that holds the address with this port until `until`.
fn desired(number: u64, port: u16, until: Instant) -> DesiredState {
    let hold = Hold { ports: [(Protocol::Tcp, port)].into(), until };
    DesiredState { number, held: [(ADDRESS, hold)].into() }
}

/// A desired state, which is replaced by the next one after `call` was made `times` times.
struct PlanStep<'a> {
    desired: DesiredState,
    call: &'a str,
    times: usize,
}

/// Runs these plans, the last of which holds no address, and returns the calls of the network and the metrics. The
/// next plan is sent when the reconciler has begun to apply the current one and its calls were made.
async fn asked(plans: Vec<PlanStep<'_>>, failures: &[&'static str], pauses: &[Duration]) -> (Vec<String>, String) {
    let network = FakeNetwork { failures: Mutex::new(failures.iter().copied().collect()), ..FakeNetwork::default() };
    let (sender, receiver) = watch::channel(DesiredState::default());
    let (observed, mut seen) = watch::channel(ObservedState::default());
    let metrics = AgentMetrics::default();
    let mut reconciler = NetworkReconciler::new(&network, receiver, observed, &metrics);
    reconciler.pauses = pauses;
    let work = async {
        for PlanStep { desired, call, times } in plans {
            let number = desired.number;
            sender.send_replace(desired);
            seen.wait_for(|observed| observed.number == number).await.unwrap();
            let count = || network.asked.lock().unwrap().iter().filter(|asked| asked.starts_with(call)).count();
            while count() < times {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        seen.wait_for(|observed| observed.addresses.is_empty()).await.unwrap();
    };
    tokio::select! {
        () = reconciler.run() => {}
        () = work => {}
    }
    let mut exposition = Exposition::default();
    exposition.add(&metrics);
    let measured = exposition.encode();
    let of_network = |line: &&str| {
        line.starts_with("clusterip_agent_announcements_total ")
            || line.starts_with("clusterip_agent_network_failures_total{") && !line.ends_with(" 0")
    };
    let mut measured: Vec<&str> = measured.lines().filter(of_network).collect();
    measured.sort_unstable();
    (network.asked.into_inner().unwrap(), measured.join(", ").replace("clusterip_agent_", ""))
}

#[tokio::test(start_paused = true)]
async fn addresses_are_held_announced_retried_and_released() {
    let (long, longer) = (Instant::now() + Duration::from_secs(600), Instant::now() + Duration::from_secs(601));
    let nothing =
        |number| PlanStep { desired: DesiredState { number, ..DesiredState::default() }, call: "release", times: 1 };
    let once = || vec![PlanStep { desired: desired(1, 80, long), call: "announce", times: 1 }, nothing(2)];
    let times = |count| vec![PlanStep { desired: desired(1, 80, long), call: "announce", times: count }, nothing(2)];
    let failed = |step: &str| format!("network_failures_total{{step=\"{step}\"}} 1");
    struct Case<'a> {
        name: &'a str,
        plans: Vec<PlanStep<'a>>,
        failing_calls: &'a [&'static str],
        /// The pauses between announcements.
        pauses: &'a [Duration],
        expected_calls: &'a [&'a str],
        expected_announcements: usize,
        /// The failures in the metrics.
        expected_failures: Option<String>,
    }
    let cases = [
        Case {
            name: "an address is held and released",
            plans: once(),
            failing_calls: &[],
            pauses: &[LATER],
            expected_calls: &["hold [80]", "announce", "release"],
            expected_announcements: 1,
            expected_failures: None,
        },
        Case {
            name: "announcements are repeated",
            plans: times(3),
            failing_calls: &[],
            pauses: &[SHORTLY, SHORTLY],
            expected_calls: &["hold [80]", "announce", "announce", "announce", "release"],
            expected_announcements: 3,
            expected_failures: None,
        },
        Case {
            name: "a hold is renewed, and its ports change",
            plans: vec![
                PlanStep { desired: desired(1, 80, long), call: "announce", times: 1 },
                PlanStep { desired: desired(2, 80, longer), call: "hold [80]", times: 2 },
                PlanStep { desired: desired(3, 81, longer), call: "hold [81]", times: 1 },
                nothing(4),
            ],
            failing_calls: &[],
            pauses: &[],
            expected_calls: &["hold [80]", "announce", "hold [80]", "hold [81]", "release"],
            expected_announcements: 1,
            expected_failures: None,
        },
        Case {
            name: "an address that another program removed is announced again",
            plans: vec![
                PlanStep { desired: desired(1, 80, long), call: "announce", times: 1 },
                PlanStep { desired: desired(2, 80, longer), call: "announce", times: 2 },
                nothing(3),
            ],
            // The first `hold` adds the address anyway.
            failing_calls: &["lost", "lost"],
            pauses: &[],
            expected_calls: &["hold [80]", "announce", "hold [80]", "announce", "release"],
            expected_announcements: 2,
            expected_failures: None,
        },
        Case {
            name: "a failed hold is retried",
            plans: once(),
            failing_calls: &["hold"],
            pauses: &[],
            expected_calls: &["hold [80]", "hold [80]", "announce", "release"],
            expected_announcements: 1,
            expected_failures: Some(failed("hold")),
        },
        Case {
            name: "a failed announcement is retried",
            plans: times(2),
            failing_calls: &["announce"],
            pauses: &[LATER],
            expected_calls: &["hold [80]", "announce", "hold [80]", "announce", "release"],
            expected_announcements: 1,
            expected_failures: Some(failed("announce")),
        },
        Case {
            name: "a failed release is retried",
            plans: once(),
            failing_calls: &["release"],
            pauses: &[],
            expected_calls: &["hold [80]", "announce", "release", "release"],
            expected_announcements: 1,
            expected_failures: Some(failed("release")),
        },
        Case {
            name: "a failed hold is released if it is no longer desired",
            plans: vec![PlanStep { desired: desired(1, 80, long), call: "hold", times: 1 }, nothing(2)],
            failing_calls: &["hold"],
            pauses: &[],
            expected_calls: &["hold [80]", "release"],
            expected_announcements: 0,
            expected_failures: Some(failed("hold")),
        },
        Case {
            name: "an expired hold is never added",
            plans: vec![PlanStep { desired: desired(1, 80, Instant::now()), call: "", times: 0 }],
            failing_calls: &[],
            pauses: &[],
            expected_calls: &[],
            expected_announcements: 0,
            expected_failures: None,
        },
    ];
    for case in cases {
        let Case { name, plans, failing_calls, pauses, expected_calls, expected_announcements, expected_failures } =
            case;
        let found = timeout(Duration::from_secs(60), asked(plans, failing_calls, pauses)).await;
        let measured = [format!("announcements_total {expected_announcements}")].into_iter().chain(expected_failures);
        let measured = measured.collect::<Vec<_>>().join(", ");
        let expected = expected_calls.iter().map(|asked| (*asked).to_owned()).collect();
        assert_eq!(found.ok(), Some((expected, measured)), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_hold_is_released_without_a_new_plan_and_no_longer_announced() {
    let soon = Instant::now() + Duration::from_secs(2);
    let plan = vec![PlanStep { desired: desired(1, 80, soon), call: "announce", times: 1 }];
    let (asked, _) = timeout(Duration::from_secs(60), asked(plan, &[], &[SHORTLY; 1000])).await.unwrap();
    let (first, last) = (&asked[..2], &asked[asked.len() - 1..]);
    assert_eq!((first, last), (&["hold [80]".to_owned(), "announce".to_owned()][..], &["release".to_owned()][..]));
    assert!(asked[2..asked.len() - 1].iter().all(|asked| asked == "announce"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failing_address_is_reported_until_it_is_held() {
    let network = FakeNetwork { failures: Mutex::new(vec!["hold"; 6].into()), ..FakeNetwork::default() };
    let (sender, receiver) = watch::channel(DesiredState::default());
    let (observed, mut seen) = watch::channel(ObservedState::default());
    let metrics = AgentMetrics::default();
    let mut reconciler = NetworkReconciler::new(&network, receiver, observed, &metrics);
    sender.send_replace(desired(1, 80, Instant::now() + Duration::from_secs(600)));
    let work = async {
        let failing = seen.wait_for(|observed| !observed.failing.is_empty()).await.unwrap().clone();
        let tries = network.asked.lock().unwrap().len();
        let well = seen.wait_for(|observed| observed.failing.is_empty()).await.unwrap().clone();
        (failing, tries, well)
    };
    let found = tokio::select! {
        () = reconciler.run() => None,
        found = timeout(Duration::from_secs(60), work) => found.ok(),
    };
    let held = ObservedState { number: 1, addresses: [ADDRESS].into(), ..ObservedState::default() };
    let failing = ObservedState { failing: [ADDRESS].into(), ..held.clone() };
    assert_eq!(found, Some((failing, 5, held)));
}

#[tokio::test(start_paused = true)]
async fn renewals_come_before_new_addresses_and_these_before_changed_ports() {
    let network = FakeNetwork::default();
    let (_sender, receiver) = watch::channel(DesiredState::default());
    let (observed, _seen) = watch::channel(ObservedState::default());
    let metrics = AgentMetrics::default();
    let mut reconciler = NetworkReconciler::new(&network, receiver, observed, &metrics);
    let until = Instant::now() + Duration::from_secs(600);
    let state = |number: u64, ports: &[(u8, u16)]| {
        let hold =
            |port: u16| Hold { ports: [(Protocol::Tcp, port)].into(), until: until + Duration::from_secs(number) };
        let held = ports.iter().map(|(last, port)| (IpAddr::from([10, 0, 9, *last]), hold(*port))).collect();
        DesiredState { number, held }
    };
    reconciler.reconcile(&state(1, &[(1, 80), (3, 80)])).await;
    network.asked.lock().unwrap().clear();
    reconciler.reconcile(&state(2, &[(1, 81), (2, 82), (3, 80)])).await;
    let asked = network.asked.lock().unwrap();
    let holds: Vec<&str> = asked.iter().map(String::as_str).filter(|asked| asked.starts_with("hold")).collect();
    assert_eq!(holds, ["hold [80]", "hold [82]", "hold [81]"]);
}

#[tokio::test(start_paused = true)]
async fn many_slow_releases_delay_no_renewal() {
    let network = FakeNetwork { release: Duration::from_millis(400), ..FakeNetwork::default() };
    let (_sender, receiver) = watch::channel(DesiredState::default());
    let (observed, seen) = watch::channel(ObservedState::default());
    let metrics = AgentMetrics::default();
    let mut reconciler = NetworkReconciler::new(&network, receiver, observed, &metrics);
    let begin = Instant::now();
    let hold = |until: Duration| Hold { ports: [(Protocol::Tcp, 80)].into(), until: begin + until };
    let address = |nth: u16| IpAddr::from([10, 0, nth.to_be_bytes()[0], nth.to_be_bytes()[1]]);
    let all = (0..500).map(|nth| (address(nth), hold(Duration::from_secs(600)))).collect();
    reconciler.reconcile(&DesiredState { number: 1, held: all }).await;
    network.asked.lock().unwrap().clear();

    let renewed = DesiredState { number: 2, held: [(address(0), hold(Duration::from_secs(601)))].into() };
    reconciler.reconcile(&renewed).await;
    assert!(network.asked.lock().unwrap().contains(&"hold [80]".to_owned()), "it is renewed in the first round");
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(reconciler.next(&renewed, Instant::now()), Some(Instant::now()), "the others are released at once");
    while seen.borrow().addresses.len() > 1 {
        reconciler.reconcile(&renewed).await;
    }
    let asked = network.asked.lock().unwrap();
    assert_eq!(asked.iter().filter(|asked| *asked == "release").count(), 499);
}
