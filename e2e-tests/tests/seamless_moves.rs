//! Seamless moves, by `clusterip move --seamless` and by `clusterip serve --seamless-moves`. No traffic flows here:
//! these tests look at the objects. `make bench-moves` counts the requests that fail.

mod authors;
mod interruptions;
mod outages;
mod refusals;
mod sequence;
mod servers;
mod support;
