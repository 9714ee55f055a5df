//! Objects as Kubewarden returns them: without the fields that the policy has not asked for.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// How many values of a list or map are read. An `EndpointSlice` with 1,000 endpoints has 6,000.
pub(crate) const MAX_VALUES: usize = 16_384;

/// Field masks as a tree. A field is kept if the tree contains it; where the tree ends, everything below the field is
/// kept. The field `*` stands for all that the tree does not name.
pub struct Mask {
    fields: BTreeMap<String, Mask>,
    /// How many values [`MaskedReader`] reads of a list or map in this field.
    pub(crate) most: usize,
    /// Which entries of the map in this field [`MaskedReader`] reads: by how many it has read, and by the key.
    pub(crate) reads: fn(usize, &str) -> bool,
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
    pub(crate) fn at(&mut self, path: &str) -> &mut Self {
        path.split('.').fold(self, |mask, part| mask.fields.entry(part.to_owned()).or_default())
    }

    fn of_field(&self, key: &str) -> Option<&Self> {
        self.fields.get(key).or_else(|| self.fields.get("*"))
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
        while let Some(key) = map.next_key::<String>()? {
            // An entry that is skipped does not count: otherwise many of them would hide one that is used.
            let reads = (mask.reads)(fields.len(), &key);
            let reader = reads.then(|| MaskedReader { mask, left: left.as_deref_mut() });
            match reader.and_then(|reader| reader.field(&key)) {
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
