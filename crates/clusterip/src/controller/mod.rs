//! What happens to Services that are there already: which of them are misplaced, and how they move.
//!
//! A move is [`mover`], which asks the API server; [`step`], which says what is next; [`journal`], what a move
//! remembers; and [`records`], where the journals are kept. [`spec_merge`] and [`field_ownership`] put back what was
//! there, and leave alone what others changed meanwhile. [`queue`] shares the places among the namespaces, and
//! [`requests`] is what administrators ask for.

pub mod affected;
pub mod alternatives;
pub mod approved;
mod attempt;
pub mod brakes;
pub mod called;
pub mod control_plane_services;
pub mod endpoints;
pub mod events;
pub mod field_ownership;
pub mod hand_over;
pub mod identity;
pub mod journal;
pub mod leader;
pub mod lease;
pub mod misplaced;
pub mod mover;
pub mod outcome;
pub mod ownership;
pub mod queue;
pub mod reconcile;
pub mod records;
pub mod refusal;
pub mod replicas;
pub mod requests;
pub mod rival;
pub mod run;
pub mod spec_merge;
pub mod step;
