//! Embeds the audit in the page.

use crate::audit::model::Audit;

/// The audit as JSON that can't end the HTML element around it. Anyone who may create a workload chooses text in
/// it, such as labels and evidence.
pub(super) fn json(audit: &Audit) -> Result<String, serde_json::Error> {
    // In JSON, `<` occurs only in strings.
    Ok(serde_json::to_string(audit)?.replace('<', "\\u003c"))
}
