//! The controller of `clusterip serve`: which Services it moves, which it only reports, and which it leaves alone.

mod misplaced_services;
mod requests_of_a_move;
mod unavailable_targets;
mod without_webhook;

const OS: &str = "clusterip-policy/os";
const MOVE: &str = "clusterip-policy/move";
