//! External addresses on nodes: the agent of each node decides which addresses its node holds, so that exactly one
//! node holds each address.
//!
//! # How agents agree
//! - Every agent keeps a Lease, its heartbeat (`heartbeat`), and renews it. Every address has another Lease, its
//!   claim ([`claims`]), which names the holder. A claim counts as long as the heartbeat of its holder does, so an
//!   address causes no writes until its holder changes.
//! - A *term* is one unbroken period in which an agent is certainly alive. Each term has an identity of its own,
//!   and a claim names that identity. A term that has lapsed never comes back: the agent must claim its addresses
//!   again in its next term.
//! - Every agent computes the same preferred holder for an address ([`rendezvous`], [`balance`]). That only orders
//!   who tries first; the claim alone says who holds the address.
//!
//! # Promises
//! - Two agents never hold the same address at the same time. An agent holds an address only after the API server
//!   has answered its own write of the claim. It releases all addresses before its term ends. The term is counted
//!   from before the renewal was *sent*, on a clock that never jumps.
//! - An agent takes over a claim only from a holder whose term is over. A term is over when its agent gave the
//!   heartbeat back, or when the agent was silent for the whole duration of its heartbeat and another agent *ended*
//!   that heartbeat, with a write that the API server refuses if the owner renewed the heartbeat meanwhile. After
//!   that the owner can't renew the heartbeat either. The protocol trusts no agent's clock and needs no watch to be
//!   up to date; every write names the version that it replaces.
//! - A living holder keeps its addresses as long as it may hold them: no address moves because a node joins. New
//!   addresses go to the node with the fewest.
//! - An address that the network of a node can't hold is left to other nodes for a while, if there are any. If no
//!   node can hold the address, it changes hands ever more rarely.
//! - A Lease that was deleted by hand is created again by the holder of the address, and no agent takes the
//!   deletion for a death. If a deleted heartbeat does not come back, another agent puts it back, and ends it if it
//!   stays silent.
//!
//! What this can't promise: suspending a machine stops this process and its clock together. After it wakes up, the
//! agent holds what it held until its next renewal, which is refused. And if a claim is deleted by hand, an agent
//! that starts before the holder has created the claim again considers the address free.
//!
//! # What it costs
//! At rest an agent sends one renewal every 5 s and nothing else, however many addresses there are. Every agent
//! watches the heartbeats of all agents, so the traffic from the API server grows with the square of their number.
//! In a large cluster, run agents only on the nodes that may hold addresses.
//!
//! # Modules
//! - [`heartbeat_state`] and `state` make all decisions, without a clock and without requests: `heartbeat_state` about
//!   the agent's own heartbeat, `state` about everything else. A `plan` is a decision of `state`.
//! - `peers` tracks the heartbeats of the other agents.
//! - [`event_loop`] feeds `state` with events and carries out its plans. `heartbeat` is a loop of its own, which renews
//!   the agent's heartbeat.
//! - `reconciler` applies a plan to the [`network`].
//! - [`holdings`] and [`observer`] tell programs other than agents which node holds which address.

pub mod assignments;
pub mod balance;
pub mod claims;
pub mod event_loop;
#[cfg(target_os = "linux")]
mod firewall;
pub mod health;
mod heartbeat;
pub mod heartbeat_state;
pub mod holdings;
#[cfg(target_os = "linux")]
pub mod linux;
pub mod network;
mod next_deadline;
pub mod observer;
mod peers;
mod plan;
mod reconciler;
pub mod rendezvous;
#[cfg(test)]
mod simulation;
mod state;
pub mod status;
mod timing;
mod version;
