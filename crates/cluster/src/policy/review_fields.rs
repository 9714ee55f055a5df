//! Reads an `AdmissionReview`: only the fields that a decision reads or changes. All others are skipped, and never in
//! memory: `managedFields` can take a hundred times the memory of their JSON text once parsed.
//!
//! The patch is the difference between the object before and after the decision, so it is the same as that of the whole
//! object: a map stays, also if all its entries are skipped, and so does each item of a list.

use std::sync::LazyLock;

use clusterip_core::annotations::is_read;
use clusterip_core::field_mask::{Mask, MaskedReader};
use clusterip_core::service::ADDRESS_FIELDS;
use serde::de::DeserializeSeed;
use serde_json::{Deserializer, Value};

use crate::snapshot::TEXT;

/// How many values of a list or map are read. The API server writes maps in the order of their keys, as the core reads
/// labels and selectors. Which lists must be complete, [`cut_list`] checks.
const LONG: usize = 4096;
/// The API server refuses more than two of these, but only after its webhooks have answered.
const FEW: usize = 64;
/// How many values of an owner of fields are read: the entry, `fieldsV1`, `f:spec`, and of its keys those of the
/// addresses and three others.
const VALUES_OF_OWNER: usize = 8;

const REQUEST: [&str; 11] = [
    "apiVersion",
    "kind",
    "request.dryRun",
    "request.kind.group",
    "request.kind.kind",
    "request.kind.version",
    "request.name",
    "request.namespace",
    "request.operation",
    "request.subResource",
    "request.uid",
];
/// The fields of a Service or a Node.
const OBJECT: [(&str, usize); 17] = [
    ("metadata.annotations", LONG),
    ("metadata.deletionTimestamp", TEXT),
    ("metadata.generateName", TEXT),
    ("metadata.labels", LONG),
    ("metadata.name", TEXT),
    ("metadata.namespace", TEXT),
    ("spec.clusterIP", TEXT),
    ("spec.clusterIPs", FEW),
    ("spec.externalIPs", LONG),
    ("spec.ipFamilies", FEW),
    ("spec.ipFamilyPolicy", TEXT),
    ("spec.loadBalancerClass", TEXT),
    ("spec.loadBalancerIP", TEXT),
    ("spec.podCIDR", TEXT),
    ("spec.podCIDRs", FEW),
    ("spec.selector", LONG),
    ("spec.type", TEXT),
];

static FIELDS: LazyLock<Mask> = LazyLock::new(|| {
    let mut mask = Mask::new([""; 0]);
    REQUEST.iter().for_each(|field| mask.at(field).most = TEXT);
    for object in ["request.object", "request.oldObject"] {
        OBJECT.iter().for_each(|(field, most)| mask.at(&format!("{object}.{field}")).most = *most);
        mask.at(&format!("{object}.metadata.annotations")).reads = is_read;
    }
    let owners = mask.at("request.object.metadata.managedFields");
    owners.most = LONG;
    let owned = owners.at("fieldsV1.f:spec");
    // Whether there are other keys decides whether `f:spec` is removed.
    owned.reads = |count, key| count <= ADDRESS_FIELDS.len() || ADDRESS_FIELDS.contains(&key);
    owned.at("*").reads = |_, _| false;
    mask
});

/// An `AdmissionReview` in JSON, without the fields that no decision uses.
pub fn read(body: &[u8]) -> Result<Value, serde_json::Error> {
    let mut reader = Deserializer::from_slice(body);
    let review = MaskedReader::new(&FIELDS).deserialize(&mut reader)?;
    reader.end()?;
    Ok(review)
}

/// The list of a request that may have been read in part, although a decision needs all of its items, and the number of
/// items from which on this is so.
pub fn cut_list(request: &Value) -> Option<(&'static str, usize)> {
    const LISTS: [(&str, usize); 2] =
        [("object.metadata.managedFields", LONG / VALUES_OF_OWNER), ("object.spec.externalIPs", LONG)];
    LISTS.into_iter().find(|(path, most)| {
        let list = path.split('.').try_fold(request, |value, key| value.get(key)).and_then(Value::as_array);
        list.is_some_and(|list| list.len() >= *most)
    })
}
