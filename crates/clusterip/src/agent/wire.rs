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
