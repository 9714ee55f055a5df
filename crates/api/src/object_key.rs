//! The identity of an object of this API.

use std::fmt;

use kube::core::ApiResource;
use serde_json::Value;

use crate::{ClusterIPPolicy, ExternalPool, GROUP, NodeBlockPool, ServicePool};

/// The kinds of this API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Pools of ClusterIPs.
    ServicePool,
    /// Pools of external addresses.
    ExternalPool,
    /// Pools of pod CIDRs for Nodes.
    NodeBlockPool,
    /// The settings that belong to no pool.
    ClusterIPPolicy,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::ServicePool, Self::ExternalPool, Self::NodeBlockPool, Self::ClusterIPPolicy];

    /// The kind as manifests have it, such as `ServicePool`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ServicePool => "ServicePool",
            Self::ExternalPool => "ExternalPool",
            Self::NodeBlockPool => "NodeBlockPool",
            Self::ClusterIPPolicy => "ClusterIPPolicy",
        }
    }

    /// The group, version, kind and plural, for a client without types.
    pub fn api_resource(self) -> ApiResource {
        match self {
            Self::ServicePool => ApiResource::erase::<ServicePool>(&()),
            Self::ExternalPool => ApiResource::erase::<ExternalPool>(&()),
            Self::NodeBlockPool => ApiResource::erase::<NodeBlockPool>(&()),
            Self::ClusterIPPolicy => ApiResource::erase::<ClusterIPPolicy>(&()),
        }
    }

    /// The kind with this name; `None` if it is not one of this API. The opposite of [`Self::as_str`].
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// The kind and the name of an object. No object of this API has a namespace. Displayed as `ServicePool linux`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// `kind`.
    pub kind: Kind,
    /// `metadata.name`.
    pub name: String,
}

impl ObjectKey {
    /// The only ClusterIPPolicy that is read: `default`.
    pub fn policy() -> Self {
        Self { kind: Kind::ClusterIPPolicy, name: "default".to_owned() }
    }

    /// The key of an object in JSON; `None` if it is not an object of this API, or has no name.
    pub fn of(object: &Value) -> Option<Self> {
        let (group, _) = object.get("apiVersion")?.as_str()?.split_once('/')?;
        if group != GROUP {
            return None;
        }
        let kind = Kind::parse(object.get("kind")?.as_str()?)?;
        Some(Self { kind, name: object.pointer("/metadata/name")?.as_str()?.to_owned() })
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.name)
    }
}
