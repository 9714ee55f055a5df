//! Reviews of Nodes: they are judged, and never changed.
//!
//! # Promises
//! - No answer changes a Node. The API server refuses no block that is given twice, and asks webhooks side by
//!   side: blocks are handed out by the controller alone.
//! - A Node is refused only where the settings say `nodes.explicit: deny`, and the policy itself refuses it.
//!   What goes wrong with us lets it through, with a warning: a cluster must get its Nodes.

use clusterip_core::answer::Answer;
use clusterip_core::settings::Explicit;
use serde_json::Value;

use crate::cluster::ledger::Owner;
use crate::cluster::lookups::Subject;
use crate::evaluator::Evaluator;

/// What the policy says of a Node. Nothing is held for it, and nothing claimed: it gets no address.
///
/// # Errors
/// Why the policy could not decide, for [`undecided`].
pub fn judge(evaluator: &Evaluator, request: &Value, owner: Owner) -> Result<Answer, String> {
    let subject = Subject { owner, own: Vec::new(), dry_run: true };
    let evaluation = evaluator.unclaimed().evaluate(request, &subject).map_err(|error| error.to_string())?;
    let answer = Answer { mutated_object: None, ..evaluation.answer.clone() };
    if answer.accepted || evaluation.settings.settings.nodes.explicit == Explicit::Deny {
        return Ok(answer);
    }
    // The policy refuses what it can't read, whatever the settings say.
    Err(answer.message.unwrap_or_else(|| "the policy refused it, and did not say why".to_owned()))
}

/// The answer about a Node that nothing was decided about.
pub fn undecided(message: String) -> Answer {
    Answer { accepted: true, warnings: Some(vec![message]), ..Answer::default() }
}
