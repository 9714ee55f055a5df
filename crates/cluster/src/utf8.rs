//! Texts from the API server that may have bytes which are no UTF-8.
//!
//! The API server stores such bytes in `metadata.managedFields` and sends them in lists, watches and reviews as they are.
//! JSON with one of them can't be read at all, so a single object would hide all objects of its kind.

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
}
