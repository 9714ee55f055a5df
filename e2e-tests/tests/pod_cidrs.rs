//! Nodes get their pod CIDRs from `clusterip serve`.

mod assignment;
mod failed_requests;
mod leader_changes;
mod support;
