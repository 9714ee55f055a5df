//! The Service's Namespace, asked for once and only where it matters.

use std::cell::OnceCell;

use crate::cluster::{Cluster, LookupError, NamespaceMeta};

/// A Namespace that is looked up when it is first asked for, once.
pub struct NamespaceOnce<'c> {
    name: &'c str,
    cluster: &'c dyn Cluster,
    meta: OnceCell<Option<NamespaceMeta>>,
}

impl<'c> NamespaceOnce<'c> {
    /// The Namespace of this name; asks nothing yet.
    pub fn new(name: &'c str, cluster: &'c dyn Cluster) -> Self {
        Self { name, cluster, meta: OnceCell::new() }
    }

    /// Its name.
    pub fn name(&self) -> &'c str {
        self.name
    }

    /// What it says, if it exists.
    ///
    /// # Errors
    /// [`LookupError`] where the look-up fails; the next call tries again.
    pub fn get(&self) -> Result<Option<&NamespaceMeta>, LookupError> {
        if let Some(meta) = self.meta.get() {
            return Ok(meta.as_ref());
        }
        let meta = self.cluster.namespace(self.name)?;
        Ok(self.meta.get_or_init(|| meta).as_ref())
    }
}
