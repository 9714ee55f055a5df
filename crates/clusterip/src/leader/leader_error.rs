//! Why the leader's Lease can't be read or written.

use std::time::Duration;

use clusterip_failover::leases::election::LEASE;
use clusterip_failover::leases::lease_request::LeaseRequest;
use thiserror::Error;

/// The leader's Lease can't be read or written.
#[derive(Debug, Error)]
pub enum LeaderError {
    /// The API server refuses the request, or can't be reached.
    #[error("Lease {namespace}/{LEASE} can't be {request}: {reason}; without it nothing is moved or assigned")]
    Request {
        /// The namespace of the Lease.
        namespace: String,
        /// The request that failed.
        request: LeaseRequest,
        /// The message of the API server.
        reason: String,
    },
    /// The API server does not answer in time.
    #[error(
        "Lease {namespace}/{LEASE} can't be {request}: no answer within {waited:?}; without it nothing is moved or \
         assigned"
    )]
    NoAnswer {
        /// The namespace of the Lease.
        namespace: String,
        /// The request that failed.
        request: LeaseRequest,
        /// How long the answer was waited for.
        waited: Duration,
    },
}
