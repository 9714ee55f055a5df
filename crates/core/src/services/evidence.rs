//! Determines on which nodes the Service's endpoints will run.
//!
//! The result is a set of node labels. For each label that a pool matches on, the sources are asked in this order until
//! one has a value: the Service's annotation, the workloads that the Service selects (one kind after the other), its
//! Namespace, and for the operating system the setting `assumeOS`.

use std::mem::replace;

use crate::annotations::{self, AnnotationMap, NODE_SELECTOR_ANNOTATION, OS_ANNOTATION};
use crate::decision::{ASSUMED_OS, Report, SEPARATOR};
use crate::json::{nearest_name, quote};
use crate::label_selector::Labels;
use crate::lookups::{Cluster, LazyNamespace, LookupError};
use crate::service::Service;
use crate::settings::Settings;
use crate::workload::{OS_LABEL, PodSpec, labelled, normal};
use crate::workload::{Workload, WorkloadKind};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// Sorted by key.
    found: Vec<Found>,
    /// A sentence for each label on which the workloads disagree.
    mixed: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    key: String,
    value: String,
    source: String,
}

impl Evidence {
    pub fn value(&self, key: &str) -> Option<&str> {
        self.found.iter().find(|found| found.key == key).map(|found| found.value.as_str())
    }

    /// The known labels in the order of their keys, with their sources; `None` if no label is known.
    pub fn report(&self) -> Option<Report> {
        let (mut sources, mut labels): (Vec<&str>, Labels) = Default::default();
        for Found { key, value, source } in &self.found {
            if !sources.contains(&source.as_str()) {
                sources.push(source);
            }
            labels.insert(key.clone(), value.clone());
        }
        let report = Report { source: sources.join(SEPARATOR), labels, mixed: self.mixed.clone() };
        (!sources.is_empty()).then_some(report)
    }

    /// Adds a value, unless the label already has one.
    fn add(&mut self, key: &str, value: String, source: String) {
        if self.value(key).is_none() {
            let place = self.found.partition_point(|found| found.key.as_str() < key);
            self.found.insert(place, Found { key: key.to_owned(), value, source });
        }
    }
}

/// Looks for the values of `keys`, and makes no more look-ups than necessary.
///
/// `warnings` gets a line for each disagreement of workloads and each annotation that can't be read.
pub(crate) fn gather(
    service: &Service,
    namespace: &LazyNamespace<'_>,
    keys: &[&str],
    settings: &Settings,
    cluster: &dyn Cluster,
    warnings: &mut Vec<String>,
) -> Result<Evidence, LookupError> {
    let mut search = Search {
        keys,
        namespace: namespace.name(),
        cluster,
        nodes: Vec::new(),
        evidence: Evidence::default(),
        warnings,
    };
    search.os_annotation(&service.annotations, || format!("annotation {OS_ANNOTATION}"));
    if let Some(os) = search.evidence.value(OS_LABEL) {
        let mut known: Vec<&str> = Vec::new();
        for pool in &settings.pools {
            known.extend(pool.matches.node_labels.get(OS_LABEL).map(String::as_str));
        }
        // A system without a pool may be meant, so only a name that is almost that of a pool gets a hint.
        if let Some(nearest) = nearest_name(os, &known).filter(|nearest| *nearest != os) {
            let warning = format!("annotation {OS_ANNOTATION}: no pool is for {}: did you mean {nearest}?", quote(os));
            search.warnings.push(warning);
        }
    }
    if !service.selector.is_empty() {
        let (mut is_cut, mut is_incomplete) = (false, false);
        for kind in &settings.kinds {
            if search.is_complete() {
                break;
            }
            let selected = cluster.workloads(kind, search.namespace, settings.lookups, &service.selector)?;
            search.workloads(kind, &by_name(selected.workloads))?;
            let namespace = search.namespace;
            if selected.is_cut && !replace(&mut is_cut, true) {
                search.warnings.push(format!(
                    "namespace {namespace} has more workloads with these labels than one decision reads: some of kind \
                     {kind} or of a later kind were not examined"
                ));
            }
            if selected.is_incomplete && !replace(&mut is_incomplete, true) {
                search.warnings.push(format!(
                    "namespace {namespace} has more objects than clusterip keeps: some of kind {kind} are left out and \
                     were not examined"
                ));
            }
        }
    }
    if !search.is_complete()
        && let Some(meta) = namespace.get()?
    {
        search.namespace(&meta.annotations);
    }
    if keys.contains(&OS_LABEL) {
        search.evidence.add(OS_LABEL, settings.assume_os.clone(), ASSUMED_OS.to_owned());
    }
    Ok(search.evidence)
}

fn by_name(workloads: Vec<Workload>) -> Vec<Workload> {
    let mut sorted: Vec<Workload> = Vec::with_capacity(workloads.len());
    for workload in workloads {
        let place = sorted.partition_point(|other| other.name <= workload.name);
        sorted.insert(place, workload);
    }
    sorted
}

struct Search<'a> {
    keys: &'a [&'a str],
    namespace: &'a str,
    cluster: &'a dyn Cluster,
    nodes: Vec<NodeLabels>,
    evidence: Evidence,
    warnings: &'a mut Vec<String>,
}

const NODE: &str = "Node";

/// The labels of a Node, or the node selector of a RuntimeClass, looked up once; `None` if the object does not exist.
struct NodeLabels {
    /// The kind of the object, as messages show it.
    from: &'static str,
    name: String,
    labels: Option<Labels>,
}

impl<'a> Search<'a> {
    fn missing(&self) -> Vec<&'a str> {
        self.keys.iter().copied().filter(|key| self.evidence.value(key).is_none()).collect()
    }

    fn is_complete(&self) -> bool {
        self.missing().is_empty()
    }

    fn os_annotation(&mut self, annotations: &AnnotationMap, source: impl FnOnce() -> String) {
        if let Some(os) = annotations::os(annotations).filter(|_| self.keys.contains(&OS_LABEL)) {
            self.evidence.add(OS_LABEL, normal(OS_LABEL, &os), source());
        }
    }

    /// The first workload by name that has a value decides. The first workload with another value is named in a
    /// warning.
    fn workloads(&mut self, kind: &WorkloadKind, workloads: &[Workload]) -> Result<(), LookupError> {
        for key in self.missing() {
            let mut decided: Option<(String, String)> = None;
            for workload in workloads {
                let Some((value, beside)) = self.required_by(&workload.pod_spec, key, decided.is_none())? else {
                    continue;
                };
                let source = format!("{kind} {}/{}{beside}", self.namespace, workload.name);
                match &decided {
                    None => decided = Some((value, source)),
                    Some((first, other)) if *first != value => {
                        let disagree =
                            format!("{other} needs {key}={first}, {source} needs {value}: the first by name decides");
                        self.evidence.mixed.push(disagree.clone());
                        self.warnings.push(disagree);
                        break;
                    }
                    Some(_) => {}
                }
            }
            if let Some((value, source)) = decided {
                self.evidence.add(key, value, source);
            }
        }
        Ok(())
    }

    /// The value of a node label that Pods of this spec need, and the object it comes from if not the spec: the spec is
    /// asked first, then its RuntimeClass, then the Node that the Pod is bound to.
    fn required_by(
        &mut self,
        spec: &PodSpec,
        key: &str,
        undecided: bool,
    ) -> Result<Option<(String, String)>, LookupError> {
        if let Some(value) = spec.requires(key) {
            return Ok(Some((value, String::new())));
        }
        let sources = [("RuntimeClass", &spec.runtime_class, "with"), (NODE, &spec.node, "on")];
        for (from, name, with) in sources {
            if let Some(name) = name
                && let Some(value) = self.node_labels(from, name, undecided)?.and_then(|labels| labelled(labels, key))
            {
                return Ok(Some((value, format!(" {with} {from} {name}"))));
            }
        }
        Ok(None)
    }

    fn node_labels(&mut self, from: &'static str, name: &str, undecided: bool) -> Result<Option<&Labels>, LookupError> {
        /// The Pods of a Service may run on many Nodes. Once there is a value, a few Nodes are enough to find a
        /// disagreement.
        const COMPARED: usize = 8;
        let known = self.nodes.iter().position(|known| known.from == from && known.name == name);
        let index = match known {
            Some(index) => index,
            None if !undecided && self.nodes.len() >= COMPARED => return Ok(None),
            None => {
                let labels = match from {
                    NODE => self.cluster.node_labels(name)?,
                    _ => self.cluster.runtime_class_nodes(name)?,
                };
                // One warning for each kind is enough: there may be a Node for each of a hundred Pods.
                let first = !self.nodes.iter().any(|known| known.from == from && known.labels.is_none());
                if labels.is_none() && first {
                    self.warnings.push(format!("{from} {name} does not exist: its node labels are unknown"));
                }
                self.nodes.push(NodeLabels { from, name: name.to_owned(), labels });
                self.nodes.len() - 1
            }
        };
        Ok(self.nodes[index].labels.as_ref())
    }

    fn namespace(&mut self, annotations: &AnnotationMap) {
        let source = format!("Namespace {}", self.namespace);
        self.os_annotation(annotations, || source.clone());
        let Some(text) = annotations.get(NODE_SELECTOR_ANNOTATION) else { return };
        let (labels, bad) = annotations::node_selector(text);
        for part in bad {
            let reason = format!("{NODE_SELECTOR_ANNOTATION} has {}, which is not key=value", quote(part));
            self.warnings.push(format!("{source}: {reason}"));
        }
        for key in self.missing() {
            if let Some(value) = labelled(&labels, key) {
                self.evidence.add(key, value, source.clone());
            }
        }
    }
}
