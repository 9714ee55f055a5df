//! The kinds of objects whose Pods a Service can select.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::json::{Located, TypeMismatch};
use crate::label_selector::{Labels, selects};
use crate::pod_spec::PodSpec;

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

/// A kind of workload, with the information to look it up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadKind {
    /// Group and version, such as `apps/v1`, or `v1` for the core group.
    pub api_version: String,
    /// The kind, such as `Deployment`.
    pub kind: String,
    /// The place of its Pod template.
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
        let parts: Vec<&str> = text.split('/').collect();
        match parts.as_slice() {
            [name] => Self::known().into_iter().find(|known| known.kind == *name),
            [group, version, kind] => {
                let api_version = format!("{group}/{version}");
                let known =
                    Self::known().into_iter().find(|known| known.api_version == api_version && known.kind == *kind);
                known.or_else(|| {
                    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
                    let good = !group.is_empty()
                        && group.chars().all(|c| lower(c) || c == '-' || c == '.')
                        && version.starts_with('v')
                        && version.chars().all(lower)
                        && kind.starts_with(|c: char| c.is_ascii_uppercase())
                        && kind.chars().all(|c| c.is_ascii_alphanumeric());
                    good.then(|| Self { api_version, kind: (*kind).into(), template: TemplateAt::Template })
                })
            }
            _ => None,
        }
    }
}

impl fmt::Display for WorkloadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)
    }
}

impl TemplateAt {
    /// The place of the Pod template of a kind; `spec.template` for a kind that is not known by its name alone.
    pub fn of(api_version: &str, kind: &str) -> Self {
        let known = KNOWN.iter().find(|known| (known.1, known.0) == (api_version, kind));
        known.map_or(Self::Template, |known| known.2)
    }

    /// Reads the Pod spec of an object with these `metadata.labels` and this `spec`; `None` if the labels of its Pods
    /// do not match `selector`. Only a Pod itself is bound to a Node: a template that names one does not count.
    pub fn selected(self, labels: &Value, spec: &Value, selector: &Labels) -> Result<Option<PodSpec>, TypeMismatch> {
        match self.template(labels, spec)? {
            Some((labels, spec)) if selects(selector, &labels) => self.pod_spec(spec.as_ref()).map(Some),
            _ => Ok(None),
        }
    }

    /// Reads the labels and the spec of the Pods of an object with these `metadata.labels` and this `spec`; `None` if
    /// the object has no Pod template.
    ///
    /// # Errors
    /// [`TypeMismatch`] if the labels can't be read.
    pub fn pods(self, labels: &Value, spec: &Value) -> Result<Option<Pods>, TypeMismatch> {
        let template = self.template(labels, spec)?;
        Ok(template.map(|(labels, spec)| Pods { labels, spec: self.pod_spec(spec.as_ref()) }))
    }

    fn template<'v>(
        self,
        labels: &'v Value,
        spec: &'v Value,
    ) -> Result<Option<(Labels, Option<Located<'v>>)>, TypeMismatch> {
        let spec = Located::new(spec, "spec");
        let template = match self {
            Self::Itself if labels.is_null() => return Ok(Some((Labels::new(), Some(spec)))),
            Self::Itself => return Ok(Some((Located::new(labels, "metadata.labels").map()?, Some(spec)))),
            Self::Template => spec.get("template")?,
            Self::JobTemplate => spec.descend(&["jobTemplate", "spec", "template"])?,
        };
        let Some(template) = template else { return Ok(None) };
        let labels = template.get("metadata")?.map_or(Ok(Labels::new()), |metadata| metadata.map_of("labels"))?;
        Ok(Some((labels, template.get("spec")?)))
    }

    fn pod_spec(self, spec: Option<&Located<'_>>) -> Result<PodSpec, TypeMismatch> {
        let read = spec.map_or(Ok(PodSpec::default()), PodSpec::read)?;
        Ok(if self == Self::Itself { read } else { PodSpec { node: None, ..read } })
    }
}

/// What an object says about its Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pods {
    /// The labels of the Pods.
    pub labels: Labels,
    /// The spec of the Pods, or the mistake in it. It matters only to a Service that selects the Pods.
    pub spec: Result<PodSpec, TypeMismatch>,
}

/// An object whose Pods a Service selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The name of the object.
    pub name: String,
    /// The Pod spec of its template.
    pub pod_spec: Arc<PodSpec>,
}
