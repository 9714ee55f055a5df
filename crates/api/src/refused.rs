//! What is in use if the policy refuses the settings that were compiled.

use std::collections::BTreeMap;

use serde_json::json;

use crate::compile::{Compilation, InUse};
use crate::status::Reason;

/// The greatest length of a reason in a condition, in characters.
const MAX_REASON: usize = 1000;

impl Compilation {
    /// What to show if the policy refused these settings for the reason `why`, so that those of `before` stay in use:
    /// each object whose latest version would have been put into use now is [`Reason::Invalid`].
    #[must_use]
    pub fn refused(&self, before: Option<&Self>, why: &str) -> Self {
        let (document, in_use) = match before {
            Some(before) => (before.document.clone(), before.in_use.clone()),
            None => (json!({}), InUse::new()),
        };
        let mut states: BTreeMap<_, _> = self.states.clone();
        for (key, state) in &mut states {
            if state.reason == Reason::InUse && in_use.get(key) != self.in_use.get(key) {
                let why: String = why.chars().take(MAX_REASON).collect();
                state.reason = Reason::Invalid;
                state.message = format!("the policy refuses the settings with this version: {why}");
                if in_use.contains_key(key) {
                    state.message.push_str("; the previous version stays in use");
                }
            }
        }
        Self { document, in_use, states }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::compile::{Objects, compile};
    use serde_json::Value;

    fn compiled(pools: &[(&str, &str)], before: &InUse) -> Compilation {
        let pool = |(name, cidr): &(&str, &str)| -> Value {
            json!({"apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": name},
                "spec": {"cidrs": [cidr], "match": {"namespaces": [name]}}})
        };
        let objects = Objects {
            objects: pools.iter().map(pool).collect(),
            service_cidrs: Vec::new(),
            cluster_ranges: Vec::new(),
        };
        compile(&objects, before)
    }

    #[test]
    fn versions_that_the_policy_refused_are_invalid() {
        let before = compiled(&[("same", "10.0.0.0/24"), ("edited", "10.0.1.0/24")], &InUse::new());
        let pools = [("same", "10.0.0.0/24"), ("edited", "10.0.2.0/24"), ("new", "10.0.3.0/24")];
        let refused = compiled(&pools, &before.in_use).refused(Some(&before), "too large");
        let states: Vec<(&str, Reason, &str)> =
            refused.states.iter().map(|(key, state)| (&*key.name, state.reason, &*state.message)).collect();
        assert_eq!(
            states,
            [
                (
                    "edited",
                    Reason::Invalid,
                    "the policy refuses the settings with this version: too large; the previous version stays in use"
                ),
                ("new", Reason::Invalid, "the policy refuses the settings with this version: too large"),
                ("same", Reason::InUse, "the pool is in use"),
            ]
        );
        assert_eq!((refused.document, refused.in_use), (before.document, before.in_use));
    }
}
