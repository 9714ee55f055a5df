//! Composes the events of `saphyr-parser` to nodes, with limits, because the input may be untrusted.

use std::collections::{BTreeMap, HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput, Tag};
use serde_json::{Number, Value};

use super::node::{Data, Key, Node, OnItem, Position, Size, YamlError, height};
use super::text_parts::Part;

/// How deep documents may nest: deeper than any manifest needs, and not deeper than the JSON reader accepts.
const DEEPEST: usize = 100;
/// How many values aliases may add to all documents of a text. Otherwise a few lines of nested aliases would grow to
/// billions of values.
pub(super) const MAX_ALIASED: usize = 100_000;
/// How many MiB of strings and keys aliases may add to all documents of a text.
pub(super) const MAX_ALIASED_MIB: usize = 16;

pub(super) struct Composer<'t> {
    parser: Parser<'t, StrInput<'t>>,
    begin: Part<'t>,
    parts: std::vec::IntoIter<Part<'t>>,
    anchors: BTreeMap<usize, (Node, Size)>,
    /// The newest anchor, and the newest one of earlier documents. The parser counts them.
    newest_anchor: usize,
    newest_earlier_anchor: usize,
    aliased: Size,
    document: usize,
    pub(super) items: Option<Box<OnItem<'t>>>,
}

impl<'t> Composer<'t> {
    /// A composer of these parts. `aliased` counts against the limits of aliases from the beginning.
    pub(super) fn new(parts: Vec<Part<'t>>, aliased: Size) -> Self {
        Self {
            parser: Parser::new_from_str(""),
            begin: Part::default(),
            parts: parts.into_iter(),
            anchors: BTreeMap::new(),
            newest_anchor: 0,
            newest_earlier_anchor: 0,
            aliased,
            document: 0,
            items: None,
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
                        (self.newest_anchor, self.newest_earlier_anchor) = (0, 0);
                    }
                },
                Event::DocumentStart(_) => {
                    self.document += 1;
                    self.anchors.clear();
                    self.newest_earlier_anchor = self.newest_anchor;
                    let (event, span) = self.next()?;
                    return self.node(event, span, 0).map(Some);
                }
                Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
                _ => return Err(self.error(span, "unexpected content between documents")),
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Position), YamlError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, position(&self.begin, span))),
            Some(Err(error)) => Err(YamlError {
                document: self.document.max(1),
                line: self.begin.lines + error.marker().line(),
                reason: error.info().to_owned(),
            }),
            None => Err(YamlError { document: self.document.max(1), line: 0, reason: "unexpected end".to_owned() }),
        }
    }

    fn error(&self, position: Position, reason: impl Into<String>) -> YamlError {
        YamlError { document: self.document.max(1), line: position.line, reason: reason.into() }
    }

    fn node(&mut self, event: Event<'t>, span: Position, depth: usize) -> Result<Node, YamlError> {
        if depth > DEEPEST {
            return Err(self.error(span, format!("nested deeper than {DEEPEST} levels")));
        }
        let (data, anchor, end) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(&text, style, tag.as_deref()).map_err(|reason| self.error(span, reason))?;
                (Data::Scalar(value), anchor, span)
            }
            Event::SequenceStart(anchor, _) => {
                let (items, end) = self.sequence(depth)?;
                (Data::Sequence(items), anchor, end)
            }
            Event::MappingStart(anchor, _) => {
                let (fields, end) = self.mapping(depth)?;
                (Data::Mapping(fields), anchor, end)
            }
            Event::Alias(anchor) => return self.alias(anchor, span, depth),
            _ => return Err(self.error(span, "a value is missing")),
        };
        // A block has no mark at its end. For a bracket, the parser's range of the end may include a comment, so one
        // character after its start is used.
        let flow = !matches!(data, Data::Scalar(_)) && end.end > end.start;
        let at = Position { end: if flow { end.start + 1 } else { end.end }, ..span };
        let node = Node { data, at, aliased: false, flow };
        if anchor > 0 {
            let size = Size::of(&node);
            self.anchors.insert(anchor, (node.clone(), size));
            self.newest_anchor = self.newest_anchor.max(anchor);
        }
        Ok(node)
    }

    fn sequence(&mut self, depth: usize) -> Result<(Vec<Node>, Position), YamlError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, span) => return Ok((items, span)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<(Vec<(Key, Node)>, Position), YamlError> {
        let mut fields: Vec<(Key, Node)> = Vec::new();
        let mut names: HashSet<String> = HashSet::new();
        let mut merged: Vec<(Key, Node)> = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                // A field of this mapping has priority over a merged one, and among merged fields the first one has.
                fields.extend(merged.into_iter().filter(|(key, _)| names.insert(key.name.clone())));
                return Ok((fields, span));
            }
            let is_merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let key = self.node(event, span, depth + 1)?;
            let (event, value_span) = self.next()?;
            let is_list = depth == 0 && matches!(&key.data, Data::Scalar(Value::String(name)) if name == "items");
            let value = match event {
                // A list with an anchor may be needed again.
                Event::SequenceStart(0, _) if is_list && self.items.is_some() => self.streamed_items(value_span)?,
                event => self.node(event, value_span, depth + 1)?,
            };
            if is_merge {
                self.merge(value, value_span, &mut merged)?;
                continue;
            }
            let name = match key.data {
                Data::Scalar(Value::String(name)) => name,
                Data::Scalar(other) => other.to_string(),
                _ => return Err(self.error(span, "a list or an object can't be a key")),
            };
            if !names.insert(name.clone()) {
                return Err(self.error(span, format!("duplicate key {name:?}")));
            }
            fields.push((Key { name, at: key.at, merged: false }, value));
        }
    }

    /// The items of a list, without those that were passed to `on_item` and not returned.
    fn streamed_items(&mut self, start: Position) -> Result<Node, YamlError> {
        let mut kept = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                let at = Position { end: span.end, ..start };
                return Ok(Node { data: Data::Sequence(kept), at, aliased: false, flow: false });
            }
            let item = self.node(event, span, 2)?;
            let document = self.document;
            kept.extend(match &mut self.items {
                Some(on_item) => on_item(item, document),
                None => Some(item),
            });
        }
    }

    /// Handles `<<`: adds the fields of one or several other mappings that this mapping does not have itself.
    fn merge(&self, value: Node, span: Position, merged: &mut Vec<(Key, Node)>) -> Result<(), YamlError> {
        let mappings = match value.data {
            Data::Sequence(items) => items,
            _ => vec![value],
        };
        for mapping in mappings {
            let Data::Mapping(fields) = mapping.data else { return Err(self.error(span, "<< takes mappings only")) };
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
            return Err(self.error(span, reason));
        };
        self.aliased = self.aliased.plus(*size);
        let too_much = if self.aliased.values > MAX_ALIASED {
            Some(format!("{MAX_ALIASED} values"))
        } else {
            (self.aliased.bytes > MAX_ALIASED_MIB << 20).then(|| format!("{MAX_ALIASED_MIB} MiB"))
        };
        if let Some(much) = too_much {
            return Err(self.error(span, format!("aliases add more than {much} to all documents together")));
        }
        let node = node.clone();
        if depth + height(&node) > DEEPEST {
            return Err(self.error(span, format!("nested deeper than {DEEPEST} levels")));
        }
        Ok(Node { at: span, aliased: true, ..node })
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
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if let Some(hex) = digits.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok().filter(|_| digits == text).map(Number::from);
    }
    if let Some(octal) = digits.strip_prefix("0o") {
        return u64::from_str_radix(octal, 8).ok().filter(|_| digits == text).map(Number::from);
    }
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') || !digits.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let plain = text.strip_prefix('+').unwrap_or(text);
    let whole = plain.parse().map(|whole: i64| whole.into()).or_else(|_| plain.parse().map(|whole: u64| whole.into()));
    if whole.is_ok() {
        return whole.ok();
    }
    if digits.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte)) {
        return plain.parse::<f64>().ok().and_then(Number::from_f64);
    }
    None
}
