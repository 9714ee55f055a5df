//! A form of JSON values that takes little memory.

use std::sync::Arc;

use clusterip_core::label_selector::Labels;
use serde_json::{Number, Value};

use super::shared;

/// How many bytes the allocator adds.
pub(super) const ALLOCATED: usize = 8;

/// Frequent texts, which need no memory of their own.
const FREQUENT: [&str; 8] =
    ["ClusterIP", "NodePort", "LoadBalancer", "SingleStack", "PreferDualStack", "IPv4", "IPv6", "None"];

/// What follows a key or a text in [`CompactValue::Texts`]. The API server allows it in no label.
const END: char = '\0';

/// A JSON value whose texts, lists and maps take no more memory than they need.
#[derive(Clone, Debug, PartialEq)]
pub enum CompactValue {
    Frequent(&'static str),
    Text(Box<str>),
    /// A UID. It takes no memory besides `size_of::<Self>()`.
    Uuid([u8; 16]),
    List(Box<[Self]>),
    /// A map of texts, such as labels: each key and each text with `END` after it, so that the map is one allocation.
    Texts(Box<str>),
    /// Every other map.
    Map(Box<[(Arc<str>, Self)]>),
    Null,
    Bool(bool),
    Number(Number),
}

impl CompactValue {
    pub fn of(value: &Value) -> Self {
        Self::first(value, usize::MAX)
    }

    /// The value; of a list or map the first `most` items.
    pub(super) fn first(value: &Value, most: usize) -> Self {
        let inner = |value| Self::first(value, usize::MAX);
        match value {
            Value::String(text) => {
                let frequent = FREQUENT.into_iter().find(|known| known == text);
                frequent.map_or_else(|| Self::Text(text.as_str().into()), Self::Frequent)
            }
            Value::Array(items) => Self::List(items.iter().take(most).map(inner).collect()),
            Value::Object(fields) => {
                let fields = || fields.iter().take(most);
                let texts = fields().map(|(key, value)| Some((key.as_str(), value.as_str()?)));
                let texts: Option<Vec<_>> = texts.collect();
                texts.and_then(|texts| Self::texts_of(&texts)).unwrap_or_else(|| {
                    Self::Map(fields().map(|(key, value)| (shared::key(key), inner(value))).collect())
                })
            }
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => Self::Number(number.clone()),
        }
    }

    /// A map of texts; `None` if the texts contain what separates them.
    fn texts_of<T: AsRef<str>>(texts: &[(&str, T)]) -> Option<Self> {
        let parts = || texts.iter().flat_map(|(key, text)| [*key, text.as_ref()]);
        if parts().any(|part| part.contains(END)) {
            return None;
        }
        // With exactly the capacity that it needs: the allocator keeps the rest of a text that is made shorter.
        let mut all = String::with_capacity(parts().map(|part| part.len() + END.len_utf8()).sum());
        parts().for_each(|part| {
            all.push_str(part);
            all.push(END);
        });
        Some(Self::Texts(all.into()))
    }

    /// A map of these texts.
    pub(super) fn map_of<T: AsRef<str>>(texts: &[(&str, T)]) -> Self {
        Self::texts_of(texts).unwrap_or_else(|| {
            let field = |(key, text): &(&str, T)| (shared::key(key), Self::Text(text.as_ref().into()));
            Self::Map(texts.iter().map(field).collect())
        })
    }

    /// A UID, which other programs write as a text.
    pub(super) fn uid(text: &str) -> Self {
        let digits: String = text.chars().filter(|digit| *digit != '-').collect();
        let uuid = u128::from_str_radix(&digits, 16).map(u128::to_be_bytes);
        uuid.ok().filter(|uuid| uuid_text(*uuid) == text).map_or_else(|| Self::Text(text.into()), Self::Uuid)
    }

    pub(super) fn text(&self) -> &str {
        self.as_text().unwrap_or_default()
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Frequent(text) => Some(text),
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn texts(&self, most: usize) -> Option<Vec<String>> {
        let Self::List(items) = self else { return None };
        items.iter().take(most).map(|item| item.as_text().map(str::to_owned)).collect()
    }

    pub(super) fn labels(&self) -> Option<Labels> {
        match self {
            Self::Texts(texts) => Some(entries(texts).map(|(key, text)| (key.to_owned(), text.to_owned())).collect()),
            Self::Map(fields) => {
                fields.iter().map(|(key, value)| Some((key.to_string(), value.as_text()?.to_owned()))).collect()
            }
            _ => None,
        }
    }

    /// The text with this key in a map.
    pub(super) fn entry(&self, key: &str) -> Option<&str> {
        match self {
            Self::Texts(texts) => entries(texts).find(|(other, _)| *other == key).map(|(_, text)| text),
            Self::Map(fields) => fields.iter().find(|(other, _)| **other == *key)?.1.as_text(),
            _ => None,
        }
    }

    pub fn value(&self) -> Value {
        match self {
            Self::Frequent(_) | Self::Text(_) => self.text().into(),
            Self::Uuid(uuid) => uuid_text(*uuid).into(),
            Self::List(items) => items.iter().map(Self::value).collect(),
            Self::Texts(texts) => entries(texts).collect(),
            Self::Map(fields) => fields.iter().map(|(key, value)| (key.to_string(), value.value())).collect(),
            Self::Null => Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Number(number) => number.clone().into(),
        }
    }

    pub(super) fn is_null(&self) -> bool {
        *self == Self::Null
    }

    /// About how many bytes of memory the value takes besides `size_of::<Self>()`.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Frequent(_) | Self::Uuid(_) | Self::Null | Self::Bool(_) | Self::Number(_) => 0,
            Self::Text(text) | Self::Texts(text) => text.len() + ALLOCATED,
            Self::List(items) => items.iter().map(|item| size_of::<Self>() + item.bytes()).sum(),
            Self::Map(fields) => {
                let entry = |(key, value): &(Arc<str>, Self)| key.len() + ALLOCATED + value.bytes();
                fields.iter().map(|field| size_of_val(field) + entry(field)).sum()
            }
        }
    }
}

/// The keys and texts of [`CompactValue::Texts`], in their order.
fn entries(texts: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut parts = texts.split_terminator(END);
    std::iter::from_fn(move || Some((parts.next()?, parts.next()?)))
}

/// A UID as the API server writes it.
fn uuid_text(uuid: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(uuid));
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_value_stays_the_same() {
        let values = [
            json!({}),
            json!({"app": "web", "": ""}),
            json!({"app": "web", "part-of": ""}),
            json!({"app": "a\0b"}),
            json!({"a\0": ""}),
            json!({"app": null}),
            json!({"app": "web", "number": 1}),
            json!({"app": {"name": "web"}}),
            json!(["ClusterIP", true, null, 1.5, {"ip": "10.0.0.1"}]),
        ];
        for value in values {
            let compact = CompactValue::of(&value);
            assert_eq!(compact.value(), value);
            let texts = value.as_object().map(|map| map.iter().map(|(key, text)| (key.as_str(), text.as_str())));
            for (key, text) in texts.into_iter().flatten() {
                assert_eq!(compact.entry(key), text, "{value}");
            }
            assert_eq!(compact.entry("missing"), None);
        }
        assert_eq!(size_of::<CompactValue>(), 24);
    }

    #[test]
    fn uid_stays_the_same_and_a_uuid_takes_no_memory_of_its_own() {
        for (text, is_uuid) in [
            ("0a1b2c3d-0000-4000-8000-000000000001", true),
            ("00000000-0000-0000-0000-000000000000", true),
            ("0A1B2C3D-0000-4000-8000-000000000001", false),
            ("0a1b2c3d000040008000000000000001", false),
            ("0a1b2c3d-0000-4000-8000-00000000000-1", false),
            ("+a1b2c3d-0000-4000-8000-000000000001", false),
            ("-", false),
            ("", false),
            ("uid-1", false),
        ] {
            let uid = CompactValue::uid(text);
            assert_eq!((uid.value(), matches!(uid, CompactValue::Uuid(_))), (text.into(), is_uuid));
        }
    }
}
