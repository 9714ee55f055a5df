//! The network of a Linux node: adds addresses to an interface, announces them to the neighbours, and opens their
//! ports.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clusterip_failover::assignments::Port;
use clusterip_failover::timing::{FIREWALL_REWRITE, STEP_TIMEOUT};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::network::{HoldOutcome, Network};
use crate::node_network::{Announcer, Error, Firewall, HoldResult, Interface, PortRange, lenient_arp, ranges};

pub struct LinuxNetwork {
    named: Option<String>,
    /// The interface as it was last found: it may be removed and created again with another index.
    interface: Mutex<Interface>,
    announcer: Announcer,
    firewall: Arc<NodeFirewall>,
    /// Repairs the firewall until this value is dropped.
    _repair: JoinSet<()>,
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
        let firewall = Arc::new(NodeFirewall::begin().await?);
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
        let repair = [Arc::clone(&firewall).repair()].into_iter().collect();
        Ok(Self { named: named.map(str::to_owned), interface, announcer, firewall, _repair: repair })
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
            tracing::warn!(interface = found.name(), "the interface was recreated: using the new one");
            *known = found.clone();
        }
        Ok(found)
    }

    async fn put(&self, interface: &Interface, address: IpAddr, until: Instant) -> Result<HoldResult, Error> {
        interface.check_up().await?;
        interface.hold(address, until.saturating_duration_since(Instant::now())).await
    }
}

impl Network for LinuxNetwork {
    type Error = Error;

    async fn hold(&self, address: IpAddr, ports: &Arc<[Port]>, until: Instant) -> Result<HoldOutcome, Self::Error> {
        // The firewall is updated first, so that a port that must be closed is never open, not even for a moment.
        self.firewall.set(address, Some(ranges(ports.iter()))).await?;
        let interface = self.interface();
        let found = match self.put(&interface, address, until).await {
            Err(Error::NoInterface(_)) => self.put(&self.found_again(&interface).await?, address, until).await,
            found => found,
        };
        Ok(if found? == HoldResult::Added { HoldOutcome::Added } else { HoldOutcome::Kept })
    }

    async fn release(&self, address: IpAddr) -> Result<(), Self::Error> {
        match self.interface().release(address).await {
            // If the interface is gone, so are all its addresses.
            Ok(()) | Err(Error::NoInterface(_)) => {}
            Err(error) => return Err(error),
        }
        // The address is no longer on this node, whether or not the firewall was updated: other nodes must not wait
        // for that.
        match timeout(STEP_TIMEOUT / 2, self.firewall.set(address, None)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%address, %error, "the firewall still has an address that was released"),
            Err(_) => tracing::warn!(%address, "the firewall still has an address that was released"),
        }
        Ok(())
    }

    async fn announce(&self, address: IpAddr) -> Result<(), Self::Error> {
        self.announcer.announce(&self.interface(), address)
    }
}

const TABLE: &str = "clusterip_external";

const MAX_RANGES: usize = 64;

/// How many addresses a transaction changes. So it takes little time and memory, however many addresses the node holds.
const AT_ONCE: usize = 16;

/// The open ports of all held addresses, and the nftables table that enforces them.
struct NodeFirewall {
    table: Firewall,
    addresses: Mutex<BTreeMap<IpAddr, Filtered>>,
    /// Is locked while the table is written, so that transactions take effect in their order.
    writing: tokio::sync::Mutex<()>,
}

struct Filtered {
    /// The open ports. `None` if this node no longer holds the address: then its packets are not filtered.
    open: Option<Vec<PortRange>>,
    /// Whether the table was written with these ports.
    written: bool,
}

impl NodeFirewall {
    /// Opens no port, and removes what an earlier process has left.
    async fn begin() -> Result<Self, Error> {
        let table = Firewall::new(TABLE);
        table.remove().await?;
        Ok(Self { table, addresses: Mutex::default(), writing: tokio::sync::Mutex::default() })
    }

    /// Opens exactly these ports of an address; `None` means that this node no longer holds the address. If nothing has
    /// changed, this does not wait for the changes of other addresses.
    async fn set(&self, address: IpAddr, mut open: Option<Vec<PortRange>>) -> Result<(), Error> {
        let closed = open.as_mut().map_or(0, |ranges| ranges.split_off(MAX_RANGES.min(ranges.len())).len());
        {
            let mut addresses = self.addresses();
            match addresses.get(&address) {
                Some(known) if known.open == open && known.written => return Ok(()),
                Some(known) if known.open == open => {}
                None if open.is_none() => return Ok(()),
                _ => {
                    if closed > 0 {
                        let limit = MAX_RANGES;
                        tracing::warn!(%address, closed, limit, "too many ranges of ports: the last ones stay closed");
                    }
                    addresses.insert(address, Filtered { open, written: false });
                }
            }
        }
        let _writing = self.writing.lock().await;
        let waiting: Vec<IpAddr> = {
            let addresses = self.addresses();
            let waiting = addresses.iter().filter(|(_, known)| !known.written).map(|(address, _)| *address);
            let (own, others): (Vec<_>, Vec<_>) = waiting.partition(|waiting| *waiting == address);
            if own.is_empty() {
                // Another call has written this change.
                return Ok(());
            }
            own.into_iter().chain(others).take(AT_ONCE).collect()
        };
        self.write(&waiting).await
    }

    /// Writes all addresses from time to time, because a program that loads its own ruleset may have emptied the table.
    async fn repair(self: Arc<Self>) {
        loop {
            sleep(FIREWALL_REWRITE).await;
            let addresses: Vec<IpAddr> = self.addresses().keys().copied().collect();
            for some in addresses.chunks(AT_ONCE) {
                let _writing = self.writing.lock().await;
                if let Err(error) = self.write(some).await {
                    tracing::warn!(%error, "can't write the firewall again, trying again later");
                }
            }
        }
    }

    /// Writes these addresses as they are to be now. The caller has locked `writing`.
    async fn write(&self, addresses: &[IpAddr]) -> Result<(), Error> {
        let (some, holds_any): (BTreeMap<_, _>, _) = {
            let known = self.addresses();
            let some = addresses.iter().filter_map(|address| Some((*address, known.get(address)?.open.clone())));
            (some.collect(), known.values().any(|known| known.open.is_some()))
        };
        match holds_any {
            true => self.table.write(&some).await?,
            false => self.table.remove().await?,
        }
        let mut known = self.addresses();
        for (address, open) in some {
            // The address may have changed meanwhile.
            if let Some(now) = known.get_mut(&address).filter(|now| now.open == open) {
                now.written = true;
                if open.is_none() {
                    known.remove(&address);
                }
            }
        }
        Ok(())
    }

    fn addresses(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Filtered>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
