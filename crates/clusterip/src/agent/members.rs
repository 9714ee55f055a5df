//! The heartbeats of the other agents, as this one has observed them.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

use super::heart::holder;
use super::heartbeat::NODE_ANNOTATION;
use super::timing::{FORGOTTEN, HEARTBEAT};
use super::version::Version;
use crate::controller::identity::Identity;

/// What is known of a term that somebody claimed addresses in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It goes on, as far as was observed.
    Alive,
    /// Nothing was heard of it for as long as it lasts: it may be ended.
    Silent,
    /// It is over, for good.
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Keeper {
    /// This one renews it.
    Kept(Identity),
    /// It was given back, or ended.
    Nobody,
    /// There is no Lease. It may have been deleted by hand, and come again.
    Absent,
}

#[derive(Clone, Debug)]
struct Member {
    keeper: Keeper,
    /// Its Lease, where there is one.
    lease: Option<Box<Lease>>,
    duration: Duration,
    /// Since when it has been seen as it is.
    since: Instant,
}

impl Member {
    fn silent_from(&self) -> Instant {
        self.since + self.duration
    }
}

/// A heartbeat that is to be written, or removed, as it was seen.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Observed {
    pub(super) node: String,
    /// None where there is none.
    pub(super) lease: Option<Box<Lease>>,
    /// Since when this could be done.
    pub(super) since: Instant,
}

/// All heartbeats.
#[derive(Clone, Debug, Default)]
pub(super) struct Members {
    by_node: BTreeMap<String, Member>,
}

impl Members {
    /// One was seen.
    pub(super) fn see(&mut self, lease: &Lease, now: Instant) {
        let Some(node) = node_of(lease) else { return };
        let version = Version::of(lease);
        if let Some(known) = self.by_node.get(node).and_then(|member| member.lease.as_ref()) {
            let known = Version::of(known);
            if known == version || version.is_older_than(&known) {
                return;
            }
        }
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let member = Member {
            keeper: holder(lease).map_or(Keeper::Nobody, |holder| Keeper::Kept(Identity::of(holder))),
            lease: Some(Box::new(lease.clone())),
            duration: seconds.map_or(HEARTBEAT.lease, Duration::from_secs),
            since: now,
        };
        self.by_node.insert(node.to_owned(), member);
    }

    /// One was deleted. Whoever stops by himself gives it back instead: this one may live.
    pub(super) fn gone(&mut self, lease: &Lease, now: Instant) {
        let Some(member) = node_of(lease).and_then(|node| self.by_node.get_mut(node)) else { return };
        let same = |known: &Lease| Version::of(known).uid == Version::of(lease).uid;
        if member.lease.as_ref().is_some_and(|known| same(known)) {
            member.go(now);
        }
    }

    /// These are all that there are.
    pub(super) fn only(&mut self, leases: &[Lease], now: Instant) {
        for lease in leases {
            self.see(lease, now);
        }
        let listed: Vec<&str> = leases.iter().filter_map(node_of).collect();
        for (node, member) in &mut self.by_node {
            if member.lease.is_some() && !listed.contains(&node.as_str()) {
                member.go(now);
            }
        }
    }

    /// Somebody claims an address who has no heartbeat: it is waited for from now on.
    pub(super) fn expect(&mut self, node: &str, now: Instant) {
        if !self.by_node.contains_key(node) {
            let member = Member { keeper: Keeper::Absent, lease: None, duration: HEARTBEAT.lease, since: now };
            self.by_node.insert(node.to_owned(), member);
        }
    }

    /// Those that have no heartbeat matter to nobody, but for these.
    pub(super) fn forget_absent_but(&mut self, wanted: impl Fn(&str) -> bool) {
        self.by_node.retain(|node, member| member.lease.is_some() || wanted(node));
    }

    /// What is known of this term of the agent on this node.
    pub(super) fn standing(&self, node: &str, identity: &Identity, now: Instant) -> Standing {
        let Some(member) = self.by_node.get(node) else { return Standing::Silent };
        match &member.keeper {
            Keeper::Kept(keeper) if keeper != identity => Standing::Over,
            Keeper::Nobody => Standing::Over,
            Keeper::Kept(_) | Keeper::Absent if now < member.silent_from() => Standing::Alive,
            Keeper::Kept(_) | Keeper::Absent => Standing::Silent,
        }
    }

    /// The nodes whose agents live.
    pub(super) fn live(&self, now: Instant) -> impl Iterator<Item = &str> {
        let lives = move |member: &Member| matches!(member.keeper, Keeper::Kept(_)) && now < member.silent_from();
        self.by_node.iter().filter(move |(_, member)| lives(member)).map(|(node, _)| node.as_str())
    }

    /// Those that are silent, and not ended yet.
    pub(super) fn silent(&self, now: Instant) -> impl Iterator<Item = Observed> {
        let silent = move |member: &Member| member.keeper != Keeper::Nobody && now >= member.silent_from();
        self.observed(silent, Member::silent_from)
    }

    /// Those that nobody has kept for so long that nobody is likely to.
    pub(super) fn forgotten(&self, now: Instant) -> impl Iterator<Item = Observed> {
        let old = move |member: &Member| member.lease.is_some() && now >= member.since + FORGOTTEN;
        let forgotten = move |member: &Member| member.keeper == Keeper::Nobody && old(member);
        self.observed(forgotten, |member| member.since + FORGOTTEN)
    }

    fn observed(
        &self,
        which: impl Fn(&Member) -> bool,
        since: impl Fn(&Member) -> Instant,
    ) -> impl Iterator<Item = Observed> {
        let these = self.by_node.iter().filter(move |(_, member)| which(member));
        these.map(move |(node, member)| Observed {
            node: node.clone(),
            lease: member.lease.clone(),
            since: since(member),
        })
    }

    /// When the next falls silent, if nothing is heard of it, or is forgotten.
    pub(super) fn next_change(&self, now: Instant) -> Option<Instant> {
        let change = |member: &Member| match member.keeper {
            Keeper::Nobody => member.since + FORGOTTEN,
            Keeper::Kept(_) | Keeper::Absent => member.silent_from(),
        };
        self.by_node.values().map(change).filter(|change| *change > now).min()
    }
}

impl Member {
    fn go(&mut self, now: Instant) {
        self.lease = None;
        // What was given back before is over, whether it is there or not.
        if self.keeper != Keeper::Nobody {
            self.keeper = Keeper::Absent;
            self.since = now;
        }
    }
}

/// The Node that a heartbeat is of; nothing where this program can't have written it.
pub(super) fn node_of(lease: &Lease) -> Option<&str> {
    let node = lease.metadata.annotations.as_ref()?.get(NODE_ANNOTATION)?;
    (lease.metadata.name.as_deref()? == super::heartbeat::name(node)).then_some(node)
}
