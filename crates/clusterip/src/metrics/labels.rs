//! By what measurements are told apart.

use std::fmt::{self, Write as _};

use clusterip_core::answer::Outcome;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};

/// An enum whose values are label values.
macro_rules! label_values {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$meaning])* $value,)+ }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$value,)+];

            /// As it is exposed.
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
    /// What an admission request is about.
    About {
        /// A Service.
        Service = "Service",
        /// A Node, or a part of one.
        Node = "Node",
        /// Something that nobody should ask about.
        Other = "other",
    }
}

label_values! {
    /// How an admission request ended.
    Decision {
        /// It got an address of a pool.
        Allocated = "allocated",
        /// It went on unchanged.
        Left = "left",
        /// It was refused.
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
    /// How a move ended.
    MoveResult {
        /// The Service has an address of the right pool.
        Moved = "moved",
        /// It has its old address again: no other could be had.
        Kept = "kept",
        /// It has one that the API server picked: not even the old one could be had.
        Unmanaged = "unmanaged",
        /// A user changed the Service meanwhile, and won.
        UserChanged = "user_changed",
        /// There was nothing to move any more.
        Nothing = "nothing",
        /// It could not be ended, and is tried again.
        Failed = "failed",
    }
}

label_values! {
    /// What is done about a misplaced Service, and why.
    Misplaced {
        /// It is moved, or waits for its turn.
        Moving = "moving",
        /// Its address was set by hand.
        ByHand = "by_hand",
        /// It has ready endpoints where it is.
        ReadyEndpoints = "ready_endpoints",
        /// It is a load balancer.
        LoadBalancer = "load_balancer",
        /// Its annotation, or the command line, says never.
        Never = "never",
        /// Its pool has no free address.
        PoolFull = "pool_full",
        /// A brake is on: too many moves at once.
        Brake = "brake",
        /// The control plane calls it.
        ControlPlane = "control_plane",
        /// It looks half moved, and no move of it is recorded.
        NotRecorded = "not_recorded",
    }
}

label_values! {
    /// What came of claiming an address.
    ClaimResult {
        /// It is claimed.
        Claimed = "claimed",
        /// It is claimed, and was another's who did not use it.
        TakenOver = "taken_over",
        /// Another replica was faster.
        Taken = "taken",
        /// The API server did not say whether it is.
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
