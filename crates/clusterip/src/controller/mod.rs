//! What happens to Services that are there already: which of them are misplaced, and how they move.

pub mod endpoints;
pub mod journal;
pub mod leader;
pub mod misplaced;
pub mod mover;
