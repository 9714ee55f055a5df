//! The custom resources of clusterip-policy, in the API group `clusterip-policy.io`.
//!
//! Pools are objects, so that `kubectl get servicepools` shows them. [`compile`] translates the objects into the
//! settings document, which is all that the policy, `clusterip plan` and Kubewarden know. [`objects()`] is the inverse.
//!
//! The types describe the schema of the API and the status. The fields of a pool are those of the document, and the
//! core checks them, so that an object and a document are refused for the same reasons in the same words.

mod cluster_ip_policy;
mod compile;
mod document;
mod object_key;
mod pool_fields;
mod pools;
mod status;

use self::cluster_ip_policy::ClusterIPPolicy;
pub use self::compile::{Compilation, InUse, LabelledRanges, ObjectState, Objects, compile, in_use_before};
pub use self::document::{mistake_of_type, not_in_document, not_in_objects, objects};
pub use self::object_key::{Kind, ObjectKey, field_of, in_words_of_objects, mistakes_of_objects, reason_of_object};
pub use self::pools::{Blocks, ReservationHolder, ReservationStatus};
use self::pools::{ExternalPool, NodeBlockPool, ServicePool};
pub use self::status::{AddressCounts, PoolAddresses, READY, Reason, range_summary};

use kube::CustomResourceExt;
use serde_json::{Value, json};

/// The API group of the custom resources.
pub const GROUP: &str = "clusterip-policy.io";
/// The version of the custom resources.
pub const VERSION: &str = "v1alpha1";

/// The definitions of all custom resources, in the order in which `deploy/crds` lists them.
pub fn definitions() -> Vec<Value> {
    [ServicePool::crd(), ExternalPool::crd(), NodeBlockPool::crd(), ClusterIPPolicy::crd()]
        .into_iter()
        .map(|definition| {
            // A definition consists of maps with texts as keys, lists and scalars, so this can't fail.
            let mut definition = serde_json::to_value(definition).unwrap_or_default();
            simplify(&mut definition);
            mark_as_unobserved(&mut definition);
            definition
        })
        .collect()
}

/// Gives new objects a status without the current generation: for tools that follow kstatus, an object without any
/// status is ready.
fn mark_as_unobserved(definition: &mut Value) {
    let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status";
    if let Some(Value::Object(status)) = definition.pointer_mut(status) {
        status.insert("default".to_owned(), json!({"observedGeneration": -1}));
    }
}

/// Makes the schemas read as if they were written by hand: no line breaks in descriptions, and no `null` as a value,
/// which rules would have to expect everywhere.
fn simplify(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("nullable");
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "description" => *text = text.replace('\n', " "),
                    _ => simplify(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(simplify),
        _ => {}
    }
}
