//! What happens to Services that are there already: which of them are misplaced, and how they move.

pub mod journal;
pub mod leader;
pub mod mover;
