//! Decides the steps of a renumbering: the change of the Service ranges of a cluster that is in use. Without requests
//! and without a clock.
//!
//! The [`Record`](record::Record) is stored in the cluster before each phase begins. [`next`](step::next) decides the
//! next step from the record and from what is observed, so that a command which was killed at any request continues.

pub mod change;
pub mod observed;
pub mod record;
pub mod step;
