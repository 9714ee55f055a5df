//! Writes addresses and blocks into manifests. The rest of the text stays as it is, including comments. External
//! addresses are written as the annotation that records them.

use std::fmt::Display;
use std::ops::Range;

use clusterip_core::annotations::RECORD_ANNOTATION;
use serde_json::{Value, json};

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
    spec: Option<Section>,
    annotations: Option<Section>,
}

/// Where the text has, or gets, fields of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Section {
    /// Whether the mapping itself is missing or null. Then the rest is about the mapping in the object around it.
    is_missing: bool,
    /// New fields are inserted before this character.
    at: usize,
    layout: Layout,
    /// The values that are there already. A range is empty, and behind the colon, if the text has a key without a value.
    values: Vec<Option<Range<usize>>>,
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    range: Range<usize>,
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
        let own = |field: &(&Key, &Node)| !field.0.merged && !field.1.aliased && !object.aliased;
        let (first, all) = fields.names();
        let metadata = object.field("metadata");
        let spec = match object.field("spec") {
            Some(spec) => Some(spec).filter(own).and_then(|(_, spec)| Section::of(spec, &[first, all])),
            // A Service always has a `spec`, a Node may have none.
            None if fields == Fields::PodCidrs && !object.aliased => {
                metadata.filter(|(key, _)| !key.merged).map(|(key, _)| {
                    let (at, layout) = (key.at.start, Layout::of(object, key));
                    Section { is_missing: true, at, layout, values: vec![None] }
                })
            }
            None => None,
        };
        let metadata = metadata.filter(|field| own(field) && fields == Fields::ClusterIps);
        let annotations = metadata.and_then(|(_, metadata)| match metadata.field("annotations") {
            Some(field) if !own(&field) => None,
            Some((_, annotations)) if !annotations.is_null() => Section::of(annotations, &[RECORD_ANNOTATION]),
            _ => Section::of(metadata, &["annotations"]).map(|section| Section { is_missing: true, ..section }),
        });
        Self { fields, spec, annotations }
    }

    /// The edits that record external addresses; `None` if the text has no place for them.
    pub fn record_edits(&self, record: &str, line_end: &str) -> Option<Vec<Edit>> {
        Some(self.annotations.as_ref()?.edits("annotations", &[(RECORD_ANNOTATION, json!(record))], line_end))
    }

    /// The edits that set the addresses or blocks; `None` if the text has no place for them.
    pub fn edits<T: Display>(&self, values: &[T], line_end: &str) -> Option<Vec<Edit>> {
        let values: Vec<String> = values.iter().map(ToString::to_string).collect();
        let (first, all) = self.fields.names();
        let list = if self.fields.lists(values.len()) { values.as_slice() } else { &[] };
        Some(self.spec.as_ref()?.edits("spec", &[(first, json!(values.first()?)), (all, json!(list))], line_end))
    }
}

impl Section {
    /// The section of a mapping; `None` if the text has no place for a field there.
    fn of(mapping: &Node, names: &[&str]) -> Option<Self> {
        let Data::Mapping(fields) = &mapping.data else { return None };
        let (at, layout) = match fields.iter().find(|(key, _)| !key.merged) {
            Some((key, _)) => (key.at.start, Layout::of(mapping, key)),
            // Before the closing brace.
            None if fields.is_empty() => (mapping.at.end - 1, Layout::Empty),
            None => return None,
        };
        let values = names.iter().map(|name| value_range(mapping, name)).collect();
        Some(Self { is_missing: false, at, layout, values })
    }

    fn edits(&self, name: &str, fields: &[(&str, Value)], line_end: &str) -> Vec<Edit> {
        let texts: Vec<(&str, String)> = if self.is_missing {
            vec![(name, self.whole(fields, line_end))]
        } else {
            fields.iter().map(|(name, value)| (*name, format!(" {}", self.layout.value(value)))).collect()
        };
        let (mut edits, mut added) = (Vec::new(), Vec::new());
        for ((name, text), value) in texts.into_iter().zip(&self.values) {
            match value {
                Some(range) if range.is_empty() => edits.push(Edit { range: range.clone(), text }),
                Some(range) => edits.push(Edit { range: range.clone(), text: text.trim_start().to_owned() }),
                // The API server completes `clusterIPs` for a single address.
                None if text == " []" => {}
                None => added.push(format!("{}:{text}", self.layout.key(name))),
            }
        }
        if !added.is_empty() {
            edits.push(Edit { range: self.at..self.at, text: self.layout.join(&added, line_end) });
        }
        edits
    }

    /// The whole mapping behind its colon: in a block, one field is on a line of its own, and several are in braces.
    fn whole(&self, fields: &[(&str, Value)], line_end: &str) -> String {
        let line = |layout: Layout| -> Vec<String> {
            fields.iter().map(|(name, value)| format!("{}: {}", layout.key(name), layout.value(value))).collect()
        };
        match (self.layout, self.values.as_slice()) {
            (layout @ Layout::Block { indent }, [None]) if fields.len() == 1 => {
                format!("{line_end}{}{}", " ".repeat(indent + 2), line(layout).concat())
            }
            _ => format!(" {{{}}}", Layout::Empty.join(&line(Layout::Empty), line_end)),
        }
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
        if self.is_block() { key.to_owned() } else { format!("\"{key}\"") }
    }

    fn value(self, value: &Value) -> String {
        match value {
            Value::Array(items) => format!("[{}]", items.iter().map(Value::to_string).collect::<Vec<_>>().join(", ")),
            // A colon has a meaning in YAML, so a value with one is quoted.
            Value::String(text) if self.is_block() && !text.contains(':') => text.clone(),
            other => other.to_string(),
        }
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

/// The range of the value of a field that the mapping itself has.
fn value_range(mapping: &Node, name: &str) -> Option<Range<usize>> {
    let (key, value) = mapping.field(name).filter(|(key, _)| !key.merged)?;
    // The parser does not report exactly where a quoted text ends. A range that is longer than its text is assumed to be
    // quoted; any other notation is noticed when the whole text is read again.
    let at = value.at;
    let end = match &value.data {
        Data::Scalar(Value::String(text)) => match text.chars().count() {
            plain if at.end == at.start + plain => at.end,
            quoted => at.end.min(at.start + quoted + 2),
        },
        _ => at.end,
    };
    // A value that is missing from the text has no position of its own.
    let behind_colon = at.start.max(key.at.end) + 1;
    Some(if at.start == end { behind_colon..behind_colon } else { at.start..end })
}

/// Applies edits to a text. The edits must not overlap.
pub fn apply(text: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|edit| (edit.range.start, edit.range.end));
    let mut filled = String::with_capacity(text.len() + edits.len() * 32);
    let mut edits = edits.into_iter().peekable();
    let mut skip_to = 0;
    for (index, character) in text.chars().enumerate() {
        while let Some(edit) = edits.next_if(|edit| edit.range.start == index) {
            filled.push_str(&edit.text);
            skip_to = skip_to.max(edit.range.end);
        }
        if index >= skip_to {
            filled.push(character);
        }
    }
    filled.extend(edits.map(|edit| edit.text));
    filled
}
