//! JSON from the API server that could not be read as it is: with bytes that are no UTF-8, or nested too deep.
//!
//! The API server stores both in `metadata.managedFields`, and sends them in lists, watches and reviews as they are. JSON
//! with a byte that is no UTF-8 can't be read at all, so a single object would hide all objects of its kind. serde_json
//! refuses JSON that is nested 128 times, so an object whose author has nested its `managedFields` thousands of times could
//! neither be read nor be moved.

use std::str;

use axum::body::{Body, Bytes};
use futures::{StreamExt, stream};

/// What stands for a byte that is no UTF-8. It has one byte too, so no text changes its length.
const REPLACEMENT: u8 = b'?';

/// Replaces each byte that is no part of a character in UTF-8 with `?`.
pub fn replace_invalid(text: &mut [u8]) {
    let complete = replace_complete(text);
    text[complete..].fill(REPLACEMENT);
}

/// The same body, in which `?` stands for each byte that is no part of a character in UTF-8.
pub(crate) fn with_replaced_bytes(body: Body) -> Body {
    let begin = (body.into_data_stream(), Vec::new());
    Body::from_stream(stream::unfold(begin, |(mut parts, begun)| async move {
        match parts.next().await {
            Some(Ok(part)) => {
                let (part, begun) = joined(begun, part);
                Some((Ok(part), (parts, begun)))
            }
            Some(Err(error)) => Some((Err(error), (parts, begun))),
            None if begun.is_empty() => None,
            None => Some((Ok(Bytes::from(vec![REPLACEMENT; begun.len()])), (parts, Vec::new()))),
        }
    }))
}

/// The part of a text that follows the bytes `begun` of a character, and the bytes of a character that begins at its end.
fn joined(begun: Vec<u8>, part: Bytes) -> (Bytes, Vec<u8>) {
    if begun.is_empty() && str::from_utf8(&part).is_ok() {
        return (part, begun);
    }
    let mut text = begun;
    text.extend_from_slice(&part);
    let complete = replace_complete(&mut text);
    let begun = text.split_off(complete);
    (text.into(), begun)
}

/// As [`replace_invalid`], but leaves a character that is cut off at the end. Returns where that character begins.
fn replace_complete(text: &mut [u8]) -> usize {
    let mut from = 0;
    while let Err(error) = str::from_utf8(&text[from..]) {
        let invalid = from + error.valid_up_to();
        let Some(length) = error.error_len() else { return invalid };
        text[invalid..invalid + length].fill(REPLACEMENT);
        from = invalid + length;
    }
    text.len()
}

/// How many lists and maps may be around a value. Objects of Kubernetes have about 20.
const MAX_DEPTH: usize = 100;

/// The same body, in which lists and maps that are nested too deep are empty. An empty map in `managedFields` stands for
/// a field without further ones.
pub(crate) fn with_limited_depth(body: Body) -> Body {
    let mut position = Position::default();
    Body::from_stream(body.into_data_stream().map(move |part| part.map(|part| position.limited(part))))
}

#[derive(Debug, Default)]
struct Position {
    depth: usize,
    in_text: bool,
    after_backslash: bool,
}

impl Position {
    /// What stays of the next part of the JSON.
    fn limited(&mut self, part: Bytes) -> Bytes {
        let Some(first) = part.iter().position(|byte| !self.keeps(*byte)) else { return part };
        let mut kept = part[..first].to_vec();
        kept.extend(part[first + 1..].iter().filter(|byte| self.keeps(**byte)));
        kept.into()
    }

    /// Counts the nesting of the next byte. Returns whether the byte stays in the text.
    fn keeps(&mut self, byte: u8) -> bool {
        let before = self.depth;
        match byte {
            _ if self.after_backslash => self.after_backslash = false,
            b'"' => self.in_text = !self.in_text,
            b'\\' => self.after_backslash = self.in_text,
            _ if self.in_text => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = before.saturating_sub(1),
            _ => {}
        }
        // The brackets around what is left out stay.
        before.min(self.depth) < MAX_DEPTH
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    #[tokio::test]
    async fn each_byte_that_is_no_utf8_is_replaced_wherever_the_text_is_divided() {
        struct Case {
            text: &'static [u8],
            expected: &'static str,
        }
        let cases = [
            Case { text: b"", expected: "" },
            Case { text: "{\"a\": \"é€𝄞\"}".as_bytes(), expected: "{\"a\": \"é€𝄞\"}" },
            Case { text: b"\"f:\xff\xfe\": {}", expected: "\"f:??\": {}" },
            Case { text: b"\xff", expected: "?" },
            Case { text: b"a\xe2\x82", expected: "a??" },
            Case { text: b"\xe2\x82a\xe2\x82\xac", expected: "??a€" },
            Case { text: b"\xed\xa0\x80\xc0\xafx\xf5", expected: "?????x?" },
        ];
        for Case { text, expected } in cases {
            let mut whole = text.to_vec();
            replace_invalid(&mut whole);
            assert_eq!(str::from_utf8(&whole), Ok(expected));
            for first in 0..=text.len() {
                for second in first..=text.len() {
                    let parts = [&text[..first], &text[first..second], &text[second..]].map(Bytes::copy_from_slice);
                    let body = Body::from_stream(stream::iter(parts.map(Ok::<_, axum::Error>)));
                    let found = to_bytes(with_replaced_bytes(body), usize::MAX).await.unwrap();
                    assert_eq!(str::from_utf8(&found), Ok(expected), "{first}, {second}");
                }
            }
        }
    }

    #[tokio::test]
    async fn what_is_nested_too_deep_is_left_out_wherever_the_json_is_divided() {
        let maps = |depth: usize, inner: &str| ["{\"a\":".repeat(depth), inner.to_owned(), "}".repeat(depth)].concat();
        let lists = |depth: usize, inner: &str| ["[".repeat(depth), inner.to_owned(), "]".repeat(depth)].concat();
        struct Case {
            name: &'static str,
            json: String,
            expected: String,
        }
        let same = |name, json: String| Case { name, expected: json.clone(), json };
        let texts = r#"["{[\"{[", "\\", {"[": "]"}]"#;
        let cases = [
            same("empty", String::new()),
            same("texts with brackets, quotes and backslashes", texts.repeat(MAX_DEPTH)),
            same("as deep as may be", maps(MAX_DEPTH - 1, "1")),
            Case {
                name: "maps that are one too deep",
                json: maps(MAX_DEPTH, "1"),
                expected: maps(MAX_DEPTH - 1, "{}"),
            },
            Case { name: "deep lists", json: lists(5 * MAX_DEPTH, "1, 2"), expected: lists(MAX_DEPTH, "") },
            Case {
                name: "what follows",
                json: format!("[{}, {{\"b\": 1}}]\n{{}}", maps(2 * MAX_DEPTH, texts)),
                expected: format!("[{}, {{\"b\": 1}}]\n{{}}", maps(MAX_DEPTH - 2, "{}")),
            },
        ];
        for Case { name, json, expected } in cases {
            for size in [1, 7, 1000] {
                let parts: Vec<_> = json.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
                let body = Body::from_stream(stream::iter(parts.into_iter().map(Ok::<_, axum::Error>)));
                let found = to_bytes(with_limited_depth(body), usize::MAX).await.unwrap();
                assert_eq!(str::from_utf8(&found), Ok(&*expected), "{name}, in parts of {size} bytes");
            }
        }
    }
}
