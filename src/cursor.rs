//! Reads JSON text from left to right. Values that the caller does not ask for are checked and skipped, never built.
//!
//! The policy reads a list of all Services for a few fields of each, so most of the time goes into skipping. Therefore
//! strings are skipped eight bytes at a time, nesting needs no recursion, and nothing is copied.

use std::borrow::Cow;

use serde_json::Value;
use thiserror::Error;

/// The text is not valid JSON, or is not what the caller expects at this byte.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("expected {} at byte {}", .0.expected, .0.at)]
pub struct Unexpected(Box<Place>);

// Boxed, so that a `Result` fits into registers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    expected: &'static str,
    at: usize,
}

/// A position in a JSON text.
pub struct Cursor<'j> {
    json: &'j [u8],
    at: usize,
}

/// The state of an object whose fields are being read.
pub struct Fields {
    behind_one: bool,
}

/// A string as written, without its quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<'j> {
    written: &'j [u8],
    has_escapes: bool,
}

impl<'j> Cursor<'j> {
    /// Starts at the first byte of `json`.
    pub fn new(json: &'j [u8]) -> Self {
        Self { json, at: 0 }
    }

    /// Enters an object, or returns `None` for `null`. Read its fields with [`Self::field`].
    pub fn object(&mut self) -> Result<Option<Fields>, Unexpected> {
        if self.null() {
            return Ok(None);
        }
        self.expect(b'{', "an object")?;
        Ok(Some(Fields { behind_one: false }))
    }

    /// Moves to the value of the next field for whose key `wanted` returns `Some`, and returns that result; returns
    /// `None` at the end of the object. The caller must then read or skip the value.
    pub fn field<K>(
        &mut self,
        object: &mut Fields,
        wanted: impl Fn(&[u8]) -> Option<K>,
    ) -> Result<Option<K>, Unexpected> {
        let json = self.json;
        let mut at = spaces(json, self.at);
        loop {
            match json.get(at) {
                Some(b'}') => {
                    self.at = at + 1;
                    return Ok(None);
                }
                Some(b',') if object.behind_one => at = spaces(json, at + 1),
                _ if object.behind_one => return Err(unexpected("a comma or the end of an object", at)),
                _ => object.behind_one = true,
            }
            let mut has_escapes = false;
            let end = string(json, at, &mut has_escapes)?;
            let written = &json[at + 1..end - 1];
            at = colon(json, end)?;
            let found = if has_escapes { unescaped(written).and_then(|key| wanted(&key)) } else { wanted(written) };
            if found.is_some() {
                self.at = at;
                return Ok(found);
            }
            at = spaces(json, value(json, at)?);
        }
    }

    /// Reads a list: calls `item` at each item. `item` must read or skip it.
    pub fn list<E: From<Unexpected>>(&mut self, item: &mut impl FnMut(&mut Self) -> Result<(), E>) -> Result<(), E> {
        self.expect(b'[', "a list")?;
        if self.next_is(b']') {
            return Ok(());
        }
        loop {
            item(self)?;
            if self.next_is(b']') {
                return Ok(());
            }
            self.expect(b',', "a comma or the end of a list")?;
        }
    }

    /// Reads a string.
    pub fn text(&mut self) -> Result<Text<'j>, Unexpected> {
        self.at = spaces(self.json, self.at);
        let begin = self.at + 1;
        let mut has_escapes = false;
        self.at = string(self.json, self.at, &mut has_escapes)?;
        Ok(Text { written: &self.json[begin..self.at - 1], has_escapes })
    }

    /// Skips `null` and returns true, if the next value is `null`.
    pub fn null(&mut self) -> bool {
        self.at = spaces(self.json, self.at);
        match self.json.get(self.at) {
            Some(b'n') => self.skip().is_ok(),
            _ => false,
        }
    }

    /// Skips a value and returns its text.
    pub fn raw(&mut self) -> Result<&'j [u8], Unexpected> {
        let begin = spaces(self.json, self.at);
        self.skip()?;
        Ok(&self.json[begin..self.at])
    }

    pub fn skip(&mut self) -> Result<(), Unexpected> {
        self.at = value(self.json, self.at)?;
        Ok(())
    }

    /// Checks that only white space follows.
    pub fn end(&mut self) -> Result<(), Unexpected> {
        self.at = spaces(self.json, self.at);
        if self.at == self.json.len() { Ok(()) } else { Err(self.unexpected("the end")) }
    }

    /// The error for a text that does not have `expected` at this position.
    pub fn unexpected(&self, expected: &'static str) -> Unexpected {
        unexpected(expected, self.at)
    }

    #[inline(always)]
    fn next_is(&mut self, byte: u8) -> bool {
        self.at = spaces(self.json, self.at);
        let is = self.json.get(self.at) == Some(&byte);
        self.at += usize::from(is);
        is
    }

    #[inline(always)]
    fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), Unexpected> {
        if self.next_is(byte) { Ok(()) } else { Err(self.unexpected(expected)) }
    }
}

impl<'j> Text<'j> {
    /// The decoded string, borrowed if it has no escapes; `None` if it is not UTF-8.
    pub fn read(&self) -> Option<Cow<'j, str>> {
        if !self.has_escapes {
            return std::str::from_utf8(self.written).ok().map(Cow::Borrowed);
        }
        let quoted = [b"\"", self.written, b"\""].concat();
        match serde_json::from_slice(&quoted) {
            Ok(Value::String(text)) => Some(Cow::Owned(text)),
            _ => None,
        }
    }
}

/// Decodes a key with escapes. The keys that the policy looks for need none, so this is rare.
#[cold]
fn unescaped(written: &[u8]) -> Option<Vec<u8>> {
    Some(Text { written, has_escapes: true }.read()?.into_owned().into_bytes())
}

// The functions below take the position of an element and return the position behind it, which stays in registers.

/// The position behind the value at `at`; white space before the value is skipped.
fn value(json: &[u8], mut at: usize) -> Result<usize, Unexpected> {
    // The open brackets, the innermost in the lowest bit: 1 for an object, 0 for a list. The highest set bit marks the
    // outside.
    let mut open = 1_u128;
    loop {
        at = spaces(json, at);
        match json.get(at) {
            Some(b'"') => at = string(json, at, &mut false)?,
            Some(bracket @ (b'{' | b'[')) => {
                if open >> 127 != 0 {
                    return Err(unexpected("values nested less deeply", at));
                }
                let is_object = *bracket == b'{';
                at = spaces(json, at + 1);
                if json.get(at) == Some(if is_object { &b'}' } else { &b']' }) {
                    at += 1;
                } else {
                    open = open << 1 | u128::from(is_object);
                    if is_object {
                        at = key(json, at)?;
                    }
                    continue;
                }
            }
            Some(b't') => at = literal(json, at, b"true")?,
            Some(b'f') => at = literal(json, at, b"false")?,
            Some(b'n') => at = literal(json, at, b"null")?,
            _ => at = number(json, at)?,
        }
        loop {
            if open == 1 {
                return Ok(at);
            }
            let is_object = open & 1 == 1;
            at = spaces(json, at);
            match json.get(at) {
                Some(b',') => {
                    at += 1;
                    if is_object {
                        at = key(json, at)?;
                    }
                    break;
                }
                Some(b'}') if is_object => open >>= 1,
                Some(b']') if !is_object => open >>= 1,
                _ => return Err(unexpected("a comma or the end of an object or list", at)),
            }
            at += 1;
        }
    }
}

/// The position behind a key and its colon.
#[inline(always)]
fn key(json: &[u8], at: usize) -> Result<usize, Unexpected> {
    colon(json, string(json, spaces(json, at), &mut false)?)
}

#[inline(always)]
fn colon(json: &[u8], at: usize) -> Result<usize, Unexpected> {
    let at = spaces(json, at);
    if json.get(at) == Some(&b':') { Ok(at + 1) } else { Err(unexpected("a colon", at)) }
}

/// The position behind white space.
#[inline(always)]
fn spaces(json: &[u8], at: usize) -> usize {
    match json.get(at) {
        Some(..=b' ') => more_spaces(json, at),
        _ => at,
    }
}

#[cold]
fn more_spaces(json: &[u8], at: usize) -> usize {
    let is_space = |byte: &&u8| matches!(byte, b' ' | b'\n' | b'\t' | b'\r');
    at + json[at..].iter().take_while(is_space).count()
}

/// The position behind the string whose opening quote is at `at`.
#[inline(always)]
fn string(json: &[u8], mut at: usize, has_escapes: &mut bool) -> Result<usize, Unexpected> {
    if json.get(at) != Some(&b'"') {
        return Err(unexpected("a string", at));
    }
    at += 1;
    loop {
        at = special(json, at);
        match json.get(at) {
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => {
                *has_escapes = true;
                at = escape(json, at)?;
            }
            _ => return Err(unexpected("the end of a string", at)),
        }
    }
}

/// The position of the next quote, backslash or control character.
#[inline(always)]
fn special(json: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::MAX / 255;
    // Subtracting n from a byte sets its high bit if the byte is less than n and its high bit was clear. The borrow can
    // then make the next byte look like a match too, so only the first match counts.
    let less = |bytes: u64, than: u8| bytes.wrapping_sub(ONES * u64::from(than)) & !bytes;
    while let Some(chunk) = json.get(at..at + 8).and_then(|chunk| <&[u8; 8]>::try_from(chunk).ok()) {
        let bytes = u64::from_le_bytes(*chunk);
        // With its second bit flipped, the quote is just below '!'; control characters stay below it.
        let control_or_quote = less(bytes ^ (ONES * 2), b'!');
        let backslash = less(bytes ^ (ONES * u64::from(b'\\')), 1);
        let found = (control_or_quote | backslash) & (ONES << 7);
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += chunk.len();
    }
    last_special(json, at)
}

#[cold]
fn last_special(json: &[u8], at: usize) -> usize {
    let is_special = |byte: &u8| *byte < b' ' || *byte == b'"' || *byte == b'\\';
    json[at..].iter().position(is_special).map_or(json.len(), |found| at + found)
}

#[cold]
fn escape(json: &[u8], at: usize) -> Result<usize, Unexpected> {
    match json.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
        Some(b'u') if json.get(at + 2..at + 6).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) => {
            Ok(at + 6)
        }
        _ => Err(unexpected("an escape", at)),
    }
}

fn literal(json: &[u8], at: usize, literal: &[u8]) -> Result<usize, Unexpected> {
    if json[at..].starts_with(literal) { Ok(at + literal.len()) } else { Err(unexpected("a value", at)) }
}

/// The position behind a number, which has no leading zero and has digits on both sides of its decimal point.
fn number(json: &[u8], mut at: usize) -> Result<usize, Unexpected> {
    let is = |at: usize, bytes: &[u8]| json.get(at).is_some_and(|byte| bytes.contains(byte));
    let digits = |at: usize| {
        let count = json.iter().skip(at).take_while(|byte| byte.is_ascii_digit()).count();
        if count > 0 { Ok(at + count) } else { Err(unexpected("a value", at)) }
    };
    at += usize::from(is(at, b"-"));
    at = if is(at, b"0") { at + 1 } else { digits(at)? };
    if is(at, b".") {
        at = digits(at + 1)?;
    }
    if is(at, b"eE") {
        at += 1;
        at = digits(at + usize::from(is(at, b"+-")))?;
    }
    Ok(at)
}

#[cold]
fn unexpected(expected: &'static str, at: usize) -> Unexpected {
    Unexpected(Box::new(Place { expected, at }))
}

#[cfg(test)]
mod tests;
