//! The Service's Namespace, looked up at most once and only if a decision needs it.

use std::cell::OnceCell;

use crate::lookups::{Cluster, LookupError, NamespaceMeta};

/// A Namespace that is looked up on first use and then kept.
pub struct LazyNamespace<'c> {
    name: &'c str,
    cluster: &'c dyn Cluster,
    meta: OnceCell<Option<NamespaceMeta>>,
}

impl<'c> LazyNamespace<'c> {
    /// The Namespace of this name. The look-up happens in [`Self::get`].
    pub fn new(name: &'c str, cluster: &'c dyn Cluster) -> Self {
        Self { name, cluster, meta: OnceCell::new() }
    }

    /// The name of the Namespace.
    pub fn name(&self) -> &'c str {
        self.name
    }

    /// The labels and annotations of the Namespace; `None` if it does not exist.
    ///
    /// # Errors
    /// [`LookupError`] if the look-up fails; the next call tries again.
    pub fn get(&self) -> Result<Option<&NamespaceMeta>, LookupError> {
        if let Some(meta) = self.meta.get() {
            return Ok(meta.as_ref());
        }
        let meta = self.cluster.namespace(self.name)?;
        Ok(self.meta.get_or_init(|| meta).as_ref())
    }
}
