//! Which node holds which external address: the decisions of the agents, so that exactly one node holds each address.
//! Everything here is computed without a clock and without requests. Only a new identity needs more: the name of the host
//! and a random number ([`leases::Identity::new`]).
//!
//! # How agents agree
//! - Every agent has a Lease, its heartbeat ([`heartbeat_state`]), and renews it. Every address has another Lease, its
//!   claim ([`claims::HolderClaim`]), which names the holder. A claim is valid as long as the heartbeat of its holder
//!   is, so an address causes no writes until its holder changes.
//! - A *term* is one unbroken period in which an agent is certainly alive. Each term has an identity of its own, and a
//!   claim names that identity. A term that has lapsed never comes back: the agent must claim its addresses again in
//!   its next term.
//! - Every agent computes the same preferred holder for an address ([`assignments`]). The preference only decides which
//!   agent tries first; the claim alone says which agent holds the address.
//!
//! # Promises
//! - Two agents never hold the same address at the same time. An agent holds an address only after the API server has
//!   answered its own write of the claim. It releases all addresses before its term ends. The term is counted from
//!   before the renewal was *sent*, on a clock that never jumps.
//! - An agent takes over a claim only from a holder whose term is over. A term is over when its agent gave the
//!   heartbeat back, or when the agent was silent for the whole duration of its heartbeat and another agent *ended*
//!   that heartbeat, with a write that the API server refuses if the owner renewed the heartbeat meanwhile. After that
//!   the owner can't renew the heartbeat either. The protocol trusts no agent's clock and needs no watch to be up to
//!   date; every write names the version that it replaces.
//! - A living holder keeps its addresses as long as it may hold them: no address moves because a node joins. New
//!   addresses go to the node with the fewest.
//! - An address that a node can't hold is left to others for a while, and moves ever more rarely if none can hold it.
//! - If a Lease is deleted by hand, its owner creates it again, and the deletion does not end a term. If the owner does
//!   not create its heartbeat again, another agent puts it back, and ends it if it is not renewed.
//!
//! # Limits
//! - If a machine is suspended, the process and its clock stop together. After the machine resumes, the agent still
//!   holds its addresses until its next renewal, which the API server refuses.
//! - If a claim is deleted by hand, an agent that starts before the holder has created the claim again considers the
//!   address free.
//!
//! # Cost
//! An idle agent only sends a renewal every 5 s, however many addresses there are. Every agent watches all heartbeats,
//! so the traffic grows with the square of the agents: in a large cluster, run them only where addresses may be held.
//!
pub mod assignments;
pub mod claims;
pub mod heartbeat_state;
pub mod holders;
pub mod leases;
mod peers;
pub mod state;
pub mod timing;
