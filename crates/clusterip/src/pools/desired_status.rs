//! The status that each object should have.

use std::collections::BTreeMap;

use clusterip_api::{Compilation, Kind, ObjectKey, Reason, Verdict, ready_condition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use super::usage::Usage;

/// The status of each object. `before` has the conditions `Ready` that the objects have now.
pub(super) fn of(
    compilation: &Compilation,
    usage: &Usage,
    settings_hash: &str,
    before: &BTreeMap<ObjectKey, Condition>,
    now: &Time,
) -> BTreeMap<ObjectKey, Value> {
    let pools = compilation.in_use.keys().filter(|key| key.kind != Kind::ClusterIPPolicy).count();
    let status = |(key, verdict): (&ObjectKey, &Verdict)| {
        let condition =
            ready_condition(verdict.generation, verdict.reason, verdict.message.clone(), before.get(key), now.clone());
        let mut status = json!({"observedGeneration": verdict.generation, "conditions": [condition]});
        let used = compilation.in_use.get(key);
        if verdict.reason != Reason::InUse
            && let Some(used) = used
        {
            status["inUse"] = used.clone();
        }
        if key.kind == Kind::ClusterIPPolicy {
            status["settingsHash"] = json!(settings_hash);
            status["pools"] = json!(pools);
        } else {
            // The fence reads the ranges of the version that counts.
            status["ranges"] = match used.and_then(|used| used.get("cidrs")) {
                Some(cidrs) => cidrs.clone(),
                None => json!([]),
            };
            status["for"] = json!(verdict.selects);
        }
        let counts = match key.kind {
            Kind::ServicePool => usage.services.get(&key.name).map(|counts| ("addresses", json!(counts))),
            Kind::ExternalPool => usage.external.get(&key.name).map(|counts| ("addresses", json!(counts))),
            Kind::NodeBlockPool => usage.nodes.get(&key.name).map(|counts| ("blocks", json!(counts))),
            Kind::ClusterIPPolicy => None,
        };
        if let Some((field, counts)) = counts {
            status[field] = counts;
        }
        (key.clone(), status)
    };
    compilation.verdicts.iter().map(status).collect()
}
