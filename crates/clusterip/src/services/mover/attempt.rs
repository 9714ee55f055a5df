//! The attempts to give a Service an address: which address this attempt writes, and which one is next if it is
//! refused.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::journal::{Journal, ReleaseMethod};
use super::outcome::shown;
use super::step::{TargetAddresses, Without};
use super::targets::Targets;

/// How many targets are tried while the Service has no address.
const MAX_TARGETS: usize = 5;

/// The current attempt to give a Service an address, and what earlier attempts found out.
pub(super) struct Attempt {
    /// The addresses that this attempt writes.
    pub(super) target: TargetAddresses,
    refused: Vec<IpAddr>,
    /// How many targets were refused.
    tried: usize,
    /// What went wrong so far, as text for the outcome.
    pub(super) notes: Vec<String>,
    /// When the wait for a node port began.
    waiting: Option<Instant>,
    /// What the Service does not get back.
    pub(super) without: Without,
}

impl Attempt {
    fn new(target: TargetAddresses, refused: Vec<IpAddr>) -> Self {
        let notes = refused.iter().map(|address| format!("{address} is taken")).collect();
        Self { target, refused, tried: 0, notes, waiting: None, without: Without::default() }
    }

    /// The first attempt: at the addresses in the journal, if this process `ordered` them or the policy still gives
    /// them to the Service; otherwise at another target, and without one at the old addresses.
    pub(super) async fn first(
        journal: &Journal,
        ordered: Option<&[IpAddr]>,
        refused: &[IpAddr],
        targets: &dyn Targets,
    ) -> Self {
        let to = journal.to.as_slice();
        let trusted = !to.is_empty() && (ordered == Some(to) || targets.fits(to).await);
        let found = if trusted { Some(to.to_vec()) } else { next_target(targets, &[], &journal.from).await };
        let target = match found {
            Some(to) => TargetAddresses::These(to),
            None => Self::old(journal, &[]),
        };
        let mut attempt = Self::new(target, refused.to_vec());
        if !trusted && !to.is_empty() {
            attempt.notes.push(format!("the policy does not give it {} any more", shown(to)));
        }
        attempt
    }

    /// The addresses of this attempt; empty if the API server picks them.
    pub(super) fn addresses(&self) -> &[IpAddr] {
        match &self.target {
            TargetAddresses::These(addresses) => addresses,
            TargetAddresses::AnyFree => &[],
        }
    }

    /// The old addresses; any address if there are no old ones, or if one of them was refused.
    fn old(journal: &Journal, refused: &[IpAddr]) -> TargetAddresses {
        match journal.from.is_empty() || journal.from.iter().any(|address| refused.contains(address)) {
            true => TargetAddresses::AnyFree,
            false => TargetAddresses::These(journal.from.clone()),
        }
    }

    /// Goes on to the next target after an address was refused. Returns `false` if there is nothing left to try.
    pub(super) async fn after_address(
        &mut self,
        journal: &Journal,
        which: Option<IpAddr>,
        reason: &str,
        targets: &dyn Targets,
    ) -> bool {
        let TargetAddresses::These(tried) = &self.target else { return false };
        self.notes.push(format!("{} is not available: {reason}", shown(tried)));
        // If the second address is refused, the API server keeps the first one allocated for about a minute, so both
        // are lost. The address that a single-stack Service kept is not allocated again, and so never refused.
        let stays = |address: &IpAddr| {
            journal.release_method == ReleaseMethod::SingleStack && journal.from.first() == Some(address)
        };
        let lost = if which.is_some() && which == tried.first().copied() { &tried[..1] } else { tried };
        self.refused.extend(lost.iter().filter(|address| !stays(address)));
        self.tried += 1;
        let next =
            if self.tried < MAX_TARGETS { next_target(targets, &self.refused, &journal.from).await } else { None };
        self.target = match next {
            Some(next) => TargetAddresses::These(next),
            None if *tried == journal.from => TargetAddresses::AnyFree,
            None => Self::old(journal, &self.refused),
        };
        true
    }

    /// Goes on to the old addresses after the new ones were forbidden. Returns `false` if there is nothing left to
    /// try.
    pub(super) fn after_refusal(&mut self, journal: &Journal, reason: &str) -> bool {
        let TargetAddresses::These(tried) = &self.target else { return false };
        self.notes.push(format!("{} was refused: {reason}", shown(tried)));
        self.target = match *tried == journal.from {
            true => TargetAddresses::AnyFree,
            false => Self::old(journal, &self.refused),
        };
        true
    }

    /// Goes on without the external addresses after the policy refused the Service, and if that was refused too, to
    /// the old addresses. Returns `false` if there is nothing left to try.
    pub(super) fn after_policy_refusal(&mut self, journal: &Journal, has_external: bool, reason: &str) -> bool {
        if has_external && !self.without.external {
            self.without.external = true;
            self.notes.push(format!("its external addresses were not restored: {reason}"));
            return true;
        }
        self.after_refusal(journal, reason)
    }

    /// Gives up a node port that was waited for long enough. Returns `false` if the wait goes on, or if the answer
    /// names no port that can be given up.
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

/// The next target that can be used: with the same address families, and without a refused address.
pub(super) async fn next_target(targets: &dyn Targets, refused: &[IpAddr], from: &[IpAddr]) -> Option<Vec<IpAddr>> {
    let next = targets.another(refused).await?;
    let fresh = !next.is_empty() && next.iter().all(|address| !refused.contains(address));
    (fresh && (from.is_empty() || same_families(from, &next))).then_some(next)
}

/// Whether both lists have the same address families, in the same order.
pub(super) fn same_families(one: &[IpAddr], other: &[IpAddr]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.is_ipv4() == other.is_ipv4())
}
