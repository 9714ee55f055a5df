//! The audit within the page.

use crate::audit::model::Audit;

/// The audit as JSON that can't end the element that it stands in: labels and evidence are written by
/// whoever may create a workload.
pub(super) fn json(audit: &Audit) -> Result<String, serde_json::Error> {
    // `<` only ever stands in strings.
    Ok(serde_json::to_string(audit)?.replace('<', "\\u003c"))
}
