//! The requests for a Lease, as error messages name them.

use std::fmt;

/// A request for a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseRequest {
    /// Reads the Lease.
    Read,
    /// Creates the Lease.
    Create,
    /// Replaces the Lease.
    Update,
    /// Creates or replaces the Lease.
    Write,
    /// Deletes the Lease.
    Delete,
}

impl fmt::Display for LeaseRequest {
    /// What would have been done to the Lease, as in "the Lease can't be created".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Create => "created",
            Self::Update => "updated",
            Self::Write => "written",
            Self::Delete => "deleted",
        })
    }
}
