//! Filling addresses into manifests: the text stays as it is, comments and all, but for them.

use std::net::IpAddr;

use serde_json::Value;

use super::yaml::{Data, Node};

/// Where the addresses of a Service go in its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Nothing where its `spec` stands elsewhere, or not at all.
    spec: Option<Spec>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spec {
    /// Before this character there is room for fields.
    at: usize,
    layout: Layout,
    /// Where the fields stand that are there already, empty.
    cluster_ip: Option<Place>,
    cluster_ips: Option<Place>,
}

/// How the fields of a `spec` are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Line by line, indented by so many spaces.
    Block { indent: usize },
    /// In braces, on the line of the first.
    Flow,
    /// In braces, line by line.
    FlowLines { indent: usize },
    /// In braces, and there are none.
    Empty,
}

/// From the end of a key to the end of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
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
        let spec = service.field("spec").filter(|(key, spec)| !key.merged && !spec.aliased && !service.aliased);
        Self { spec: spec.and_then(|(_, spec)| Spec::of(spec)) }
    }

    /// The edits that set the addresses; nothing where the text has no place for them.
    pub fn edits(&self, addresses: &[IpAddr], line_end: &str) -> Option<Vec<Edit>> {
        let spec = self.spec?;
        let mut edits = Vec::new();
        let mut added = Vec::new();
        let mut set = |key: &str, value: String, place: Option<Place>| match place {
            Some(place) => edits.push(place.set(&value)),
            None => added.push(format!("{}: {value}", spec.layout.key(key))),
        };
        set("clusterIP", spec.layout.address(*addresses.first()?), spec.cluster_ip);
        if addresses.len() > 1 {
            let list: Vec<String> = addresses.iter().map(|address| quoted(&address.to_string())).collect();
            set("clusterIPs", format!("[{}]", list.join(", ")), spec.cluster_ips);
        } else if let Some(place) = spec.cluster_ips {
            // With one address the API server fills `clusterIPs` in.
            edits.push(place.set("[]"));
        }
        if !added.is_empty() {
            edits.push(Edit { start: spec.at, end: spec.at, text: spec.layout.join(&added, line_end) });
        }
        Some(edits)
    }
}

impl Spec {
    fn of(spec: &Node) -> Option<Self> {
        let Data::Mapping(fields) = &spec.data else { return None };
        let mut own = fields.iter().filter(|(key, _)| !key.merged);
        let place = |name: &str| {
            let (key, value) = own.clone().find(|(key, _)| key.name == name)?;
            // Where a quoted text ends, the parser does not tell to the character; this one is empty.
            let empty = matches!(&value.data, Data::Scalar(Value::String(text)) if text.is_empty());
            let value_end = if empty { value.end.min(value.start + 2) } else { value.end };
            Some(Place { key_end: key.end, value: value.start, value_end })
        };
        let (cluster_ip, cluster_ips) = (place("clusterIP"), place("clusterIPs"));
        let (at, layout) = match own.next() {
            Some((first, _)) if !spec.flow => (first.start, Layout::Block { indent: first.column }),
            Some((first, _)) if first.line > spec.line => (first.start, Layout::FlowLines { indent: first.column }),
            Some((first, _)) => (first.start, Layout::Flow),
            // Before the brace that closes.
            None if fields.is_empty() => (spec.end - 1, Layout::Empty),
            None => return None,
        };
        Some(Self { at, layout, cluster_ip, cluster_ips })
    }
}

impl Layout {
    fn is_block(self) -> bool {
        matches!(self, Self::Block { .. })
    }

    /// Braces may be JSON, which wants quotes.
    fn key(self, key: &str) -> String {
        if self.is_block() { key.to_owned() } else { quoted(key) }
    }

    fn address(self, address: IpAddr) -> String {
        // A colon has a meaning of its own in YAML.
        if self.is_block() && address.is_ipv4() { address.to_string() } else { quoted(&address.to_string()) }
    }

    /// Fields that come before others.
    fn join(self, fields: &[String], line_end: &str) -> String {
        let behind = match self {
            Self::Block { indent } => format!("{line_end}{}", " ".repeat(indent)),
            Self::Flow => ", ".to_owned(),
            Self::FlowLines { indent } => format!(",{line_end}{}", " ".repeat(indent)),
            Self::Empty => return fields.join(", "),
        };
        fields.iter().map(|field| format!("{field}{behind}")).collect()
    }
}

impl Place {
    fn set(self, value: &str) -> Edit {
        // A value that is not written out has no place of its own: it goes behind the colon.
        if self.value == self.value_end {
            let colon = self.value.max(self.key_end);
            return Edit { start: colon + 1, end: colon + 1, text: format!(" {value}") };
        }
        Edit { start: self.value, end: self.value_end, text: value.to_owned() }
    }
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
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
