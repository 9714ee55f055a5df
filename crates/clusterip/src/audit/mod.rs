//! What is used in a cluster, and what is not as it should be.
//!
//! [`judge`] asks the policy about every Service, [`ranges`] counts addresses, [`findings`] says what is
//! wrong; [`node_judge`], [`nodes`] and [`node_findings`] do the same for Nodes and their blocks, and
//! [`external_judge`], [`external_ranges`], [`external`] and [`external_findings`] for external addresses; [`build`] puts
//! all together, out of the [`matter`], to the [`model`]; [`memory`] is what was said before. [`source`] reads a cluster or a snapshot once; [`live`] looks at the watched
//! stores again and again. [`why`] is about one Service.

pub mod build;
pub mod calls;
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
pub mod why;
