//! The workloads of one kind in one namespace: of each, only what a decision reads.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};

use clusterip_core::annotations::cut;
use clusterip_core::json::TypeMismatch;
use clusterip_core::label_selector::{Labels, MAX_LABELS};
use clusterip_core::lookups::Selected;
use clusterip_core::workload::PodSpec;
use clusterip_core::workload::{Pods, TemplateAt, Workload};
use serde_json::Value;

use super::shared;
use crate::object::map;

/// Hashes of labels, in ascending order. The key of the hash is random, so a user can't choose labels with equal
/// hashes.
pub type LabelHashes = Box<[u64]>;

/// A workload with more labels than this is not indexed by each of them, because the index would take several times the
/// memory of the workload.
const MAX_INDEXED: usize = 16;

/// The entry in the index of all workloads that have too many labels.
const WIDE: u64 = 0;

/// How many labels are compared to find the rarest, and how many workloads with each of them are counted.
const COMPARED: usize = 8;
const COUNTED: usize = 512;

/// A text of a custom kind with more bytes than this is cut. No text with a meaning is that long: names of objects have
/// at most 253 characters, keys of labels 317.
const MAX_LENGTH: usize = 512;

/// The steps of reading a workload without affinity, also if a label of the selector turns out to be missing. A step takes
/// about 10 ns.
const STEPS_OF_WORKLOAD: usize = 32;

/// The steps that one decision may take to look at workloads of all kinds: about 500 ordinary ones. A tenant may have any
/// number of workloads with any number of labels and terms.
pub const MAX_STEPS: usize = 16 << 10;

#[derive(Debug, PartialEq)]
pub struct StoredWorkload {
    labels: LabelHashes,
    pods: StoredPods,
}

#[derive(Debug, PartialEq)]
enum StoredPods {
    Anywhere,
    Restricted(Arc<PodSpec>),
    /// The labels can't be read, so it is unknown which Services select the Pods.
    UnreadableLabels(Box<TypeMismatch>),
    UnreadableSpec(Box<TypeMismatch>),
}

impl StoredWorkload {
    pub(super) fn read(template: TemplateAt, object: &Value) -> Self {
        let field = |path: &[&str]| path.iter().try_fold(object, |value, key| value.get(key)).unwrap_or(&Value::Null);
        match template.pods(field(&["metadata", "labels"]), field(&["spec"])) {
            Ok(Some(Pods { labels, spec })) => Self { labels: label_hashes(&labels), pods: StoredPods::of(spec) },
            Ok(None) => Self { labels: LabelHashes::default(), pods: StoredPods::Anywhere },
            Err(mismatch) => {
                let path = [template.path(), &["metadata", "labels"]].concat();
                Self {
                    labels: label_hashes(&map(object, &path)),
                    pods: StoredPods::UnreadableLabels(Box::new(mismatch)),
                }
            }
        }
    }

    pub fn labels(&self) -> &LabelHashes {
        &self.labels
    }

    /// Whether the Pods may run on any node, so that the workload never affects a decision.
    pub(super) fn is_inert(&self) -> bool {
        self.pods == StoredPods::Anywhere
    }

    /// The Node that this Pod is bound to.
    pub fn node(&self) -> Option<&str> {
        match &self.pods {
            StoredPods::Restricted(spec) => spec.node.as_deref(),
            _ => None,
        }
    }

    /// With its entries in the indexes.
    pub(super) fn bytes(&self, name: &str) -> usize {
        const ENTRY: usize = 32;
        let indexed = if self.labels.len() > MAX_INDEXED { 1 } else { self.labels.len() };
        let pods = match &self.pods {
            StoredPods::Anywhere => 0,
            StoredPods::Restricted(spec) => bytes_of(spec),
            StoredPods::UnreadableLabels(mismatch) | StoredPods::UnreadableSpec(mismatch) => {
                size_of::<TypeMismatch>() + mismatch.path.len() + mismatch.found.len()
            }
        };
        size_of::<Self>() + 2 * ENTRY + name.len() + self.labels.len() * size_of::<u64>() + indexed * ENTRY + pods
    }

    fn indexed(&self) -> &[u64] {
        if self.labels.len() > MAX_INDEXED { &[WIDE] } else { &self.labels }
    }

    fn steps(&self) -> usize {
        let StoredPods::Restricted(spec) = &self.pods else { return 0 };
        // Each value is compared with the others of its expression.
        let of_values = |values: &Vec<String>| 1 + values.len() + values.len().pow(2) / 4;
        let terms = spec.affinity.iter().map(|term| 1 + term.one_of.iter().map(|(_, it)| of_values(it)).sum::<usize>());
        terms.sum()
    }
}

impl StoredPods {
    fn of(spec: Result<PodSpec, TypeMismatch>) -> Self {
        match spec {
            Ok(mut spec) => {
                // Only expressions with the operator `In` name a value.
                if spec.affinity.iter().all(|term| term.one_of.is_empty()) {
                    spec.affinity = Vec::new();
                }
                let values = spec.affinity.iter_mut().flat_map(|term| &mut term.one_of).flat_map(|(_, values)| values);
                let texts = values.chain(spec.node_selector.values_mut());
                let texts = texts.chain(&mut spec.os).chain(&mut spec.runtime_class).chain(&mut spec.node);
                for text in texts.filter(|text| text.len() > MAX_LENGTH) {
                    *text = cut(text, MAX_LENGTH).into_owned();
                }
                if spec == PodSpec::default() {
                    return Self::Anywhere;
                }
                let is_small = bytes_of(&spec) <= shared::LARGEST_SPEC;
                Self::Restricted(if is_small { shared::spec(spec) } else { Arc::new(spec) })
            }
            Err(mismatch) => Self::UnreadableSpec(Box::new(mismatch)),
        }
    }
}

fn bytes_of(spec: &PodSpec) -> usize {
    const TEXT: usize = 2 * size_of::<String>();
    let text = |text: &Option<String>| text.as_ref().map_or(0, |text| text.len() + 16);
    let selector = spec.node_selector.iter().map(|(key, value)| key.len() + value.len() + 2 * TEXT);
    let values = |values: &Vec<String>| values.iter().map(|value| value.len() + TEXT).sum::<usize>();
    let expression = |(key, of_key): &(String, Vec<String>)| key.len() + 2 * TEXT + values(of_key);
    let terms = spec.affinity.iter().map(|term| TEXT + term.one_of.iter().map(expression).sum::<usize>());
    size_of::<PodSpec>()
        + text(&spec.os)
        + text(&spec.runtime_class)
        + text(&spec.node)
        + selector.sum::<usize>()
        + terms.sum::<usize>()
}

pub fn label_hashes(labels: &Labels) -> LabelHashes {
    let mut hashes: Vec<u64> = labels.iter().take(MAX_LABELS).map(|(key, value)| hash(key, value)).collect();
    hashes.sort_unstable();
    hashes.into()
}

pub(super) fn hash(key: &str, value: &str) -> u64 {
    static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    HASHER.hash_one((key, value)).max(WIDE + 1)
}

#[derive(Default)]
pub(super) struct LabelIndex(BTreeSet<(u64, Arc<str>)>);

/// The workloads that a Service selects, or the first that can't be read: its name, and the mistake.
pub(super) type Found = Result<Selected, (String, TypeMismatch)>;

impl LabelIndex {
    pub(super) fn add(&mut self, name: &Arc<str>, workload: &StoredWorkload) {
        self.0.extend(workload.indexed().iter().map(|label| (*label, Arc::clone(name))));
    }

    pub(super) fn remove(&mut self, name: &Arc<str>, workload: &StoredWorkload) {
        for label in workload.indexed() {
            self.0.remove(&(*label, Arc::clone(name)));
        }
    }

    /// The workloads whose Pods have all labels of a selector, in the order of their names, as long as there are steps
    /// `left`.
    pub(super) fn selected<'w>(
        &self,
        workload: &dyn Fn(&str) -> Option<&'w StoredWorkload>,
        selector: &Labels,
        left: &Cell<usize>,
    ) -> Found {
        if selector.len() > MAX_LABELS {
            return Ok(Selected::default());
        }
        let take = |steps: usize| {
            let rest = left.get().checked_sub(steps);
            left.set(rest.unwrap_or_default());
            rest.is_some()
        };
        let wanted: Vec<u64> = selector.iter().map(|(key, value)| hash(key, value)).collect();
        let mut selected = Selected::default();
        for name in self.candidates(&wanted) {
            let Some(workload) = workload(name) else { continue };
            let missing = wanted.iter().position(|label| workload.labels.binary_search(label).is_err());
            if !take(STEPS_OF_WORKLOAD + 1 + missing.unwrap_or(wanted.len())) {
                return Ok(Selected { is_cut: true, ..selected });
            }
            if let StoredPods::UnreadableLabels(mismatch) = &workload.pods {
                return Err((name.to_string(), mismatch.as_ref().clone()));
            }
            if missing.is_some() {
                continue;
            }
            if !take(workload.steps()) {
                return Ok(Selected { is_cut: true, ..selected });
            }
            let pod_spec = match &workload.pods {
                StoredPods::Restricted(spec) => Arc::clone(spec),
                StoredPods::UnreadableSpec(mismatch) => return Err((name.to_string(), mismatch.as_ref().clone())),
                StoredPods::Anywhere | StoredPods::UnreadableLabels(_) => anywhere(),
            };
            selected.workloads.push(Workload { name: name.to_string(), pod_spec });
        }
        Ok(selected)
    }

    /// The names of the workloads with the rarest of these labels, and of those that are not indexed by each label, in
    /// order.
    fn candidates(&self, wanted: &[u64]) -> impl Iterator<Item = &str> {
        let mut named: Vec<_> = wanted.iter().take(COMPARED).map(|label| (*label, self.named(*label))).collect();
        let mut ended = || named.iter_mut().find_map(|(label, names)| names.next().is_none().then_some(*label));
        let rarest = (0..COUNTED).find_map(|_| ended()).or(wanted.first().copied());
        let mut indexed = rarest.into_iter().flat_map(|label| self.named(label)).peekable();
        let mut wide = self.named(WIDE).filter(|_| !wanted.is_empty()).peekable();
        std::iter::from_fn(move || match (indexed.peek(), wide.peek()) {
            (Some(one), Some(other)) if other < one => wide.next(),
            (Some(_), _) => indexed.next(),
            (None, _) => wide.next(),
        })
    }

    fn named(&self, label: u64) -> impl Iterator<Item = &str> {
        static FIRST: LazyLock<Arc<str>> = LazyLock::new(|| "".into());
        let entries = self.0.range((label, Arc::clone(&FIRST))..);
        entries.take_while(move |(other, _)| *other == label).map(|(_, name)| &**name)
    }
}

fn anywhere() -> Arc<PodSpec> {
    static ANYWHERE: LazyLock<Arc<PodSpec>> = LazyLock::new(Arc::default);
    Arc::clone(&ANYWHERE)
}
