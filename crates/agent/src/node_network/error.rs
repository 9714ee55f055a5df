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
    /// A netlink socket to the kernel can't be opened.
    #[error("can't open a netlink socket: {0}")]
    Netlink(#[source] io::Error),
    /// The interface does not exist, or was deleted.
    #[error("interface {0} does not exist: name one of those that `ip link` lists")]
    NoInterface(String),
    /// The interface or its link is down, so it transmits no frames.
    #[error("interface {0} or its link is down: it transmits no frames")]
    Down(String),
    /// No interface was named, and there is no default route to take it from.
    #[error("the main routing table has no default route for IPv4 or IPv6: name the interface")]
    NoDefaultRoute,
    /// The routes of the kernel can't be listed.
    #[error("can't list the routes of the kernel: {0}")]
    Routes(#[source] io::Error),
    /// The interface is not an Ethernet interface: addresses are announced by ARP and NDP on Ethernet.
    #[error("interface {0} is not an Ethernet interface, so addresses can't be announced on it: name another")]
    NotEthernet(String),
    /// The kernel refuses to list or to change something.
    #[error("can't {operation} interface {interface}: {reason}{}", remedy(.reason, "CAP_NET_ADMIN"))]
    Kernel {
        /// The operation that failed, such as `add 10.0.9.100 to`. The name of the interface follows.
        operation: String,
        /// The name of the interface.
        interface: String,
        /// The error of the kernel.
        #[source]
        reason: io::Error,
    },
    /// IPv6 is disabled on the interface.
    #[error(
        "can't add {address} to interface {interface}: IPv6 is disabled there, \
         see net.ipv6.conf.{interface}.disable_ipv6"
    )]
    NoIpv6 {
        /// The address.
        address: IpAddr,
        /// The interface.
        interface: String,
    },
    /// The address is not that of a single host.
    #[error("can't hold {0}: it is not the address of a single host")]
    NotHostAddress(IpAddr),
    /// The kernel, which counts whole seconds, does not accept the lifetime.
    #[error("can't hold {address} for {valid:?}: a lifetime is between 1 second and 136 years")]
    Lifetime {
        /// The address.
        address: IpAddr,
        /// The lifetime that was asked for.
        valid: Duration,
    },
    /// The address is on the interface without the mark of this crate.
    #[error(
        "another program has added {address} to interface {interface}: \
         remove it, or exclude it from the pool"
    )]
    Foreign {
        /// The address.
        address: IpAddr,
        /// The interface.
        interface: String,
    },
    /// A packet socket can't be opened.
    #[error("can't open a packet socket: {reason}{}", remedy(.reason, "CAP_NET_RAW"))]
    NoPackets {
        /// The error of the kernel.
        #[source]
        reason: io::Error,
    },
    /// An announcement can't be sent.
    #[error("can't announce {address} on interface {interface}: {reason}")]
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
    #[error("can't {verb} table inet {table}: {reason}")]
    Firewall {
        /// The name of the table.
        table: String,
        /// `replace` or `remove`.
        verb: &'static str,
        /// The error, and how to fix it if known.
        reason: String,
    },
    /// A kernel setting can't be read.
    #[error("can't read {path}: {reason}")]
    Unreadable {
        /// The path of its file.
        path: String,
        /// The error, or the text that was found.
        reason: String,
    },
}

/// The missing capability, if the kernel refused an operation because of it.
fn remedy(reason: &io::Error, capability: &str) -> String {
    match reason.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EPERM) => format!(": {capability} is needed"),
        _ => String::new(),
    }
}
