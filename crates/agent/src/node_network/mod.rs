//! Holds addresses on a Linux node: adds an address to an interface with a lifetime ([`Interface`]), announces it to
//! the neighbours ([`Announcer`]), and opens only the ports that the owner of the address serves ([`Firewall`]).
//!
//! The caller decides which node holds which address and for how long. This module uses no clock, keeps no state of its
//! own and does not depend on Kubernetes. The kernel knows which addresses are held.
//!
//! # Promises
//! - An address that is not renewed is removed by the kernel, even if this process is gone.
//! - Addresses and rules of other programs are neither changed nor removed: addresses of this module carry a mark, and
//!   its rules are in a table of their own.
//! - Everything happens in the network namespace of the calling thread.
//!
//! To take an address over, open its ports first, then add it to the interface, then announce it, so that no other port
//! can be reached in between. To give it up, use the reverse order.
//!
//! Addresses and the firewall need `CAP_NET_ADMIN`, announcements need `CAP_NET_RAW`, and the firewall needs the
//! program `nft`.

mod announce;
mod firewall;
mod interface;
mod strict_arp;

pub use announce::Announcer;
pub use firewall::{Firewall, PortRange, ranges};
pub use interface::{Error, HoldResult, Interface, Result};
pub use strict_arp::{LenientArp, lenient_arp};
