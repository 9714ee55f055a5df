//! The version of a Lease.

use k8s_openapi::api::coordination::v1::Lease;

/// UID and resource version of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The UID.
    pub uid: String,
    /// The resource version.
    pub resource_version: String,
}

impl Version {
    /// The version of this Lease; empty texts where it has none.
    pub fn of(lease: &Lease) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self { uid: text(&lease.metadata.uid), resource_version: text(&lease.metadata.resource_version) }
    }

    /// Whether this version is certainly older than another one. A watch may deliver a version that is older than the
    /// answer to a write. An agent that used the older version would be wrong for a moment, though never unsafe.
    pub fn is_older_than(&self, other: &Self) -> bool {
        let number = |version: &Self| version.resource_version.parse::<u64>().ok();
        matches!((number(self), number(other)), (Some(mine), Some(other)) if mine < other)
    }

    /// A Lease that replaces this version, and no other: the API server refuses it otherwise.
    pub fn replace_with(&self, lease: &mut Lease) {
        lease.metadata.uid = Some(self.uid.clone());
        lease.metadata.resource_version = Some(self.resource_version.clone());
    }
}
