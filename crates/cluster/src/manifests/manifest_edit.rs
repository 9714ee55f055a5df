//! Writes addresses and blocks into manifests. The rest of the text stays as it is, including comments. External
//! addresses are written as the annotation that records them.

use std::fmt::Display;

use clusterip_core::annotations::RECORD_ANNOTATION;
use serde_json::Value;

use crate::yaml::{Data, Key, Node};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fields {
    /// The addresses of a Service: `clusterIP`, and with several addresses also `clusterIPs`.
    ClusterIps,
    /// The blocks of a Node: always both `podCIDR` and `podCIDRs`.
    PodCidrs,
}

/// The place in the text for the addresses of a Service or the blocks of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InsertionPoint {
    pub fields: Fields,
    spot: Option<Spot>,
    record: Option<Annotations>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Annotations {
    /// In the existing annotations: instead of the existing record, or before the character `at`.
    Among {
        at: usize,
        layout: Layout,
        record: Option<ValueRange>,
    },
    Null(ValueRange),
    /// There are no annotations: they are inserted before the character `at` of `metadata`.
    Missing {
        at: usize,
        layout: Layout,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spot {
    Spec(Spec),
    /// There is no `spec`: it is inserted before the character `at`. A Service always has a `spec`, a Node may have
    /// none.
    NoSpec {
        at: usize,
        layout: Layout,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spec {
    /// Fields are inserted before this character.
    at: usize,
    layout: Layout,
    /// The ranges of fields that exist already but are empty.
    first: Option<ValueRange>,
    all: Option<ValueRange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// One field per line, indented by this many spaces.
    Block {
        indent: usize,
    },
    /// In braces, on one line.
    Flow,
    /// In braces, one field per line.
    FlowLines {
        indent: usize,
    },
    Empty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ValueRange {
    key_end: usize,
    value: usize,
    value_end: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    start: usize,
    end: usize,
    text: String,
}

impl Fields {
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::ClusterIps => ("clusterIP", "clusterIPs"),
            Self::PodCidrs => ("podCIDR", "podCIDRs"),
        }
    }

    /// Whether the list field is written for this many values. The API server completes the list of a single address
    /// itself; it refuses `podCIDR` without `podCIDRs` and the reverse.
    pub fn lists(self, values: usize) -> bool {
        values > 1 || self == Self::PodCidrs
    }
}

impl InsertionPoint {
    pub fn of(object: &Node, fields: Fields) -> Self {
        let spec = object.field("spec");
        let own = spec.filter(|(key, spec)| !key.merged && !spec.aliased && !object.aliased);
        let spot = match (own, spec) {
            (Some((_, spec)), _) => room(spec).map(|(at, layout)| {
                let (first, all) = fields.names();
                Spot::Spec(Spec { at, layout, first: ValueRange::of(spec, first), all: ValueRange::of(spec, all) })
            }),
            (None, None) if fields == Fields::PodCidrs && !object.aliased => {
                let metadata = object.field("metadata").filter(|(key, _)| !key.merged);
                metadata.map(|(key, _)| Spot::NoSpec { at: key.at.start, layout: Layout::of(object, key) })
            }
            _ => None,
        };
        let record = if fields == Fields::ClusterIps { Annotations::of(object) } else { None };
        Self { fields, spot, record }
    }

    /// The edits that record external addresses; `None` if the text has no place for them.
    pub fn record_edits(&self, record: &str, line_end: &str) -> Option<Vec<Edit>> {
        let braces = || format!("{{\"{RECORD_ANNOTATION}\": {}}}", quoted(record));
        Some(vec![match self.record? {
            Annotations::Among { layout, record: Some(range), .. } => range.set(&layout.value(record)),
            Annotations::Among { at, layout, record: None } => {
                let field = format!("{}: {}", layout.key(RECORD_ANNOTATION), layout.value(record));
                Edit { start: at, end: at, text: layout.join(&[field], line_end) }
            }
            Annotations::Null(range) => range.set(&braces()),
            Annotations::Missing { at, layout } => {
                let value = match layout {
                    Layout::Block { indent } => {
                        let indent = " ".repeat(indent + 2);
                        format!("{line_end}{indent}{RECORD_ANNOTATION}: {}", layout.value(record))
                    }
                    _ => format!(" {}", braces()),
                };
                let field = format!("{}:{value}", layout.key("annotations"));
                Edit { start: at, end: at, text: layout.join(&[field], line_end) }
            }
        }])
    }

    /// The edits that set the addresses or blocks; `None` if the text has no place for them.
    pub fn edits<T: Display>(&self, values: &[T], line_end: &str) -> Option<Vec<Edit>> {
        let values: Vec<String> = values.iter().map(ToString::to_string).collect();
        let first = values.first()?;
        let list = || format!("[{}]", values.iter().map(|value| quoted(value)).collect::<Vec<_>>().join(", "));
        let (first_name, all_name) = self.fields.names();
        let spec = match self.spot? {
            Spot::Spec(spec) => spec,
            Spot::NoSpec { at, layout } => {
                let spec = format!("{{\"{first_name}\": {}, \"{all_name}\": {}}}", quoted(first), list());
                let text = layout.join(&[format!("{}: {spec}", layout.key("spec"))], line_end);
                return Some(vec![Edit { start: at, end: at, text }]);
            }
        };
        let mut edits = Vec::new();
        let mut added = Vec::new();
        let mut set = |key: &str, value: String, range: Option<ValueRange>| match range {
            Some(range) => edits.push(range.set(&value)),
            None => added.push(format!("{}: {value}", spec.layout.key(key))),
        };
        set(first_name, spec.layout.value(first), spec.first);
        if self.fields.lists(values.len()) {
            set(all_name, list(), spec.all);
        } else if let Some(range) = spec.all {
            // The API server completes `clusterIPs` for a single address.
            edits.push(range.set("[]"));
        }
        if !added.is_empty() {
            edits.push(Edit { start: spec.at, end: spec.at, text: spec.layout.join(&added, line_end) });
        }
        Some(edits)
    }
}

impl Annotations {
    fn of(object: &Node) -> Option<Self> {
        let own = |field: &(&Key, &Node)| !field.0.merged && !field.1.aliased;
        let (_, metadata) = object.field("metadata").filter(|field| own(field) && !object.aliased)?;
        match metadata.field("annotations") {
            Some((key, Node { data: Data::Scalar(Value::Null), at, aliased: false, .. })) if !key.merged => {
                Some(Self::Null(ValueRange { key_end: key.at.end, value: at.start, value_end: at.end }))
            }
            Some(field) => {
                let annotations = Some(field).filter(own)?.1;
                let (at, layout) = room(annotations)?;
                Some(Self::Among { at, layout, record: ValueRange::of(annotations, RECORD_ANNOTATION) })
            }
            None => room(metadata).map(|(at, layout)| Self::Missing { at, layout }),
        }
    }
}

/// The character of a mapping before which fields are inserted, and how they are written there.
fn room(mapping: &Node) -> Option<(usize, Layout)> {
    let Data::Mapping(fields) = &mapping.data else { return None };
    match fields.iter().find(|(key, _)| !key.merged) {
        Some((key, _)) => Some((key.at.start, Layout::of(mapping, key))),
        // Before the closing brace.
        None if fields.is_empty() => Some((mapping.at.end - 1, Layout::Empty)),
        None => None,
    }
}

impl Layout {
    fn of(mapping: &Node, key: &Key) -> Self {
        match mapping.flow {
            false => Self::Block { indent: key.at.column },
            true if key.at.line > mapping.at.line => Self::FlowLines { indent: key.at.column },
            true => Self::Flow,
        }
    }

    fn is_block(self) -> bool {
        matches!(self, Self::Block { .. })
    }

    /// Text in braces may be JSON, which needs quotes.
    fn key(self, key: &str) -> String {
        if self.is_block() { key.to_owned() } else { quoted(key) }
    }

    fn value(self, value: &str) -> String {
        // A colon has a meaning in YAML, so a value with one is quoted.
        if self.is_block() && !value.contains(':') { value.to_owned() } else { quoted(value) }
    }

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

impl ValueRange {
    fn of(mapping: &Node, name: &str) -> Option<Self> {
        let (key, value) = mapping.field(name).filter(|(key, _)| !key.merged)?;
        // The parser does not report exactly where a quoted text ends. A range that is longer than its text is assumed
        // to be quoted; any other notation is noticed when the whole text is read again.
        let at = value.at;
        let value_end = match &value.data {
            Data::Scalar(Value::String(text)) => match text.chars().count() {
                plain if at.end == at.start + plain => at.end,
                quoted => at.end.min(at.start + quoted + 2),
            },
            _ => at.end,
        };
        Some(Self { key_end: key.at.end, value: at.start, value_end })
    }

    fn set(self, value: &str) -> Edit {
        // A value that is missing from the text has no position of its own: it is inserted after the colon.
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

/// Applies edits to a text. The edits must not overlap.
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
