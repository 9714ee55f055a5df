//! Parses YAML, and so JSON, into values with the position of each in the text.

mod composer;

use std::iter;

use serde::de::IgnoredAny;
use serde_json::{Deserializer, Value};

use self::composer::{Composer, MAX_ALIASED};
pub use self::composer::{Data, Key, Node, OnItem, YamlError};

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
    iterate(Composer::new(parts(text), 0, None))
}

/// Splits the documents of a text into at most `count` groups, which can be parsed at the same time. A text in which
/// JSON objects follow each other is one group. Each group has an equal share of the limit of aliases, so a group may fail
/// although the whole text is valid.
pub(crate) fn document_groups(text: &str, count: usize) -> Vec<DocumentGroup<'_>> {
    let parts = match parts(text) {
        whole if whole.len() == 1 => equal_parts(text, count),
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
pub(crate) fn documents_with_items<'t>(
    text: &'t str,
    on_item: Box<OnItem<'t>>,
) -> impl Iterator<Item = Result<Node, YamlError>> + use<'t> {
    iterate(Composer::new(parts(text), 0, Some(on_item)))
}

fn iterate<'t>(mut composer: Composer<'t>) -> impl Iterator<Item = Result<Node, YamlError>> + use<'t> {
    let mut ended = false;
    iter::from_fn(move || {
        let document = if ended { None } else { composer.document().transpose() };
        ended = !matches!(document, Some(Ok(_)));
        document
    })
}

/// A part of a text that is YAML of its own. JSON objects may follow each other without a document marker, as `kubectl`
/// prints and reads them, and YAML may not. A large text is split at document markers, because its parts can be read at the
/// same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part<'t> {
    pub text: &'t str,
    /// How many characters and line ends are before it, and how many characters in its first line.
    pub chars: usize,
    pub lines: usize,
    pub column: usize,
}

fn parts(text: &str) -> Vec<Part<'_>> {
    split(text, cuts(text))
}

/// Parts of about the same size, at most `count`, which begin at document markers. In invalid YAML, such as after an
/// open quote, a line that looks like a marker may be none. Then one of the parts is invalid too.
fn equal_parts(text: &str, count: usize) -> Vec<Part<'_>> {
    let markers = markers(text);
    let behind = |from: usize| markers.iter().copied().find(|marker| *marker > from);
    let mut cuts: Vec<usize> = (1..count).filter_map(|nth| behind(text.len() / count * nth)).collect();
    cuts.dedup();
    split(text, cuts)
}

/// The parts of a text between these positions in bytes, which are in order.
fn split(text: &str, cuts: impl IntoIterator<Item = usize>) -> Vec<Part<'_>> {
    let mut parts: Vec<Part<'_>> = Vec::new();
    let mut from = 0;
    for cut in cuts.into_iter().chain([text.len()]) {
        let begin = parts.last().map(after).unwrap_or_default();
        parts.push(Part { text: &text[from..cut], ..begin });
        from = cut;
    }
    parts
}

fn after(part: &Part<'_>) -> Part<'static> {
    let Part { text, chars, lines, column } = *part;
    let ends = text.matches(['\n', '\r']).count() - text.matches("\r\n").count();
    let last = text.rsplit(['\n', '\r']).next().unwrap_or_default().chars().count();
    let column = if ends == 0 { column + last } else { last };
    Part { text: "", chars: chars + text.chars().count(), lines: lines + ends, column }
}

/// Where parts begin, in bytes: at each object that follows another one, and at the document marker behind them.
fn cuts(text: &str) -> Vec<usize> {
    let mut cuts = Vec::new();
    let mut from = 0;
    for end in markers(text).into_iter().chain([text.len()]) {
        let further = further_objects(&text[from..end]);
        if !further.is_empty() {
            cuts.extend(further.iter().map(|offset| from + offset));
            cuts.extend((end < text.len()).then_some(end));
        }
        from = end;
    }
    cuts
}

fn markers(text: &str) -> Vec<usize> {
    let is_line_start = |at: usize| at == 0 || text.as_bytes()[at - 1] == b'\n';
    let dashes = text.match_indices("---").map(|(at, _)| at);
    dashes.filter(|at| is_line_start(*at) && is_marker(&text[*at..])).collect()
}

fn is_marker(line: &str) -> bool {
    line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

/// The positions in bytes of all objects but the first, if this document is nothing but several JSON objects.
fn further_objects(document: &str) -> Vec<usize> {
    let body = document.strip_prefix("---").unwrap_or(document);
    let body = body.trim_start_matches([' ', '\t', '\r', '\n']);
    if !body.starts_with('{') {
        return Vec::new();
    }
    let before = document.len() - body.len();
    let mut objects = Vec::new();
    let mut stream = Deserializer::from_str(body).into_iter::<IgnoredAny>();
    loop {
        let rest = &body[stream.byte_offset()..];
        let start = body.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
        match stream.next() {
            None => break,
            Some(Ok(_)) if body[start..].starts_with('{') => objects.push(before + start),
            Some(_) => return Vec::new(),
        }
    }
    objects.into_iter().skip(1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Case {
        name: &'static str,
        text: &'static str,
        /// The texts of the parts.
        expected: &'static [&'static str],
    }

    impl Case {
        fn check(&self, parts: &[Part<'_>]) {
            let texts: Vec<&str> = parts.iter().map(|part| part.text).collect();
            assert_eq!(texts, self.expected, "{}, {} parts", self.name, parts.len());
        }
    }

    #[test]
    fn only_objects_that_follow_each_other_are_split() {
        let cases = [
            Case { name: "nothing", text: "", expected: &[""] },
            Case { name: "YAML", text: "a: 1\n---\nb: 2\n", expected: &["a: 1\n---\nb: 2\n"] },
            Case { name: "one object", text: "{\"a\": 1}\n", expected: &["{\"a\": 1}\n"] },
            Case { name: "two lines", text: "{\"a\": 1}\n{\"b\": 2}\n", expected: &["{\"a\": 1}\n", "{\"b\": 2}\n"] },
            Case { name: "one line", text: "{} {}{}", expected: &["{} ", "{}", "{}"] },
            Case {
                name: "between markers",
                text: "a: 1\n---\n{}\n{}\n---\nb: 2\n",
                expected: &["a: 1\n---\n{}\n", "{}\n", "---\nb: 2\n"],
            },
            Case { name: "markers between all", text: "{}\n---\n{}\n", expected: &["{}\n---\n{}\n"] },
            Case { name: "text behind", text: "{}\n{} x\n", expected: &["{}\n{} x\n"] },
            Case { name: "a number behind", text: "{}\n5\n", expected: &["{}\n5\n"] },
            Case { name: "braces of YAML", text: "{a: 1}\n{b: 2}\n", expected: &["{a: 1}\n{b: 2}\n"] },
            Case { name: "torn", text: "{}\n{\"a\":", expected: &["{}\n{\"a\":"] },
        ];
        for case in cases {
            case.check(&parts(case.text));
        }
    }

    #[test]
    fn text_is_split_at_the_first_marker_behind_each_share() {
        let cases = [
            Case { name: "nothing", text: "", expected: &[""] },
            Case { name: "no marker", text: "a: 1\nb: 2\n", expected: &["a: 1\nb: 2\n"] },
            Case {
                name: "two documents",
                text: "a: 1234567890\n---\nb: 2\n",
                expected: &["a: 1234567890\n", "---\nb: 2\n"],
            },
            Case {
                name: "a line that only begins as a marker",
                text: "ää: ää\n---x\n--- # b\n",
                expected: &["ää: ää\n---x\n", "--- # b\n"],
            },
            Case { name: "marker at the end", text: "a: 1\n---", expected: &["a: 1\n", "---"] },
            Case {
                name: "only the first half has markers",
                text: "---\n---\na: 1234567890\n",
                expected: &["---\n---\na: 1234567890\n"],
            },
        ];
        for case in cases {
            for count in [2, 3] {
                case.check(&equal_parts(case.text, count));
            }
        }
        let four = "a\n---\nb\n---\nc\n---\nd\n";
        assert_eq!([1, 2, 3, 4].map(|count| equal_parts(four, count).len()), [1, 2, 3, 3]);
    }

    #[test]
    fn parts_know_their_position() {
        let positions: Vec<(usize, usize, usize)> =
            parts("{\"ä\":\r\n1} {}\n {}").iter().map(|part| (part.chars, part.lines, part.column)).collect();
        assert_eq!(positions, [(0, 0, 0), (10, 1, 3), (14, 2, 1)]);
    }
}
