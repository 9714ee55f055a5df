//! Reviews of Nodes: the webhook checks a Node and never changes it.
//!
//! # Promises
//! - No answer changes a Node. The API server does not refuse a block that two Nodes have, and it calls webhooks in
//!   parallel, so only the controller hands out blocks.
//! - A Node is refused only if the settings say `nodes.explicit: deny` and the policy itself refuses it. If the review
//!   itself fails, the Node is let through with a warning: a cluster must get its Nodes.

use clusterip_core::answer::Answer;
use clusterip_core::settings::Explicit;
use clusterip_host::cluster::lookups::watched_lookups::Subject;
use clusterip_host::evaluator::Evaluator;
use clusterip_leases::owner::Owner;
use serde_json::Value;

use super::no_decision::NoDecision;

/// The policy's answer about a Node. A Node gets no address, so nothing is reserved or claimed for it.
///
/// # Errors
/// [`NoDecision`] if the policy could not decide, for [`undecided`].
pub fn review(evaluator: &Evaluator, request: &Value, owner: Owner) -> Result<Answer, NoDecision> {
    let subject = Subject { owner, own: Vec::new(), dry_run: true };
    let evaluation = evaluator.unclaimed().evaluate(request, &subject)?;
    let answer = Answer { mutated_object: None, ..evaluation.answer.clone() };
    if answer.accepted || evaluation.settings.settings.nodes.explicit == Explicit::Deny {
        return Ok(answer);
    }
    // The policy refuses a Node that it can't read, whatever the settings say.
    let message = answer.message.unwrap_or_else(|| "the policy refused it and gave no reason".to_owned());
    Err(NoDecision::RefusedNode(message))
}

/// The answer about a Node that the policy could not decide about: allowed, with `message` as a warning.
pub fn undecided(message: String) -> Answer {
    Answer { accepted: true, warnings: Some(vec![message]), ..Answer::default() }
}
