//! The size of a parsed YAML document, which limits what aliases may add.

use serde_json::Value;

use super::yaml::{Data, Node};

/// How large a node is.
#[derive(Clone, Copy, Default)]
pub(super) struct Size {
    /// How many values it has.
    pub(super) values: usize,
    /// How many bytes its strings and keys have.
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
