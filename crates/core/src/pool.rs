//! Which pool is a Service's?

use thiserror::Error;

use crate::annotations::{self, POOL_ANNOTATION};
use crate::cluster::{Cluster, LookupError};
use crate::evidence::{self, Evidence, Report};
use crate::json::quote;
use crate::namespace::NamespaceOnce;
use crate::service::Service;
use crate::settings::{Fence, Pool, Settings};

/// The pool of a Service, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<'s> {
    /// Its pool; none where no pool is for it.
    pub pool: Option<&'s Pool>,
    /// What is known of its nodes: nothing where no pool that could be its own asks about nodes.
    pub evidence: Evidence,
    /// What else made it this pool, where nothing about nodes did.
    pub otherwise: Option<String>,
}

impl Choice<'_> {
    /// Why it is this pool, or none; nothing where there is nothing to say.
    pub fn report(&self) -> Option<Report> {
        match &self.otherwise {
            _ if !self.evidence.is_empty() => Some(self.evidence.report()),
            Some(source) => Some(Report { source: source.clone(), ..Report::default() }),
            None => None,
        }
    }

    /// The same in one line.
    pub fn describe(&self) -> String {
        match &self.otherwise {
            Some(source) if self.evidence.is_empty() => source.clone(),
            _ => self.evidence.describe(),
        }
    }
}

/// Why no pool could be chosen.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A look-up failed.
    #[error("{source}; {}", .source.way_out())]
    Lookup {
        /// The failure.
        #[from]
        source: LookupError,
    },
    /// The annotation names a pool that is not there.
    #[error("annotation {POOL_ANNOTATION} names pool {name}, which is unknown: known are {known}")]
    Unknown {
        /// The name, in quotes.
        name: String,
        /// All pools.
        known: String,
    },
    /// The annotation names a pool that is not for this Service.
    #[error(
        "annotation {POOL_ANNOTATION} names pool {pool:?}, which does not admit this Service: {fence} does not match"
    )]
    Fenced {
        /// The pool.
        pool: String,
        /// The condition that does not hold.
        fence: &'static str,
    },
}

/// Chooses the pool: the first one, in the order of the settings, whose `match` matches.
///
/// Nodes are looked into only as far as a pool that admits the Service asks about them. The annotation
/// `clusterip-policy/pool` takes the place of what is known about nodes, never of the other conditions:
/// those are what fences one team's pool off from another.
///
/// # Errors
/// [`Refusal`] where a look-up fails, or the annotation names a pool that can't be had.
pub fn choose<'s>(
    service: &Service,
    namespace: &NamespaceOnce<'_>,
    settings: &'s Settings,
    cluster: &dyn Cluster,
    warnings: &mut Vec<String>,
) -> Result<Choice<'s>, Refusal> {
    if let Some(name) = annotations::pool(&service.annotations) {
        let pool = named(&name, service, namespace, settings)?;
        let otherwise = Some(format!("annotation {POOL_ANNOTATION}"));
        return Ok(Choice { pool: Some(pool), evidence: Evidence::default(), otherwise });
    }
    let mut admitting: Vec<&Pool> = Vec::new();
    for pool in &settings.pools {
        if broken(&pool.matches.fence, service, namespace)?.is_none() {
            admitting.push(pool);
            if pool.matches.node_labels.is_empty() {
                // Whatever comes behind it can't be reached.
                break;
            }
        }
    }
    let mut keys: Vec<&str> = Vec::new();
    for key in admitting.iter().flat_map(|pool| pool.matches.node_labels.keys()) {
        if !keys.contains(&key.as_str()) {
            keys.push(key);
        }
    }
    let evidence = if keys.is_empty() {
        Evidence::default()
    } else {
        evidence::gather(service, namespace, &keys, settings, cluster, warnings)?
    };
    let fits =
        |pool: &&Pool| pool.matches.node_labels.iter().all(|(key, value)| evidence.value(key) == Some(value.as_str()));
    let pool = admitting.into_iter().find(fits);
    let otherwise = pool.filter(|_| evidence.is_empty()).map(|pool| fences(&pool.matches.fence, namespace.name()));
    Ok(Choice { pool, evidence, otherwise })
}

fn named<'s>(
    name: &str,
    service: &Service,
    namespace: &NamespaceOnce<'_>,
    settings: &'s Settings,
) -> Result<&'s Pool, Refusal> {
    let Some(pool) = settings.pool(name) else {
        let known: Vec<&str> = settings.pools.iter().map(|pool| pool.name.as_str()).collect();
        return Err(Refusal::Unknown { name: quote(name), known: known.join(", ") });
    };
    match broken(&pool.matches.fence, service, namespace)? {
        None => Ok(pool),
        Some(fence) => Err(Refusal::Fenced { pool: pool.name.clone(), fence }),
    }
}

/// The conditions of a pool that are not about nodes, in words.
pub(crate) fn fences(fence: &Fence, namespace: &str) -> String {
    let mut conditions: Vec<String> = Vec::new();
    if !fence.namespaces.is_empty() {
        conditions.push(format!("namespace {namespace}"));
    }
    if !fence.namespace_selector.is_empty() {
        conditions.push(format!("labels of namespace {namespace}"));
    }
    if !fence.service_selector.is_empty() {
        conditions.push("labels of the Service".to_owned());
    }
    if conditions.is_empty() { "default".to_owned() } else { conditions.join(", ") }
}

/// The condition of `fence` that does not hold, if there is one.
pub(crate) fn broken(
    fence: &Fence,
    service: &Service,
    namespace: &NamespaceOnce<'_>,
) -> Result<Option<&'static str>, LookupError> {
    /// The API server gives every Namespace this label.
    const NAME_LABEL: &str = "kubernetes.io/metadata.name";
    if !fence.namespaces.is_empty() && !fence.namespaces.iter().any(|name| name == namespace.name()) {
        return Ok(Some("namespaces"));
    }
    if !fence.service_selector.matches(&service.labels) {
        return Ok(Some("serviceSelector"));
    }
    if !fence.namespace_selector.is_empty() {
        let mut labels = namespace.get()?.map(|meta| meta.labels.clone()).unwrap_or_default();
        labels.insert(NAME_LABEL.to_owned(), namespace.name().to_owned());
        if !fence.namespace_selector.matches(&labels) {
            return Ok(Some("namespaceSelector"));
        }
    }
    Ok(None)
}
