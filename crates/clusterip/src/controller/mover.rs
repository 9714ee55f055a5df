//! Gives a Service another address without deleting it.
