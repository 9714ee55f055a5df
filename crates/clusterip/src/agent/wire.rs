//! Does to the network what the book says.
//!
//! It needs nobody to be told that the time is over: what is held has an end, and goes when that has come.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::network::{Held, Network};
use super::plan::{Hold, Present, Wanted};
use super::timing::{AGAIN, ANNOUNCED_AGAIN, STEP, TRIES};
use crate::metrics::Metrics;
use crate::metrics::agent::Step;

/// On how many addresses is worked at once.
const AT_ONCE: usize = 16;

/// How long what is to come may keep back what is to go.
const ROUND: Duration = Duration::from_secs(1);

/// What was done about an address last.
#[derive(Clone, Debug, Default)]
struct Done {
    /// What it is held as; none where that is not known to have been carried out.
    held: Option<Hold>,
    /// How often it was announced since it came.
    announced: usize,
    /// When it is announced next; none where that was done often enough.
    next: Option<Instant>,
    /// Before which nothing is tried again.
    again: Option<Instant>,
    /// How many tries have failed, one after the other.
    failures: u32,
}

impl Done {
    /// It is to come.
    fn coming(now: Instant) -> Self {
        Self { next: Some(now), ..Self::default() }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.again.is_none_or(|again| now >= again)
    }

    /// Whether something is to be done about it, that is to be held like this.
    fn lacks(&self, hold: &Hold, now: Instant) -> bool {
        self.is_due(now) && (self.held.as_ref() != Some(hold) || self.next.is_some_and(|next| now >= next))
    }
}

/// The hand on the network.
pub(super) struct Wire<'a, N> {
    network: &'a N,
    wanted: watch::Receiver<Wanted>,
    present: watch::Sender<Present>,
    metrics: &'a Metrics,
    /// After which pauses an address is announced again.
    pauses: &'a [Duration],
    done: BTreeMap<IpAddr, Done>,
}

impl<'a, N: Network> Wire<'a, N> {
    pub(super) fn new(
        network: &'a N,
        wanted: watch::Receiver<Wanted>,
        present: watch::Sender<Present>,
        metrics: &'a Metrics,
    ) -> Self {
        Self { network, wanted, present, metrics, pauses: &ANNOUNCED_AGAIN, done: BTreeMap::new() }
    }

    /// Works for ever.
    pub(super) async fn work(&mut self) {
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            self.round(&wanted).await;
            let next = self.next(&wanted, Instant::now());
            tokio::select! {
                changed = self.wanted.changed() => if changed.is_err() {
                    std::future::pending::<()>().await;
                },
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    /// Does what there is to do now: first whatever is to go.
    async fn round(&mut self, wanted: &Wanted) {
        let now = Instant::now();
        let lasts = |address: &IpAddr| wanted.held.get(address).is_some_and(|hold| now < hold.until);
        let going: Vec<IpAddr> = self
            .done
            .iter()
            .filter(|(address, done)| !lasts(address) && done.is_due(now))
            .map(|(address, _)| *address)
            .collect();
        let (network, metrics, pauses) = (self.network, self.metrics, self.pauses);
        let released: Vec<(IpAddr, bool)> = stream::iter(going)
            .map(|address| async move {
                (address, tried(metrics, Step::Release, address, network.release(address)).await.is_some())
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        for (address, gone) in released {
            if gone {
                self.done.remove(&address);
            } else if let Some(done) = self.done.get_mut(&address) {
                // Whatever is asked for next, it is not known to be there.
                *done = Done { again: Some(Instant::now() + AGAIN), ..Done::coming(now) };
            }
        }
        // What is about to come may be there from now on.
        let mut coming = Vec::new();
        for (address, hold) in wanted.held.iter().filter(|(address, _)| lasts(address)) {
            let done = self.done.entry(*address).or_insert_with(|| Done::coming(now));
            if done.lacks(hold, now) {
                coming.push((*address, hold.clone(), done.clone()));
            }
        }
        self.tell(wanted.number);
        let mut steps = stream::iter(coming)
            .map(|(address, hold, done)| async move {
                let done = take(network, metrics, pauses, address, hold, done).await;
                (address, done)
            })
            .buffer_unordered(AT_ONCE);
        // What is to go must not wait for long. Whatever is not done by then is done in the next round.
        let end = now + ROUND;
        while let Ok(Some((address, done))) = timeout_at(end, steps.next()).await {
            self.done.insert(address, done);
        }
        drop(steps);
        self.tell(wanted.number);
    }

    /// When there is more to do, if nothing else is wanted.
    fn next(&self, wanted: &Wanted, now: Instant) -> Option<Instant> {
        let more = self.done.iter().filter_map(|(address, done)| {
            let hold = wanted.held.get(address).filter(|hold| now < hold.until);
            // What is not as it is to be was left over, unless it is to be tried again.
            let behind = hold.is_none() || done.held.as_ref() != hold;
            done.again.or(if behind { Some(now) } else { done.next })
        });
        let ends = self.done.keys().filter_map(|address| wanted.held.get(address)).map(|hold| hold.until);
        more.chain(ends.filter(|end| *end > now)).min()
    }

    fn tell(&self, number: u64) {
        let addresses: BTreeSet<IpAddr> = self.done.keys().copied().collect();
        let failing = self.done.iter().filter(|(_, done)| done.failures >= TRIES).map(|(address, _)| *address);
        let now = Present { number, addresses, failing: failing.collect() };
        self.present.send_if_modified(|known| {
            let other = *known != now;
            *known = now;
            other
        });
    }
}

/// Has an address here, and tells the neighbours when it is time to.
async fn take<N: Network>(
    network: &N,
    metrics: &Metrics,
    pauses: &[Duration],
    address: IpAddr,
    hold: Hold,
    mut done: Done,
) -> Done {
    // Others were waited for meanwhile, or the process stood still.
    let lasts = || Instant::now() < hold.until;
    if done.held.as_ref() != Some(&hold) {
        let held = match lasts() {
            true => tried(metrics, Step::Hold, address, network.hold(address, &hold.ports, hold.until)).await,
            false => None,
        };
        match held {
            Some(Held::Stayed) => {}
            // Also where it was there before: somebody else has removed it meanwhile.
            Some(Held::Came) => done = Done { failures: done.failures, ..Done::coming(Instant::now()) },
            None => return done.failed(),
        }
        done.held = Some(hold.clone());
    }
    done.again = None;
    if done.next.is_some_and(|next| Instant::now() >= next) {
        let announced = match lasts() {
            true => tried(metrics, Step::Announce, address, network.announce(address)).await,
            false => None,
        };
        if announced.is_none() {
            return done.failed();
        }
        metrics.agent_announced();
        done.next = pauses.get(done.announced).map(|pause| Instant::now() + *pause);
        done.announced += 1;
    }
    done.failures = 0;
    done
}

impl Done {
    /// It is all done anew, after a while.
    fn failed(self) -> Self {
        let failures = self.failures.saturating_add(1);
        let again = Some(Instant::now() + AGAIN);
        Self { held: None, again, failures, next: self.next.or(Some(Instant::now())), ..self }
    }
}

/// What came of a step that was done, in time.
async fn tried<T, E: fmt::Display>(
    metrics: &Metrics,
    step: Step,
    address: IpAddr,
    work: impl Future<Output = Result<T, E>>,
) -> Option<T> {
    let reason = match timeout(STEP, pin!(work)).await {
        Ok(Ok(done)) => return Some(done),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("it takes longer than {STEP:?}"),
    };
    metrics.agent_network_failed(step);
    tracing::warn!(%address, step = step.as_str(), reason, "a step on the network failed, and is tried again");
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use super::super::assignments::Protocol;
    use super::*;

    /// Writes down what it is asked for; fails as it is told.
    #[derive(Default)]
    struct Paper {
        asked: Mutex<Vec<String>>,
        failures: Mutex<VecDeque<&'static str>>,
        there: Mutex<bool>,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("on purpose")]
    struct OnPurpose;

    impl Paper {
        fn is_next(&self, what: &'static str) -> bool {
            let mut failures = self.failures.lock().unwrap();
            let next = failures.front() == Some(&what);
            if next {
                failures.pop_front();
            }
            next
        }

        async fn note(&self, what: &'static str, more: String) -> Result<(), OnPurpose> {
            self.asked.lock().unwrap().push(format!("{what}{more}"));
            if self.is_next(what) { Err(OnPurpose) } else { Ok(()) }
        }
    }

    impl Network for Paper {
        type Error = OnPurpose;

        async fn hold(&self, _: IpAddr, ports: &BTreeSet<(Protocol, u16)>, _: Instant) -> Result<Held, OnPurpose> {
            self.note("hold", format!(" {:?}", ports.iter().map(|(_, port)| *port).collect::<Vec<_>>())).await?;
            let lost = self.is_next("lost");
            let before = std::mem::replace(&mut *self.there.lock().unwrap(), true);
            Ok(if before && !lost { Held::Stayed } else { Held::Came })
        }

        async fn release(&self, _: IpAddr) -> Result<(), OnPurpose> {
            self.note("release", String::new()).await?;
            *self.there.lock().unwrap() = false;
            Ok(())
        }

        async fn announce(&self, _: IpAddr) -> Result<(), OnPurpose> {
            self.note("announce", String::new()).await
        }
    }

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 9, 10));
    /// A pause after which nothing comes in a test.
    const LATER: Duration = Duration::from_secs(3600);
    const SHORTLY: Duration = Duration::from_millis(10);

    /// Wants it with this port for so long.
    fn wanted(number: u64, port: u16, until: Instant) -> Wanted {
        let hold = Hold { ports: [(Protocol::Tcp, port)].into(), until };
        Wanted { number, held: [(ADDRESS, hold)].into() }
    }

    /// What is asked of a network for these plans, the last of which wants nothing; each is waited for until the
    /// network is as it wants, and until this was asked for so many times.
    async fn asked(
        plans: Vec<(Wanted, &str, usize)>,
        failures: &[&'static str],
        pauses: &[Duration],
    ) -> (Vec<String>, String) {
        let network = Paper { failures: Mutex::new(failures.iter().copied().collect()), ..Paper::default() };
        let (sender, receiver) = watch::channel(Wanted::default());
        let (present, mut seen) = watch::channel(Present::default());
        let metrics = Metrics::of_agent();
        let mut wire = Wire::new(&network, receiver, present, &metrics);
        wire.pauses = pauses;
        let work = async {
            for (plan, what, times) in plans {
                let number = plan.number;
                sender.send_replace(plan);
                seen.wait_for(|present| present.number == number).await.unwrap();
                let count = || network.asked.lock().unwrap().iter().filter(|asked| asked.starts_with(what)).count();
                while count() < times {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            seen.wait_for(|present| present.addresses.is_empty()).await.unwrap();
        };
        tokio::select! {
            () = wire.work() => {}
            () = work => {}
        }
        let measured = metrics.encode();
        let of_network = |line: &&str| {
            line.starts_with("clusterip_agent_announcements_total ")
                || line.starts_with("clusterip_agent_network_failures_total{") && !line.ends_with(" 0")
        };
        let mut measured: Vec<&str> = measured.lines().filter(of_network).collect();
        measured.sort_unstable();
        (network.asked.into_inner().unwrap(), measured.join(", ").replace("clusterip_agent_", ""))
    }

    #[tokio::test]
    async fn what_is_asked_of_a_network() {
        let (long, longer) = (Instant::now() + Duration::from_secs(600), Instant::now() + Duration::from_secs(601));
        let nothing = |number| (Wanted { number, ..Wanted::default() }, "release", 1);
        let once = || vec![(wanted(1, 80, long), "announce", 1), nothing(2)];
        let times = |count| vec![(wanted(1, 80, long), "announce", count), nothing(2)];
        let failed = |step: &str| format!("network_failures_total{{step=\"{step}\"}} 1");
        // The plans; what fails; after which pauses it is announced again; what is asked for; what is measured.
        type Row<'a> = (
            &'a str,
            Vec<(Wanted, &'a str, usize)>,
            &'a [&'static str],
            &'a [Duration],
            &'a [&'a str],
            usize,
            Option<String>,
        );
        let rows: [Row<'_>; 9] = [
            ("it comes and goes", once(), &[], &[LATER], &["hold [80]", "announce", "release"], 1, None),
            (
                "it is announced again, so many times",
                times(3),
                &[],
                &[SHORTLY, SHORTLY],
                &["hold [80]", "announce", "announce", "announce", "release"],
                3,
                None,
            ),
            (
                "it is renewed, and its ports change",
                vec![
                    (wanted(1, 80, long), "announce", 1),
                    (wanted(2, 80, longer), "hold [80]", 2),
                    (wanted(3, 81, longer), "hold [81]", 1),
                    nothing(4),
                ],
                &[],
                &[],
                &["hold [80]", "announce", "hold [80]", "hold [81]", "release"],
                1,
                None,
            ),
            (
                "somebody has removed it meanwhile",
                vec![(wanted(1, 80, long), "announce", 1), (wanted(2, 80, longer), "announce", 2), nothing(3)],
                // The first time it comes anyway.
                &["lost", "lost"],
                &[],
                &["hold [80]", "announce", "hold [80]", "announce", "release"],
                2,
                None,
            ),
            (
                "it does not come",
                once(),
                &["hold"],
                &[],
                &["hold [80]", "hold [80]", "announce", "release"],
                1,
                Some(failed("hold")),
            ),
            (
                "it is not announced",
                times(2),
                &["announce"],
                &[LATER],
                &["hold [80]", "announce", "hold [80]", "announce", "release"],
                1,
                Some(failed("announce")),
            ),
            (
                "it does not go",
                once(),
                &["release"],
                &[],
                &["hold [80]", "announce", "release", "release"],
                1,
                Some(failed("release")),
            ),
            (
                "it does not come, and is not wanted any more",
                vec![(wanted(1, 80, long), "hold", 1), nothing(2)],
                &["hold"],
                &[],
                &["hold [80]", "release"],
                0,
                Some(failed("hold")),
            ),
            ("its time was over before it came", vec![(wanted(1, 80, Instant::now()), "", 0)], &[], &[], &[], 0, None),
        ];
        for (name, plans, failures, pauses, expected, announced, failed) in rows {
            let found = timeout(Duration::from_secs(60), asked(plans, failures, pauses)).await;
            let measured = [format!("announcements_total {announced}")].into_iter().chain(failed);
            let measured = measured.collect::<Vec<_>>().join(", ");
            let expected = expected.iter().map(|asked| (*asked).to_owned()).collect();
            assert_eq!(found.ok(), Some((expected, measured)), "{name}");
        }
    }

    #[tokio::test]
    async fn what_has_an_end_goes_though_nobody_says_so_and_is_announced_no_more() {
        let soon = Instant::now() + Duration::from_secs(2);
        let plan = vec![(wanted(1, 80, soon), "announce", 1)];
        let (asked, _) = timeout(Duration::from_secs(60), asked(plan, &[], &[SHORTLY; 1000])).await.unwrap();
        let (first, last) = (&asked[..2], &asked[asked.len() - 1..]);
        assert_eq!((first, last), (&["hold [80]".to_owned(), "announce".to_owned()][..], &["release".to_owned()][..]));
        assert!(asked[2..asked.len() - 1].iter().all(|asked| asked == "announce"), "{asked:?}");
    }

    #[tokio::test]
    async fn what_can_t_be_held_is_told_until_it_can() {
        let network = Paper { failures: Mutex::new(vec!["hold"; 6].into()), ..Paper::default() };
        let (sender, receiver) = watch::channel(Wanted::default());
        let (present, mut seen) = watch::channel(Present::default());
        let metrics = Metrics::of_agent();
        let mut wire = Wire::new(&network, receiver, present, &metrics);
        sender.send_replace(wanted(1, 80, Instant::now() + Duration::from_secs(600)));
        let work = async {
            let failing = seen.wait_for(|present| !present.failing.is_empty()).await.unwrap().clone();
            let tries = network.asked.lock().unwrap().len();
            let well = seen.wait_for(|present| present.failing.is_empty()).await.unwrap().clone();
            (failing, tries, well)
        };
        let found = tokio::select! {
            () = wire.work() => None,
            found = timeout(Duration::from_secs(60), work) => found.ok(),
        };
        let held = Present { number: 1, addresses: [ADDRESS].into(), ..Present::default() };
        let failing = Present { failing: [ADDRESS].into(), ..held.clone() };
        assert_eq!(found, Some((failing, 5, held)));
    }
}
