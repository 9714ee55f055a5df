//! Addresses in flight.
