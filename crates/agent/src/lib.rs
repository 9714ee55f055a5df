//! The agent of a node: it adds the external addresses that its node holds to the network, and removes them in time.
//!
//! - `clusterip_failover` decides which addresses the node holds. [`event_loop`] feeds it with events and carries out
//!   its plans; `heartbeat` is a loop of its own, which renews the agent's heartbeat.
//! - `reconciler` applies a plan to the [`network`].
//! - [`node_network`] adds addresses to an interface of a Linux node, announces them, and opens their ports.
//! - `command` puts them together: `clusterip agent`.

pub mod agent_metrics;
#[cfg(target_os = "linux")]
pub mod command;
pub mod event_loop;
pub mod heartbeat;
#[cfg(target_os = "linux")]
pub mod linux;
pub mod network;
#[cfg(target_os = "linux")]
pub mod node_network;
mod reconciler;
