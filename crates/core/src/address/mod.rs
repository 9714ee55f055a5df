//! Addresses and blocks of addresses: arithmetic, occupancy, order. This module does not depend on Kubernetes.
//!
//! A *block* is a CIDR of a fixed length inside a larger one; an address is a block of `/32` or `/128`. Positions are
//! `u128` on every platform. Memory grows with the number of occupied ranges, never with the size of a range.

mod address_set;
mod allocator;
mod band;
mod block;
mod candidates;
mod family;
mod occupancy;
mod order;
mod parse;
mod span;

pub use address_set::AddressSet;
pub use allocator::{BlockAllocator, Full};
pub use band::static_band_len;
pub use block::{BlockError, Blocks, overlap};
pub use candidates::{Band, Candidates, Range, WithheldSpan, Withholding};
pub use family::Family;
pub(crate) use family::number;
pub use occupancy::Occupancy;
pub use order::{Order, Walk};
pub use parse::parse_address;
pub use span::Span;
