//! Answers of the API server that may be nested too deep to be read.
//!
//! The API server stores `metadata.managedFields` that their author has nested thousands of times, and sends them as
//! they are. serde_json refuses JSON that is nested 128 times, so such an object could neither be read nor be moved.

use axum::body::{Body, Bytes};
use futures::StreamExt;

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
    use futures::stream;

    use super::*;

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
