//! The temporary Services of a seamless move: their names, whether an object is one of them, and what they contain.

use std::hash::Hasher;
use std::net::IpAddr;

use clusterip_core::annotations::{MOVING_NAME, SWAPPED_ANNOTATION, TEMPORARY_LABEL};
use clusterip_core::label_selector::Labels;
use clusterip_core::service::addresses;
use serde_json::Value;
use siphasher::sip::SipHasher24;

use crate::journal::{Journal, Plan};
use crate::step::{annotation, is_being_deleted, text};

const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
pub(crate) const MANAGED_BY: &str = "clusterip";
/// For how many seconds after its record a move may begin the grace period. A later time was not written by a move.
const MAX_UNTIL_SWAP: i64 = 600;

/// The role of a temporary Service. It is the value of [`TEMPORARY_LABEL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Has the new addresses until the Service gets them.
    New,
    /// Has the old addresses for the grace period.
    Old,
    /// Its changes make kube-proxy wait for the swaps.
    Trigger,
}

impl Role {
    pub const ALL: [Self; 3] = [Self::New, Self::Old, Self::Trigger];

    /// The labels of the temporary Service of this role.
    pub fn labels(self) -> Labels {
        [(MANAGED_BY_LABEL, MANAGED_BY), (TEMPORARY_LABEL, self.as_str())]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Old => "old",
            Self::Trigger => "trigger",
        }
    }

    /// The name of the temporary Service of this role, for the Service with this UID.
    pub fn name(self, uid: &str) -> String {
        let mut hasher = SipHasher24::new();
        hasher.write(uid.as_bytes());
        let hash = format!("{:016x}", hasher.finish());
        format!("clusterip-{}-{}", self.as_str(), &hash[..10])
    }
}

impl Plan {
    pub fn new(namespace: &str, uid: &str, server_namespace: &str, cluster_domain: &str, grace: i64) -> Self {
        let old = Role::Old.name(uid);
        Self {
            external_name: format!("{old}.{namespace}.svc.{cluster_domain}"),
            new: Role::New.name(uid),
            old,
            trigger: Role::Trigger.name(uid),
            server_namespace: server_namespace.to_owned(),
            grace,
        }
    }

    /// The external name of `old` while it has no address: the name of `new`. It never resolves in a move that an earlier
    /// version recorded, whose Service points at `new` itself.
    pub(crate) fn external_name_of_old(&self) -> String {
        let after_name = self.external_name.strip_prefix(&self.old);
        after_name.map_or_else(|| MOVING_NAME.to_owned(), |rest| format!("{}{rest}", self.new))
    }

    pub fn place<'p>(&'p self, role: Role, journal: &'p Journal) -> (&'p str, &'p str) {
        match role {
            Role::New => (&journal.namespace, &self.new),
            Role::Old => (&journal.namespace, &self.old),
            Role::Trigger => (&self.server_namespace, &self.trigger),
        }
    }
}

/// An object with the name of a temporary Service.
#[derive(Clone, Copy, Debug)]
pub enum Temporary<'v> {
    Absent,
    /// It was created by this move, or by an earlier move of the same Service.
    Ours(&'v Value),
    /// It belongs to another client, and is not changed.
    Foreign,
}

impl<'v> Temporary<'v> {
    pub fn of(object: Option<&'v Value>, role: Role, journal: &Journal) -> Self {
        match object {
            None => Self::Absent,
            Some(object) if is_of_move(object, role, journal) => Self::Ours(object),
            Some(_) => Self::Foreign,
        }
    }

    /// Whether the object may be changed and deleted.
    pub fn is_ours(&self) -> bool {
        matches!(self, Self::Ours(_))
    }

    /// Whether it is ours, and has exactly these addresses.
    pub fn is_at(&self, at: &[IpAddr]) -> bool {
        matches!(self, Self::Ours(object) if addresses(object) == at && !is_being_deleted(object))
    }

    /// Whether it is ours, and has one of these addresses.
    pub fn has_any(&self, wanted: &[IpAddr]) -> bool {
        matches!(self, Self::Ours(object) if addresses(object).iter().any(|address| wanted.contains(address)))
    }

    /// Whether it is ours, is `old`, and has released its address.
    pub fn is_released(&self, journal: &Journal) -> bool {
        let (Self::Ours(object), Some(plan)) = (self, &journal.seamless) else { return false };
        text(object, "type") == Some("ExternalName")
            && text(object, "externalName") == Some(plan.external_name_of_old().as_str())
    }
}

/// Whether an object was created for this move. Tenants can write such labels and owners too, but only on Services of
/// their own namespace, and `clusterip` does nothing with these that they could not do.
fn is_of_move(object: &Value, role: Role, journal: &Journal) -> bool {
    let mut owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array).into_iter().flatten();
    // An owner must be in the same namespace, so `trigger` has none. Its name contains the hash of the UID.
    let is_owned = role == Role::Trigger
        || owners.any(|owner| owner.get("uid").and_then(Value::as_str) == Some(journal.uid.as_str()));
    has_labels_of(|key| object.get("metadata")?.get("labels")?.get(key)?.as_str(), role) && is_owned
}

/// Whether a Service looks like a temporary one of any move. Reports leave such Services out. The policy
/// temporary-services.clusterip-policy.io keeps the label from tenants; without it, they can keep a Service out of
/// reports, but not from being moved.
pub fn looks_temporary<'s>(name: &str, label: impl Fn(&str) -> Option<&'s str>) -> bool {
    let has_name_of = |role: Role| {
        let hash = name.strip_prefix("clusterip-").and_then(|rest| rest.strip_prefix(role.as_str())?.strip_prefix('-'));
        hash.is_some_and(|hash| hash.len() == 10 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    Role::ALL.into_iter().any(|role| has_labels_of(&label, role) && has_name_of(role))
}

fn has_labels_of<'s>(label: impl Fn(&str) -> Option<&'s str>, role: Role) -> bool {
    label(TEMPORARY_LABEL) == Some(role.as_str()) && label(MANAGED_BY_LABEL) == Some(MANAGED_BY)
}

/// When the grace period of `old` began, in seconds since 1970; `None` if it has not begun, or if the annotation has a
/// time that no move can have written.
pub(crate) fn grace_begin(old: &Temporary<'_>, journal: &Journal) -> Option<i64> {
    let Temporary::Ours(old) = old else { return None };
    let written = annotation(old, SWAPPED_ANNOTATION)?.parse().ok()?;
    may_begin_grace(written, journal).then_some(written)
}

/// Whether the grace period may begin at this time. A user who writes the annotation can't keep the address longer than
/// a move that takes its longest time.
pub(crate) fn may_begin_grace(time: i64, journal: &Journal) -> bool {
    (journal.recorded_at..=journal.recorded_at.saturating_add(MAX_UNTIL_SWAP)).contains(&time)
}

/// When the grace period of `old` ends, in seconds since 1970. Without a valid beginning, it counts from the record.
pub(crate) fn grace_end(old: &Temporary<'_>, journal: &Journal) -> i64 {
    grace_begin(old, journal).unwrap_or(journal.recorded_at).saturating_add(grace(journal))
}

/// When the grace period has ended in any case, in seconds since 1970. If the last steps of the move are still refused
/// then, its temporary Services are deleted.
pub fn latest_grace_end(journal: &Journal) -> i64 {
    journal.recorded_at.saturating_add(MAX_UNTIL_SWAP).saturating_add(grace(journal))
}

fn grace(journal: &Journal) -> i64 {
    journal.seamless.as_ref().map_or(0, |plan| plan.grace)
}
