//! Decides the steps of a move of a Service to another address, and what each step writes. Pure and synchronous: no
//! requests, no clock.

pub mod journal;
pub mod method;
pub mod outcome;
pub mod renumbering;
pub mod seamless;
pub mod step;
pub mod temporary;
