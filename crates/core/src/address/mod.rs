//! Addresses and blocks of addresses: arithmetic, occupancy, order. This module does not depend on Kubernetes.
//!
//! A *block* is a CIDR of a fixed length inside a larger one; an address is a block of `/32` or `/128`. Positions are
//! `u128` on every platform. Memory grows with the number of occupied ranges, never with the size of a range.

mod blocks;
mod candidates;
mod span;

pub use blocks::{AddressSet, Blocks, Occupancy, overlap, static_band_len};
pub use candidates::{Band, Candidates, Order, Range, Walk, WithheldSpan, Withholding};
pub use span::{Family, Span, number, parse_address};
