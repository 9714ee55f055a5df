//! Reads only those fields of JSON that a mask names, and skips the others.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// How many values of a list or map are read. An `EndpointSlice` with 1,000 endpoints has 6,000.
pub const MAX_VALUES: usize = 16_384;

/// Field masks as a tree. A field is kept if the tree contains it; where the tree ends, everything below the field is
/// kept. The field `*` stands for all that the tree does not name.
pub struct Mask {
    fields: BTreeMap<String, Mask>,
    /// How many values [`MaskedReader`] reads of a list or map in this field.
    pub most: usize,
    /// Which entries of the map in this field [`MaskedReader`] reads: by how many it has read, and by the key.
    pub reads: fn(usize, &str) -> bool,
}

impl Default for Mask {
    fn default() -> Self {
        Self { fields: BTreeMap::new(), most: MAX_VALUES, reads: |_, _| true }
    }
}

impl Mask {
    /// The mask of these paths, whose parts are separated by dots.
    pub fn new(paths: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut root = Self::default();
        for path in paths {
            root.at(path.as_ref());
        }
        root
    }

    /// The mask of the field at this path, which is added if it is missing.
    pub fn at(&mut self, path: &str) -> &mut Self {
        path.split('.').fold(self, |mask, part| mask.fields.entry(part.to_owned()).or_default())
    }

    fn of_field(&self, key: &str) -> Option<&Self> {
        self.fields.get(key).or_else(|| self.fields.get("*"))
    }

    /// Reads the first value of a text without any limit, and returns the length of its text as well.
    pub fn read_first(&self, json: &[u8]) -> serde_json::Result<(Value, usize)> {
        let (mut reader, mut left) = (serde_json::Deserializer::from_slice(json), Some(usize::MAX));
        let value = MaskedReader { mask: self, left: Some(&mut left) }.deserialize(&mut reader)?;
        Ok((value, reader.into_iter::<IgnoredAny>().byte_offset()))
    }

    /// Reads a text with one value, of which everything is kept.
    pub fn read_all(json: &[u8]) -> serde_json::Result<Value> {
        let (mut reader, mut left) = (serde_json::Deserializer::from_slice(json), Some(usize::MAX));
        let value = MaskedReader { mask: &Self::default(), left: Some(&mut left) }.deserialize(&mut reader)?;
        reader.end().map(|()| value)
    }

    /// Removes the fields of an object that the mask does not contain.
    pub fn prune(&self, value: &mut Value) {
        match value {
            _ if self.fields.is_empty() => {}
            Value::Object(fields) => fields.retain(|key, value| {
                let mask = self.of_field(key);
                mask.inspect(|mask| mask.prune(value)).is_some()
            }),
            // A path ignores lists: it continues in each item.
            Value::Array(items) => items.iter_mut().for_each(|item| self.prune(item)),
            _ => {}
        }
    }
}

/// Reads the part of a value that a mask contains, and never has the rest in memory.
///
/// Every list and map that the mask names has a limit of its own, which all values in it share: an object of 1.5 MB can
/// have 700,000 values, each of which takes ten times the memory of its text. A long list or map is cut, and hides no
/// other field.
pub struct MaskedReader<'m> {
    /// The fields to read; everything if the mask is empty.
    mask: &'m Mask,
    /// How many more values may be read of the list or map around this value, and `None` once it had too many. The outer
    /// `None` is outside of lists and maps.
    left: Option<&'m mut Option<usize>>,
}

impl<'m> MaskedReader<'m> {
    pub fn new(mask: &'m Mask) -> Self {
        Self { mask, left: None }
    }

    /// The reader of a field; `None` if the field is skipped.
    fn field(self, key: &str) -> Option<Self> {
        let mask = if self.mask.fields.is_empty() { self.mask } else { self.mask.of_field(key)? };
        Self { mask, ..self }.counted()
    }

    fn counted(self) -> Option<Self> {
        match self.left {
            Some(left) => {
                *left = left.and_then(|left| left.checked_sub(1));
                left.is_some().then_some(Self { mask: self.mask, left: Some(left) })
            }
            None => Some(self),
        }
    }
}

impl<'de> DeserializeSeed<'de> for MaskedReader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

macro_rules! visit_scalars {
    ($($visit:ident $type:ty),+) => {
        $(fn $visit<E>(self, value: $type) -> Result<Value, E> {
            Ok(value.into())
        })+
    };
}

impl<'de> Visitor<'de> for MaskedReader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    visit_scalars!(visit_bool bool, visit_i64 i64, visit_u64 u64, visit_f64 f64, visit_str &str, visit_string String);

    /// A path ignores lists: it continues in each item. If a list has too many values, its first items are read, all of
    /// them completely.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let (mask, mut own, is_inside) = (self.mask, Some(self.mask.most), self.left.is_some());
        let left = self.left.unwrap_or(&mut own);
        let mut items = Vec::new();
        while let Some(reader) = (MaskedReader { mask, left: Some(&mut *left) }).counted() {
            match list.next_element_seed(reader)? {
                // The limit was reached within the item.
                Some(_) if left.is_none() && !is_inside => break,
                Some(item) => items.push(item),
                None => return Ok(items.into()),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let (mask, mut own) = (self.mask, Some(self.mask.most));
        // The fields that a mask names need no limit.
        let mut left = self.left.or_else(|| mask.fields.is_empty().then_some(&mut own));
        let mut fields = Map::new();
        loop {
            let object = MaskedReader { mask, left: left.as_deref_mut() };
            match map.next_key_seed(Key { object, read: fields.len() })? {
                Some(Some((key, reader))) => {
                    let value = map.next_value_seed(reader)?;
                    fields.insert(key, value);
                }
                Some(None) => drop(map.next_value::<IgnoredAny>()?),
                None => return Ok(fields.into()),
            }
        }
    }
}

/// Reads the key of a field, and returns a copy and the reader of the field; `None` if the field is skipped.
struct Key<'m> {
    object: MaskedReader<'m>,
    /// How many fields of the object have been read.
    read: usize,
}

impl<'de, 'm> DeserializeSeed<'de> for Key<'m> {
    type Value = Option<(String, MaskedReader<'m>)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'m> Visitor<'_> for Key<'m> {
    type Value = Option<(String, MaskedReader<'m>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        // An entry that is skipped does not count: otherwise many of them would hide one that is used.
        let object = (self.object.mask.reads)(self.read, key).then_some(self.object);
        Ok(object.and_then(|object| object.field(key)).map(|reader| (key.to_owned(), reader)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn first_value_is_read_with_its_length() {
        for (first, rest) in [(r#"{"a": {"b": 1, "c": 2}, "d": 3}"#, r#", {"a": {"b": 4}}]"#), (r#"{"a":{"b":1}}"#, "")]
        {
            let found = Mask::new(["a.b"]).read_first(format!("{first}{rest}").as_bytes()).unwrap();
            assert_eq!(found, (json!({"a": {"b": 1}}), first.len()));
        }
    }
}
