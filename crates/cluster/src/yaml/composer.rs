//! Composes the events of `saphyr-parser` to nodes, with limits, because the input may be untrusted.

use std::collections::{BTreeMap, HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput, Tag};
use serde_json::{Map, Number, Value};
use thiserror::Error;

use super::Part;

/// How deep documents may nest: deeper than any manifest needs, and not deeper than the JSON reader accepts.
const DEEPEST: usize = 100;
/// How many MiB aliases may add to all documents of a text, and the copies of anchored values to one of them. Otherwise a
/// few lines of nested aliases would grow to billions of values, and nested anchors would copy a long list each time.
const MAX_ALIASED_MIB: usize = 16;
pub(super) const MAX_ALIASED: usize = MAX_ALIASED_MIB << 20;

/// Text that is not YAML, or that JSON can't represent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct YamlError {
    pub document: usize,
    pub line: usize,
    pub reason: String,
}

/// A position in the text, in characters. Lines count from 1, columns from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub start: usize,
    /// The position after the last character. For a block mapping or sequence it is not exact.
    pub end: usize,
    pub line: usize,
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

/// Is called with an item of a list and its document, counted from 1. An item that it returns stays in the document.
pub type OnItem<'t> = dyn FnMut(Node, usize) -> Option<Node> + 't;

/// How many bytes a node adds where an alias refers to it: its texts, and an amount for each value.
fn size(node: &Node) -> usize {
    const VALUE: usize = 160;
    VALUE
        + match &node.data {
            Data::Scalar(Value::String(text)) => text.len(),
            Data::Scalar(_) => 0,
            Data::Sequence(items) => items.iter().map(size).sum(),
            Data::Mapping(fields) => fields.iter().map(|(key, value)| key.name.len() + size(value)).sum(),
        }
}

/// How deep a node nests: 1 for a scalar.
fn height(node: &Node) -> usize {
    1 + match &node.data {
        Data::Scalar(_) => 0,
        Data::Sequence(items) => items.iter().map(height).max().unwrap_or_default(),
        Data::Mapping(fields) => fields.iter().map(|(_, node)| height(node)).max().unwrap_or_default(),
    }
}

pub(super) struct Composer<'t> {
    parser: Parser<'t, StrInput<'t>>,
    begin: Part<'t>,
    parts: std::vec::IntoIter<Part<'t>>,
    anchors: BTreeMap<usize, (Node, usize)>,
    /// How many bytes are in `anchors`.
    anchored: usize,
    /// The newest anchor of earlier documents. The parser counts them.
    newest_earlier_anchor: usize,
    /// How many bytes aliases have added.
    aliased: usize,
    document: usize,
    items: Option<Box<OnItem<'t>>>,
}

impl<'t> Composer<'t> {
    /// A composer of these parts. `aliased` counts against the limit of aliases from the beginning.
    pub(super) fn new(parts: Vec<Part<'t>>, aliased: usize, items: Option<Box<OnItem<'t>>>) -> Self {
        Self {
            parser: Parser::new_from_str(""),
            begin: Part::default(),
            parts: parts.into_iter(),
            anchors: BTreeMap::new(),
            anchored: 0,
            newest_earlier_anchor: 0,
            aliased,
            document: 0,
            items,
        }
    }

    pub(super) fn document(&mut self) -> Result<Option<Node>, YamlError> {
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => match self.parts.next() {
                    None => return Ok(None),
                    Some(part) => {
                        self.parser = Parser::new_from_str(part.text);
                        self.begin = part;
                        self.forget_anchors();
                        self.newest_earlier_anchor = 0;
                    }
                },
                Event::DocumentStart(_) => {
                    self.document += 1;
                    let newest = self.anchors.last_key_value().map(|(anchor, _)| *anchor);
                    self.newest_earlier_anchor = newest.unwrap_or(self.newest_earlier_anchor);
                    self.forget_anchors();
                    let (event, span) = self.next()?;
                    return self.node(event, span, 0).map(Some);
                }
                Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
                _ => return Err(self.error(span.line, "unexpected content between documents")),
            }
        }
    }

    fn forget_anchors(&mut self) {
        self.anchors.clear();
        self.anchored = 0;
    }

    fn next(&mut self) -> Result<(Event<'t>, Position), YamlError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, position(&self.begin, span))),
            Some(Err(error)) => Err(self.error(self.begin.lines + error.marker().line(), error.info())),
            None => Err(self.error(0, "unexpected end")),
        }
    }

    fn error(&self, line: usize, reason: impl Into<String>) -> YamlError {
        YamlError { document: self.document.max(1), line, reason: reason.into() }
    }

    fn node(&mut self, event: Event<'t>, span: Position, depth: usize) -> Result<Node, YamlError> {
        if depth > DEEPEST {
            return Err(self.error(span.line, format!("nested deeper than {DEEPEST} levels")));
        }
        let (data, anchor, end) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(&text, style, tag.as_deref()).map_err(|reason| self.error(span.line, reason))?;
                (Data::Scalar(value), anchor, span)
            }
            Event::SequenceStart(anchor, _) => {
                let (items, end) = self.sequence(depth, false)?;
                (Data::Sequence(items), anchor, end)
            }
            Event::MappingStart(anchor, _) => {
                let (fields, end) = self.mapping(depth)?;
                (Data::Mapping(fields), anchor, end)
            }
            Event::Alias(anchor) => return self.alias(anchor, span, depth),
            _ => return Err(self.error(span.line, "a value is missing")),
        };
        // A block has no mark at its end. For a bracket, the parser's range of the end may include a comment, so one
        // character after its start is used.
        let flow = !matches!(data, Data::Scalar(_)) && end.end > end.start;
        let at = Position { end: if flow { end.start + 1 } else { end.end }, ..span };
        let node = Node { data, at, aliased: false, flow };
        if anchor > 0 {
            let size = size(&node);
            self.anchored += size;
            if self.aliased + self.anchored > MAX_ALIASED {
                let reason = format!("anchors add more than {MAX_ALIASED_MIB} MiB to one document");
                return Err(self.error(span.line, reason));
            }
            self.anchors.insert(anchor, (node.clone(), size));
        }
        Ok(node)
    }

    /// The items of a list, if it `is_streamed` without those that were passed to `on_item` and not returned.
    fn sequence(&mut self, depth: usize, is_streamed: bool) -> Result<(Vec<Node>, Position), YamlError> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok((items, span));
            }
            let item = self.node(event, span, depth + 1)?;
            match &mut self.items {
                Some(on_item) if is_streamed => items.extend(on_item(item, self.document)),
                _ => items.push(item),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<(Vec<(Key, Node)>, Position), YamlError> {
        let mut fields: Vec<(Key, Node)> = Vec::new();
        let mut names = Names::default();
        let mut merged: Vec<(Key, Node)> = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                // A field of this mapping has priority over a merged one, and among merged fields the first one has.
                for (key, node) in merged {
                    if names.is_new(&key.name, &fields) {
                        fields.push((key, node));
                    }
                }
                return Ok((fields, span));
            }
            let is_merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let key = self.node(event, span, depth + 1)?;
            let (event, value_span) = self.next()?;
            let is_list = depth == 0 && matches!(&key.data, Data::Scalar(Value::String(name)) if name == "items");
            let value = match event {
                // A list with an anchor may be needed again.
                Event::SequenceStart(0, _) if is_list && self.items.is_some() => {
                    let (items, Position { end, .. }) = self.sequence(depth + 1, true)?;
                    Node {
                        data: Data::Sequence(items),
                        at: Position { end, ..value_span },
                        aliased: false,
                        flow: false,
                    }
                }
                event => self.node(event, value_span, depth + 1)?,
            };
            if is_merge {
                self.merge(value, value_span, &mut merged)?;
                continue;
            }
            let name = match key.data {
                Data::Scalar(Value::String(name)) => name,
                Data::Scalar(other) => other.to_string(),
                _ => return Err(self.error(span.line, "a list or an object can't be a key")),
            };
            if !names.is_new(&name, &fields) {
                return Err(self.error(span.line, format!("duplicate key {name:?}")));
            }
            fields.push((Key { name, at: key.at, merged: false }, value));
        }
    }

    /// Handles `<<`: adds the fields of one or several other mappings that this mapping does not have itself.
    fn merge(&self, value: Node, span: Position, merged: &mut Vec<(Key, Node)>) -> Result<(), YamlError> {
        let mappings = match value.data {
            Data::Sequence(items) => items,
            _ => vec![value],
        };
        for mapping in mappings {
            let Data::Mapping(fields) = mapping.data else {
                return Err(self.error(span.line, "<< takes mappings only"));
            };
            merged.extend(fields.into_iter().map(|(key, node)| (Key { merged: true, ..key }, node)));
        }
        Ok(())
    }

    fn alias(&mut self, anchor: usize, span: Position, depth: usize) -> Result<Node, YamlError> {
        let Some((node, size)) = self.anchors.get(&anchor) else {
            let reason = if anchor <= self.newest_earlier_anchor {
                "an alias can't refer to an anchor of an earlier document: write the value out in this document, too"
            } else {
                "an alias inside of the value it refers to"
            };
            return Err(self.error(span.line, reason));
        };
        self.aliased += size;
        if self.aliased > MAX_ALIASED {
            let reason = format!("aliases add more than {MAX_ALIASED_MIB} MiB to all documents together");
            return Err(self.error(span.line, reason));
        }
        let node = node.clone();
        if depth + height(&node) > DEEPEST {
            return Err(self.error(span.line, format!("nested deeper than {DEEPEST} levels")));
        }
        Ok(Node { at: span, aliased: true, ..node })
    }
}

#[derive(Default)]
struct Names(HashSet<String>);

impl Names {
    /// Whether none of the fields, each of which was new before, has this name.
    fn is_new(&mut self, name: &str, fields: &[(Key, Node)]) -> bool {
        // Comparing few names takes less time than copying them.
        const FEW: usize = 16;
        if fields.len() < FEW {
            return fields.iter().all(|(key, _)| key.name != name);
        }
        if self.0.is_empty() {
            self.0.extend(fields.iter().map(|(key, _)| key.name.clone()));
        }
        self.0.insert(name.to_owned())
    }
}

fn position(part: &Part<'_>, span: Span) -> Position {
    let Span { start, end, .. } = span;
    let column = start.col() + if start.line() == 1 { part.column } else { 0 };
    let (line, before) = (part.lines + start.line(), part.chars);
    Position { start: before + start.index(), end: before + end.index(), line, column }
}

/// Parses a scalar by the rules of YAML's core schema, on which the tools of Kubernetes agree.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    let tag = tag.filter(|tag| tag.is_yaml_core_schema()).map(|tag| tag.suffix.as_str());
    let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
    if is_block || tag == Some("str") || tag == Some("binary") || (style != ScalarStyle::Plain && tag.is_none()) {
        return Ok(text.into());
    }
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => true.into(),
        "false" | "False" | "FALSE" => false.into(),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF" | ".nan" | ".NaN"
        | ".NAN" => {
            return Err(format!("{text} can't be written in JSON"));
        }
        _ => number(text).map_or_else(|| text.into(), Value::Number),
    })
}

fn number(text: &str) -> Option<Number> {
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(digits) = text.strip_prefix(prefix) {
            return u64::from_str_radix(digits, radix).ok().map(Number::from);
        }
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') || !digits.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let plain = text.strip_prefix('+').unwrap_or(text);
    let whole = plain.parse().map(|whole: i64| whole.into()).or_else(|_| plain.parse().map(|whole: u64| whole.into()));
    let is_float = digits.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    let float = || plain.parse().ok().filter(|_| is_float).and_then(Number::from_f64);
    whole.ok().or_else(float)
}
