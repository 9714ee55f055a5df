//! Auditing a cluster: how its addresses and blocks are used, and which problems there are.
//!
//! - Services: [`judge`] asks the policy about every Service, [`ranges`] counts addresses, and [`findings`]
//!   describes problems.
//! - Nodes and their blocks: [`node_judge`], [`nodes`] and [`node_findings`] do the same.
//! - External addresses: [`external_judge`], [`external_ranges`], [`external`] and [`external_findings`] do the
//!   same.
//!
//! [`build`] turns the input ([`matter`]) into an audit ([`model`]); [`memory`] caches earlier answers of the
//! policy. [`source`] reads a cluster or a snapshot once, and [`live`] audits the watched stores again and again.
//! [`explain`] explains a single Service.

pub mod build;
pub mod calls;
pub mod explain;
pub mod external;
pub mod external_findings;
pub mod external_judge;
pub mod external_ranges;
pub mod fail_on;
pub mod findings;
pub mod judge;
pub mod live;
pub mod matter;
pub mod memory;
pub mod model;
pub mod node_findings;
pub mod node_judge;
pub mod nodes;
pub mod ranges;
pub mod source;
