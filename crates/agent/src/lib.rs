//! The agent of a node. `clusterip_failover` decides which external addresses the node holds; [`event_loop`] feeds it with
//! events and carries out its plans, of which [`reconciler`] applies the addresses to the network.

pub mod agent_metrics;
#[cfg(target_os = "linux")]
pub mod command;
pub mod event_loop;
pub mod heartbeat;
#[cfg(target_os = "linux")]
pub mod node_network;
pub mod reconciler;
