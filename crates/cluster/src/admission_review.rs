//! Reads an `AdmissionReview`, and makes the `AdmissionResponse` to it.
//!
//! The server reads only the fields that a decision reads or changes. All others are skipped, and never in memory:
//! `managedFields` can take a hundred times the memory of their JSON text once parsed.
//!
//! The patch is the difference between the object before and after the decision, so it is the same as that of the whole
//! object: a map stays, also if all its entries are skipped, and so does each item of a list.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use anyhow::bail;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip_core::Response;
use clusterip_core::annotations::is_read;
use clusterip_core::field_mask::{Mask, MaskedReader};
use clusterip_core::json::{describe, quote};
use clusterip_core::service::{ADDRESS_FIELDS, MAX_PORTS};
use serde::de::DeserializeSeed;
use serde::{Deserialize, Serialize};
use serde_json::{Deserializer, Value};

use crate::snapshot::TEXT;
use crate::yaml;

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
const OBJECT: [(&str, usize); 18] = [
    ("metadata.annotations", LONG),
    ("metadata.deletionTimestamp", TEXT),
    ("metadata.generateName", TEXT),
    ("metadata.labels", LONG),
    ("metadata.name", TEXT),
    ("metadata.namespace", TEXT),
    ("spec.clusterIP", TEXT),
    ("spec.clusterIPs", FEW),
    ("spec.externalIPs", LONG),
    ("spec.externalTrafficPolicy", TEXT),
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
    // An item has two fields. Those of the old object decide nothing.
    mask.at("request.object.spec.ports").most = 3 * MAX_PORTS;
    mask.at("request.object.spec.ports.port").most = TEXT;
    mask.at("request.object.spec.ports.protocol").most = TEXT;
    mask.at("request.oldObject.status.loadBalancer.ingress.ip").most = TEXT;
    mask.at("request.oldObject.status.loadBalancer.ingress").most = 8;
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

/// The request of a file: an `AdmissionRequest`, or that of an `AdmissionReview`, in JSON or YAML. Only the presence and type of
/// the required fields are checked; the policy checks the rest.
pub fn request_of_file(text: &str) -> anyhow::Result<Value> {
    // JSON is tried first, because some JSON escapes are not valid YAML.
    let mut document = match serde_json::from_str(text) {
        Ok(document) => document,
        Err(_) => yaml::single(text)?,
    };
    let Value::Object(fields) = &mut document else {
        let found = describe(&document);
        bail!("expected an AdmissionRequest, or an AdmissionReview with one, found {found}");
    };
    let request = match fields.get("kind") {
        Some(Value::String(kind)) if kind != "AdmissionReview" => {
            let kind = quote(kind);
            bail!("expected an AdmissionRequest, found an object of kind {kind}: `clusterip plan` takes manifests");
        }
        Some(Value::String(_)) => match fields.remove("request") {
            Some(request @ Value::Object(_)) => request,
            other => {
                let found = found(other.as_ref());
                bail!(
                    "an AdmissionReview whose `request` is {found}: save the review as received, before it is answered"
                );
            }
        },
        None if fields.get("request").is_some_and(Value::is_object) => fields.remove("request").unwrap_or_default(),
        _ => document,
    };
    let part = |field: &'static str, expected: &'static str, fits: fn(&Value) -> bool| match request.get(field) {
        Some(value) if fits(value) => Ok(()),
        other => bail!("not an AdmissionRequest: `{field}` is {}, expected {expected}", found(other)),
    };
    // The fields that Kubernetes always sends and kwctl requires.
    part("uid", "a string", Value::is_string)?;
    part("kind", "an object with group, version and kind", Value::is_object)?;
    part("resource", "an object with group, version and resource", Value::is_object)?;
    part("operation", "a string such as CREATE", Value::is_string)?;
    part("userInfo", "an object, possibly empty", Value::is_object)?;
    Ok(request)
}

fn found(value: Option<&Value>) -> String {
    value.map_or_else(|| "missing".to_owned(), describe)
}

/// The response to a request, as Kubewarden builds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionResponse {
    pub uid: String,
    pub allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    pub audit_annotations: Option<BTreeMap<String, String>>,
    pub warnings: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
}

impl AdmissionResponse {
    pub fn new(request: &Value, answer: Response) -> Result<Self, serde_json::Error> {
        let has_status = answer.message.is_some() || answer.code.is_some();
        Ok(Self {
            allowed: answer.accepted,
            status: has_status.then_some(Status { message: answer.message, code: answer.code }),
            audit_annotations: answer.audit_annotations,
            warnings: answer.warnings,
            ..Self::allowed(request).patched(request, answer.mutated_object.as_ref())?
        })
    }

    /// An admission of `request` that the policy did not decide.
    pub fn allowed(request: &Value) -> Self {
        let uid = request.get("uid").and_then(Value::as_str).unwrap_or_default().to_owned();
        Self { uid, allowed: true, ..Self::default() }
    }

    /// A denial of `request` that the policy did not decide.
    pub fn refused(request: &Value, code: u16, message: String) -> Self {
        let status = Some(Status { message: Some(message), code: Some(code) });
        Self { allowed: false, status, ..Self::allowed(request) }
    }

    fn patched(self, request: &Value, changed: Option<&Value>) -> Result<Self, serde_json::Error> {
        let (Some(object), Some(changed)) = (request.get("object"), changed) else { return Ok(self) };
        let patch = json_patch::diff(object, changed);
        if patch.is_empty() {
            return Ok(self);
        }
        let patch = Some(STANDARD.encode(serde_json::to_string(&patch)?));
        Ok(Self { patch_type: Some("JSONPatch".to_owned()), patch, ..self })
    }
}
