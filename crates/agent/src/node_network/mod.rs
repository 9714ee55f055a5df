//! The network of a Linux node: it adds an address to an interface with a lifetime ([`Interface`]), announces it to the
//! neighbours ([`Announcer`]), and opens only the ports that the owner of the address serves ([`firewall`]).
//!
//! - An address that is not renewed is removed by the kernel, even if this process is gone.
//! - Addresses and rules of other programs are neither changed nor removed: addresses of this module carry a mark, and
//!   its rules are in a table of their own.

mod announce;
pub mod firewall;
mod interface;
mod strict_arp;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use clusterip_failover::assignments::Port;
use clusterip_failover::timing::{FIREWALL_REWRITE, STEP_TIMEOUT};
use futures::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

pub use self::announce::Announcer;
use self::firewall::{PortRange, ranges};
pub use self::interface::{Interface, NoInterface};
pub use self::strict_arp::lenient_arp;
use crate::reconciler::Network;

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
    /// Finds the interface of this name, or that of the default route, and removes the addresses of an earlier process.
    pub async fn begin(named: Option<&str>) -> Result<Self> {
        let interface = Interface::find(named).await?;
        let left = interface.held().await?;
        for address in &left {
            interface.release(*address).await?;
        }
        firewall::remove().await?;
        let firewall = Arc::<NodeFirewall>::default();
        let writer = [Arc::clone(&firewall).keep_written()].into_iter().collect();
        tracing::info!(
            interface = interface.name,
            removed = left.len(),
            "external addresses are added to this interface"
        );
        match lenient_arp(&interface.name) {
            Ok(Some(lenient)) => {
                tracing::warn!(reason = lenient, "other nodes than the holder may answer ARP requests for an address");
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

    async fn found_again(&self, gone: &Interface) -> Result<Interface> {
        let found = Interface::find(self.named.as_deref()).await?;
        let mut known = self.interface.lock().unwrap_or_else(PoisonError::into_inner);
        // Calls for other addresses may find the new interface at the same time.
        if known.index == gone.index && found.index != gone.index {
            tracing::warn!(interface = found.name, "the interface was recreated: using the new one");
            *known = found.clone();
        }
        Ok(found)
    }
}

impl Network for LinuxNetwork {
    async fn hold(&self, address: IpAddr, ports: &Arc<[Port]>, until: Instant) -> Result<bool> {
        // The firewall is updated first, so that a port that must be closed is never open, not even for a moment.
        self.firewall.open(address, ranges(ports.iter())).await?;
        let interface = self.interface();
        match interface.hold(address, until).await {
            Err(error) if error.is::<NoInterface>() => self.found_again(&interface).await?.hold(address, until).await,
            added => added,
        }
    }

    async fn release(&self, address: IpAddr) -> Result<()> {
        self.interface().release(address).await?;
        // The address is no longer on this node: other nodes, and the releases of other addresses, must not wait for the
        // firewall.
        self.firewall.change(address, None);
        Ok(())
    }

    async fn settle(&self) {
        if timeout(STEP_TIMEOUT, self.firewall.settle()).await.is_err() {
            tracing::warn!("the firewall still has addresses that were released");
        }
    }

    async fn announce(&self, address: IpAddr) -> Result<()> {
        self.announcer.announce(&self.interface(), address)
    }
}

const MAX_RANGES: usize = 64;

/// How many addresses a transaction changes or writes again, so that its time does not grow with all that the node holds.
/// But `nft` first reads all chains of the node, of which kube-proxy has one for each endpoint of each port.
const AT_ONCE: usize = 16;

/// Longer than the time limit of a step on the network: a step that was given up waits again when it is repeated.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The open ports of all held addresses, which the table of the firewall is to have.
#[derive(Default)]
struct NodeFirewall(watch::Sender<Filters>);

#[derive(Default)]
struct Filters {
    addresses: BTreeMap<IpAddr, Filtered>,
    queue: VecDeque<IpAddr>,
    /// The addresses that this node no longer holds: they wait for all others.
    closing: VecDeque<IpAddr>,
}

impl Filters {
    /// Takes the addresses of the next transaction out of the queues.
    fn next(&mut self) -> Vec<IpAddr> {
        let mut some = Vec::new();
        for queue in [&mut self.queue, &mut self.closing] {
            some.extend(queue.drain(..queue.len().min(AT_ONCE - some.len())));
        }
        some
    }
}

struct Filtered {
    /// The open ports. `None` if this node no longer holds the address: then its packets are not filtered.
    open: Option<Vec<PortRange>>,
    /// Whether the table was written with these ports, or why not; `None` if they are in the queue.
    written: Option<Result<(), String>>,
}

impl NodeFirewall {
    /// Opens exactly these ports of an address. If nothing has changed, this does not wait for the changes of other
    /// addresses. A call that is dropped takes effect later.
    async fn open(&self, address: IpAddr, open: Vec<PortRange>) -> Result<()> {
        self.change(address, Some(open));
        let mut filters = self.0.subscribe();
        let is_written =
            |filters: &Filters| filters.addresses.get(&address).is_none_or(|known| known.written.is_some());
        // The sender is in `self`.
        let Ok(filters) = filters.wait_for(is_written).await else { return Ok(()) };
        let written = filters.addresses.get(&address).and_then(|known| known.written.clone());
        written.unwrap_or(Ok(())).map_err(Error::msg)
    }

    /// Waits until the table has been written with all changes.
    async fn settle(&self) {
        let is_written = |filters: &Filters| filters.addresses.values().all(|known| known.written.is_some());
        // The sender is in `self`.
        let _ = self.0.subscribe().wait_for(is_written).await;
    }

    /// Queues a change of the open ports of an address; `None` if this node no longer holds it.
    fn change(&self, address: IpAddr, mut open: Option<Vec<PortRange>>) {
        let closed = open.as_mut().map_or(0, |ranges| ranges.split_off(MAX_RANGES.min(ranges.len())).len());
        self.0.send_if_modified(|Filters { addresses, queue, closing }| {
            let known = addresses.get(&address);
            let is_same = known.map_or(open.is_none(), |known| known.open == open);
            if !is_same && closed > 0 {
                let limit = MAX_RANGES;
                tracing::warn!(%address, closed, limit, "too many ranges of ports: the last ones stay closed");
            }
            if is_same && !known.is_some_and(|known| matches!(known.written, Some(Err(_)))) {
                return false;
            }
            // An address that waits only to be closed must not open late.
            let waits = known.is_some_and(|it| it.written.is_none() && (it.open.is_some() || open.is_none()));
            if !waits {
                if open.is_some() { queue } else { closing }.push_back(address);
            }
            addresses.insert(address, Filtered { open, written: None });
            true
        });
    }

    /// Writes the addresses whose ports have changed, and all of them from time to time, because a program that loads
    /// its own ruleset may have emptied the table.
    async fn keep_written(self: Arc<Self>) {
        let mut filters = self.0.subscribe();
        let (mut again, mut rewrite_at) = (Vec::new(), Instant::now() + FIREWALL_REWRITE);
        loop {
            tokio::select! {
                _ = filters.wait_for(|filters| !filters.queue.is_empty() || !filters.closing.is_empty()).map(drop) => {}
                () = sleep_until(rewrite_at) => {}
            }
            let mut some = Vec::new();
            self.0.send_if_modified(|filters| {
                some = filters.next();
                false
            });
            let is_rewrite = Instant::now() >= rewrite_at;
            if is_rewrite {
                if again.is_empty() {
                    again = self.0.borrow().addresses.keys().copied().collect();
                }
                some.extend(again.split_off(again.len().saturating_sub(AT_ONCE)));
                if again.is_empty() {
                    rewrite_at = Instant::now() + FIREWALL_REWRITE;
                }
            }
            // Those who wait for an address learn why it could not be written.
            if !some.is_empty()
                && let Err(error) = self.write(&some).await
                && is_rewrite
            {
                tracing::warn!(%error, "can't write the firewall again, trying again later");
            }
        }
    }

    async fn write(&self, addresses: &[IpAddr]) -> Result<()> {
        let (some, holds_any): (BTreeMap<_, _>, _) = {
            let known = &self.0.borrow().addresses;
            let some = addresses.iter().filter_map(|address| Some((*address, known.get(address)?.open.clone())));
            (some.collect(), known.values().any(|known| known.open.is_some()))
        };
        let transaction = async {
            match holds_any {
                true => firewall::write(&some).await,
                false => firewall::remove().await,
            }
        };
        let written = timeout(TRANSACTION_TIMEOUT, transaction).await;
        let written = written.unwrap_or_else(|_| Err(anyhow!("nft: no result within {TRANSACTION_TIMEOUT:?}")));
        self.0.send_modify(|Filters { addresses: known, queue, closing }| {
            for (address, open) in some {
                let Some(now) = known.get_mut(&address) else { continue };
                match &written {
                    // The ports of the address have changed meanwhile.
                    _ if now.open != open => {
                        if now.open.is_some() { &mut *queue } else { &mut *closing }.push_back(address);
                    }
                    Ok(()) if open.is_none() => drop(known.remove(&address)),
                    // Ports that were written before still are.
                    Err(_) if now.written == Some(Ok(())) => {}
                    written => now.written = Some(written.as_ref().copied().map_err(ToString::to_string)),
                }
            }
        });
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_addresses_wait_for_all_others_unless_they_are_held_again() {
        let address = |number| IpAddr::from([10, 0, 9, number]);
        let firewall = NodeFirewall::default();
        let next = || {
            let mut some = Vec::new();
            firewall.0.send_modify(|filters| some = filters.next());
            some
        };
        let hold = |number| firewall.change(address(number), Some(Vec::new()));
        (0..20).for_each(hold);
        assert_eq!(next(), (0..16).map(address).collect::<Vec<_>>());
        assert_eq!(next(), (16..20).map(address).collect::<Vec<_>>());
        firewall.0.send_modify(|filters| filters.addresses.values_mut().for_each(|it| it.written = Some(Ok(()))));
        firewall.change(address(1), None);
        firewall.change(address(2), None);
        hold(20);
        hold(2);
        // What is released and held again is in both queues, and is written as it is to be then.
        assert_eq!(next(), [20, 2, 1, 2].map(address));
    }
}
