//! The annotation of a Service on the move: everything that is needed to finish.
//!
//! Whoever may update a Service can write this annotation, so it is believed in nothing that he could
//! not do himself. It is acted upon only while the Service itself is in the state that a move leaves it
//! in; what it restores is written with the Service's own validation and admission, as if its author had
//! sent it; and its target is used only where the policy would give that address anyway. (So a policy
//! that forbids its users a kind of Service should except our user from no more than `ExternalName`.)
//! One that can't be read is taken off.

use std::net::IpAddr;

use clusterip_core::service::MOVING_ANNOTATION;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

/// The name in `phase` of a Service whose address is released and which has no new one yet.
pub const RELEASED: &str = "released";
/// The name in `phase` of a Service that has its new address, but not all the rest.
pub const PLACED: &str = "placed";

/// How far a move has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// [`RELEASED`]
    Released,
    /// [`PLACED`]
    Placed,
}

impl Phase {
    /// Its name in the annotation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Released => RELEASED,
            Self::Placed => PLACED,
        }
    }
}

/// How the old address is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Way {
    /// The Service is `type: ExternalName` for a moment, and has no address at all.
    ExternalName,
    /// It is single-stack for a moment: only its second address moves, the first is never away.
    SingleStack,
}

/// What a move remembers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journal {
    /// How far it has come.
    pub phase: Phase,
    /// How the old address is released.
    pub way: Way,
    /// The old addresses, primary first; none for a Service whose origin is forgotten.
    pub from: Vec<IpAddr>,
    /// The new ones; none where the API server picks.
    pub to: Vec<IpAddr>,
    /// Why it is moved.
    #[serde(default)]
    pub why: String,
    /// What did not go as ordered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The original `spec`, until it is back.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub spec: Map<String, Value>,
    /// What the API server makes of it in the meantime, so that changes of others can be told apart.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub released: Map<String, Value>,
    /// The original `metadata.managedFields`.
    #[serde(default)]
    pub managed_fields: Vec<Map<String, Value>>,
    /// The value of [`SOURCE_RANGES_ANNOTATION`], where it had to be taken out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ranges: Option<String>,
    /// `status.loadBalancer`, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<Map<String, Value>>,
}

/// The annotation that the API server allows on no other type than `LoadBalancer`.
pub const SOURCE_RANGES_ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// An annotation that is none of ours.
#[derive(Debug, Error)]
pub enum JournalError {
    /// It is not the JSON of a journal.
    #[error("the annotation {MOVING_ANNOTATION} can't be read: {0}")]
    Unreadable(#[source] serde_json::Error),
    /// It lacks what its phase needs, or says what can't be.
    #[error("the annotation {MOVING_ANNOTATION} is none of ours: {0}")]
    Impossible(&'static str),
}

impl Journal {
    /// The journal of a Service; nothing where it has none.
    ///
    /// # Errors
    /// [`JournalError`] for an annotation that this program did not write.
    pub fn of(service: &Value) -> Result<Option<Self>, JournalError> {
        let Some(text) = service.pointer("/metadata/annotations").and_then(|map| map.get(MOVING_ANNOTATION)) else {
            return Ok(None);
        };
        let text = text.as_str().ok_or(JournalError::Impossible("it is no text"))?;
        let journal: Self = serde_json::from_str(text).map_err(JournalError::Unreadable)?;
        match journal.flaw() {
            Some(flaw) => Err(JournalError::Impossible(flaw)),
            None => Ok(Some(journal)),
        }
    }

    fn flaw(&self) -> Option<&'static str> {
        let families = |addresses: &[IpAddr]| match addresses {
            [first, second] => first.is_ipv4() != second.is_ipv4(),
            _ => addresses.len() < 2,
        };
        if !families(&self.from) || !families(&self.to) {
            return Some("it names more than one address of a family");
        }
        match self.phase {
            Phase::Placed => None,
            Phase::Released if self.from.is_empty() => Some("it does not say where the Service was"),
            Phase::Released if self.way == Way::SingleStack && self.from.len() < 2 => {
                Some("it lacks the second address")
            }
            Phase::Released if !self.spec.get("type").is_none_or(|of| of.is_string() && of != "ExternalName") => {
                Some("its spec has no address")
            }
            Phase::Released if self.spec.is_empty() => Some("it lacks the spec"),
            Phase::Released => None,
        }
    }

    /// The value of the annotation.
    ///
    /// # Errors
    /// Where it can't be written as JSON, which its types rule out.
    pub fn text(&self) -> Result<String, JournalError> {
        serde_json::to_string(self).map_err(JournalError::Unreadable)
    }

    /// The same journal once the Service has its address back: without what is no longer needed.
    pub fn placed(self, to: Vec<IpAddr>, notes: Vec<String>) -> Self {
        Self { phase: Phase::Placed, to, notes, spec: Map::new(), released: Map::new(), ..self }
    }
}
