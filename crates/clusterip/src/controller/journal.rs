//! The annotation of a Service on the move: everything that is needed to finish.
