//! Simulated networks of all nodes of a test. They record which node holds which address, and report every address that
//! two nodes hold at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clusterip::agent::assignments::Protocol;
use clusterip::agent::network::{HoldOutcome, Network};
use tokio::time::Instant;

/// What happened to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// It was added to this node, with these open ports.
    Came(BTreeSet<(Protocol, u16)>),
    /// Its open ports have changed.
    Ports(BTreeSet<(Protocol, u16)>),
    /// It was announced.
    Announced,
    /// The agent released it, before its hold expired or after that.
    Released { in_time: bool },
}

/// The end of a hold, and the open ports.
type Hold = (Instant, BTreeSet<(Protocol, u16)>);

#[derive(Default)]
struct Inner {
    held: BTreeMap<IpAddr, BTreeMap<String, Hold>>,
    log: Vec<(IpAddr, String, What)>,
    twice: Vec<String>,
}

/// The addresses of all nodes. An address disappears when its hold expires, as in the kernel.
#[derive(Clone, Default)]
pub struct Air(Arc<Mutex<Inner>>);

impl Air {
    /// The network of this node.
    pub fn node(&self, name: &str) -> Node {
        Node { air: self.clone(), name: name.to_owned() }
    }

    /// The current holder of each address.
    pub fn holders(&self) -> BTreeMap<IpAddr, String> {
        let (now, inner) = (Instant::now(), self.lock());
        let holder = |nodes: &BTreeMap<String, (Instant, BTreeSet<_>)>| {
            nodes.iter().find(|(_, (until, _))| now < *until).map(|(node, _)| node.clone())
        };
        inner.held.iter().filter_map(|(address, nodes)| Some((*address, holder(nodes)?))).collect()
    }

    /// All changes, in order.
    pub fn log(&self) -> Vec<(IpAddr, String, What)> {
        self.lock().log.clone()
    }

    /// Fails if an address was ever on two nodes at once.
    #[track_caller]
    pub fn never_twice(&self) {
        assert_eq!(self.lock().twice, Vec::<String>::new());
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The network of one node.
pub struct Node {
    air: Air,
    name: String,
}

impl Network for Node {
    type Error = Infallible;

    async fn hold(
        &self,
        address: IpAddr,
        ports: &BTreeSet<(Protocol, u16)>,
        until: Instant,
    ) -> Result<HoldOutcome, Infallible> {
        let now = Instant::now();
        let mut inner = self.air.lock();
        let nodes = inner.held.entry(address).or_default();
        let other = nodes.iter().find(|(node, (until, _))| **node != self.name && now < *until);
        let other = other
            .map(|(node, (until, _))| format!("{address}: {} while {node} has it for {:?}", self.name, *until - now));
        let before = nodes.insert(self.name.clone(), (until, ports.clone())).filter(|(until, _)| now < *until);
        let held = if before.is_some() { HoldOutcome::Kept } else { HoldOutcome::Added };
        let what = match before {
            Some((_, known)) if known == *ports => None,
            Some(_) => Some(What::Ports(ports.clone())),
            None => Some(What::Came(ports.clone())),
        };
        inner.log.extend(what.map(|what| (address, self.name.clone(), what)));
        inner.twice.extend(other);
        Ok(held)
    }

    async fn release(&self, address: IpAddr) -> Result<(), Infallible> {
        let now = Instant::now();
        let mut inner = self.air.lock();
        let before = inner.held.get_mut(&address).and_then(|nodes| nodes.remove(&self.name));
        let in_time = before.is_some_and(|(until, _)| now < until);
        inner.log.push((address, self.name.clone(), What::Released { in_time }));
        Ok(())
    }

    async fn announce(&self, address: IpAddr) -> Result<(), Infallible> {
        self.air.lock().log.push((address, self.name.clone(), What::Announced));
        Ok(())
    }
}
