//! The network of a Linux node: adds addresses to an interface, announces them to the neighbours, and opens their
//! ports.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::node_network::{Announcer, Error, Held as Found, Interface, Port, lenient_arp};
use clusterip_failover::assignments::Protocol;
use tokio::time::Instant;

use super::firewall::NodeFirewall;
use super::network::{HoldOutcome, Network};

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
    ///
    /// # Errors
    /// If there is no such interface, or a permission is missing.
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

    async fn hold(
        &self,
        address: IpAddr,
        ports: &BTreeSet<(Protocol, u16)>,
        until: Instant,
    ) -> Result<HoldOutcome, Self::Error> {
        // The firewall is updated first, so that a port that must be closed is never open, not even for a moment.
        self.firewall.set(address, Some(ports.iter().copied().map(port).collect())).await?;
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

fn port((protocol, number): (Protocol, u16)) -> Port {
    let protocol = match protocol {
        Protocol::Tcp => crate::node_network::Protocol::Tcp,
        Protocol::Udp => crate::node_network::Protocol::Udp,
        Protocol::Sctp => crate::node_network::Protocol::Sctp,
    };
    Port { protocol, number }
}
