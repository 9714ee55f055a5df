//! Parses YAML, and so JSON, into values with the position of each in the text.

use serde_json::{Map, Value};
use thiserror::Error;

use super::text_parts::{self, Part};
use super::yaml_composer::{Composer, MAX_ALIASED, MAX_ALIASED_MIB};
use super::yaml_size::Size;

/// Text that is not YAML, or that JSON can't represent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct YamlError {
    /// The document, counted from 1.
    pub document: usize,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

/// A value with its position in the text.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value itself.
    pub data: Data,
    /// The position of the first character, counted in characters of the text.
    pub start: usize,
    /// The position after the last character. For a block mapping or sequence it is not exact.
    pub end: usize,
    /// The line of the first character, counted from 1.
    pub line: usize,
    /// The column of the first character, counted from 0.
    pub column: usize,
    /// Whether an alias is at this position and the value is elsewhere.
    pub aliased: bool,
    /// Whether the value is in braces or brackets.
    pub flow: bool,
}

/// The value of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Null, a boolean, a number or a string.
    Scalar(Value),
    /// A list.
    Sequence(Vec<Node>),
    /// An object: keys (scalars, as strings) and values, in their order.
    Mapping(Vec<(Key, Node)>),
}

/// The key of a field with its position in the text.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The text of the key.
    pub name: String,
    /// As [`Node::start`].
    pub start: usize,
    /// As [`Node::end`].
    pub end: usize,
    /// As [`Node::line`].
    pub line: usize,
    /// As [`Node::column`].
    pub column: usize,
    /// Whether the field comes from another mapping through a merge key (`<<`).
    pub merged: bool,
}

impl Node {
    /// The value as JSON.
    pub fn to_value(&self) -> Value {
        match &self.data {
            Data::Scalar(value) => value.clone(),
            Data::Sequence(items) => items.iter().map(Self::to_value).collect(),
            Data::Mapping(fields) => Value::Object(
                fields.iter().map(|(key, value)| (key.name.clone(), value.to_value())).collect::<Map<_, _>>(),
            ),
        }
    }

    /// Whether the value is null, as that of an empty document is.
    pub fn is_null(&self) -> bool {
        matches!(self.data, Data::Scalar(Value::Null))
    }

    /// The field of a mapping; `None` if there is none, or the node is not a mapping.
    pub fn field(&self, name: &str) -> Option<(&Key, &Node)> {
        let Data::Mapping(fields) = &self.data else { return None };
        fields.iter().find(|(key, _)| key.name == name).map(|(key, value)| (key, value))
    }
}

/// Parses the only document of a text; an empty text is null.
///
/// # Errors
/// [`YamlError`] for the first mistake, or for a second document.
pub fn single(text: &str) -> Result<Value, YamlError> {
    let mut documents = documents(text);
    match (documents.next().transpose()?, documents.next().transpose()?) {
        (_, Some(second)) => {
            Err(YamlError { document: 2, line: second.line, reason: "more than one document".to_owned() })
        }
        (Some(only), None) => Ok(only.to_value()),
        (None, None) => Ok(Value::Null),
    }
}

/// The documents of a text, including empty ones, one at a time: a text may be large, and the positions of all its
/// values are never needed at once. JSON objects that follow each other are documents of their own, as with `kubectl`.
/// The first mistake ([`YamlError`]) is the last item.
pub fn documents(text: &str) -> Documents<'_> {
    DocumentGroup { parts: text_parts::parts(text), reserved_aliases: Size::default() }.documents()
}

/// Splits the documents of a text into at most `count` groups, which can be parsed at the same time. A text in which
/// JSON objects follow each other is one group. Each group has an equal share of the limits of aliases, so a group may
/// fail although the whole text is valid.
pub fn document_groups(text: &str, count: usize) -> Vec<DocumentGroup<'_>> {
    let parts = match text_parts::parts(text) {
        whole if whole.len() == 1 => text_parts::equal_parts(text, count),
        objects => return vec![DocumentGroup { parts: objects, reserved_aliases: Size::default() }],
    };
    let share_of_others = |limit: usize| limit - limit / parts.len();
    let reserved_aliases = Size { values: share_of_others(MAX_ALIASED), bytes: share_of_others(MAX_ALIASED_MIB << 20) };
    parts.into_iter().map(|part| DocumentGroup { parts: vec![part], reserved_aliases }).collect()
}

/// Some documents of a text that follow each other.
pub struct DocumentGroup<'t> {
    parts: Vec<Part<'t>>,
    /// The part of the limits of aliases that belongs to other groups.
    reserved_aliases: Size,
}

impl<'t> DocumentGroup<'t> {
    /// As [`documents`], for those of the group, which are counted from 1.
    pub fn documents(self) -> Documents<'t> {
        Documents { composer: Composer::new(self.parts, self.reserved_aliases), ended: false }
    }
}

/// Is called with an item of a list and its document, counted from 1. If it returns the item, the item stays in that
/// document.
pub type OnItem<'t> = dyn FnMut(Node, usize) -> Option<Node> + 't;

/// As [`documents`], but calls `on_item` with each item below `items` of a document as soon as it is read: a list may
/// be as large as the cluster that it was printed from.
pub fn documents_with_items<'t>(text: &'t str, on_item: Box<OnItem<'t>>) -> Documents<'t> {
    let mut documents = documents(text);
    documents.composer.items = Some(on_item);
    documents
}

/// The iterator of [`documents`].
pub struct Documents<'t> {
    composer: Composer<'t>,
    ended: bool,
}

impl Iterator for Documents<'_> {
    type Item = Result<Node, YamlError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let document = self.composer.document().transpose();
        self.ended = !matches!(document, Some(Ok(_)));
        document
    }
}
