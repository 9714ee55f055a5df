//! Objects as Kubewarden returns them: without the fields that the policy has not asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Field masks as a tree. A field is kept if the tree contains it; where the tree ends, everything below the field is
/// kept.
#[derive(Default)]
pub struct Mask(BTreeMap<String, Mask>);

impl Mask {
    /// The mask of these paths, whose parts are separated by dots.
    pub fn new(paths: &BTreeSet<String>) -> Self {
        let mut root = Self::default();
        for path in paths {
            path.split('.').fold(&mut root, |mask, part| mask.0.entry(part.to_owned()).or_default());
        }
        root
    }

    /// Removes the fields of an object that the mask does not contain.
    pub fn prune(&self, value: &mut Value) {
        match value {
            _ if self.0.is_empty() => {}
            Value::Object(fields) => fields.retain(|key, value| {
                let mask = self.0.get(key);
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
/// After `left` values have been read, all others are skipped: an object of 1.5 MB can have 700,000 items, each of
/// which takes ten times the memory of its text.
pub struct MaskedReader<'m> {
    /// The fields to read; everything if the mask is empty.
    pub mask: &'m Mask,
    /// How many values may still be read.
    pub left: &'m mut usize,
}

impl MaskedReader<'_> {
    /// The reader of a field; `None` if the field is skipped.
    pub fn field(&mut self, key: &str) -> Option<MaskedReader<'_>> {
        let mask = if self.mask.0.is_empty() { self.mask } else { self.mask.0.get(key)? };
        self.inside(mask)
    }

    fn inside<'r>(&'r mut self, mask: &'r Mask) -> Option<MaskedReader<'r>> {
        *self.left = self.left.checked_sub(1)?;
        Some(MaskedReader { mask, left: self.left })
    }
}

impl<'de> DeserializeSeed<'de> for MaskedReader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MaskedReader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    /// A path ignores lists: it continues in each item.
    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        let mask = self.mask;
        while let Some(reader) = self.inside(mask) {
            match list.next_element_seed(reader)? {
                Some(item) => items.push(item),
                None => return Ok(items.into()),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            match self.field(&key) {
                Some(reader) => {
                    let value = map.next_value_seed(reader)?;
                    fields.insert(key, value);
                }
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(fields.into())
    }
}

/// An object as Kubewarden returns it: type and `metadata` completely, the other fields as the mask says, or all of
/// them. In an answer from a watch cache, `metadata` lacks the managed fields and the last applied configuration.
pub fn masked(object: &Value, mask: Option<&Mask>, is_cached: bool) -> Value {
    const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let mut masked = object.clone();
    if let Some(mask) = mask {
        mask.prune(&mut masked);
    }
    let Some(fields) = masked.as_object_mut() else { return masked };
    for key in ["apiVersion", "kind", "metadata"] {
        fields.extend(object.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut).filter(|_| is_cached) {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(LAST_APPLIED);
        }
    }
    masked
}
