//! Auditing a cluster: how its addresses and blocks are used, and which problems there are.
//!
//! - [`services`]: decides about every Service, counts addresses, and describes problems.
//! - [`nodes`]: the same for Nodes and their blocks.
//! - [`external`]: the same for external addresses.
//!
//! [`build`] turns the input ([`input`]) into an audit ([`model`]). [`address_usage`] counts how the addresses of a
//! range are used. [`cache`] keeps earlier decisions, and [`free_addresses`] says which addresses they may give.
//! [`source`] reads a cluster, a snapshot or watched stores, and [`live_audit`] audits the watched stores of a server
//! again and again. [`explain`] explains the address of a single Service, and [`fail_on`] selects the findings that
//! make the command fail.

pub mod address_usage;
pub mod build;
pub mod cache;
pub mod explain;
pub mod external;
pub mod fail_on;
pub mod free_addresses;
pub mod input;
pub mod live_audit;
pub mod model;
pub mod nodes;
pub mod services;
pub mod source;
