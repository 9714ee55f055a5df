//! Auditing a cluster: how its addresses and blocks are used, and which problems there are.
//!
//! - Services: [`evaluate_services`] asks the policy about every Service, [`pool_ranges`] counts addresses, and
//!   [`service_findings`] describes problems.
//! - Nodes and their blocks: [`evaluate_nodes`], [`node_audit`] and [`node_findings`] do the same.
//! - External addresses: [`evaluate_external`], [`external_ranges`], [`external_audit`] and [`external_findings`] do
//!   the same.
//!
//! [`build`] turns the input ([`input`]) into an audit ([`model`]); [`cache`] keeps earlier answers of the policy, and
//! [`audit_lookups`] answers its look-ups. [`source`] reads a cluster, a snapshot or watched stores, and [`live_audit`]
//! audits the watched stores of a server again and again. [`explain`] explains the address of a single Service, and
//! [`fail_on`] selects the findings that make the command fail.

pub mod audit_lookups;
pub mod build;
pub mod cache;
pub mod evaluate_external;
pub mod evaluate_nodes;
pub mod evaluate_services;
pub mod explain;
pub mod external_audit;
pub mod external_findings;
pub mod external_ranges;
pub mod fail_on;
pub mod input;
pub mod live_audit;
pub mod model;
pub mod node_audit;
pub mod node_findings;
pub mod pool_ranges;
pub mod service_findings;
pub mod source;
