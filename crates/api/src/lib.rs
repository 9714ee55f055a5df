//! The custom resources of clusterip-policy, in the API group `clusterip-policy.io`. `deploy/crds` has their schemas.
//!
//! [`compile`] translates the objects into the settings document, which is all that the core and Kubewarden know.
//! [`objects()`] is the inverse. The fields of a pool are those of the document, and the core checks them, so that an
//! object and a document are refused for the same reasons in the same words.

mod compile;
mod document;
mod object_key;
mod status;

pub use self::compile::{Compilation, InUse, LabelledRanges, ObjectState, Objects, compile, in_use_before};
pub use self::document::{mistake_of_type, not_in_document, not_in_objects, objects};
pub use self::object_key::{Kind, ObjectKey, field_of, in_words_of_objects, mistakes_of_objects, reason_of_object};
pub use self::status::{
    AddressCounts, Blocks, PoolAddresses, READY, Reason, ReservationHolder, ReservationStatus, range_summary,
};

pub const GROUP: &str = "clusterip-policy.io";
pub const VERSION: &str = "v1alpha1";
