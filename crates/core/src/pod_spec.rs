//! Reads from a Pod template on which nodes its Pods may run.

use crate::json::{Located, TypeMismatch};
use crate::label_selector::{Labels, MAX_LABELS};

/// The limit for the terms, expressions and values of `In` of a required node affinity, counted together. An affinity
/// above the limit is ignored, so a cache need not keep it.
pub const MAX_AFFINITY_TERMS: usize = 256;

/// The node label of the operating system.
pub const OS_LABEL: &str = "kubernetes.io/os";
/// The name of the label before Kubernetes 1.14, which manifests still use.
const OS_LABEL_BETA: &str = "beta.kubernetes.io/os";

/// The fields of a Pod spec that restrict its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSpec {
    /// `spec.os.name`: `linux` or `windows`
    pub os: Option<String>,
    /// `spec.nodeSelector`: the first [`MAX_LABELS`] by key.
    pub node_selector: Labels,
    /// The terms of `spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution`. A node must match at
    /// least one of them. Empty if they exceed [`MAX_AFFINITY_TERMS`].
    pub affinity: Vec<Term>,
    /// `spec.runtimeClassName`
    pub runtime_class: Option<String>,
    /// `spec.nodeName`, which is set once the Pod is bound
    pub node: Option<String>,
}

/// A node selector term. A node must match all of its requirements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
        let os = spec.get("os")?;
        Ok(Self {
            os: os.map_or(Ok(None), |os| os.text_of("name"))?.map(str::to_ascii_lowercase),
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
        match term.allows(key) {
            Allowed::Nothing => {}
            Allowed::Anything => return None,
            Allowed::These(values) => {
                let mut values = values.into_iter();
                let (value, None) = (values.next()?, values.next()) else { return None };
                if agreed.as_ref().is_some_and(|agreed| *agreed != value) {
                    return None;
                }
                agreed = Some(value);
            }
        }
    }
    agreed
}

enum Allowed {
    Nothing,
    Anything,
    These(Vec<String>),
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
                    let values = expression.texts_of("values")?.into_iter().map(str::to_owned).collect();
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

    /// The values of `key` with which a node can match this term.
    fn allows(&self, key: &str) -> Allowed {
        if !self.has_any {
            return Allowed::Nothing;
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
        match values(key).or_else(|| if key == OS_LABEL { values(OS_LABEL_BETA) } else { None }) {
            None => Allowed::Anything,
            Some(values) if values.is_empty() => Allowed::Nothing,
            Some(values) => Allowed::These(values),
        }
    }
}
