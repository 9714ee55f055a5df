//! Decides which external address a Service gets, and who may claim one.
//!
//! [`claim`] is what a Service says about external addresses, [`held`] who has which, `pool` which pools are
//! for a Service, `check` judges what a request newly claims, `assign` finds an address for a Service that
//! is to have one; [`decide`] ties them together, to an [`outcome`].
//!
//! The API server refuses no annotation that is given twice. So an address is given only to whoever says
//! what is held (a host with a ledger); elsewhere what is claimed is checked, and nothing else.

mod assign;
mod check;
pub mod claim;
pub mod decide;
pub mod held;
pub mod outcome;
mod pool;

pub use crate::annotations::{ASKED_ANNOTATION, RECORD_ANNOTATION};
pub use decide::decide;
pub use held::Held;
pub use outcome::{External, Outcome};
