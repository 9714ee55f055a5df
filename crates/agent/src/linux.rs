//! The network of a Linux node: adds addresses to an interface, announces them to the neighbours, and opens their
//! ports.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clusterip_failover::assignments::Port;
use clusterip_failover::timing::{FIREWALL_REWRITE, STEP_TIMEOUT};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::network::{HoldOutcome, Network};
use crate::node_network::{Announcer, Error, Firewall, HoldResult, Interface, PortRange, lenient_arp, ranges};

pub struct LinuxNetwork {
    named: Option<String>,
    /// The interface as it was last found: it may be removed and created again with another index.
    interface: Mutex<Interface>,
    announcer: Announcer,
    firewall: Arc<NodeFirewall>,
    /// Writes the firewall until this value is dropped.
    _writer: JoinSet<()>,
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
        let (firewall, writer) = NodeFirewall::begin().await?;
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
        Ok(Self { named: named.map(str::to_owned), interface, announcer, firewall, _writer: writer })
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

/// How many addresses a transaction changes. So its own time and memory do not depend on how many addresses the node
/// holds. But `nft` first reads all chains of the node, of which kube-proxy has one for each endpoint of each port.
const AT_ONCE: usize = 16;

/// The time limit of a transaction. It is longer than that of a step on the network: addresses whose ports stay the
/// same do not wait for transactions, and a step that was given up waits again when it is repeated.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The open ports of all held addresses, and the nftables table that enforces them.
struct NodeFirewall {
    table: Firewall,
    addresses: Mutex<BTreeMap<IpAddr, Filtered>>,
    /// The addresses to write.
    queue: mpsc::UnboundedSender<IpAddr>,
    /// Changes after each transaction.
    done: watch::Sender<()>,
}

struct Filtered {
    /// The open ports. `None` if this node no longer holds the address: then its packets are not filtered.
    open: Option<Vec<PortRange>>,
    state: FilterState,
}

/// Whether the table was written with the ports of an address.
#[derive(PartialEq)]
enum FilterState {
    Queued,
    Written,
    Failed(String),
}

impl NodeFirewall {
    /// Opens no port, and removes what an earlier process has left. The firewall is written until the set is dropped.
    async fn begin() -> Result<(Arc<Self>, JoinSet<()>), Error> {
        let table = Firewall::new(TABLE);
        table.remove().await?;
        let (queue, queued) = mpsc::unbounded_channel();
        let firewall = Arc::new(Self { table, addresses: Mutex::default(), queue, done: watch::Sender::new(()) });
        let writer = [Arc::clone(&firewall).keep_written(queued)].into_iter().collect();
        Ok((firewall, writer))
    }

    /// Opens exactly these ports of an address; `None` means that this node no longer holds the address. If nothing has
    /// changed, this does not wait for the changes of other addresses. A call that is dropped takes effect later.
    async fn set(&self, address: IpAddr, mut open: Option<Vec<PortRange>>) -> Result<(), Error> {
        let mut done = self.done.subscribe();
        let closed = open.as_mut().map_or(0, |ranges| ranges.split_off(MAX_RANGES.min(ranges.len())).len());
        {
            let mut addresses = self.addresses();
            let known = addresses.get(&address);
            let is_queued = known.is_some_and(|known| known.state == FilterState::Queued);
            let is_same = known.map_or(open.is_none(), |known| known.open == open);
            if !is_same && closed > 0 {
                let limit = MAX_RANGES;
                tracing::warn!(%address, closed, limit, "too many ranges of ports: the last ones stay closed");
            }
            if !is_same || known.is_some_and(|known| matches!(known.state, FilterState::Failed(_))) {
                addresses.insert(address, Filtered { open, state: FilterState::Queued });
                if !is_queued {
                    // The receiver is dropped only with the whole network.
                    let _ = self.queue.send(address);
                }
            }
        }
        loop {
            match self.addresses().get(&address).map(|known| &known.state) {
                None | Some(FilterState::Written) => return Ok(()),
                Some(FilterState::Failed(reason)) => return Err(Error::other(reason.clone())),
                Some(FilterState::Queued) => {}
            }
            // The sender is in `self`.
            let _ = done.changed().await;
        }
    }

    /// Writes the addresses whose ports have changed, and all of them from time to time, because a program that loads
    /// its own ruleset may have emptied the table.
    async fn keep_written(self: Arc<Self>, mut queue: mpsc::UnboundedReceiver<IpAddr>) {
        let (mut again, mut rewrite_at) = (Vec::new(), Instant::now() + FIREWALL_REWRITE);
        loop {
            let mut some = Vec::new();
            tokio::select! {
                _ = queue.recv_many(&mut some, AT_ONCE) => drop(self.write(&some).await),
                () = sleep_until(rewrite_at) => {
                    if again.is_empty() {
                        again = self.addresses().keys().copied().collect();
                    }
                    some = again.split_off(again.len().saturating_sub(AT_ONCE));
                    if again.is_empty() {
                        rewrite_at = Instant::now() + FIREWALL_REWRITE;
                    }
                    if !some.is_empty() && let Err(error) = self.write(&some).await {
                        tracing::warn!(%error, "can't write the firewall again, trying again later");
                    }
                }
            }
        }
    }

    /// Writes these addresses as they are to be now.
    async fn write(&self, addresses: &[IpAddr]) -> Result<(), Error> {
        let (some, holds_any): (BTreeMap<_, _>, _) = {
            let known = self.addresses();
            let some = addresses.iter().filter_map(|address| Some((*address, known.get(address)?.open.clone())));
            (some.collect(), known.values().any(|known| known.open.is_some()))
        };
        let transaction = async {
            match holds_any {
                true => self.table.write(&some).await,
                false => self.table.remove().await,
            }
        };
        let written = timeout(TRANSACTION_TIMEOUT, transaction).await;
        let written =
            written.unwrap_or_else(|_| Err(Error::other(format!("nft: no result within {TRANSACTION_TIMEOUT:?}"))));
        let mut known = self.addresses();
        for (address, open) in some {
            let Some(now) = known.get_mut(&address) else { continue };
            match &written {
                // The ports of the address have changed meanwhile.
                _ if now.open != open => drop(self.queue.send(address)),
                Ok(()) if open.is_none() => drop(known.remove(&address)),
                Ok(()) => now.state = FilterState::Written,
                // Ports that were written before still are.
                Err(_) if now.state == FilterState::Written => {}
                Err(error) => now.state = FilterState::Failed(error.to_string()),
            }
        }
        self.done.send_replace(());
        written
    }

    fn addresses(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Filtered>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
