//! Whether this identity may do all that it has to.
