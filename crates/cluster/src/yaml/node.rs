//! A parsed value with its position, and its size, which limits what aliases may add.

use serde_json::{Map, Value};
use thiserror::Error;

/// Text that is not YAML, or that JSON can't represent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct YamlError {
    pub document: usize,
    pub line: usize,
    pub reason: String,
}

/// A position in the text, counted in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub start: usize,
    /// The position after the last character. For a block mapping or sequence it is not exact.
    pub end: usize,
    /// The line of the first character, counted from 1.
    pub line: usize,
    /// The column of the first character, counted from 0.
    pub column: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub data: Data,
    pub at: Position,
    /// Whether an alias is at this position and the value is elsewhere.
    pub aliased: bool,
    /// Whether the value is in braces or brackets.
    pub flow: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    Scalar(Value),
    Sequence(Vec<Node>),
    /// An object: keys (scalars, as strings) and values, in their order.
    Mapping(Vec<(Key, Node)>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    pub name: String,
    pub at: Position,
    /// Whether the field comes from another mapping through a merge key (`<<`).
    pub merged: bool,
}

impl Node {
    pub fn to_value(&self) -> Value {
        match &self.data {
            Data::Scalar(value) => value.clone(),
            Data::Sequence(items) => items.iter().map(Self::to_value).collect(),
            Data::Mapping(fields) => Value::Object(
                fields.iter().map(|(key, value)| (key.name.clone(), value.to_value())).collect::<Map<_, _>>(),
            ),
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self.data, Data::Scalar(Value::Null))
    }

    /// The field of a mapping; `None` if there is none, or the node is not a mapping.
    pub fn field(&self, name: &str) -> Option<(&Key, &Node)> {
        let Data::Mapping(fields) = &self.data else { return None };
        fields.iter().find(|(key, _)| key.name == name).map(|(key, value)| (key, value))
    }
}

/// Is called with an item of a list and its document, counted from 1. If it returns the item, the item stays in that
/// document.
pub type OnItem<'t> = dyn FnMut(Node, usize) -> Option<Node> + 't;

#[derive(Clone, Copy, Default)]
pub(super) struct Size {
    pub(super) values: usize,
    pub(super) bytes: usize,
}

impl Size {
    pub(super) fn of(node: &Node) -> Self {
        let own = |bytes| Self { values: 1, bytes };
        match &node.data {
            Data::Scalar(Value::String(text)) => own(text.len()),
            Data::Scalar(_) => own(0),
            Data::Sequence(items) => items.iter().map(Self::of).fold(own(0), Self::plus),
            Data::Mapping(fields) => fields.iter().fold(own(0), |size, (key, value)| {
                let Self { values, bytes } = Self::of(value);
                size.plus(Self { values, bytes: bytes + key.name.len() })
            }),
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { values: self.values + other.values, bytes: self.bytes + other.bytes }
    }
}

/// How deep a node nests: 1 for a scalar.
pub(super) fn height(node: &Node) -> usize {
    1 + match &node.data {
        Data::Scalar(_) => 0,
        Data::Sequence(items) => items.iter().map(height).max().unwrap_or_default(),
        Data::Mapping(fields) => fields.iter().map(|(_, node)| height(node)).max().unwrap_or_default(),
    }
}
