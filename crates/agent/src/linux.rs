//! The network of a Linux node: adds addresses to an interface, announces them to the neighbours, and opens their
//! ports.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clusterip_failover::assignments::Port;
use clusterip_failover::timing::{FIREWALL_REWRITE, RETRY_PAUSE};
use tokio::time::{Instant, sleep};

use super::network::{HoldOutcome, Network};
use crate::node_network::{Announcer, Error, Firewall, HoldResult as Found, Interface, lenient_arp};

/// Implements [`Network`] for the interface of this node.
pub struct LinuxNetwork {
    /// The name of the interface, if the user gave one.
    named: Option<String>,
    /// The interface as it was last found: it may be removed and created again with another index.
    interface: Mutex<Interface>,
    announcer: Announcer,
    firewall: Arc<NodeFirewall>,
}

impl LinuxNetwork {
    /// Finds the interface of this name, or that of the default route. Removes the addresses that an earlier
    /// process has left on it, because this node may no longer hold them.
    pub async fn begin(named: Option<&str>) -> Result<Self, Error> {
        let interface = Interface::find(named).await?;
        let left = interface.held().await?;
        for address in &left {
            interface.release(*address).await?;
        }
        let firewall = NodeFirewall::begin().await?;
        tracing::info!(
            interface = interface.name(),
            removed = left.len(),
            "external addresses are added to this interface"
        );
        match lenient_arp(interface.name()) {
            Ok(Some(lenient)) => {
                tracing::warn!(reason = %lenient, "other nodes than the holder may answer ARP requests for an address");
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "can't determine whether kube-proxy needs strictARP"),
        }
        let (announcer, interface) = (Announcer::open()?, Mutex::new(interface));
        Ok(Self { named: named.map(str::to_owned), interface, announcer, firewall: Arc::new(firewall) })
    }

    fn interface(&self) -> Interface {
        self.interface.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Finds the interface that replaces one that is gone.
    async fn found_again(&self, gone: &Interface) -> Result<Interface, Error> {
        let found = Interface::find(self.named.as_deref()).await?;
        let mut known = self.interface.lock().unwrap_or_else(PoisonError::into_inner);
        // Calls for other addresses may find the new interface at the same time.
        if known.is_same(gone) && !found.is_same(gone) {
            tracing::warn!(interface = found.name(), "the interface was replaced by another one: using that");
            *known = found.clone();
        }
        Ok(found)
    }

    async fn put(&self, interface: &Interface, address: IpAddr, until: Instant) -> Result<Found, Error> {
        interface.check_up().await?;
        interface.hold(address, until.saturating_duration_since(Instant::now())).await
    }
}

impl Network for LinuxNetwork {
    type Error = Error;

    async fn hold(&self, address: IpAddr, ports: &Arc<[Port]>, until: Instant) -> Result<HoldOutcome, Self::Error> {
        // The firewall is updated first, so that a port that must be closed is never open, not even for a moment.
        self.firewall.set(address, Some(Arc::clone(ports))).await?;
        let interface = self.interface();
        let found = match self.put(&interface, address, until).await {
            Err(Error::NoInterface(_)) => self.put(&self.found_again(&interface).await?, address, until).await,
            found => found,
        };
        Ok(match found? {
            Found::Added => HoldOutcome::Added,
            Found::Renewed => HoldOutcome::Kept,
        })
    }

    async fn release(&self, address: IpAddr) -> Result<(), Self::Error> {
        match self.interface().release(address).await {
            // If the interface is gone, so are all its addresses.
            Ok(()) | Err(Error::NoInterface(_)) => {}
            Err(error) => return Err(error),
        }
        // The address is no longer on this node, whether or not the firewall was updated: other nodes must not wait
        // for that.
        if let Err(error) = self.firewall.set(address, None).await {
            tracing::warn!(%address, %error, "the firewall still has the ports of an address that was released");
            Arc::clone(&self.firewall).catch_up();
        }
        Ok(())
    }

    async fn announce(&self, address: IpAddr) -> Result<(), Self::Error> {
        self.announcer.announce(&self.interface(), address)
    }
}

/// The nftables table that only this program uses.
const TABLE: &str = "clusterip_external";

/// The open ports of all held addresses, and the nftables table that enforces them.
struct NodeFirewall {
    table: Firewall,
    open: Mutex<Open>,
    /// The state that the table enforces. Changes that were made while waiting for this lock are applied together.
    applied: tokio::sync::Mutex<Applied>,
    catching_up: AtomicBool,
}

/// The ports that are to be open, by address.
#[derive(Clone, Default)]
struct Open {
    ports: BTreeMap<IpAddr, Arc<[Port]>>,
    /// The number of changes so far.
    changes: u64,
}

/// The last change that the firewall enforces, and when it was written.
struct Applied {
    changes: u64,
    at: Instant,
}

impl NodeFirewall {
    /// Opens no port, and removes what an earlier process has left.
    async fn begin() -> Result<Self, Error> {
        let table = Firewall::new(TABLE);
        table.remove().await?;
        let applied = tokio::sync::Mutex::new(Applied { changes: 0, at: Instant::now() });
        Ok(Self { table, open: Mutex::default(), applied, catching_up: AtomicBool::new(false) })
    }

    /// Opens exactly these ports of an address; `None` means that this node no longer holds the address.
    ///
    /// If nothing has changed, the firewall is still written again from time to time: a program that loads its own
    /// ruleset may have emptied this table.
    async fn set(&self, address: IpAddr, ports: Option<Arc<[Port]>>) -> Result<(), Error> {
        let own = {
            let mut open = self.open();
            if open.ports.get(&address) != ports.as_ref() {
                match ports {
                    Some(ports) => drop(open.ports.insert(address, ports)),
                    None => drop(open.ports.remove(&address)),
                }
                open.changes += 1;
            }
            open.changes
        };
        self.apply(own).await
    }

    /// Retries in the background until the firewall enforces the current ports.
    fn catch_up(self: Arc<Self>) {
        if self.catching_up.swap(true, Ordering::AcqRel) {
            return;
        }
        tokio::spawn(async move {
            loop {
                sleep(RETRY_PAUSE).await;
                let changes = self.open().changes;
                if self.apply(changes).await.is_ok() {
                    self.catching_up.store(false, Ordering::Release);
                    return;
                }
            }
        });
    }

    async fn apply(&self, changes: u64) -> Result<(), Error> {
        let mut applied = self.applied.lock().await;
        if applied.changes >= changes && applied.at.elapsed() < FIREWALL_REWRITE {
            return Ok(());
        }
        let Open { ports, changes } = self.open().clone();
        if ports.is_empty() {
            self.table.remove().await?
        } else {
            self.table.replace(&ports).await?
        }
        *applied = Applied { changes, at: Instant::now() };
        Ok(())
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
