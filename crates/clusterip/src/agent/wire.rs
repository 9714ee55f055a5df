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

use super::book::{Hold, Present, Wanted};
use super::network::Network;
use super::timing::{AGAIN, STEP};

/// On how many addresses is worked at once.
const AT_ONCE: usize = 16;

/// How long what is to come may keep back what is to go.
const ROUND: Duration = Duration::from_secs(1);

/// What was done about an address last.
#[derive(Clone, Debug)]
struct Done {
    /// What it is held as; none where that is not known to have been carried out.
    held: Option<Hold>,
    announced: bool,
    /// Before which nothing is tried again.
    again: Option<Instant>,
}

/// The hand on the network.
pub(super) struct Wire<'a, N> {
    network: &'a N,
    wanted: watch::Receiver<Wanted>,
    present: watch::Sender<Present>,
    done: BTreeMap<IpAddr, Done>,
}

impl<'a, N: Network> Wire<'a, N> {
    pub(super) fn new(network: &'a N, wanted: watch::Receiver<Wanted>, present: watch::Sender<Present>) -> Self {
        Self { network, wanted, present, done: BTreeMap::new() }
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
        let is_due = |done: &Done| done.again.is_none_or(|again| now >= again);
        let going: Vec<IpAddr> =
            self.done.iter().filter(|(address, done)| !lasts(address) && is_due(done)).map(|(a, _)| *a).collect();
        let network = self.network;
        let released: Vec<(IpAddr, bool)> = stream::iter(going)
            .map(|address| async move { (address, tried("released", address, network.release(address)).await) })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        for (address, gone) in released {
            if gone {
                self.done.remove(&address);
            } else if let Some(done) = self.done.get_mut(&address) {
                // Whatever is asked for next, it is not known to be there.
                *done = Done { held: None, announced: false, again: Some(Instant::now() + AGAIN) };
            }
        }
        // What is about to come may be there from now on.
        let mut coming = Vec::new();
        for (address, hold) in wanted.held.iter().filter(|(address, _)| lasts(address)) {
            let done = self.done.entry(*address).or_insert(Done { held: None, announced: false, again: None });
            if is_due(done) && (done.held.as_ref() != Some(hold) || !done.announced) {
                coming.push((*address, hold.clone(), done.announced));
            }
        }
        self.tell(wanted.number);
        let mut steps = stream::iter(coming)
            .map(|(address, hold, announced)| async move {
                let done = take(network, address, hold, announced).await;
                (address, done)
            })
            .buffer_unordered(AT_ONCE);
        // What is to go must not wait for long. Whatever is not done by then is done in the next round.
        let end = now + ROUND;
        while let Ok(Some((address, done))) = timeout_at(end, steps.next()).await {
            self.done.insert(address, done);
        }
    }

    /// When there is more to do, if nothing else is wanted.
    fn next(&self, wanted: &Wanted, now: Instant) -> Option<Instant> {
        // What is neither held nor to be tried again was left over.
        let again = |done: &Done| done.again.or((done.held.is_none()).then_some(now));
        let again = self.done.values().filter_map(again);
        let ends = self.done.keys().filter_map(|address| wanted.held.get(address)).map(|hold| hold.until);
        again.chain(ends.filter(|end| *end > now)).min()
    }

    fn tell(&self, number: u64) {
        let addresses: BTreeSet<IpAddr> = self.done.keys().copied().collect();
        let now = Present { number, addresses };
        self.present.send_if_modified(|known| {
            let other = *known != now;
            *known = now;
            other
        });
    }
}

/// Has an address here.
async fn take<N: Network>(network: &N, address: IpAddr, hold: Hold, mut announced: bool) -> Done {
    // Others were waited for meanwhile, or the process stood still.
    let lasts = || Instant::now() < hold.until;
    let held = lasts() && tried("held", address, network.hold(address, &hold.ports, hold.until)).await;
    if held && !announced && lasts() {
        announced = tried("announced", address, network.announce(address)).await;
    }
    let again = (!held || !announced).then(|| Instant::now() + AGAIN);
    Done { held: held.then_some(hold), announced, again }
}

/// Whether it was done, in time.
async fn tried<E: fmt::Display>(what: &str, address: IpAddr, step: impl Future<Output = Result<(), E>>) -> bool {
    let reason = match timeout(STEP, pin!(step)).await {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("it takes longer than {STEP:?}"),
    };
    tracing::warn!(%address, reason, "the address can't be {what}, and is tried again");
    false
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
    }

    #[derive(Debug, thiserror::Error)]
    #[error("on purpose")]
    struct OnPurpose;

    impl Paper {
        async fn note(&self, what: &'static str, more: String) -> Result<(), OnPurpose> {
            self.asked.lock().unwrap().push(format!("{what}{more}"));
            let mut failures = self.failures.lock().unwrap();
            if failures.front() == Some(&what) {
                failures.pop_front();
                return Err(OnPurpose);
            }
            Ok(())
        }
    }

    impl Network for Paper {
        type Error = OnPurpose;

        async fn hold(&self, _: IpAddr, ports: &BTreeSet<(Protocol, u16)>, _: Instant) -> Result<(), OnPurpose> {
            self.note("hold", format!(" {:?}", ports.iter().map(|(_, port)| *port).collect::<Vec<_>>())).await
        }

        async fn release(&self, _: IpAddr) -> Result<(), OnPurpose> {
            self.note("release", String::new()).await
        }

        async fn announce(&self, _: IpAddr) -> Result<(), OnPurpose> {
            self.note("announce", String::new()).await
        }
    }

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 9, 10));

    /// Wants it with this port for so long.
    fn wanted(number: u64, port: u16, until: Instant) -> Wanted {
        let hold = Hold { ports: [(Protocol::Tcp, port)].into(), until };
        Wanted { number, held: [(ADDRESS, hold)].into() }
    }

    /// What is asked of a network for these plans, the last of which wants nothing; each is waited for until the
    /// network is as it wants, and until this was asked for so many times.
    async fn asked(plans: Vec<(Wanted, &str, usize)>, failures: &[&'static str]) -> Vec<String> {
        let network = Paper { failures: Mutex::new(failures.iter().copied().collect()), ..Paper::default() };
        let (sender, receiver) = watch::channel(Wanted::default());
        let (present, mut seen) = watch::channel(Present::default());
        let mut wire = Wire::new(&network, receiver, present);
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
        network.asked.into_inner().unwrap()
    }

    #[tokio::test]
    async fn what_is_asked_of_a_network() {
        let (long, longer) = (Instant::now() + Duration::from_secs(600), Instant::now() + Duration::from_secs(601));
        let nothing = |number| (Wanted { number, ..Wanted::default() }, "release", 1);
        let once = || vec![(wanted(1, 80, long), "announce", 1), nothing(2)];
        // The plans; what fails; what is asked for.
        type Row<'a> = (&'a str, Vec<(Wanted, &'a str, usize)>, &'a [&'static str], &'a [&'a str]);
        let rows: [Row<'_>; 7] = [
            ("it comes and goes", once(), &[], &["hold [80]", "announce", "release"]),
            (
                "it is renewed, and its ports change",
                vec![
                    (wanted(1, 80, long), "announce", 1),
                    (wanted(2, 80, longer), "hold [80]", 2),
                    (wanted(3, 81, longer), "hold [81]", 1),
                    nothing(4),
                ],
                &[],
                &["hold [80]", "announce", "hold [80]", "hold [81]", "release"],
            ),
            ("it does not come", once(), &["hold"], &["hold [80]", "hold [80]", "announce", "release"]),
            (
                "it is not announced",
                once()
                    .into_iter()
                    .map(|(plan, what, times)| (plan, what, if what == "announce" { 2 } else { times }))
                    .collect(),
                &["announce"],
                &["hold [80]", "announce", "hold [80]", "announce", "release"],
            ),
            ("it does not go", once(), &["release"], &["hold [80]", "announce", "release", "release"]),
            (
                "it does not come, and is not wanted any more",
                vec![(wanted(1, 80, long), "hold", 1), nothing(2)],
                &["hold"],
                &["hold [80]", "release"],
            ),
            ("its time was over before it came", vec![(wanted(1, 80, Instant::now()), "", 0)], &[], &[]),
        ];
        for (name, plans, failures, expected) in rows {
            let asked = timeout(Duration::from_secs(60), asked(plans, failures)).await;
            assert_eq!(asked.ok(), Some(expected.iter().map(|asked| (*asked).to_owned()).collect()), "{name}");
        }
    }

    #[tokio::test]
    async fn what_has_an_end_goes_though_nobody_says_so() {
        let soon = Instant::now() + Duration::from_secs(2);
        let asked = timeout(Duration::from_secs(60), asked(vec![(wanted(1, 80, soon), "announce", 1)], &[])).await;
        let expected = ["hold [80]", "announce", "release"].map(str::to_owned).to_vec();
        assert_eq!(asked.ok(), Some(expected));
    }
}
