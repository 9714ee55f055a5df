//! `clusterip renumber`: the change of the Service ranges of a cluster.

mod check;
mod families;
mod interruptions;
mod measured;
mod policies;
mod support;
mod whole;
mod with_server;
