//! Reviews of Nodes: the webhook checks a Node and never changes it.
//!
//! # Promises
//! - No answer changes a Node. The API server does not refuse a block that two Nodes have, and it calls webhooks in
//!   parallel, so only the controller hands out blocks.
//! - A Node is refused only if the settings say `nodes.explicit: deny` and the policy itself refuses it. If the review
//!   itself fails, the Node is let through with a warning: a cluster must get its Nodes.

use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::reservations::subject_addresses::Subject;
use clusterip_core::settings::Explicit;
use clusterip_core::{Decision, Verdict};
use clusterip_failover::claims::Owner;
use serde_json::Value;

use super::no_decision::NoDecision;

/// The decision about a Node. A Node gets no address, so nothing is reserved or claimed for it.
///
/// # Errors
/// [`NoDecision`] if there is none: then the Node is allowed with a warning.
pub fn review(evaluator: &Evaluator, request: &Value, owner: Owner) -> Result<Decision, NoDecision> {
    let subject = Subject { owner, own: Vec::new(), dry_run: true };
    let evaluation = evaluator.unclaimed().evaluate(request, &subject)?;
    match &evaluation.decision.verdict {
        // A Node that can't be read is refused, whatever the settings say.
        Verdict::Denied(denial) if evaluation.settings.settings.nodes.explicit != Explicit::Deny => {
            Err(NoDecision::RefusedNode(denial.message.clone()))
        }
        _ => Ok(evaluation.decision.clone()),
    }
}
