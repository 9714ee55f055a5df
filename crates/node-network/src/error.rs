//! What can go wrong on a node.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use nix::errno::Errno;
use thiserror::Error;

/// The result of what is done on a node.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong on the node.
#[derive(Debug, Error)]
pub enum Error {
    /// The kernel can't be talked to at all.
    #[error("no netlink socket can be opened: {0}")]
    Netlink(#[source] io::Error),
    /// There is no such interface, or it is gone.
    #[error("interface {0} is not there: name one of those that `ip link` shows")]
    NoInterface(String),
    /// No frame comes or goes.
    #[error("interface {0} is down, or what it is connected to: nobody is reached by it")]
    Down(String),
    /// No interface is named, and no route says which it is.
    #[error("the main routing table has no default route, of IPv4 or IPv6: name the interface")]
    NoDefaultRoute,
    /// The routes are not told.
    #[error("the kernel does not tell its routes: {0}")]
    Routes(#[source] io::Error),
    /// Addresses are announced by ARP and NDP on Ethernet.
    #[error("interface {0} is no Ethernet interface, so no address can be announced on it: name another")]
    NotEthernet(String),
    /// The kernel refuses to tell or to change something.
    #[error("{what} interface {interface}: {reason}{}", way_out(.reason, "CAP_NET_ADMIN"))]
    Kernel {
        /// What can't be done.
        what: String,
        /// The interface.
        interface: String,
        /// What the kernel says.
        #[source]
        reason: io::Error,
    },
    /// IPv6 is off on the interface.
    #[error(
        "{address} can't be put on interface {interface}: IPv6 is disabled there, \
         by net.ipv6.conf.{interface}.disable_ipv6"
    )]
    NoIpv6 {
        /// The address.
        address: IpAddr,
        /// The interface.
        interface: String,
    },
    /// It is not an address of one host.
    #[error("{0} can't be held: it is not the address of one host")]
    NotOfAHost(IpAddr),
    /// The kernel counts lifetimes in seconds.
    #[error("{address} can't be held for {valid:?}: a lifetime lasts from 1 second to 136 years")]
    Lifetime {
        /// The address.
        address: IpAddr,
        /// The lifetime that was asked for.
        valid: Duration,
    },
    /// Somebody else has put it there.
    #[error(
        "{address} is on interface {interface} already, and not by this program: \
         remove it, or take it out of the pool"
    )]
    Foreign {
        /// The address.
        address: IpAddr,
        /// The interface.
        interface: String,
    },
    /// No frames can be sent at all.
    #[error("no packet socket can be opened: {reason}{}", way_out(.reason, "CAP_NET_RAW"))]
    NoPackets {
        /// What the kernel says.
        #[source]
        reason: io::Error,
    },
    /// An announcement can't be sent.
    #[error("{address} can't be announced on interface {interface}: {reason}")]
    Announcement {
        /// The address.
        address: IpAddr,
        /// The interface.
        interface: String,
        /// What the kernel says.
        #[source]
        reason: io::Error,
    },
    /// The firewall can't be changed.
    #[error("table inet {table} can't be {verb}: {reason}")]
    Firewall {
        /// The table.
        table: String,
        /// `replaced` or `removed`.
        verb: &'static str,
        /// What is the matter, and what to do.
        reason: String,
    },
    /// A setting of the kernel can't be read.
    #[error("{path} can't be read: {reason}")]
    Unreadable {
        /// Where it stands.
        path: String,
        /// What it says instead.
        reason: String,
    },
}

fn way_out(reason: &io::Error, capability: &str) -> String {
    match reason.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EPERM) => format!(": {capability} is needed"),
        _ => String::new(),
    }
}
