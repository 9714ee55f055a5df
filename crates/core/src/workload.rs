//! The kinds of objects whose Pods a Service can select, and on which nodes their Pods may run.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::json::{Located, TypeMismatch};
use crate::label_selector::{Labels, MAX_LABELS};

/// Where a kind keeps its Pod template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TemplateAt {
    /// The object is a Pod, so its own labels and spec count.
    Itself,
    /// `spec.template`
    Template,
    /// `spec.jobTemplate.spec.template`
    JobTemplate,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadKind {
    pub api_version: String,
    pub kind: String,
    pub template: TemplateAt,
}

/// The kinds that settings can name without group and version, in the order in which they are looked up.
const KNOWN: [(&str, &str, TemplateAt); 8] = [
    ("Deployment", "apps/v1", TemplateAt::Template),
    ("StatefulSet", "apps/v1", TemplateAt::Template),
    ("DaemonSet", "apps/v1", TemplateAt::Template),
    ("ReplicaSet", "apps/v1", TemplateAt::Template),
    ("ReplicationController", "v1", TemplateAt::Template),
    ("Job", "batch/v1", TemplateAt::Template),
    ("CronJob", "batch/v1", TemplateAt::JobTemplate),
    ("Pod", "v1", TemplateAt::Itself),
];

impl WorkloadKind {
    /// The names of the kinds that need no group and version, in the default order.
    pub fn known_names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|(kind, ..)| *kind)
    }

    /// All known kinds, in the default order.
    pub fn known() -> Vec<Self> {
        KNOWN
            .iter()
            .map(|&(kind, api_version, template)| Self { api_version: api_version.into(), kind: kind.into(), template })
            .collect()
    }

    /// The kind with its API version, such as `apps/v1/Deployment` or `v1/Pod`.
    pub fn resource(&self) -> String {
        format!("{}/{}", self.api_version, self.kind)
    }

    /// Parses a known name such as `Deployment`, or `group/version/Kind` for a custom resource with its Pod template at
    /// `spec.template`. `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut known = Self::known().into_iter();
        let parts: Vec<&str> = text.split('/').collect();
        let [group, version, kind] = parts[..] else { return known.find(|known| known.kind == text) };
        let api_version = format!("{group}/{version}");
        known.find(|known| known.api_version == api_version && known.kind == kind).or_else(|| {
            let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            let good = !group.is_empty()
                && group.chars().all(|c| lower(c) || c == '-' || c == '.')
                && version.starts_with('v')
                && version.chars().all(lower)
                && kind.starts_with(|c: char| c.is_ascii_uppercase())
                && kind.chars().all(|c| c.is_ascii_alphanumeric());
            good.then(|| Self { api_version, kind: kind.into(), template: TemplateAt::Template })
        })
    }
}

impl fmt::Display for WorkloadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)
    }
}

impl TemplateAt {
    pub const ALL: [Self; 3] = [Self::Itself, Self::Template, Self::JobTemplate];

    /// The place of the Pod template of a kind; `spec.template` for a kind that is not known by its name alone.
    pub fn of(api_version: &str, kind: &str) -> Self {
        let known = KNOWN.iter().find(|known| (known.1, known.0) == (api_version, kind));
        known.map_or(Self::Template, |known| known.2)
    }

    /// The path of the Pod template; empty if the object is a Pod itself.
    pub fn path(self) -> &'static [&'static str] {
        match self {
            Self::Itself => &[],
            Self::Template => &["spec", "template"],
            Self::JobTemplate => &["spec", "jobTemplate", "spec", "template"],
        }
    }

    /// Reads the labels and the spec of the Pods of an object with these `metadata.labels` and this `spec`; `None` if
    /// the object has no Pod template. The error is about the labels. Only a Pod itself is bound to a Node: a template
    /// that names one does not count.
    pub fn pods(self, labels: &Value, spec: &Value) -> Result<Option<Pods>, TypeMismatch> {
        let spec = Located::new(spec, "spec");
        if self == Self::Itself {
            let at = Located::new(labels, "metadata.labels");
            let labels = if labels.is_null() { Labels::new() } else { at.first(usize::MAX)? };
            return Ok(Some(Pods { labels, spec: PodSpec::read(&spec) }));
        }
        let Some(template) = spec.descend(&self.path()[1..])? else { return Ok(None) };
        let (labels, spec) = (template.at("metadata")?.map_of("labels")?, PodSpec::read(&template.at("spec")?));
        Ok(Some(Pods { labels, spec: spec.map(|spec| PodSpec { node: None, ..spec }) }))
    }
}

/// What an object says about its Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pods {
    pub labels: Labels,
    /// The spec of the Pods, or the mistake in it. It matters only to a Service that selects the Pods.
    pub spec: Result<PodSpec, TypeMismatch>,
}

/// An object whose Pods a Service selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub name: String,
    pub pod_spec: Arc<PodSpec>,
}

/// The limit for the terms, expressions and values of `In` of a required node affinity, counted together. An affinity
/// above the limit is ignored, so a cache need not keep it.
pub const MAX_AFFINITY_TERMS: usize = 256;

/// The node label of the operating system.
pub const OS_LABEL: &str = "kubernetes.io/os";
/// The name of the label before Kubernetes 1.14, which manifests still use.
const OS_LABEL_BETA: &str = "beta.kubernetes.io/os";

/// The fields of a Pod spec that restrict its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodSpec {
    /// `spec.os.name`: `linux` or `windows`
    pub os: Option<String>,
    /// `spec.nodeSelector`: the first [`MAX_LABELS`] by key.
    pub node_selector: Labels,
    /// The terms of `spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution`. A node must match at
    /// least one of them. Empty if they exceed [`MAX_AFFINITY_TERMS`].
    pub affinity: Vec<Term>,
    pub runtime_class: Option<String>,
    /// `spec.nodeName`, which is set once the Pod is bound.
    pub node: Option<String>,
}

/// A node selector term. A node must match all of its requirements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Term {
    /// The expressions with the operator `In`, each with its label and values. Only this operator can name a single
    /// value.
    pub one_of: Vec<(String, Vec<String>)>,
    /// Whether the term has any requirement, of any operator, about labels or fields.
    pub has_any: bool,
}

impl PodSpec {
    /// Reads the fields of a Pod spec; all other fields are ignored.
    pub fn read(spec: &Located<'_>) -> Result<Self, TypeMismatch> {
        let path = ["affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"];
        let mut affinity: Vec<Term> = match spec.descend(&path)? {
            Some(terms) => terms.items()?.map(|term| Term::read(&term)).collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        if affinity.iter().map(Term::size).sum::<usize>() > MAX_AFFINITY_TERMS {
            affinity.clear();
        }
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Ok(Self {
            os: spec.at("os")?.text_of("name")?.map(str::to_ascii_lowercase),
            node_selector: spec.first_of("nodeSelector", MAX_LABELS)?,
            affinity,
            runtime_class: owned(spec.text_of("runtimeClassName")?),
            node: owned(spec.text_of("nodeName")?),
        })
    }

    /// The value of the node label `key` that every node of these Pods has, according to the spec alone: from
    /// `os.name`, then `nodeSelector`, then required node affinity.
    pub fn requires(&self, key: &str) -> Option<String> {
        self.os
            .clone()
            .filter(|_| key == OS_LABEL)
            .or_else(|| labelled(&self.node_selector, key))
            .or_else(|| agreed(&self.affinity, key))
    }
}

/// The value of the label `key` in node labels, a node selector or the selector of a RuntimeClass. The operating system
/// is returned in lower case, and is taken from its old label if the new one is absent.
pub fn labelled(labels: &Labels, key: &str) -> Option<String> {
    labels
        .get(key)
        .or_else(|| labels.get(OS_LABEL_BETA).filter(|_| key == OS_LABEL))
        // An empty operating system is no value. Other labels often consist of their key only.
        .filter(|value| key != OS_LABEL || !value.is_empty())
        .map(|value| normal(key, value))
}

/// Operating systems are compared without regard to case.
pub(crate) fn normal(key: &str, value: &str) -> String {
    if key == OS_LABEL { value.to_ascii_lowercase() } else { value.to_owned() }
}

/// The one value that every term requires for `key`. Terms that no node can match do not count: those without
/// requirements (Kubernetes: a null or empty term matches no objects), and those that contradict themselves about this
/// key.
fn agreed(terms: &[Term], key: &str) -> Option<String> {
    let mut agreed: Option<String> = None;
    for term in terms {
        let mut values = term.allowed(key)?.into_iter();
        match (values.next(), values.next()) {
            (None, _) => {}
            (Some(value), None) if agreed.as_ref().is_none_or(|agreed| *agreed == value) => agreed = Some(value),
            _ => return None,
        }
    }
    agreed
}

impl Term {
    fn read(term: &Located<'_>) -> Result<Self, TypeMismatch> {
        let mut read = Self::default();
        if let Some(fields) = term.get("matchFields")? {
            read.has_any = fields.items()?.next().is_some();
        }
        if let Some(expressions) = term.get("matchExpressions")? {
            for expression in expressions.items()? {
                read.has_any = true;
                if expression.text_of("operator")? == Some("In") {
                    let values = expression.texts_of("values", MAX_AFFINITY_TERMS)?;
                    let values = values.into_iter().map(str::to_owned).collect();
                    read.one_of.push((expression.text_of("key")?.unwrap_or_default().to_owned(), values));
                }
            }
        }
        Ok(read)
    }

    /// How much the term counts towards [`MAX_AFFINITY_TERMS`].
    fn size(&self) -> usize {
        1 + self.one_of.iter().map(|(_, values)| 1 + values.len()).sum::<usize>()
    }

    /// The values of `key` with which a node can match this term; `None` if it can with any.
    fn allowed(&self, key: &str) -> Option<Vec<String>> {
        if !self.has_any {
            return Some(Vec::new());
        }
        let values = |wanted: &str| {
            let mut allowed: Option<Vec<String>> = None;
            for (_, values) in self.one_of.iter().filter(|(key, _)| key == wanted) {
                let mut these: Vec<String> = Vec::new();
                for value in values.iter().map(|value| normal(key, value)) {
                    if !these.contains(&value) && allowed.as_ref().is_none_or(|allowed| allowed.contains(&value)) {
                        these.push(value);
                    }
                }
                allowed = Some(these);
            }
            allowed
        };
        values(key).or_else(|| if key == OS_LABEL { values(OS_LABEL_BETA) } else { None })
    }
}
