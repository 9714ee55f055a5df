//! Parses YAML, and so JSON, into values with the position of each in the text.

mod composer;
mod text_parts;

use std::iter;

use serde_json::Value;

use self::composer::{Composer, MAX_ALIASED};
pub use self::composer::{Data, Key, Node, OnItem, YamlError};
use self::text_parts::Part;

/// Parses the only document of a text; an empty text is null.
pub fn single(text: &str) -> Result<Value, YamlError> {
    let mut documents = documents(text);
    match (documents.next().transpose()?, documents.next().transpose()?) {
        (_, Some(second)) => {
            Err(YamlError { document: 2, line: second.at.line, reason: "more than one document".to_owned() })
        }
        (Some(only), None) => Ok(only.to_value()),
        (None, None) => Ok(Value::Null),
    }
}

/// The documents of a text, including empty ones, one at a time: a text may be large, and the positions of all its
/// values are never needed at once. JSON objects that follow each other are documents of their own, as with `kubectl`.
/// The first mistake ([`YamlError`]) is the last item.
pub fn documents(text: &str) -> impl Iterator<Item = Result<Node, YamlError>> {
    iterate(Composer::new(text_parts::parts(text), 0, None))
}

/// Splits the documents of a text into at most `count` groups, which can be parsed at the same time. A text in which
/// JSON objects follow each other is one group. Each group has an equal share of the limit of aliases, so a group may fail
/// although the whole text is valid.
pub fn document_groups(text: &str, count: usize) -> Vec<DocumentGroup<'_>> {
    let parts = match text_parts::parts(text) {
        whole if whole.len() == 1 => text_parts::equal_parts(text, count),
        objects => return vec![DocumentGroup { parts: objects, aliased: 0 }],
    };
    let aliased = MAX_ALIASED - MAX_ALIASED / parts.len();
    parts.into_iter().map(|part| DocumentGroup { parts: vec![part], aliased }).collect()
}

pub struct DocumentGroup<'t> {
    parts: Vec<Part<'t>>,
    /// The part of the limit of aliases that belongs to other groups.
    aliased: usize,
}

impl<'t> DocumentGroup<'t> {
    /// As [`documents`], for those of the group, which are counted from 1.
    pub fn documents(self) -> impl Iterator<Item = Result<Node, YamlError>> + use<'t> {
        iterate(Composer::new(self.parts, self.aliased, None))
    }
}

/// As [`documents`], but calls `on_item` with each item below `items` of a document as soon as it is read: a list may
/// be as large as the cluster that it was printed from.
pub fn documents_with_items<'t>(
    text: &'t str,
    on_item: Box<OnItem<'t>>,
) -> impl Iterator<Item = Result<Node, YamlError>> + use<'t> {
    iterate(Composer::new(text_parts::parts(text), 0, Some(on_item)))
}

fn iterate<'t>(mut composer: Composer<'t>) -> impl Iterator<Item = Result<Node, YamlError>> + use<'t> {
    let mut ended = false;
    iter::from_fn(move || {
        let document = if ended { None } else { composer.document().transpose() };
        ended = !matches!(document, Some(Ok(_)));
        document
    })
}
