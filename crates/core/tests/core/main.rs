//! The tests of the core. They are one program, because each program is linked by itself, natively and for WebAssembly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod allocator;
mod annotations;
mod bands;
mod blocks;
mod candidates;
mod decide;
mod evidence;
mod evidence_lookups;
mod explicit;
mod external_addresses;
mod external_claims;
mod external_properties;
mod external_stored;
mod families;
mod node_blocks;
mod node_explicit;
mod node_places;
mod node_properties;
mod occupancy;
mod order;
mod ownership;
mod picking;
mod pod_spec;
mod properties;
mod selectors;
mod settings;
mod settings_external;
mod settings_matching;
mod settings_meaning;
mod settings_nodes;
mod settings_ranges;
mod support;
mod totality;
mod triage;
mod withheld;
