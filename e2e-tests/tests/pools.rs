//! Pools as objects: a `clusterip serve` follows them and writes their status.

pub mod access;
mod commands;
mod conditions;
mod definitions;
mod in_use;
mod leader;
mod reservations;
mod service_cidrs;
mod status;
pub(crate) mod support;
mod warnings;
