//! Every annotation and label of this project, and the only parser of each. The annotations of other programs that the
//! policy reads are here too.
//!
//! The author of a Service can write any of them. Therefore a parser ignores a value that is too long, and of
//! a list all addresses beyond a maximum number. A cache may store [`shortened`] instead of a value. Every
//! parser returns the same result for both, so a host with a cache decides as one without.

use std::borrow::Cow;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::address::parse_address;
use crate::json::{field_mut, quote, unknown_name_message};
use crate::label_selector::Labels;

/// The annotation of a Service or a Namespace that names the operating system of its Pods.
pub const OS_ANNOTATION: &str = "clusterip-policy/os";
/// The annotation of a Service that names its pool.
pub const POOL_ANNOTATION: &str = "clusterip-policy/pool";
/// The annotation of a Service that controls whether it may be moved, see [`Move`].
pub const MOVE_ANNOTATION: &str = "clusterip-policy/move";
/// The annotation that is set on a Service while its address is being changed, see [`in_moving_annotation`]. It informs
/// people: no decision reads its value, because the author of the Service can write it too.
pub const MOVING_ANNOTATION: &str = "clusterip-policy/moving";
/// The external name of a Service that is being moved. It never resolves (RFC 2606).
pub const MOVING_NAME: &str = "moving.invalid";
/// The annotation of a Service that records its external addresses, separated by commas.
pub const RECORD_ANNOTATION: &str = "clusterip-policy/external-addresses";
/// The annotation of a Service that requests an external address, or one of each family.
pub const REQUESTED_ADDRESS_ANNOTATION: &str = "clusterip-policy/external-address";
/// The annotation of a Service that says why it has its address: its pool, and the evidence. It informs people. No
/// decision reads it, because the author of the Service can change it.
pub const REASON_ANNOTATION: &str = "clusterip-policy/reason";
/// The annotations that request addresses from MetalLB, Cilium and kube-vip, with their current and former names.
pub const FOREIGN_ANNOTATIONS: [&str; 5] = [
    "io.cilium/lb-ipam-ips",
    "kube-vip.io/loadbalancerIPs",
    "lbipam.cilium.io/ips",
    "metallb.io/loadBalancerIPs",
    "metallb.universe.tf/loadBalancerIPs",
];
/// The annotations with which MetalLB and Cilium let Services share an address, with their current and former names.
pub const SHARING_ANNOTATIONS: [&str; 4] = [
    "io.cilium/lb-ipam-sharing-key",
    "lbipam.cilium.io/sharing-key",
    "metallb.io/allow-shared-ip",
    "metallb.universe.tf/allow-shared-ip",
];
/// The annotation of a Namespace that the PodNodeSelector admission plugin reads: the labels that the nodes of all its
/// Pods must have, as `key=value,key=value`.
pub const NODE_SELECTOR_ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";

/// The label of the Leases of `clusterip`. Its value says what the Lease is for.
pub const LEASE_LABEL: &str = "clusterip-policy/lease";
/// The label of a heartbeat that the agent of its own node has written, which a ValidatingAdmissionPolicy selects.
pub const HEARTBEAT_LABEL: &str = "clusterip-policy/heartbeat";
/// The label of the ControllerRevisions of `clusterip`. Its value says what the object is. The text is that of
/// [`MOVE_ANNOTATION`], which is an annotation of Services.
pub const MOVE_OBJECT_LABEL: &str = "clusterip-policy/move";
/// The annotation of a claim with its address, in the canonical text form.
pub const ADDRESS_ANNOTATION: &str = "clusterip-policy/address";
/// The annotation of a claim, or of the record of a move, with the Service that it is about, see [`service_of`].
pub const SERVICE_ANNOTATION: &str = "clusterip-policy/service";
/// The annotation of a heartbeat with the name of its Node.
pub const NODE_ANNOTATION: &str = "clusterip-policy/node";
/// The annotation of a Lease with the hash of the settings that its holder uses.
pub const SETTINGS_HASH_ANNOTATION: &str = "clusterip-policy/settings-hash";
/// The annotation of a webhook configuration with the URL that it was written for.
pub const REGISTERED_URL_ANNOTATION: &str = "clusterip-policy/registered-url";

/// The label of the temporary Services of a seamless move. Its value is the role of the Service: `new`, `old` or
/// `trigger`. The author of a Service can write it too, so no decision relies on it alone.
pub const TEMPORARY_LABEL: &str = "clusterip-policy/temporary";
/// The annotation of a temporary Service that keeps an old address: when the second swap had ended and the grace period
/// began, in seconds since 1970.
pub const SWAPPED_ANNOTATION: &str = "clusterip-policy/swapped-at";

/// The prefix of every key of this project.
const PREFIX: &str = "clusterip-policy/";
/// The names behind [`PREFIX`] that the author of a Service writes. A warning of an unknown name suggests them.
const AUTHOR_NAMES: [&str; 4] =
    [name_of(REQUESTED_ADDRESS_ANNOTATION), name_of(MOVE_ANNOTATION), name_of(OS_ANNOTATION), name_of(POOL_ANNOTATION)];
/// The names behind [`PREFIX`] that programs write. The policy warns of any name that is in neither list.
const PROGRAM_NAMES: [&str; 10] = [
    name_of(ADDRESS_ANNOTATION),
    name_of(RECORD_ANNOTATION),
    name_of(LEASE_LABEL),
    name_of(MOVING_ANNOTATION),
    name_of(NODE_ANNOTATION),
    name_of(REASON_ANNOTATION),
    name_of(REGISTERED_URL_ANNOTATION),
    name_of(SERVICE_ANNOTATION),
    name_of(SETTINGS_HASH_ANNOTATION),
    name_of(SWAPPED_ANNOTATION),
];

/// The name behind [`PREFIX`] in a key.
const fn name_of(key: &'static str) -> &'static str {
    key.split_at(PREFIX.len()).1
}

/// A list of addresses with at least this many characters is ignored. Two addresses take at most 79.
pub const TOO_LONG_FOR_ADDRESSES: usize = 256;
/// At most this many addresses of a list count: one of each family.
pub(crate) const MAX_ADDRESSES: usize = 2;
/// At most this many annotations of a Service are warned of.
const MAX_WARNINGS: usize = 4;
/// Unknown names and values are cut at this many characters before they are compared with the known ones.
const MAX_COMPARED: usize = 64;

/// The number of characters from which on a value is ignored; `None` for an annotation that has no parser here.
fn too_long(key: &str) -> Option<usize> {
    match key {
        MOVE_ANNOTATION => Some(16),
        // Label values and pool names have at most 63 characters.
        OS_ANNOTATION | POOL_ANNOTATION => Some(64),
        RECORD_ANNOTATION | REQUESTED_ADDRESS_ANNOTATION => Some(TOO_LONG_FOR_ADDRESSES),
        MOVING_ANNOTATION => Some(1024),
        NODE_SELECTOR_ANNOTATION => Some(4096),
        _ => {
            (FOREIGN_ANNOTATIONS.contains(&key) || SHARING_ANNOTATIONS.contains(&key)).then_some(TOO_LONG_FOR_ADDRESSES)
        }
    }
}

/// The annotations of a Service or a Namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnotationMap(Labels);

impl AnnotationMap {
    /// The value of an annotation that has a parser here. A cache drops all others, so they count as absent in every
    /// host: a decision that reads another annotation needs a row in `too_long` first.
    pub fn get(&self, key: &str) -> Option<&String> {
        if has_parser(key) { self.0.get(key) } else { None }
    }

    /// Whether the object has an annotation whose value no decision reads.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }
}

impl From<Labels> for AnnotationMap {
    fn from(annotations: Labels) -> Self {
        Self(annotations)
    }
}

/// Whether an annotation of Services or Namespaces has a parser here. A cache may drop all others of these objects.
pub fn has_parser(key: &str) -> bool {
    too_long(key).is_some()
}

/// Whether a decision about a request reads or changes this annotation of its object, or may warn of it. `count` is the
/// number of those before it: only the first unknown ones get warnings, so that they hide no others.
pub fn is_read(count: usize, key: &str) -> bool {
    has_parser(key) || key == REASON_ANNOTATION || (count < 256 && key.starts_with(PREFIX))
}

/// The value of an annotation as a cache stores it: one that is too long is cut, and remains too long for the parsers.
pub fn shortened<'t>(key: &str, text: &'t str) -> Option<Cow<'t, str>> {
    too_long(key).map(|limit| cut(text, limit))
}

/// The text; if it has more than `limit` characters, its first `limit - 1` and an ellipsis.
pub fn cut(text: &str, limit: usize) -> Cow<'_, str> {
    match (byte_offset(text, limit), byte_offset(text, limit - 1)) {
        (Some(_), Some(end)) => Cow::Owned(text[..end].to_owned() + "…"),
        _ => Cow::Borrowed(text),
    }
}

fn is_too_long(text: &str, limit: usize) -> bool {
    byte_offset(text, limit - 1).is_some()
}

/// The byte offset of a character, counted from 0; `None` if the text is shorter.
#[inline(never)] // The module has room for one copy.
fn byte_offset(text: &str, character: usize) -> Option<usize> {
    text.char_indices().nth(character).map(|(offset, _)| offset)
}

/// The operating system that [`OS_ANNOTATION`] names. A value that is too long is cut, so it matches no pool.
pub fn os(annotations: &AnnotationMap) -> Option<Cow<'_, str>> {
    word(annotations, OS_ANNOTATION)
}

/// The pool that [`POOL_ANNOTATION`] names. A value that is too long is cut, so no pool has this name.
pub fn pool(annotations: &AnnotationMap) -> Option<Cow<'_, str>> {
    word(annotations, POOL_ANNOTATION)
}

fn word<'a>(annotations: &'a AnnotationMap, key: &str) -> Option<Cow<'a, str>> {
    annotations.get(key).filter(|text| !text.is_empty()).and_then(|text| shortened(key, text))
}

/// A warning for each annotation of a Service that has the prefix of this project and no effect, because its name is
/// unknown, or the value of [`MOVE_ANNOTATION`]; at most [`MAX_WARNINGS`]. The values of the others are checked where
/// they are used. An annotation that the Service already had gets none: its author has
/// seen the warning. An empty value means that the annotation is not set, as in a template.
pub(crate) fn ineffective(annotations: &AnnotationMap, before: Option<&AnnotationMap>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (key, value) in &annotations.0 {
        let Some(name) = key.strip_prefix(PREFIX).filter(|_| warnings.len() < MAX_WARNINGS) else { continue };
        let reason = if value.is_empty() || before.is_some_and(|before| before.0.get(key) == Some(value)) {
            continue;
        } else if !AUTHOR_NAMES.contains(&name) && !PROGRAM_NAMES.contains(&name) {
            // The names are compared in a time and memory that grow with their length.
            unknown_name_message("name", &cut(name, MAX_COMPARED), &AUTHOR_NAMES)
        } else if key == MOVE_ANNOTATION && Move::parse(value).is_none() {
            // The nearest value may be the opposite of what the author means, so all values are listed.
            format!("unknown value {}: known are never, now", quote(&cut(value, MAX_COMPARED)))
        } else {
            continue;
        };
        warnings.push(format!("annotation {} is ignored: {reason}", quote(key)));
    }
    warnings
}

/// The value of [`MOVE_ANNOTATION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// `now`: the Service moves even if it has ready endpoints, or moved less than a minute ago.
    Now,
    /// `never`: the Service is not moved.
    Never,
}

impl Move {
    pub fn of(service: &Value) -> Option<Self> {
        Self::parse(annotation(service, MOVE_ANNOTATION)?.as_str()?)
    }

    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "now" => Some(Self::Now),
            "never" => Some(Self::Never),
            _ => None,
        }
    }
}

/// Whether a Service object has [`MOVING_ANNOTATION`], with any value.
pub fn is_moving(service: &Value) -> bool {
    annotation(service, MOVING_ANNOTATION).is_some()
}

/// The value of [`MOVING_ANNOTATION`]: the addresses before and after the move. `to` is empty if the API server picks
/// them.
pub fn in_moving_annotation(from: &[IpAddr], to: &[IpAddr]) -> String {
    let side = |addresses: &[IpAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
    json!({"from": side(from), "to": side(to)}).to_string()
}

/// Whether a Service looks as if its move had begun and not ended: it has [`MOVING_ANNOTATION`], or it is an alias of
/// [`MOVING_NAME`]. Every user who may edit the Service can make it look so; only a record proves it. The external name
/// of a Service of another type has no effect, so it tells nothing.
pub fn looks_half_moved(service: &Value) -> bool {
    let spec = |field: &str| service.get("spec").and_then(|spec| spec.get(field)?.as_str());
    let is_alias = spec("type") == Some("ExternalName") && spec("externalName") == Some(MOVING_NAME);
    is_moving(service) || is_alias
}

fn annotation<'v>(object: &'v Value, key: &str) -> Option<&'v Value> {
    object.get("metadata")?.get("annotations")?.get(key)
}

/// Sets an annotation of an object. An empty value removes the annotation.
pub(crate) fn annotate(object: &mut Value, key: &str, value: String) {
    let metadata = object.as_object_mut().and_then(|object| field_mut(object, "metadata"));
    let Some(annotations) = metadata.and_then(|metadata| field_mut(metadata, "annotations")) else { return };
    if value.is_empty() {
        annotations.remove(key);
    } else {
        annotations.insert(key.to_owned(), value.into());
    }
}

/// The namespace and name in a value of [`SERVICE_ANNOTATION`]. The name is empty if it is not generated yet.
pub fn service_of(text: &str) -> Option<(&str, &str)> {
    text.split_once('/')
}

/// Formats a namespace and name as a value of [`SERVICE_ANNOTATION`].
pub fn in_service_annotation(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// The addresses in a value of [`RECORD_ANNOTATION`] or [`REQUESTED_ADDRESS_ANNOTATION`]: the first of each family.
/// Parts that are not addresses are ignored; a value that is too long contains none.
pub fn recorded_addresses(text: &str) -> Vec<IpAddr> {
    addresses(text, true)
}

/// Formats addresses as a value of [`RECORD_ANNOTATION`].
pub fn in_record(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// The addresses in a value of one of [`FOREIGN_ANNOTATIONS`] or of `spec.loadBalancerIP`: the first
/// `MAX_ADDRESSES`. Parts that are not addresses are ignored; a value that is too long contains none.
pub fn claimed_addresses(text: &str) -> Vec<IpAddr> {
    addresses(text, false)
}

pub fn is_too_long_for_addresses(text: &str) -> bool {
    is_too_long(text, TOO_LONG_FOR_ADDRESSES)
}

fn addresses(text: &str, one_of_each_family: bool) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    if is_too_long_for_addresses(text) {
        return found;
    }
    for address in parts(text).filter_map(parse_address) {
        let is_duplicate = |other: &IpAddr| {
            if one_of_each_family { other.is_ipv4() == address.is_ipv4() } else { *other == address }
        };
        if found.len() < MAX_ADDRESSES && !found.iter().any(is_duplicate) {
            found.push(address);
        }
    }
    found
}

/// The parts of a text between its commas, without surrounding white space and without empty parts.
pub(crate) fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// The labels in a value of [`NODE_SELECTOR_ANNOTATION`], and its parts that are not `key=value`. A value that is too
/// long is returned whole as such a part.
pub fn node_selector(text: &str) -> (Labels, Vec<&str>) {
    let (mut labels, mut bad) = (Labels::new(), Vec::new());
    if too_long(NODE_SELECTOR_ANNOTATION).is_some_and(|limit| is_too_long(text, limit)) {
        return (labels, vec![text]);
    }
    for part in parts(text) {
        match part.split_once('=') {
            // `==` means the same as `=`.
            Some((key, value)) => {
                labels.insert(key.trim().to_owned(), value.trim_start_matches('=').trim().to_owned());
            }
            None => bad.push(part),
        }
    }
    (labels, bad)
}
