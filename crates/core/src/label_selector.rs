//! Kubernetes label selectors: `matchLabels` and `matchExpressions`.

use std::collections::BTreeMap;

/// Labels or annotations, by key.
pub type Labels = BTreeMap<String, String>;

/// Of the labels of a Service, of a Pod or in a node selector, the first 64 by key count, so a cache need not keep
/// more. A Service that selects on more labels selects no Pod.
pub const MAX_LABELS: usize = 64;

/// A Kubernetes `LabelSelector`. Every requirement must match; a selector without requirements matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    pub match_labels: Labels,
    pub match_expressions: Vec<Requirement>,
}

/// One entry of `matchExpressions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    /// At least one value for `In` and `NotIn`, no values for `Exists` and `DoesNotExist`.
    pub values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    In,
    /// The label is absent, or has another value.
    NotIn,
    Exists,
    DoesNotExist,
}

impl Operator {
    pub const NAMES: [&'static str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];

    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "In" => Some(Self::In),
            "NotIn" => Some(Self::NotIn),
            "Exists" => Some(Self::Exists),
            "DoesNotExist" => Some(Self::DoesNotExist),
            _ => None,
        }
    }

    /// Whether the operator needs values. The other operators must have none.
    pub fn takes_values(self) -> bool {
        matches!(self, Self::In | Self::NotIn)
    }
}

impl LabelSelector {
    /// Whether there are no requirements, so that it matches everything.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        includes(labels, &self.match_labels)
            && self.match_expressions.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

/// Whether a Service with this selector selects a Pod with these labels. The first [`MAX_LABELS`] labels count.
pub fn selects(selector: &Labels, labels: &Labels) -> bool {
    let counts = |key: &String| labels.len() <= MAX_LABELS || labels.keys().take(MAX_LABELS).any(|other| other == key);
    includes(labels, selector) && selector.keys().all(counts)
}

/// Whether `labels` contain all labels of `wanted`, with the same values.
pub fn includes(labels: &Labels, wanted: &Labels) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}
