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

/// A JSON value whose texts, lists and maps take no more memory than they need.
#[derive(Clone, Debug, PartialEq)]
pub enum CompactValue {
    Frequent(&'static str),
    Text(Box<str>),
    List(Box<[Self]>),
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
                Self::Map(fields.iter().take(most).map(|(key, value)| (shared::key(key), inner(value))).collect())
            }
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => Self::Number(number.clone()),
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
            Self::Frequent(_) | Self::Null | Self::Bool(_) | Self::Number(_) => 0,
            Self::Text(text) => text.len() + ALLOCATED,
            Self::List(items) => items.iter().map(|item| size_of::<Self>() + item.bytes()).sum(),
            Self::Map(fields) => {
                let entry = |(key, value): &(Arc<str>, Self)| key.len() + ALLOCATED + value.bytes();
                fields.iter().map(|field| size_of_val(field) + entry(field)).sum()
            }
        }
    }
}
