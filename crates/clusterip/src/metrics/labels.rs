//! The labels of the metrics.

use std::fmt::{self, Write as _};

use clusterip_core::answer::Outcome;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};

/// Defines an enum whose values are label values.
macro_rules! label_values {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$meaning])* $value,)+ }

        impl $name {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$value,)+];

            /// The label value.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $text,)+ }
            }
        }

        impl EncodeLabelValue for $name {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
                encoder.write_str(self.as_str())
            }
        }
    };
}

pub(super) use label_values;

label_values! {
    /// The kind of object that an admission request is about.
    About {
        /// A Service.
        Service = "Service",
        /// A Node, or a subresource of one.
        Node = "Node",
        /// Any other kind, for which the webhook should not be registered.
        Other = "other",
    }
}

label_values! {
    /// The result of an admission request.
    Decision {
        /// The object got an address of a pool.
        Allocated = "allocated",
        /// The request was allowed without a change.
        Left = "left",
        /// The request was denied.
        Denied = "denied",
        /// The policy did not answer.
        Error = "error",
    }
}

impl From<Outcome> for Decision {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Allocated => Self::Allocated,
            Outcome::Left => Self::Left,
            Outcome::Denied => Self::Denied,
        }
    }
}

label_values! {
    /// The result of a move.
    MoveResult {
        /// The Service has an address of the right pool.
        Moved = "moved",
        /// The Service has its old address again, because no other was available.
        Kept = "kept",
        /// The Service has an address that the API server picked, because not even the old one was available.
        Unmanaged = "unmanaged",
        /// A user changed the Service during the move; the change was kept.
        UserChanged = "user_changed",
        /// There was nothing left to move.
        Nothing = "nothing",
        /// The move could not be completed, and is tried again.
        Failed = "failed",
    }
}

label_values! {
    /// What happens with a misplaced Service, and why.
    Misplaced {
        /// The Service is being moved, or waits for its turn.
        Moving = "moving",
        /// The address was set by hand.
        ByHand = "by_hand",
        /// The Service has ready endpoints with the present address.
        ReadyEndpoints = "ready_endpoints",
        /// The Service is a load balancer.
        LoadBalancer = "load_balancer",
        /// The annotation of the Service, or the command line, forbids moves.
        Never = "never",
        /// The pool has no free address.
        PoolFull = "pool_full",
        /// A brake of the controller stops the move for now.
        Brake = "brake",
        /// The control plane calls the Service.
        ControlPlane = "control_plane",
        /// The Service looks half moved, but no move of it is recorded.
        NotRecorded = "not_recorded",
    }
}

label_values! {
    /// The result of claiming an address.
    ClaimResult {
        /// The address is claimed.
        Claimed = "claimed",
        /// The address is claimed; the claim of another replica that did not use it was taken over.
        TakenOver = "taken_over",
        /// Another replica was faster.
        Taken = "taken",
        /// The API server did not say whether the address is claimed.
        Failed = "failed",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ClaimLabels {
    pub(super) result: ClaimResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReplicaLabels {
    pub(super) settings: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct AdmissionLabels {
    pub(super) kind: About,
    pub(super) decision: Decision,
    pub(super) pool: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PoolFamilyLabels {
    pub(super) pool: String,
    pub(super) family: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PoolLabels {
    pub(super) pool: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct MoveLabels {
    pub(super) result: MoveResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct MisplacedLabels {
    pub(super) reason: Misplaced,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct KindLabels {
    pub(super) kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct HashLabels {
    pub(super) hash: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ResultLabels {
    pub(super) result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct VersionLabels {
    pub(super) version: &'static str,
}
