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

/// A reconciler of this network, with the sender of its plans and the receiver of what it observes.
fn reconciler<'n>(
    network: &'n FakeNetwork,
    metrics: &'n AgentMetrics,
) -> (watch::Sender<DesiredState>, watch::Receiver<ObservedState>, NetworkReconciler<'n, FakeNetwork>) {
    let (sender, receiver) = watch::channel(DesiredState::default());
    let (observed, seen) = watch::channel(ObservedState::default());
    (sender, seen, NetworkReconciler::new(network, receiver, observed, metrics))
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
    let metrics = AgentMetrics::default();
    let (sender, mut seen, mut reconciler) = reconciler(&network, &metrics);
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
    struct Case<'a> {
        name: &'a str,
        plans: Vec<PlanStep<'a>>,
        failing_calls: &'a [&'static str],
        /// The pauses between announcements.
        pauses: &'a [Duration],
        calls: &'a str,
        announcements: usize,
        /// The step that fails once in the metrics.
        failure: Option<&'a str>,
    }
    let (long, longer) = (Instant::now() + Duration::from_secs(600), Instant::now() + Duration::from_secs(601));
    let step = |desired, call, times| PlanStep { desired, call, times };
    let nothing = |number| step(DesiredState { number, ..DesiredState::default() }, "release", 1);
    let announced = |times| vec![step(desired(1, 80, long), "announce", times), nothing(2)];
    // The address is announced once, and nothing fails.
    let case = |name, plans, calls| Case {
        name,
        plans,
        failing_calls: &[],
        pauses: &[],
        calls,
        announcements: 1,
        failure: None,
    };
    let cases = [
        Case {
            pauses: &[LATER],
            ..case("an address is held and released", announced(1), "hold [80], announce, release")
        },
        Case {
            pauses: &[SHORTLY, SHORTLY],
            announcements: 3,
            ..case("announcements are repeated", announced(3), "hold [80], announce, announce, announce, release")
        },
        case(
            "a hold is renewed, and its ports change",
            vec![
                step(desired(1, 80, long), "announce", 1),
                step(desired(2, 80, longer), "hold [80]", 2),
                step(desired(3, 81, longer), "hold [81]", 1),
                nothing(4),
            ],
            "hold [80], announce, hold [80], hold [81], release",
        ),
        Case {
            // The first `hold` adds the address anyway.
            failing_calls: &["lost", "lost"],
            announcements: 2,
            ..case(
                "an address that another program removed is announced again",
                vec![
                    step(desired(1, 80, long), "announce", 1),
                    step(desired(2, 80, longer), "announce", 2),
                    nothing(3),
                ],
                "hold [80], announce, hold [80], announce, release",
            )
        },
        Case {
            failing_calls: &["hold"],
            failure: Some("hold"),
            ..case("a failed hold is retried", announced(1), "hold [80], hold [80], announce, release")
        },
        Case {
            failing_calls: &["announce"],
            pauses: &[LATER],
            failure: Some("announce"),
            ..case(
                "a failed announcement is retried",
                announced(2),
                "hold [80], announce, hold [80], announce, release",
            )
        },
        Case {
            failing_calls: &["release"],
            failure: Some("release"),
            ..case("a failed release is retried", announced(1), "hold [80], announce, release, release")
        },
        Case {
            failing_calls: &["hold"],
            announcements: 0,
            failure: Some("hold"),
            ..case(
                "a failed hold is released if it is no longer desired",
                vec![step(desired(1, 80, long), "hold", 1), nothing(2)],
                "hold [80], release",
            )
        },
        Case {
            announcements: 0,
            ..case("an expired hold is never added", vec![step(desired(1, 80, Instant::now()), "", 0)], "")
        },
    ];
    for Case { name, plans, failing_calls, pauses, calls, announcements, failure } in cases {
        let found = timeout(Duration::from_secs(60), asked(plans, failing_calls, pauses)).await;
        let failure = failure.map(|step| format!(", network_failures_total{{step=\"{step}\"}} 1")).unwrap_or_default();
        let measured = format!("announcements_total {announcements}{failure}");
        let found = found.map(|(asked, measured)| (asked.join(", "), measured));
        assert_eq!(found.ok(), Some((calls.to_owned(), measured)), "{name}");
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
    let metrics = AgentMetrics::default();
    let (sender, mut seen, mut reconciler) = reconciler(&network, &metrics);
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
    let metrics = AgentMetrics::default();
    let (_sender, _seen, mut reconciler) = reconciler(&network, &metrics);
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
    let metrics = AgentMetrics::default();
    let (_sender, seen, mut reconciler) = reconciler(&network, &metrics);
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
