//! One process at a time: a Lease, as client-go's leader election keeps it.
