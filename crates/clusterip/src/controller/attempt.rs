//! Where a Service is tried to be placed, and where next when that is refused.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::alternatives::Targets;
use super::journal::{Journal, Way};
use super::outcome::shown;
use super::step::{Placement, Without};

/// How many targets are tried while the Service has no address.
const MOST_TARGETS: usize = 5;

/// What was tried to place the Service.
pub(super) struct Attempt {
    /// Where it is tried now.
    pub(super) placement: Placement,
    refused: Vec<IpAddr>,
    /// How many targets were refused.
    tried: usize,
    /// What went wrong so far, in words.
    pub(super) notes: Vec<String>,
    /// Since when a port is waited for.
    waiting: Option<Instant>,
    /// What the Service does not get back.
    pub(super) without: Without,
}

impl Attempt {
    fn new(placement: Placement, refused: Vec<IpAddr>) -> Self {
        let notes = refused.iter().map(|address| format!("{address} is taken")).collect();
        Self { placement, refused, tried: 0, notes, waiting: None, without: Without::default() }
    }

    /// The first place to try: the one in the journal, if this process `ordered` it, or the policy still gives it.
    pub(super) async fn first(
        journal: &Journal,
        ordered: Option<&[IpAddr]>,
        refused: &[IpAddr],
        targets: &dyn Targets,
    ) -> Self {
        let to = journal.to.as_slice();
        let trusted = !to.is_empty() && (ordered == Some(to) || targets.fits(to).await);
        let target = if trusted { Some(to.to_vec()) } else { next_target(targets, &[], &journal.from).await };
        let placement = match target {
            Some(to) => Placement::At(to),
            None => Self::old(journal, &[]),
        };
        let mut attempt = Self::new(placement, refused.to_vec());
        if !trusted && !to.is_empty() {
            attempt.notes.push(format!("the policy does not give it {} any more", shown(to)));
        }
        attempt
    }

    /// The addresses that are tried now; none where the API server picks.
    pub(super) fn addresses(&self) -> &[IpAddr] {
        match &self.placement {
            Placement::At(addresses) => addresses,
            Placement::Anywhere => &[],
        }
    }

    /// The old place, where it may still be free.
    fn old(journal: &Journal, refused: &[IpAddr]) -> Placement {
        match journal.from.is_empty() || journal.from.iter().any(|address| refused.contains(address)) {
            true => Placement::Anywhere,
            false => Placement::At(journal.from.clone()),
        }
    }

    /// Goes on to the next target, as an address is refused; false where nothing is left.
    pub(super) async fn after_address(
        &mut self,
        journal: &Journal,
        which: Option<IpAddr>,
        reason: &str,
        targets: &dyn Targets,
    ) -> bool {
        let Placement::At(tried) = &self.placement else { return false };
        self.notes.push(format!("{} can't be had: {reason}", shown(tried)));
        // A second address that is refused leaves the first held for about a minute. The one that a
        // single-stack Service kept is not allocated again, and so never refused.
        let stays = |address: &IpAddr| journal.way == Way::SingleStack && journal.from.first() == Some(address);
        let lost = if which.is_some() && which == tried.first().copied() { &tried[..1] } else { tried };
        self.refused.extend(lost.iter().filter(|address| !stays(address)));
        self.tried += 1;
        let next =
            if self.tried < MOST_TARGETS { next_target(targets, &self.refused, &journal.from).await } else { None };
        self.placement = match next {
            Some(next) => Placement::At(next),
            None if *tried == journal.from => Placement::Anywhere,
            None => Self::old(journal, &self.refused),
        };
        true
    }

    /// Goes on to the old place, as the new one is forbidden; false where nothing is left.
    pub(super) fn after_refusal(&mut self, journal: &Journal, reason: &str) -> bool {
        let Placement::At(tried) = &self.placement else { return false };
        self.notes.push(format!("{} was refused: {reason}", shown(tried)));
        self.placement = match *tried == journal.from {
            true => Placement::Anywhere,
            false => Self::old(journal, &self.refused),
        };
        true
    }

    /// Goes on without the external addresses that the policy refuses, else to the old place; false where nothing
    /// is left.
    pub(super) fn after_judgement(&mut self, journal: &Journal, has_external: bool, reason: &str) -> bool {
        if has_external && !self.without.external {
            self.without.external = true;
            self.notes.push(format!("its external addresses were not restored: {reason}"));
            return true;
        }
        self.after_refusal(journal, reason)
    }

    /// Gives up a port that was waited for long enough; false where it must be waited for, or where it is
    /// not known which it is.
    pub(super) fn after_port(&mut self, which: Option<u64>, reason: &str, patience: Duration) -> bool {
        let since = *self.waiting.get_or_insert_with(Instant::now);
        if since.elapsed() < patience {
            return false;
        }
        match which.filter(|port| !self.without.ports.contains(port)) {
            Some(port) => {
                self.without.ports.push(port);
                self.notes.push(format!("node port {port} was replaced by another: {reason}"));
                true
            }
            None => false,
        }
    }
}

/// The next target that can be one.
pub(super) async fn next_target(targets: &dyn Targets, refused: &[IpAddr], from: &[IpAddr]) -> Option<Vec<IpAddr>> {
    let next = targets.another(refused).await?;
    let fresh = !next.is_empty() && next.iter().all(|address| !refused.contains(address));
    (fresh && (from.is_empty() || same_families(from, &next))).then_some(next)
}

/// Whether these addresses are of the same families, in the same order.
pub(super) fn same_families(one: &[IpAddr], other: &[IpAddr]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.is_ipv4() == other.is_ipv4())
}
