//! External addresses on nodes: which of them this one holds, so that each is held once.
//!
//! # How it is agreed
//! - Every agent keeps a Lease, its heartbeat ([`heartbeat`]), and renews it. For every address there is
//!   one more, its claim ([`claims`]), that names who holds it. A claim counts as long as the heartbeat of
//!   its holder does, so nothing is written for an address until its holder changes.
//! - An agent has a *term*: one unbroken time of being surely alive, with an identity of its own. A claim names
//!   that identity. A term that has lapsed never comes back: what was claimed in it has to be claimed anew.
//! - Who should hold an address is computed by everybody alike ([`rendezvous`], [`shares`]). That is a matter
//!   of order alone: who holds it is what the claim says.
//!
//! # Promises
//! - At no time do two agents hold the same address. An agent holds one only after its own write of
//!   the claim was answered, and lets go of all of them before its term ends, which it counts from before the
//!   renewal was *sent*, on a clock that never jumps.
//! - A claim is only taken from a holder whose term is over: he gave his heartbeat back, or he was seen
//!   to be silent for its whole duration and somebody has *ended* it, with a write that the API server
//!   refuses if he renewed it meanwhile. From then on he can't renew it, either. Nobody's clock is trusted
//!   and no watch needs to be up to date; all writes name the version that they replace.
//! - A living holder keeps what it holds, as long as it may: nothing moves because a node joins. New addresses
//!   go to who has the fewest.
//! - What the network of a node can't hold is left to others for a while, if there are any; where nobody can hold
//!   it, it changes hands ever more seldom.
//! - Leases that are deleted by hand are made again by who holds the address, and nobody takes that for a
//!   death: a heartbeat that does not come again is put back by others, and then ended if it stays silent.
//!
//! What it can't promise: a machine that is suspended stops this process and its clock together. Whoever
//! wakes up holds what it held until its next renewal, which is refused. And a claim that is deleted by hand is
//! nobody's to an agent that starts before its holder has made it again.
//!
//! # What it costs
//! At rest an agent sends its renewal every 5 s, and nothing else, however many addresses there are. Every
//! agent watches the heartbeats of all: what the API server sends grows with the square of their number, so
//! in a large cluster agents should run where addresses may be held, and nowhere else.
//!
//! # The rooms
//! `heart` and `book` decide, without a clock and without requests: the one about the own heartbeat, the
//! other about everything else, with `members` as what is known of others; what comes of it is a `plan`.
//! [`run`] is the loop around them, `wire` does to the [`network`] what they say.

pub mod assignments;
mod book;
pub mod claims;
#[cfg(target_os = "linux")]
mod filter;
pub mod heart;
mod heartbeat;
pub mod holdings;
#[cfg(target_os = "linux")]
pub mod linux;
mod members;
pub mod network;
pub mod observer;
mod plan;
pub mod rendezvous;
pub mod run;
pub mod shares;
pub mod signs;
#[cfg(test)]
mod simulation;
pub mod status;
mod timing;
mod version;
mod wake;
mod wire;
