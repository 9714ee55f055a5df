//! The version of a Lease.

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Preconditions;

/// UID and resource version of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) uid: String,
    pub(super) resource_version: String,
}

impl Version {
    pub(super) fn of(lease: &Lease) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self { uid: text(&lease.metadata.uid), resource_version: text(&lease.metadata.resource_version) }
    }

    /// Whether this version is certainly older than another one. A watch may deliver a version that is older than the
    /// answer to a write. An agent that used the older version would be wrong for a moment, though never unsafe.
    pub(super) fn is_older_than(&self, other: &Self) -> bool {
        let number = |version: &Self| version.resource_version.parse::<u64>().ok();
        matches!((number(self), number(other)), (Some(mine), Some(other)) if mine < other)
    }

    /// Preconditions that limit a request to this version.
    pub(super) fn preconditions(&self) -> Preconditions {
        Preconditions { uid: Some(self.uid.clone()), resource_version: Some(self.resource_version.clone()) }
    }
}
