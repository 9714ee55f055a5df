//! Changes the Service ranges of a cluster that is in use. [`clusterip_moves::renumbering`] decides the steps.

mod certificates;
pub mod check;
pub mod findings;
mod installer;
pub mod kubelets;
mod mentions;
pub mod objects;
pub mod observe;
pub mod run;
mod services;
pub mod store;
