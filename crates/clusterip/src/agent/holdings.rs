//! Who holds which address, for those who look once.
//!
//! Whoever looks once can't tell a silent agent from a living one as the agents themselves do, by watching its
//! heartbeat for its whole duration. He can only hold the time that stands in it against a clock: a clock that
//! differs from the node's by more than a heartbeat lasts misleads him.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::claims::{Claim, EXTERNAL};
use super::heart::{AGENT, NODE_ANNOTATION};
use super::heart::{holder, unknown};
use super::timing::HEARTBEAT as TIMING;
use crate::cluster::claim_lease::LABEL;

/// The Leases of agents at one moment.
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    claims: BTreeMap<IpAddr, Claim>,
    heartbeats: BTreeMap<String, Lease>,
    /// By the clock of whoever looked.
    now: Option<Timestamp>,
    /// The newest time that a Lease tells of.
    newest: Option<Timestamp>,
}

/// A node that holds an address, by its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub node: String,
    /// Whether its heartbeat says that it still does.
    pub renewal: Renewal,
}

/// What a heartbeat says of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The agent that claimed it has renewed it within its duration.
    Renewed,
    /// There is no heartbeat.
    Missing,
    /// It was given back, or ended by others.
    GivenBack,
    /// Another term of an agent on that node has begun since: what was claimed before counts for nothing.
    Replaced,
    /// It was not renewed for longer than it lasts.
    Silent,
}

impl Renewal {
    /// Why the node does not hold the address any more; nothing where it does.
    pub fn problem(self) -> Option<&'static str> {
        match self {
            Self::Renewed => None,
            Self::Missing => Some("its agent has no heartbeat"),
            Self::GivenBack => Some("its agent has given its heartbeat back"),
            Self::Replaced => Some("its agent has begun anew since"),
            Self::Silent => Some("its agent has not renewed its heartbeat in time"),
        }
    }
}

impl Holdings {
    /// None yet, at this time; where that is not known, the newest that a Lease tells of stands for it.
    pub fn new(now: Option<Timestamp>) -> Self {
        Self { now, ..Self::default() }
    }

    /// A Lease was seen: one of an agent, or of anybody, which tells what time it was at least.
    pub fn see(&mut self, lease: &Lease) {
        let times = lease.spec.iter().flat_map(|spec| [&spec.renew_time, &spec.acquire_time]);
        self.newest = times.flatten().map(|time| time.0).chain(self.newest).max();
        match lease.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL)).map(String::as_str) {
            Some(EXTERNAL) => {
                if let Some(claim) = Claim::of(lease) {
                    self.claims.insert(claim.address, claim);
                }
            }
            Some(AGENT) => {
                let node = lease.metadata.annotations.as_ref().and_then(|annotations| annotations.get(NODE_ANNOTATION));
                if let Some(node) = node {
                    self.heartbeats.insert(node.clone(), lease.clone());
                }
            }
            _ => {}
        }
    }

    /// Who holds an address, by its claim.
    pub fn holder(&self, address: IpAddr) -> Option<Holder> {
        let claim = self.claims.get(&address)?;
        let node = claim.node()?.to_owned();
        Some(Holder { renewal: self.renewal(claim, &node), node })
    }

    /// Every address that somebody holds by a claim, and who does.
    pub fn all(&self) -> impl Iterator<Item = (IpAddr, Holder)> + '_ {
        self.claims.keys().filter_map(|address| Some((*address, self.holder(*address)?)))
    }

    fn renewal(&self, claim: &Claim, node: &str) -> Renewal {
        let Some(heartbeat) = self.heartbeats.get(node) else { return Renewal::Missing };
        match holder(heartbeat) {
            None => return Renewal::GivenBack,
            // Put back by others: it is whoever's that lives, and he has not said so yet.
            Some(holder) if holder == unknown(node).as_str() => {}
            Some(holder) if claim.holder.as_ref().is_some_and(|claimed| claimed.as_str() == holder) => {}
            Some(_) => return Renewal::Replaced,
        }
        let spec = heartbeat.spec.as_ref();
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).map(i64::from);
        let duration = seconds.map_or(SignedDuration::try_from(TIMING.lease), |it| Ok(SignedDuration::from_secs(it)));
        let renewed = spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
        match (self.now.or(self.newest), renewed, duration) {
            (Some(now), Some(renewed), Ok(duration)) if now.duration_since(renewed) <= duration => Renewal::Renewed,
            _ => Renewal::Silent,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use super::super::claims::lease as claim;
    use super::super::heart::{given_back, put_back};
    use super::*;
    use crate::controller::identity::{Identity, Role};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn heartbeat(identity: &Identity, second: i64) -> Lease {
        let mut lease = put_back("node-1", at(second));
        lease.spec.as_mut().unwrap().holder_identity = Some(identity.to_string());
        lease
    }

    #[test]
    fn what_a_heartbeat_says_of_a_claim() {
        let (me, other) = (Identity::with("node-1", Role::Agent, 1), Identity::with("node-1", Role::Agent, 2));
        let address = IpAddr::from([10, 0, 9, 10]);
        let own = |second| Some(heartbeat(&me, second));
        let rows = [
            ("renewed", own(100), Some(110), Some(Renewal::Renewed)),
            ("just in time", own(100), Some(120), Some(Renewal::Renewed)),
            ("too late", own(100), Some(121), Some(Renewal::Silent)),
            ("of the future", own(200), Some(110), Some(Renewal::Renewed)),
            ("none", None, Some(110), Some(Renewal::Missing)),
            ("given back", own(100).map(|lease| given_back(&lease, at(100))), Some(110), Some(Renewal::GivenBack)),
            ("another", Some(heartbeat(&other, 100)), Some(110), Some(Renewal::Replaced)),
            ("put back", Some(put_back("node-1", at(100))), Some(110), Some(Renewal::Renewed)),
            ("put back long ago", Some(put_back("node-1", at(100))), Some(130), Some(Renewal::Silent)),
            ("by the newest Lease", own(100), None, Some(Renewal::Renewed)),
            ("by a Lease of another that is newer", own(70), None, Some(Renewal::Silent)),
        ];
        for (name, heartbeat, now, expected) in rows {
            let mut holdings = Holdings::new(now.map(at));
            holdings.see(&claim(address, Some(&me), None, at(50)));
            let mut of_another = claim(IpAddr::from([10, 0, 9, 11]), None, None, at(100));
            of_another.metadata.labels = Some(BTreeMap::new());
            of_another.spec.as_mut().unwrap().renew_time = Some(MicroTime(at(100)));
            holdings.see(&of_another);
            heartbeat.iter().for_each(|lease| holdings.see(lease));
            let found = holdings.holder(address);
            assert_eq!(found.as_ref().map(|holder| holder.renewal), expected, "{name}");
            assert_eq!(holdings.all().collect::<Vec<_>>(), [(address, found.unwrap())], "{name}");
        }
        let mut holdings = Holdings::new(None);
        holdings.see(&claim(address, None, None, at(50)));
        assert_eq!(holdings.holder(address), None, "given back");
        assert_eq!(holdings.all().count(), 0);
    }
}
