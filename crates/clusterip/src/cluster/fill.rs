//! Filling addresses into manifests: the text stays as it is, comments and all, but for them.

use std::net::IpAddr;

use super::yaml::{Data, Key, Node};

/// Where the addresses of a Service go in its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    spec: Spec,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Spec {
    /// Before the first field of a block, each line indented by so many spaces.
    Block { at: usize, indent: usize, own: Own },
    /// Behind the brace of `{…}`.
    Flow { at: usize, empty: bool, own: Own },
    /// It stands elsewhere, or not at all.
    Elsewhere,
}

/// Where the fields stand that are there already, empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Own {
    cluster_ip: Option<Place>,
    cluster_ips: Option<Place>,
}

/// From the beginning of a key to the end of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    key: usize,
    key_end: usize,
    value: usize,
    value_end: usize,
}

/// A piece of text in place of another, by characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    start: usize,
    end: usize,
    text: String,
}

impl Slot {
    /// The slot of a Service that stands at `service`.
    pub fn of(service: &Node) -> Self {
        let elsewhere = Self { spec: Spec::Elsewhere };
        let Some((_, spec)) = service.field("spec").filter(|(_, spec)| !spec.aliased && !service.aliased) else {
            return elsewhere;
        };
        let Data::Mapping(fields) = &spec.data else { return elsewhere };
        let place = |name: &str| spec.field(name).map(|(key, value)| Place::new(key, value));
        let own = Own { cluster_ip: place("clusterIP"), cluster_ips: place("clusterIPs") };
        // The mapping of a block begins where its first key does.
        let spec = match fields.first() {
            Some((first, node)) if first.start == spec.start && !node.aliased => {
                Spec::Block { at: first.start, indent: first.column, own }
            }
            Some(_) => Spec::Flow { at: spec.start + 1, empty: false, own },
            None => Spec::Flow { at: spec.start + 1, empty: true, own },
        };
        Self { spec }
    }

    /// The edits that set the addresses; nothing where the text has no place for them.
    pub fn edits(&self, addresses: &[IpAddr], line_end: &str) -> Option<Vec<Edit>> {
        let primary = addresses.first()?;
        let list = addresses.iter().map(|address| format!("\"{address}\"")).collect::<Vec<_>>().join(", ");
        let wanted =
            [("clusterIP", Some(quoted(*primary))), ("clusterIPs", (addresses.len() > 1).then(|| format!("[{list}]")))];
        let (Spec::Block { at, own, .. } | Spec::Flow { at, own, .. }) = &self.spec else { return None };
        let mut edits = Vec::new();
        let mut added = String::new();
        for ((key, value), place) in wanted.into_iter().zip([own.cluster_ip, own.cluster_ips]) {
            match (value, place, &self.spec) {
                (Some(value), Some(place), spec) => {
                    let value = if matches!(spec, Spec::Flow { .. }) && key == "clusterIP" {
                        format!("\"{primary}\"")
                    } else {
                        value
                    };
                    edits.push(place.set(&value));
                }
                (Some(value), None, Spec::Block { indent, .. }) => {
                    added.push_str(&format!("{key}: {value}{line_end}{}", " ".repeat(*indent)));
                }
                (Some(value), None, Spec::Flow { empty, .. }) => {
                    let value = if key == "clusterIP" { format!("\"{primary}\"") } else { value };
                    let comma = if *empty { "" } else { ", " };
                    added.push_str(&format!("\"{key}\": {value}{comma}"));
                }
                // With one address the API server fills `clusterIPs` in.
                (None, Some(place), _) => edits.push(place.set("[]")),
                (None, None, _) | (_, _, Spec::Elsewhere) => {}
            }
        }
        if !added.is_empty() {
            edits.push(Edit { start: *at, end: *at, text: added });
        }
        Some(edits)
    }
}

impl Place {
    fn new(key: &Key, value: &Node) -> Self {
        Self { key: key.start, key_end: key.end, value: value.start, value_end: value.end }
    }

    fn set(self, value: &str) -> Edit {
        // A value that is not written out has no place of its own: it goes behind the colon.
        if self.value == self.value_end {
            return Edit { start: self.key_end + 1, end: self.key_end + 1, text: format!(" {value}") };
        }
        Edit { start: self.value, end: self.value_end, text: value.to_owned() }
    }
}

fn quoted(address: IpAddr) -> String {
    // A colon has a meaning of its own in YAML.
    if address.is_ipv6() { format!("\"{address}\"") } else { address.to_string() }
}

/// Applies edits to a text. They do not overlap.
pub fn apply(text: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|edit| (edit.start, edit.end));
    let mut filled = String::with_capacity(text.len() + edits.len() * 32);
    let mut edits = edits.into_iter().peekable();
    let mut skip_to = 0;
    for (index, character) in text.chars().enumerate() {
        while let Some(edit) = edits.next_if(|edit| edit.start == index) {
            filled.push_str(&edit.text);
            skip_to = skip_to.max(edit.end);
        }
        if index >= skip_to {
            filled.push(character);
        }
    }
    filled.extend(edits.map(|edit| edit.text));
    filled
}
