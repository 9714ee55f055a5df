//! A cursor into a JSON value that knows its path, so that every complaint can say where.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use thiserror::Error;

/// A value of the wrong kind.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{path}: expected {expected}, found {found}")]
pub struct Mistyped {
    /// Where, such as `request.object.spec.clusterIPs[0]`.
    pub path: String,
    /// What should be there.
    pub expected: &'static str,
    /// What is there.
    pub found: String,
}

/// A value and its path. `null` counts as absent, as it does for the API server.
#[derive(Clone, Debug)]
pub struct At<'v> {
    /// The value.
    pub value: &'v Value,
    /// Its path.
    pub path: String,
}

impl<'v> At<'v> {
    /// A value and where it stands: `request`, or nothing for a whole document.
    pub fn new(value: &'v Value, path: impl Into<String>) -> Self {
        Self { value, path: path.into() }
    }

    /// The field of an object; nothing where the field is absent or null, or the value itself null.
    ///
    /// # Errors
    /// [`Mistyped`] where the value is no object.
    pub fn get(&self, key: &str) -> Result<Option<At<'v>>, Mistyped> {
        if self.value.is_null() {
            return Ok(None);
        }
        Ok(self.object()?.get(key).filter(|value| !value.is_null()).map(|value| At { value, path: self.key_path(key) }))
    }

    /// The field at the end of a chain of fields.
    ///
    /// # Errors
    /// [`Mistyped`] where one of them is no object.
    pub fn descend(&self, path: &[&str]) -> Result<Option<At<'v>>, Mistyped> {
        let mut at = self.clone();
        for key in path {
            match at.get(key)? {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// The path of a field.
    pub fn key_path(&self, key: &str) -> String {
        let plain = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        match (plain, self.path.is_empty()) {
            (true, true) => key.to_owned(),
            (true, false) => format!("{}.{key}", self.path),
            (false, _) => format!("{}[{key:?}]", self.path),
        }
    }

    /// The fields of an object.
    ///
    /// # Errors
    /// [`Mistyped`] where it is something else.
    pub fn object(&self) -> Result<&'v Map<String, Value>, Mistyped> {
        self.value.as_object().ok_or_else(|| self.mistyped("an object"))
    }

    /// The items of a list, with their paths.
    ///
    /// # Errors
    /// [`Mistyped`] where it is something else.
    pub fn items(&self) -> Result<impl Iterator<Item = At<'v>> + use<'v>, Mistyped> {
        let items = self.value.as_array().ok_or_else(|| self.mistyped("a list"))?;
        let path = self.path.clone();
        Ok(items.iter().enumerate().map(move |(index, value)| At { value, path: format!("{path}[{index}]") }))
    }

    /// A string.
    ///
    /// # Errors
    /// [`Mistyped`] where it is something else.
    pub fn text(&self) -> Result<&'v str, Mistyped> {
        self.value.as_str().ok_or_else(|| self.mistyped("a string"))
    }

    /// The string of a field; nothing where it is absent, null or empty.
    ///
    /// # Errors
    /// [`Mistyped`] where it is something else.
    pub fn text_of(&self, key: &str) -> Result<Option<&'v str>, Mistyped> {
        match self.get(key)? {
            Some(at) => Ok(Some(at.text()?).filter(|text| !text.is_empty())),
            None => Ok(None),
        }
    }

    /// The strings of a field that is a list; none where it is absent or null.
    ///
    /// # Errors
    /// [`Mistyped`] where it, or one of its items, is something else.
    pub fn texts_of(&self, key: &str) -> Result<Vec<&'v str>, Mistyped> {
        match self.get(key)? {
            Some(at) => at.items()?.map(|item| item.text()).collect(),
            None => Ok(Vec::new()),
        }
    }

    /// The strings of a field that is an object of strings, such as labels.
    ///
    /// # Errors
    /// [`Mistyped`] where it, or one of its values, is something else.
    pub fn map_of(&self, key: &str) -> Result<BTreeMap<String, String>, Mistyped> {
        self.first_of(key, usize::MAX)
    }

    /// The first strings of a field that is an object of strings, by their keys.
    ///
    /// # Errors
    /// [`Mistyped`] where it, or one of these values, is something else.
    pub fn first_of(&self, key: &str, most: usize) -> Result<BTreeMap<String, String>, Mistyped> {
        match self.get(key)? {
            Some(at) => at.first(most),
            None => Ok(BTreeMap::new()),
        }
    }

    /// An object of strings.
    ///
    /// # Errors
    /// [`Mistyped`] where it, or one of its values, is something else.
    pub fn map(&self) -> Result<BTreeMap<String, String>, Mistyped> {
        self.first(usize::MAX)
    }

    fn first(&self, most: usize) -> Result<BTreeMap<String, String>, Mistyped> {
        let mut map = BTreeMap::new();
        for (name, value) in self.object()?.iter().take(most) {
            map.insert(name.clone(), At::new(value, self.key_path(name)).text()?.to_owned());
        }
        Ok(map)
    }

    /// The complaint that something else is expected here.
    pub fn mistyped(&self, expected: &'static str) -> Mistyped {
        Mistyped { path: self.path.clone(), expected, found: describe(self.value) }
    }
}

/// A field that is an object, made where it is absent.
pub fn field_mut<'o>(object: &'o mut Map<String, Value>, key: &str) -> Option<&'o mut Map<String, Value>> {
    let field = object.entry(key).or_insert(Value::Null);
    if !field.is_object() {
        // `null` is what an absent one is.
        *field = Value::Object(Map::new());
    }
    field.as_object_mut()
}

/// A short description of a value, long ones cut.
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

/// A string from outside, in quotes, control characters escaped, cut after 80 characters.
pub fn quote(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
