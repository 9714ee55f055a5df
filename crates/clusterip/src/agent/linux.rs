//! The network of a Linux node: addresses on an interface, told to the neighbours, and their ports let through.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use node_network::{Announcer, Error, Firewall, Interface, Port, lenient_arp};
use tokio::time::Instant;

use super::assignments::Protocol;
use super::network::Network;

/// The table of nftables that is this program's alone.
const TABLE: &str = "clusterip_external";

/// The network of this node.
pub struct LinuxNetwork {
    interface: Interface,
    announcer: Announcer,
    firewall: Firewall,
    open: Mutex<Open>,
    /// The last change that the firewall shows. Who waits for it finds his own change done together with those
    /// of others.
    shown: tokio::sync::Mutex<u64>,
}

/// Which ports are to be open.
#[derive(Clone, Default)]
struct Open {
    ports: BTreeMap<IpAddr, BTreeSet<Port>>,
    /// How often that has changed.
    changes: u64,
}

impl LinuxNetwork {
    /// The interface of this name, or that of the default route. What an earlier process has left behind on it
    /// is removed: nobody knows whether this node may still hold it.
    ///
    /// # Errors
    /// Where there is no such interface, or a right is missing.
    pub async fn begin(interface: Option<&str>) -> Result<Self, Error> {
        let interface = Interface::find(interface).await?;
        let left = interface.held().await?;
        for address in &left {
            interface.release(*address).await?;
        }
        let firewall = Firewall::new(TABLE);
        firewall.remove().await?;
        tracing::info!(interface = interface.name(), removed = left.len(), "external addresses are held here");
        match lenient_arp(interface.name()) {
            Ok(Some(lenient)) => tracing::warn!(reason = %lenient, "not the holder alone answers for an address"),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "whether kube-proxy needs strictARP is not known"),
        }
        let (open, shown) = (Mutex::default(), tokio::sync::Mutex::default());
        Ok(Self { interface, announcer: Announcer::open()?, firewall, open, shown })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens these ports of an address, and no others; with `None` the address is none of ours.
    async fn filter(&self, address: IpAddr, ports: Option<BTreeSet<Port>>) -> Result<(), Error> {
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
        let mut shown = self.shown.lock().await;
        if *shown >= own {
            return Ok(());
        }
        let Open { ports, changes } = self.open().clone();
        if ports.is_empty() {
            self.firewall.remove().await?
        } else {
            self.firewall.replace(&ports).await?
        }
        *shown = changes;
        Ok(())
    }
}

impl Network for LinuxNetwork {
    type Error = Error;

    async fn hold(
        &self,
        address: IpAddr,
        ports: &BTreeSet<(Protocol, u16)>,
        until: Instant,
    ) -> Result<(), Self::Error> {
        // First the firewall: no port is open for a moment that is not to be.
        self.filter(address, Some(ports.iter().copied().map(port).collect())).await?;
        self.interface.hold(address, until.saturating_duration_since(Instant::now())).await.map(drop)
    }

    async fn release(&self, address: IpAddr) -> Result<(), Self::Error> {
        self.interface.release(address).await?;
        self.filter(address, None).await
    }

    async fn announce(&self, address: IpAddr) -> Result<(), Self::Error> {
        self.announcer.announce(&self.interface, address)
    }
}

fn port((protocol, number): (Protocol, u16)) -> Port {
    let protocol = match protocol {
        Protocol::Tcp => node_network::Protocol::Tcp,
        Protocol::Udp => node_network::Protocol::Udp,
        Protocol::Sctp => node_network::Protocol::Sctp,
    };
    Port { protocol, number }
}
