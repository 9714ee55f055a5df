//! The errors of this crate.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use nix::errno::Errno;
use thiserror::Error;

/// The result of an operation on the node.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation on the node failed.
#[derive(Debug, Error)]
pub enum Error {
    /// No netlink socket can be opened to the kernel.
    #[error("no netlink socket can be opened: {0}")]
    Netlink(#[source] io::Error),
    /// The interface does not exist, or not any more.
    #[error("interface {0} is not there: name one of those that `ip link` shows")]
    NoInterface(String),
    /// The interface or its link is down, so that it transmits no frames.
    #[error("interface {0} is down, or what it is connected to: nobody is reached by it")]
    Down(String),
    /// No interface was named, and there is no default route to take it from.
    #[error("the main routing table has no default route, of IPv4 or IPv6: name the interface")]
    NoDefaultRoute,
    /// The kernel does not list its routes.
    #[error("the kernel does not tell its routes: {0}")]
    Routes(#[source] io::Error),
    /// The interface is not an Ethernet interface: addresses are announced by ARP and NDP on Ethernet.
    #[error("interface {0} is no Ethernet interface, so no address can be announced on it: name another")]
    NotEthernet(String),
    /// The kernel refuses to list or to change something.
    #[error("{what} interface {interface}: {reason}{}", way_out(.reason, "CAP_NET_ADMIN"))]
    Kernel {
        /// The operation that failed, as a text that the name of the interface follows.
        what: String,
        /// The name of the interface.
        interface: String,
        /// The error of the kernel.
        #[source]
        reason: io::Error,
    },
    /// IPv6 is disabled on the interface.
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
    /// The address is not that of a single host.
    #[error("{0} can't be held: it is not the address of one host")]
    NotOfAHost(IpAddr),
    /// The kernel does not accept the lifetime. It counts whole seconds.
    #[error("{address} can't be held for {valid:?}: a lifetime lasts from 1 second to 136 years")]
    Lifetime {
        /// The address.
        address: IpAddr,
        /// The lifetime that was asked for.
        valid: Duration,
    },
    /// The address is on the interface without the mark of this crate.
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
    /// No packet socket can be opened.
    #[error("no packet socket can be opened: {reason}{}", way_out(.reason, "CAP_NET_RAW"))]
    NoPackets {
        /// The error of the kernel.
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
        /// The error of the kernel.
        #[source]
        reason: io::Error,
    },
    /// The firewall can't be changed.
    #[error("table inet {table} can't be {verb}: {reason}")]
    Firewall {
        /// The name of the table.
        table: String,
        /// `replaced` or `removed`.
        verb: &'static str,
        /// The error, and how to fix it if known.
        reason: String,
    },
    /// A kernel setting can't be read.
    #[error("{path} can't be read: {reason}")]
    Unreadable {
        /// The path of its file.
        path: String,
        /// The error, or the text that was found.
        reason: String,
    },
}

fn way_out(reason: &io::Error, capability: &str) -> String {
    match reason.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EPERM) => format!(": {capability} is needed"),
        _ => String::new(),
    }
}
