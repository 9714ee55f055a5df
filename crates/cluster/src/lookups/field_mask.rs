//! Objects as Kubewarden returns them: without the fields that the policy has not asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
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
    pub fn prune(&self, fields: &mut Map<String, Value>) {
        fields.retain(|key, value| {
            let mask = self.0.get(key);
            mask.inspect(|mask| mask.prune_value(value)).is_some()
        });
    }

    fn prune_value(&self, value: &mut Value) {
        match value {
            _ if self.0.is_empty() => {}
            Value::Object(fields) => self.prune(fields),
            // A path ignores lists: it continues in each item.
            Value::Array(items) => items.iter_mut().for_each(|item| self.prune_value(item)),
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

/// An object as Kubewarden returns it: type and `metadata` completely, the other fields as the mask says. In an answer
/// from a watch cache, `metadata` lacks the managed fields and the last applied configuration.
pub struct Masked<'o> {
    /// The complete object.
    pub object: &'o Value,
    /// The fields that are asked for; `None` for all.
    pub mask: Option<&'o Mask>,
    /// Whether the answer comes from a watch cache.
    pub cached: bool,
}

impl Serialize for Masked<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Value::Object(fields) = self.object else { return self.object.serialize(serializer) };
        let mut object = serializer.serialize_map(None)?;
        for (key, value) in fields {
            match key.as_str() {
                "metadata" if self.cached => object.serialize_entry(key, &CachedMetadata(value))?,
                "apiVersion" | "kind" | "metadata" => object.serialize_entry(key, value)?,
                _ => match self.mask {
                    None => object.serialize_entry(key, value)?,
                    Some(mask) if mask.0.is_empty() => object.serialize_entry(key, value)?,
                    Some(mask) => {
                        if let Some(mask) = mask.0.get(key) {
                            object.serialize_entry(key, &Pruned { value, mask })?;
                        }
                    }
                },
            }
        }
        object.end()
    }
}

struct CachedMetadata<'o>(&'o Value);

impl Serialize for CachedMetadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
        let Value::Object(fields) = self.0 else { return self.0.serialize(serializer) };
        let mut metadata = serializer.serialize_map(None)?;
        for (key, value) in fields.iter().filter(|(key, _)| *key != "managedFields") {
            match value.as_object().filter(|annotations| key == "annotations" && annotations.contains_key(LAST_APPLIED))
            {
                Some(annotations) => {
                    let kept: BTreeMap<_, _> = annotations.iter().filter(|(key, _)| *key != LAST_APPLIED).collect();
                    metadata.serialize_entry(key, &kept)?;
                }
                None => metadata.serialize_entry(key, value)?,
            }
        }
        metadata.end()
    }
}

struct Pruned<'v> {
    value: &'v Value,
    mask: &'v Mask,
}

impl Serialize for Pruned<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.mask.0.is_empty() {
            return self.value.serialize(serializer);
        }
        match self.value {
            Value::Object(fields) => {
                let mut object = serializer.serialize_map(None)?;
                for (key, value) in fields {
                    if let Some(mask) = self.mask.0.get(key) {
                        object.serialize_entry(key, &Pruned { value, mask })?;
                    }
                }
                object.end()
            }
            // A path ignores lists: it continues in each item.
            Value::Array(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for value in items {
                    list.serialize_element(&Pruned { value, mask: self.mask })?;
                }
                list.end()
            }
            scalar => scalar.serialize(serializer),
        }
    }
}
