//! Filling addresses and blocks into manifests: the text stays as it is, comments and all, but for them. External
//! addresses are filled in as the annotation that records them.

use std::fmt::Display;

use clusterip_core::external::RECORD_ANNOTATION;
use serde_json::Value;

use super::yaml::{Data, Key, Node};

/// What is filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fields {
    /// The addresses of a Service: `clusterIP`, and of several `clusterIPs`.
    ClusterIps,
    /// The blocks of a Node: `podCIDR` and `podCIDRs`, the one never without the other.
    PodCidrs,
}

/// Where the addresses of a Service, or the blocks of a Node, go in its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// What goes there.
    pub fields: Fields,
    place: Option<Spot>,
    record: Option<Annotations>,
}

/// Where the record of the external addresses of a Service goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Annotations {
    /// Among its annotations: in the place of what is recorded already, or before this character.
    Among { at: usize, layout: Layout, record: Option<Place> },
    /// Its annotations are written out as nothing.
    Null(Place),
    /// It has none: they go before this character of its `metadata`.
    Missing { at: usize, layout: Layout },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spot {
    /// In its `spec`.
    Spec(Spec),
    /// It has no `spec`: one goes before this character. A Service always has one, a Node need not.
    NoSpec { at: usize, layout: Layout },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spec {
    /// Before this character there is room for fields.
    at: usize,
    layout: Layout,
    /// Where the fields stand that are there already, empty.
    first: Option<Place>,
    all: Option<Place>,
}

/// How the fields of a mapping are written.
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

impl Fields {
    /// The field of the first value alone, and that of all.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::ClusterIps => ("clusterIP", "clusterIPs"),
            Self::PodCidrs => ("podCIDR", "podCIDRs"),
        }
    }

    /// Whether the list is written out for so many values. Of one address the API server makes the list
    /// itself; of blocks it refuses the one field without the other.
    pub fn lists(self, values: usize) -> bool {
        values > 1 || self == Self::PodCidrs
    }
}

impl Slot {
    /// The slot of the object that stands at `object`.
    pub fn of(object: &Node, fields: Fields) -> Self {
        let spec = object.field("spec");
        let own = spec.filter(|(key, spec)| !key.merged && !spec.aliased && !object.aliased);
        let place = match (own, spec) {
            (Some((_, spec)), _) => Spec::of(spec, fields).map(Spot::Spec),
            (None, None) if fields == Fields::PodCidrs && !object.aliased => {
                let metadata = object.field("metadata").filter(|(key, _)| !key.merged);
                metadata.map(|(key, _)| Spot::NoSpec { at: key.start, layout: Layout::of(object, key) })
            }
            _ => None,
        };
        let record = if fields == Fields::ClusterIps { Annotations::of(object) } else { None };
        Self { fields, place, record }
    }

    /// The edits that record external addresses; nothing where the text has no place for them.
    pub fn record_edits(&self, record: &str, line_end: &str) -> Option<Vec<Edit>> {
        let braces = || format!("{{\"{RECORD_ANNOTATION}\": {}}}", quoted(record));
        Some(vec![match self.record? {
            Annotations::Among { layout, record: Some(place), .. } => place.set(&layout.value(record)),
            Annotations::Among { at, layout, record: None } => {
                let field = format!("{}: {}", layout.key(RECORD_ANNOTATION), layout.value(record));
                Edit { start: at, end: at, text: layout.join(&[field], line_end) }
            }
            Annotations::Null(place) => place.set(&braces()),
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

    /// The edits that set the addresses or blocks; nothing where the text has no place for them.
    pub fn edits<T: Display>(&self, values: &[T], line_end: &str) -> Option<Vec<Edit>> {
        let values: Vec<String> = values.iter().map(ToString::to_string).collect();
        let first = values.first()?;
        let list = || format!("[{}]", values.iter().map(|value| quoted(value)).collect::<Vec<_>>().join(", "));
        let (first_name, all_name) = self.fields.names();
        let spec = match self.place? {
            Spot::Spec(spec) => spec,
            Spot::NoSpec { at, layout } => {
                let spec = format!("{{\"{first_name}\": {}, \"{all_name}\": {}}}", quoted(first), list());
                let text = layout.join(&[format!("{}: {spec}", layout.key("spec"))], line_end);
                return Some(vec![Edit { start: at, end: at, text }]);
            }
        };
        let mut edits = Vec::new();
        let mut added = Vec::new();
        let mut set = |key: &str, value: String, place: Option<Place>| match place {
            Some(place) => edits.push(place.set(&value)),
            None => added.push(format!("{}: {value}", spec.layout.key(key))),
        };
        set(first_name, spec.layout.value(first), spec.first);
        if self.fields.lists(values.len()) {
            set(all_name, list(), spec.all);
        } else if let Some(place) = spec.all {
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
    fn of(spec: &Node, filled: Fields) -> Option<Self> {
        let (first_name, all_name) = filled.names();
        let (at, layout) = room(spec)?;
        Some(Self { at, layout, first: Place::of(spec, first_name), all: Place::of(spec, all_name) })
    }
}

impl Annotations {
    /// Those of the object that stands at `object`.
    fn of(object: &Node) -> Option<Self> {
        let own = |field: &(&Key, &Node)| !field.0.merged && !field.1.aliased;
        let (_, metadata) = object.field("metadata").filter(|field| own(field) && !object.aliased)?;
        match metadata.field("annotations") {
            Some((key, Node { data: Data::Scalar(Value::Null), start, end, aliased: false, .. })) if !key.merged => {
                Some(Self::Null(Place { key_end: key.end, value: *start, value_end: *end }))
            }
            Some(field) => {
                let annotations = Some(field).filter(own)?.1;
                let (at, layout) = room(annotations)?;
                Some(Self::Among { at, layout, record: Place::of(annotations, RECORD_ANNOTATION) })
            }
            None => room(metadata).map(|(at, layout)| Self::Missing { at, layout }),
        }
    }
}

/// Before which character of a mapping there is room for fields, and how they are written there.
fn room(mapping: &Node) -> Option<(usize, Layout)> {
    let Data::Mapping(fields) = &mapping.data else { return None };
    match fields.iter().find(|(key, _)| !key.merged) {
        Some((key, _)) => Some((key.start, Layout::of(mapping, key))),
        // Before the brace that closes.
        None if fields.is_empty() => Some((mapping.end - 1, Layout::Empty)),
        None => None,
    }
}

impl Layout {
    /// How the fields of a mapping are written, of which this is one.
    fn of(mapping: &Node, key: &Key) -> Self {
        match mapping.flow {
            false => Self::Block { indent: key.column },
            true if key.line > mapping.line => Self::FlowLines { indent: key.column },
            true => Self::Flow,
        }
    }

    fn is_block(self) -> bool {
        matches!(self, Self::Block { .. })
    }

    /// Braces may be JSON, which wants quotes.
    fn key(self, key: &str) -> String {
        if self.is_block() { key.to_owned() } else { quoted(key) }
    }

    fn value(self, value: &str) -> String {
        // A colon has a meaning of its own in YAML.
        if self.is_block() && !value.contains(':') { value.to_owned() } else { quoted(value) }
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
    /// Where a field of a mapping stands.
    fn of(mapping: &Node, name: &str) -> Option<Self> {
        let (key, value) = mapping.field(name).filter(|(key, _)| !key.merged)?;
        // Where a quoted text ends, the parser does not tell to the character. What is longer than its text is
        // taken for quoted; another way to write it is found out when all is read again.
        let value_end = match &value.data {
            Data::Scalar(Value::String(text)) => match text.chars().count() {
                plain if value.end == value.start + plain => value.end,
                quoted => value.end.min(value.start + quoted + 2),
            },
            _ => value.end,
        };
        Some(Self { key_end: key.end, value: value.start, value_end })
    }

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
