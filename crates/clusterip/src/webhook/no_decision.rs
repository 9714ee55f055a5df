//! Why the policy could not decide about a request.

use std::time::Duration;

use clusterip_cluster::evaluator::EvaluationError;
use thiserror::Error;

/// Why there is no decision about a request. `--on-error` says what happens to the request of a Service.
#[derive(Debug, Error)]
pub enum NoDecision {
    /// The cached state of the cluster is too old. Contains its age.
    #[error("the cluster could not be watched for {} s", .0.as_secs())]
    Stale(Duration),
    /// The policy gave no answer.
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
    /// The policy refused a Node although the settings do not deny it. Contains the message of the policy.
    #[error("{0}")]
    RefusedNode(String),
}
