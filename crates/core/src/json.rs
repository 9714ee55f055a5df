//! A cursor into a JSON value that knows its path, so that every error names the place.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{path}: expected {expected}, found {found}")]
pub struct TypeMismatch {
    /// The path, such as `request.object.spec.clusterIPs[0]`.
    pub path: String,
    pub expected: &'static str,
    pub found: String,
}

/// A value and its path. `null` counts as absent, as in the API server.
#[derive(Clone, Debug)]
pub struct Located<'v> {
    pub value: &'v Value,
    pub path: String,
}

impl<'v> Located<'v> {
    /// A value at `path`, such as `request`; the path of a whole document is empty.
    pub fn new(value: &'v Value, path: impl Into<String>) -> Self {
        Self { value, path: path.into() }
    }

    /// The field of an object; `None` if the field is absent or null, or if the value itself is null.
    pub fn get(&self, key: &str) -> Result<Option<Located<'v>>, TypeMismatch> {
        Ok(self.field(key)?.map(|value| self.below(key, value)))
    }

    /// As [`Self::get`], without the path, which takes longer than everything else.
    fn field(&self, key: &str) -> Result<Option<&'v Value>, TypeMismatch> {
        let field = if self.value.is_null() { None } else { self.object()?.get(key) };
        Ok(field.filter(|value| !value.is_null()))
    }

    fn below(&self, key: &str, value: &'v Value) -> Located<'v> {
        Located { value, path: self.key_path(key) }
    }

    /// As [`Self::get`], with `null` for an absent field.
    pub fn at(&self, key: &str) -> Result<Located<'v>, TypeMismatch> {
        static NULL: Value = Value::Null;
        Ok(self.get(key)?.unwrap_or_else(|| Located { value: &NULL, path: self.key_path(key) }))
    }

    /// The field at the end of a path of fields; `None` if a field on the path is absent or null.
    pub(crate) fn descend(&self, path: &[&str]) -> Result<Option<Located<'v>>, TypeMismatch> {
        let mut at = self.clone();
        for key in path {
            match at.get(key)? {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    pub(crate) fn key_path(&self, key: &str) -> String {
        let plain = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        match (plain, self.path.is_empty()) {
            (true, true) => key.to_owned(),
            (true, false) => [&self.path, ".", key].concat(),
            (false, _) => format!("{}[{key:?}]", self.path),
        }
    }

    pub fn object(&self) -> Result<&'v Map<String, Value>, TypeMismatch> {
        self.value.as_object().ok_or_else(|| self.mismatch("an object"))
    }

    /// The items of a list, with their paths.
    pub fn items(&self) -> Result<impl Iterator<Item = Located<'v>> + use<'v>, TypeMismatch> {
        let items = self.value.as_array().ok_or_else(|| self.mismatch("a list"))?;
        let path = self.path.clone();
        Ok(items.iter().enumerate().map(move |(index, value)| Located { value, path: format!("{path}[{index}]") }))
    }

    pub fn text(&self) -> Result<&'v str, TypeMismatch> {
        self.value.as_str().ok_or_else(|| self.mismatch("a string"))
    }

    /// The string in a field; `None` if the field is absent, null or empty.
    pub fn text_of(&self, key: &str) -> Result<Option<&'v str>, TypeMismatch> {
        match self.field(key)? {
            Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
            Some(value) => Err(self.below(key, value).mismatch("a string")),
            None => Ok(None),
        }
    }

    /// The first `most` strings in a field with a list; empty if the field is absent or null. The other items are not
    /// read.
    pub fn texts_of(&self, key: &str, most: usize) -> Result<Vec<&'v str>, TypeMismatch> {
        let Some(value) = self.field(key)? else { return Ok(Vec::new()) };
        // Paths take longer than everything else, and only an error needs them.
        let texts = value.as_array().and_then(|items| items.iter().take(most).map(Value::as_str).collect());
        texts.map_or_else(|| self.below(key, value).items()?.take(most).map(|item| item.text()).collect(), Ok)
    }

    /// The strings in a field with a map of strings, such as labels; empty if the field is absent or null.
    pub fn map_of(&self, key: &str) -> Result<BTreeMap<String, String>, TypeMismatch> {
        self.first_of(key, usize::MAX)
    }

    /// The first `most` entries, by key, of a field with a map of strings. The other entries are not read.
    pub(crate) fn first_of(&self, key: &str, most: usize) -> Result<BTreeMap<String, String>, TypeMismatch> {
        self.get(key)?.map_or(Ok(BTreeMap::new()), |at| at.first(most))
    }

    pub(crate) fn first(&self, most: usize) -> Result<BTreeMap<String, String>, TypeMismatch> {
        let mut map = BTreeMap::new();
        for (name, value) in self.object()?.iter().take(most) {
            let text = value.as_str().ok_or_else(|| self.below(name, value).mismatch("a string"))?;
            map.insert(name.clone(), text.to_owned());
        }
        Ok(map)
    }

    pub fn mismatch(&self, expected: &'static str) -> TypeMismatch {
        TypeMismatch { path: self.path.clone(), expected, found: describe(self.value) }
    }
}

/// The object in a field, created if the field is absent or something else.
pub(crate) fn field_mut<'o>(object: &'o mut Map<String, Value>, key: &str) -> Option<&'o mut Map<String, Value>> {
    let field = object.entry(key).or_insert(Value::Null);
    if !field.is_object() {
        // `null` counts as absent.
        *field = Value::Object(Map::new());
    }
    field.as_object_mut()
}

/// Describes a value in a few words; long strings are cut.
pub fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => format!("{value}"),
        Value::Number(value) => format!("the number {value}"),
        Value::String(value) => format!("the string {}", quote(value)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Quotes a string from outside: control characters are escaped, and it is cut after 80 characters.
pub fn quote(text: &str) -> String {
    const MAX_LENGTH: usize = 80;
    match text.char_indices().nth(MAX_LENGTH) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// The known name that is nearest to an unknown one; `None` if none is near. The time grows with the length of `name`.
#[inline(never)] // The module has room for one copy.
pub(crate) fn nearest_name<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    const FARTHEST: usize = 3;
    let mut nearest: Option<(usize, &str)> = None;
    for known in known {
        let distance = strsim::damerau_levenshtein(&known.to_ascii_lowercase(), &name.to_ascii_lowercase());
        if nearest.is_none_or(|(least, _)| distance < least) {
            nearest = Some((distance, known));
        }
    }
    nearest.filter(|(distance, known)| *distance <= FARTHEST.min(known.len() / 2)).map(|(_, known)| known)
}

/// The message about an unknown name. It suggests the nearest known name, or lists all of them.
pub fn unknown_name_message(what: &str, name: &str, known: &[&str]) -> String {
    match nearest_name(name, known) {
        Some(nearest) => format!("unknown {what} {}: did you mean {nearest}?", quote(name)),
        None => format!("unknown {what} {}: known are {}", quote(name), known.join(", ")),
    }
}
