//! Parses YAML, and so JSON, into values with the position of each in the text.

mod composer;
mod node;
mod text_parts;

use serde_json::Value;

use self::composer::{Composer, MAX_ALIASED, MAX_ALIASED_MIB};
use self::node::Size;
pub use self::node::{Data, Key, Node, OnItem, YamlError};
use self::text_parts::Part;

/// Parses the only document of a text; an empty text is null.
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
