//! What a Linux node does for an address that it holds: it puts the address on an interface with a lifetime
//! ([`Interface`]), tells the neighbours where it is now ([`Announcer`]), and lets through what its owner
//! serves ([`Firewall`]).
//!
//! Who holds which address, and for how long, is for the caller to know. Nothing here waits for a clock,
//! keeps a state of its own, or knows Kubernetes: what is held is asked of the kernel.
//!
//! # Promises
//! - An address that is not held again goes by itself, whatever becomes of this process.
//! - What others have set is neither changed nor removed: their addresses are told by a mark that they do
//!   not bear, their rules by their table.
//! - All of it belongs to the network namespace that the calling thread is in.
//!
//! Whoever takes an address over lets its ports through first, then puts the address on the interface, then
//! announces it: so nothing else is reached in between. Whoever gives it up goes the other way.
//!
//! `CAP_NET_ADMIN` is needed for addresses and the firewall, `CAP_NET_RAW` for announcements, and the
//! program `nft` for the firewall. On any other system than Linux this crate is empty.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod announce;
mod error;
mod firewall;
mod interface;
mod port;
mod strict_arp;

pub use announce::Announcer;
pub use error::{Error, Result};
pub use firewall::Firewall;
pub use interface::{Held, Interface};
pub use port::{Port, Protocol};
pub use strict_arp::{LenientArp, lenient_arp};
