//! The ranges of a pool: those in its spec, or those of ServiceCIDR objects.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use serde::Deserialize;
use serde_json::Value;

/// The labels and the ranges of a ServiceCIDR object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelledRanges {
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `spec.cidrs`.
    pub cidrs: Vec<String>,
}

/// The ranges of the ServiceCIDR objects that a pool selects, in ascending order of their text; `None` if the pool has
/// no `serviceCIDRSelector`.
///
/// # Errors
/// A message with the path of the field: if no ServiceCIDR object has these labels, if the selector can't be read, or
/// if the pool also has `cidrs`.
pub(crate) fn resolve(pool: &Value, service_cidrs: &[LabelledRanges]) -> Result<Option<Vec<String>>, String> {
    let Some(selector) = pool.pointer("/spec/serviceCIDRSelector").filter(|selector| !selector.is_null()) else {
        return Ok(None);
    };
    if pool.pointer("/spec/cidrs").is_some_and(|cidrs| !cidrs.is_null()) {
        return Err("spec: give either cidrs or serviceCIDRSelector".to_owned());
    }
    let unreadable = |reason: &dyn std::fmt::Display| format!("spec.serviceCIDRSelector: {reason}");
    let selector = LabelSelector::deserialize(selector).map_err(|error| unreadable(&error))?;
    let selector = Selector::try_from(selector).map_err(|error| unreadable(&error))?;
    let selected = service_cidrs.iter().filter(|ranges| selector.matches(&ranges.labels));
    let mut cidrs: Vec<String> = selected.flat_map(|ranges| ranges.cidrs.iter().cloned()).collect();
    cidrs.sort();
    cidrs.dedup();
    if cidrs.is_empty() {
        return Err("spec.serviceCIDRSelector: no ServiceCIDR object has these labels: label one with kubectl label \
                    servicecidr, or list cidrs"
            .to_owned());
    }
    Ok(Some(cidrs))
}
