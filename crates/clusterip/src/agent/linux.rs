//! The network of a Linux node: addresses on an interface, told to the neighbours, and their ports let through.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use node_network::{Announcer, Error, Held as Found, Interface, Port, lenient_arp};
use tokio::time::Instant;

use super::assignments::Protocol;
use super::filter::Filter;
use super::network::{Held, Network};

/// The network of this node.
pub struct LinuxNetwork {
    /// The name of the interface, where one is given.
    named: Option<String>,
    /// As it was found last: it may go, and come again as another.
    interface: Mutex<Interface>,
    announcer: Announcer,
    filter: Arc<Filter>,
}

impl LinuxNetwork {
    /// The interface of this name, or that of the default route. What an earlier process has left behind on it
    /// is removed: nobody knows whether this node may still hold it.
    ///
    /// # Errors
    /// Where there is no such interface, or a right is missing.
    pub async fn begin(named: Option<&str>) -> Result<Self, Error> {
        let interface = Interface::find(named).await?;
        let left = interface.held().await?;
        for address in &left {
            interface.release(*address).await?;
        }
        let filter = Filter::begin().await?;
        tracing::info!(interface = interface.name(), removed = left.len(), "external addresses are held here");
        match lenient_arp(interface.name()) {
            Ok(Some(lenient)) => tracing::warn!(reason = %lenient, "not the holder alone answers for an address"),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "whether kube-proxy needs strictARP is not known"),
        }
        let (announcer, interface) = (Announcer::open()?, Mutex::new(interface));
        Ok(Self { named: named.map(str::to_owned), interface, announcer, filter: Arc::new(filter) })
    }

    fn interface(&self) -> Interface {
        self.interface.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The interface that is there in the place of one that is gone.
    async fn found_again(&self, gone: &Interface) -> Result<Interface, Error> {
        let found = Interface::find(self.named.as_deref()).await?;
        let mut known = self.interface.lock().unwrap_or_else(PoisonError::into_inner);
        // Others, for other addresses, find it at the same time.
        if known.is_same(gone) && !found.is_same(gone) {
            tracing::warn!(interface = found.name(), "the interface was gone, and is another one now");
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
    ) -> Result<Held, Self::Error> {
        // First the firewall: no port is open for a moment that is not to be.
        self.filter.set(address, Some(ports.iter().copied().map(port).collect())).await?;
        let interface = self.interface();
        let found = match self.put(&interface, address, until).await {
            Err(Error::NoInterface(_)) => self.put(&self.found_again(&interface).await?, address, until).await,
            found => found,
        };
        Ok(match found? {
            Found::Added => Held::Came,
            Found::Renewed => Held::Stayed,
        })
    }

    async fn release(&self, address: IpAddr) -> Result<(), Self::Error> {
        match self.interface().release(address).await {
            // All that was on it has gone with it.
            Ok(()) | Err(Error::NoInterface(_)) => {}
            Err(error) => return Err(error),
        }
        // It is not here any more, whatever becomes of the firewall: others must not wait for that.
        if let Err(error) = self.filter.set(address, None).await {
            tracing::warn!(%address, %error, "the firewall still knows an address that is not here any more");
            Arc::clone(&self.filter).catch_up();
        }
        Ok(())
    }

    async fn announce(&self, address: IpAddr) -> Result<(), Self::Error> {
        self.announcer.announce(&self.interface(), address)
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
