//! A JSON value in little memory.

use clusterip_core::label_selector::Labels;
use serde_json::Value;

/// How many bytes the allocator adds.
pub(super) const ALLOCATED: usize = 8;

/// Frequent texts, which need no memory of their own.
const FREQUENT: [&str; 8] =
    ["ClusterIP", "NodePort", "LoadBalancer", "SingleStack", "PreferDualStack", "IPv4", "IPv6", "None"];

/// A JSON value in little memory.
#[derive(Clone, Debug, PartialEq)]
pub enum CompactValue {
    Frequent(&'static str),
    Text(Box<str>),
    List(Box<[Self]>),
    Map(Box<[(Box<str>, Self)]>),
    /// Null, a boolean or a number.
    Other(Box<Value>),
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
                Self::Map(fields.iter().take(most).map(|(key, value)| (key.as_str().into(), inner(value))).collect())
            }
            _ => Self::Other(Box::new(value.clone())),
        }
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
        let Self::Map(fields) = self else { return None };
        fields.iter().map(|(key, value)| Some((key.to_string(), value.as_text()?.to_owned()))).collect()
    }

    pub fn value(&self) -> Value {
        match self {
            Self::Frequent(_) | Self::Text(_) => self.text().into(),
            Self::List(items) => items.iter().map(Self::value).collect(),
            Self::Map(fields) => fields.iter().map(|(key, value)| (key.to_string(), value.value())).collect(),
            Self::Other(value) => value.as_ref().clone(),
        }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self, Self::Other(value) if value.is_null())
    }

    /// About how many bytes of memory the value takes besides `size_of::<Self>()`.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Frequent(_) => 0,
            Self::Text(text) => text.len() + ALLOCATED,
            Self::List(items) => items.iter().map(|item| size_of::<Self>() + item.bytes()).sum(),
            Self::Map(fields) => {
                let entry = |(key, value): &(Box<str>, Self)| key.len() + ALLOCATED + value.bytes();
                fields.iter().map(|field| size_of_val(field) + entry(field)).sum()
            }
            Self::Other(_) => size_of::<Value>() + ALLOCATED,
        }
    }
}
